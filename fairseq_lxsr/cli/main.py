"""The `lxsr` command."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import exit_on_input_error

INTERRUPTED = 130
# the module of each verb; only that of the verb at hand is imported, torch takes seconds and 250 MB
MODULES = {
    "corpus": "corpus",
    "clean": "prepare",
    "subwords": "prepare",
    "binarise": "prepare",
    "prepare": "prepare",
    "export-model": "export_model",
    "embed": "embed",
    "eval": "evaluate",
    "compare": "compare",
    "mine": "mine",
    "index": "search",
    "search": "search",
    "report": "report",
    "train-context": "train_context",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; bad input ends with one line and exit status 2."""
    arguments = list(sys.argv[1:] if arguments is None else map(str, arguments))
    parser = argparse.ArgumentParser(prog="lxsr", description="Cross-lingual sentence embeddings.")
    parser.add_argument("--version", action="version", version=f"fairseq-lxsr {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    needed = MODULES.get(arguments[0]) if arguments else None
    for module in [needed] if needed else dict.fromkeys(MODULES.values()):
        importlib.import_module(f"fairseq_lxsr.cli.{module}").add_parser(verbs)
    args = parser.parse_args(arguments)
    args.command_line = arguments
    with exit_on_input_error("lxsr"):
        try:
            args.run(args)
        except KeyboardInterrupt:
            print("lxsr: interrupted; outputs have their names only when they are complete", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # what reads our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
