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

    It adds its options only when it parses, because they are declared in the module of the
    protocol, which imports numpy.
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
        description="Compare two systems value by value, with confidence intervals.",
    )
    parser.add_argument(
        "files",
        type=FILE_NAME,
        nargs="+",
        metavar="FILE.jsonl",
        help="score files written by `lxsr eval --output`: one of system A and one of system B, or "
        "only one with --published; with --with, one for each run of A",
    )
    parser.add_argument(
        "--with",
        dest="second",
        type=FILE_NAME,
        nargs="+",
        action="extend",
        default=[],
        metavar="B.jsonl",
        help="score files of the runs of system B, one per seed; the bootstrap then samples runs "
        "as well as sentences (default: the second FILE)",
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

    first_files, second_files = _files_of_systems(args)
    first = [read_scores(file) for file in first_files]
    second = [read_scores(file) for file in second_files]
    _check_distinct_runs(first_files, first)
    _check_distinct_runs(second_files, second)
    if second:
        protocols = _compare(first, second, args)
    else:
        protocols = _show(first[0])
    if args.published:
        scores = []
        for run in (*first, *second):
            scores += [score for score in run if score.protocol in protocols]
        table = published_table(scores)
        if not table:
            names = ", ".join(dict.fromkeys(protocols))
            table = f"This package has no published scores of {names} with these settings."
        print(f"\n{table}")


def _files_of_systems(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the score files of system A and those of system B.

    With --published, there may be none of B.
    """
    files = args.files
    if args.second:
        return files, args.second
    if len(files) == 1 and not args.published:
        raise InputError(
            f"compare {files[0]}: only one score file; specify two files, or --published"
        )
    if len(files) > 2:
        raise InputError(
            f"compare {' '.join(files)}: {len(files)} score files, but it is unclear which system "
            "each belongs to; specify two files, or the runs of A --with the runs of B"
        )
    return files[:1], files[1:]


def _check_distinct_runs(files: "Sequence[str]", runs: "Sequence[Sequence[Score]]") -> None:
    """Raise an error if two files have scores of the same model.

    The runs of a system must be models that were trained with different seeds.
    """
    file_of_model: dict[str, str] = {}
    for file, run in zip(files, runs, strict=True):
        for model in {str(score.settings.get("model")) for score in run}:
            if model in file_of_model:
                raise InputError(
                    f"{file}: scores of model {model}, which is also in {file_of_model[model]}; "
                    "specify one file per run, each trained with another --seed"
                )
        for score in run:
            file_of_model[str(score.settings.get("model"))] = file


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
    first: "Sequence[Sequence[Score]]",
    second: "Sequence[Sequence[Score]]",
    args: argparse.Namespace,
) -> list[str]:
    """Compare the scores that all runs of both systems have, and return their protocols."""
    from fairseq_lxsr.evaluation.compare import SEED, compare_runs

    results, notes = compare_runs(first, second, args.draws)
    # Notes go to standard error, so that standard output contains only the table.
    for note in notes:
        print(f"lxsr: {note}", file=sys.stderr)
    if not results:
        raise InputError(
            f"{' and '.join([*args.files, *args.second])}: no scores with the same task and "
            "settings; evaluate all models with the same options"
        )
    rows = []
    for result in results:
        values = f"{result.first:8.1f}{result.second:8.1f}{result.difference:+8.1f}"
        interval = f"[{result.low:+.1f}, {result.high:+.1f}]"
        label = f"{result.protocol} {result.task} {result.value} {result.metric}"
        p_values = f"{result.p:8.3f}{result.corrected_p:8.3f}"
        rows.append((label, f"{values}   {interval:16}{p_values}"))
    _print_rows(f"{'A':>8}{'B':>8}{'B - A':>8}   95 % interval        p    Holm", rows)
    print(f"A: {_describe_runs(first)}, B: {_describe_runs(second)}")
    print(f"paired bootstrap|draws:{args.draws}|seed:{SEED}|runs:{len(first)},{len(second)}")
    _print_meaning(len(results), len(first), len(second), args.draws)
    return [result.protocol for result in results]


def _describe_runs(runs: "Sequence[Sequence[Score]]") -> str:
    """Return the models of a system, with the number of runs if it has several."""
    if len(runs) == 1:
        return f"model {_models(runs[0])}"
    return f"mean of {len(runs)} runs, models {' '.join(map(_models, runs))}"


def _print_meaning(comparisons: int, first_runs: int, second_runs: int, draws: int) -> None:
    """Print how to interpret the intervals and p-values of a table."""
    from fairseq_lxsr.evaluation.compare import SIGNIFICANCE_LEVEL

    if comparisons > 1:
        print(f"Holm: p corrected for the {comparisons} comparisons of this table.")
    smallest = comparisons / (draws + 1)
    if smallest >= SIGNIFICANCE_LEVEL:
        enough = round(comparisons / SIGNIFICANCE_LEVEL)
        print(
            f"With {draws:,} draws no corrected p can be below {smallest:.2f}; use --draws "
            f"{2 * enough} or more."
        )
    if first_runs > 1 and second_runs > 1:
        return
    systems = "each system"
    if second_runs > 1:
        systems = "A"
    elif first_runs > 1:
        systems = "B"
    print(
        f"One run of {systems}: the interval and p do not include the variation between training "
        "runs. Train with several seeds, and specify all runs: "
        "lxsr compare A1.jsonl A2.jsonl --with B1.jsonl B2.jsonl"
    )


def _print_rows(header: str, rows: list[tuple[str, str]]) -> None:
    """Print a header and rows, with row labels padded to the same width."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, row in [("", header), *rows]:
        print(f"{name:{width}}{row}")


def _models(scores: "Sequence[Score]") -> str:
    """Return the names of the distinct models in the scores."""
    from fairseq_lxsr.evaluation.compare import latest

    return " ".join(dict.fromkeys(score.system for score in latest(scores).values()))
