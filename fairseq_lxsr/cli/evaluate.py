"""`lxsr eval` evaluates an encoder with a standard protocol, `lxsr compare` compares scores."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.main import Parser
from fairseq_lxsr.cli.options import add_any_model_options, add_options, filled, load_any
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols import PROTOCOLS, protocol_class
from fairseq_lxsr.files.write import check_writable, refuse_overlap
from fairseq_lxsr.options import BOOTSTRAP_DRAWS, FILE_NAME, at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairseq_lxsr.evaluation.score import Score


def add_parser(verbs) -> None:
    _add_eval_parser(verbs)
    _add_compare_parser(verbs)


def _add_eval_parser(verbs) -> None:
    parser = verbs.add_parser("eval", description="Evaluate an encoder with a standard protocol.")
    protocols = parser.add_subparsers(
        title="protocols", required=True, metavar="PROTOCOL", parser_class=ProtocolParser
    )
    for name, (_, _, help_text) in PROTOCOLS.items():
        child = protocols.add_parser(
            name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."
        )
        child.set_defaults(run=run_eval, protocol=name)


class ProtocolParser(Parser):
    """The parser of one protocol.

    It adds its options when it parses: they are declared in the module of the protocol, which
    imports numpy.
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
            help="file to append the scores to, one JSON object per line",
        )


def run_eval(args: argparse.Namespace) -> None:
    """Evaluate each task of a protocol, and append its scores to the output file.

    The table and the signatures are printed at the end, even if the evaluation is interrupted.
    """
    from fairseq_lxsr.embeddings import model_files
    from fairseq_lxsr.evaluation.score import append_scores, check_scores_file
    from fairseq_lxsr.evaluation.tables import report_scores

    plan = filled(protocol_class(args.protocol), args).plan()
    refuse_overlap([args.output, *plan.outputs], [*plan.texts, *model_files(args.model)])
    if args.output:
        # The first scores may take hours to compute, so the output file is checked first.
        check_scores_file(args.output)
        check_writable(Path(args.output))
    encoder = load_any(args)
    scores: list[Score] = []
    try:
        for task_scores in plan.measure(encoder):
            scores += task_scores
            if args.output:
                append_scores(args.output, task_scores)
    finally:
        if scores:
            print(report_scores(scores))


def _add_compare_parser(verbs) -> None:
    parser = verbs.add_parser(
        "compare",
        description="Compare two score files value by value, with confidence intervals.",
    )
    parser.add_argument(
        "first",
        type=FILE_NAME,
        metavar="A.jsonl",
        help="score file written by `lxsr eval --output`",
    )
    parser.add_argument(
        "second",
        type=FILE_NAME,
        nargs="?",
        metavar="B.jsonl",
        help="second score file; differences are B - A; optional with --published",
    )
    parser.add_argument(
        "--draws",
        type=at_least(100),
        default=BOOTSTRAP_DRAWS,
        metavar="N",
        help=f"number of paired bootstrap samples (default: {BOOTSTRAP_DRAWS})",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="also show published scores for the same protocols and test sets",
    )
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation.score import read_scores
    from fairseq_lxsr.evaluation.tables import published_table

    if not (args.second or args.published):
        raise InputError(
            f"compare {args.first}: only one score file; specify two files, or --published"
        )
    first = read_scores(args.first)
    if args.second:
        second = read_scores(args.second)
        protocols = _compare(first, second, args)
    else:
        second = []
        protocols = _show(first)
    if args.published:
        scores = [score for score in (*first, *second) if score.protocol in protocols]
        table = published_table(scores)
        if not table:
            names = ", ".join(dict.fromkeys(protocols))
            table = f"This package has no published scores of {names} with these settings."
        print(f"\n{table}")


def _show(scores: "Sequence[Score]") -> list[str]:
    """Print the values in one score file, and return the protocols it contains."""
    from fairseq_lxsr.evaluation.compare import latest
    from fairseq_lxsr.evaluation.tables import NOT_PERCENT

    latest_scores = list(latest(scores).values())
    rows = []
    for score in latest_scores:
        metric = score.settings.get("metric", "")
        for name, value in score.values.items():
            if name not in NOT_PERCENT:
                label = f"{score.protocol} {score.task} {name} {metric}".strip()
                rows.append((label, f"{value:8.1f}"))
    _print_rows(f"{'A':>8}", rows)
    print(f"A: model {_models(scores)}")
    return [score.protocol for score in latest_scores]


def _compare(
    first: "Sequence[Score]", second: "Sequence[Score]", args: argparse.Namespace
) -> list[str]:
    """Print the scores present in both score files, and return their protocols."""
    from fairseq_lxsr.evaluation.compare import SEED, compare

    results, notes = compare(first, second, args.draws)
    # Notes go to standard error, so that standard output contains only the table.
    for note in notes:
        print(f"lxsr: {note}", file=sys.stderr)
    if not results:
        raise InputError(
            f"{args.first} and {args.second}: no scores with the same task and settings; evaluate "
            "both models with the same options"
        )
    rows = []
    for result in results:
        values = f"{result.first:8.1f}{result.second:8.1f}{result.difference:+8.1f}"
        interval = f"[{result.low:+.1f}, {result.high:+.1f}]"
        label = f"{result.protocol} {result.task} {result.value} {result.metric}"
        rows.append((label, f"{values}   {interval:16}{result.p:8.3f}"))
    _print_rows(f"{'A':>8}{'B':>8}{'B - A':>8}   95 % interval        p", rows)
    print(f"A: model {_models(first)}, B: model {_models(second)}")
    print(f"paired bootstrap|draws:{args.draws}|seed:{SEED}")
    return [result.protocol for result in results]


def _print_rows(header: str, rows: list[tuple[str, str]]) -> None:
    """Print a header and rows, with row labels padded to the same width."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, row in [("", header), *rows]:
        print(f"{name:{width}}{row}")


def _models(scores: "Sequence[Score]") -> str:
    """Return the names of the distinct models in the scores."""
    from fairseq_lxsr.evaluation.compare import latest

    return " ".join(dict.fromkeys(score.system for score in latest(scores).values()))
