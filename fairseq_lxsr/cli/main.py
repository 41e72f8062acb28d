"""The `lxsr` command."""

import argparse
import sys
from collections.abc import Sequence

from fairseq_lxsr import __version__
from fairseq_lxsr.cli import compare, corpus, embed, evaluate, export_model, mine, prepare, report, search
from fairseq_lxsr.errors import exit_on_input_error

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; bad input ends with one line and exit status 2."""
    parser = argparse.ArgumentParser(prog="lxsr", description="Cross-lingual sentence embeddings.")
    parser.add_argument("--version", action="version", version=f"fairseq-lxsr {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for add_parser in (
        corpus.add_parser,
        prepare.add_parser,
        export_model.add_parser,
        embed.add_parser,
        evaluate.add_parser,
        compare.add_parser,
        mine.add_parser,
        search.add_index_parser,
        search.add_search_parser,
        report.add_parser,
    ):
        add_parser(verbs)
    args = parser.parse_args(arguments)
    with exit_on_input_error("lxsr"):
        try:
            args.run(args)
        except KeyboardInterrupt:
            print("lxsr: interrupted; nothing half-written was left", file=sys.stderr)
            sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
