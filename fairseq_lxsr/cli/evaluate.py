"""`lxsr eval`: score an encoder by one of the field's protocols. `lxsr compare`: compare two files
of scores.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.main import Parser
from fairseq_lxsr.cli.options import add_any_model_options, add_options, filled, load_any
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import PROTOCOLS, protocol_class
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import BOOTSTRAP_DRAWS, FILE_NAME, at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairseq_lxsr.evaluation.score import Score


def add_parser(verbs) -> None:
    _add_eval_parser(verbs)
    _add_compare_parser(verbs)


def _add_eval_parser(verbs) -> None:
    parser = verbs.add_parser(
        "eval", description="Score an encoder by one of the field's protocols."
    )
    protocols = parser.add_subparsers(
        title="protocols", required=True, metavar="PROTOCOL", parser_class=ProtocolParser
    )
    for name, (_, _, help_text) in PROTOCOLS.items():
        child = protocols.add_parser(
            name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."
        )
        child.set_defaults(run=run_eval, protocol=name)


class ProtocolParser(Parser):
    """The parser of one protocol: its options come with its module, which brings numpy, when it
    parses.
    """

    def parse_known_args(self, args=None, namespace=None):
        self.add_all_options()
        return super().parse_known_args(args, namespace)

    def add_all_options(self) -> None:
        add_any_model_options(self)
        add_options(self, protocol_class(self.get_default("protocol")))
        self.add_argument(
            "--output",
            type=FILE_NAME,
            metavar="FILE.jsonl",
            help="file to add the scores to, as JSON",
        )


def run_eval(args: argparse.Namespace) -> None:
    """Append scores to the file as they are measured; print the table and the signatures, even of
    partial results.
    """
    from fairseq_lxsr.embeddings import model_files
    from fairseq_lxsr.evaluation.score import append_scores, check_scores_file
    from fairseq_lxsr.evaluation.tables import report_scores

    plan = filled(protocol_class(args.protocol), args).plan()
    refuse_overlap([args.output, *plan.outputs], [*plan.texts, *model_files(args.model)])
    if args.output:
        check_scores_file(args.output)  # it is written hours later
    encoder = load_any(args)
    scores: list[Score] = []
    try:
        for some in plan.measure(encoder):
            scores += some
            if args.output:
                append_scores(args.output, some)
    finally:
        if scores:
            print(report_scores(scores))


def _add_compare_parser(verbs) -> None:
    parser = verbs.add_parser(
        "compare", description="Two files of scores, value by value, with confidence intervals."
    )
    parser.add_argument(
        "first", type=FILE_NAME, metavar="A.jsonl", help="file of `lxsr eval --output`"
    )
    parser.add_argument(
        "second",
        type=FILE_NAME,
        nargs="?",
        metavar="B.jsonl",
        help="another; differences are B - A (with --published it may be left out)",
    )
    parser.add_argument(
        "--draws",
        type=at_least(100),
        default=BOOTSTRAP_DRAWS,
        metavar="N",
        help=f"of the bootstrap (default: {BOOTSTRAP_DRAWS})",
    )
    parser.add_argument(
        "--published", action="store_true", help="show scores from papers that measured alike"
    )
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation.score import read_scores
    from fairseq_lxsr.evaluation.tables import published_table

    if not (args.second or args.published):
        raise InputError(f"compare {args.first}: one file of scores; expected two, or --published")
    first = read_scores(args.first)
    if args.second:
        second = read_scores(args.second)
        protocols = _compare(first, second, args)
    else:
        second = []
        protocols = _show(first)
    if args.published:
        missing = f"No published scores of {', '.join(dict.fromkeys(protocols))} are known here."
        scores = [score for score in (*first, *second) if score.protocol in protocols]
        print(f"\n{published_table(scores) or missing}")


def _show(scores: "Sequence[Score]") -> list[str]:
    """Print the values of one file, and return their protocols."""
    from fairseq_lxsr.evaluation.compare import latest
    from fairseq_lxsr.evaluation.tables import NOT_PERCENT

    taken = list(latest(scores).values())
    rows = [
        (
            f"{score.protocol} {score.task} {name} {score.settings.get('metric', '')}".strip(),
            f"{value:8.1f}",
        )
        for score in taken
        for name, value in score.values.items()
        if name not in NOT_PERCENT
    ]
    _print_rows(f"{'A':>8}", rows)
    print(f"A: model {_models(scores)}")
    return [score.protocol for score in taken]


def _compare(
    first: "Sequence[Score]", second: "Sequence[Score]", args: argparse.Namespace
) -> list[str]:
    """Print the scores that both files have, side by side, and return their protocols."""
    from fairseq_lxsr.evaluation.compare import SEED, compare

    results, notes = compare(first, second, args.draws)
    for note in notes:
        print(f"lxsr: {note}", file=sys.stderr)
    if not results:
        raise InputError(
            f"{args.first} and {args.second} have no score that was measured alike; evaluate both again"
        )
    rows = []
    for r in results:
        interval = f"[{r.low:+.1f}, {r.high:+.1f}]"
        row = f"{r.first:8.1f}{r.second:8.1f}{r.difference:+8.1f}   {interval:16}{r.p:8.3f}"
        rows.append((f"{r.protocol} {r.task} {r.value} {r.metric}", row))
    _print_rows(f"{'A':>8}{'B':>8}{'B - A':>8}   95 % interval        p", rows)
    print(f"A: model {_models(first)}, B: model {_models(second)}")
    print(f"paired bootstrap|draws:{args.draws}|seed:{SEED}")
    return [result.protocol for result in results]


def _print_rows(header: str, rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, row in [("", header), *rows]:
        print(f"{name:{width}}{row}")


def _models(scores: "Sequence[Score]") -> str:
    from fairseq_lxsr.evaluation.compare import latest

    return " ".join(dict.fromkeys(score.system for score in latest(scores).values()))
