"""`lxsr eval`: score an encoder by one of the field's protocols."""

import argparse
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import add_any_model_options, load_any, model_files
from fairseq_lxsr.evaluation.protocols import all_protocols
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.protocols import Plan
    from fairseq_lxsr.evaluation.score import Score
import sys

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import BOOTSTRAP_DRAWS, at_least


def add_parser(verbs) -> None:
    parser = verbs.add_parser("eval", description=__doc__)
    protocols = parser.add_subparsers(title="protocols", required=True, metavar="PROTOCOL")
    for protocol in all_protocols():
        help_text = protocol.help
        child = protocols.add_parser(
            protocol.name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."
        )
        add_any_model_options(child)
        protocol.add_options(child)
        child.add_argument(
            "--output", type=FILE_NAME, metavar="FILE.jsonl", help="add the scores to this file, one JSON a line"
        )
        child.add_argument("--published", action="store_true", help="show scores from papers as well")
        child.set_defaults(run=run, protocol=protocol)
    add_compare(verbs)


def run(args: argparse.Namespace) -> None:
    """Append scores to the file as they are measured; print the table and the signatures, even of partial results."""
    from fairseq_lxsr.evaluation.score import append_scores
    from fairseq_lxsr.evaluation.tables import published_table, report_scores

    plan = args.protocol.prepare(args)
    encoder = load_encoder(args, plan)
    scores: list[Score] = []
    try:
        for some in plan.measure(encoder):
            scores += some
            if args.output:
                append_scores(args.output, some)
    finally:
        if scores:
            print(report_scores(scores))
    if args.published:
        name = args.protocol.name
        print("\n" + (published_table([name]) or f"No published scores of {name} are known here."))


def load_encoder(args: argparse.Namespace, plan: "Plan") -> "Encoder":
    """Load the encoder after checking that the scores can be written, which happens hours later."""
    from fairseq_lxsr.evaluation.score import check_scores_file

    refuse_overlap([args.output, *plan.outputs], [*plan.texts, *model_files(args.model)])
    if args.output:
        check_scores_file(args.output)
    return load_any(args)


def add_compare(verbs) -> None:
    parser = verbs.add_parser("compare", description="Two files of scores, value by value, with confidence intervals.")
    parser.add_argument("first", type=FILE_NAME, metavar="A.jsonl", help="file of `lxsr eval --output`")
    parser.add_argument("second", type=FILE_NAME, metavar="B.jsonl", help="another; differences are B - A")
    parser.add_argument(
        "--draws",
        type=at_least(100),
        default=BOOTSTRAP_DRAWS,
        metavar="N",
        help=f"of the bootstrap (default: {BOOTSTRAP_DRAWS})",
    )
    parser.add_argument("--published", action="store_true", help="show scores from papers as well")
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation.compare import SEED, compare, latest
    from fairseq_lxsr.evaluation.score import read_scores
    from fairseq_lxsr.evaluation.tables import published_table

    first, second = read_scores(args.first), read_scores(args.second)
    results, notes = compare(first, second, args.draws)
    for note in notes:
        print(f"lxsr: {note}", file=sys.stderr)
    if not results:
        raise InputError(f"{args.first} and {args.second} have no score that was measured alike; evaluate both again")
    names = [f"{r.protocol} {r.task} {r.value} {r.metric}" for r in results]
    width = max(map(len, names))
    print(f"{'':{width}}{'A':>8}{'B':>8}{'B - A':>8}   95 % interval        p")
    for name, r in zip(names, results, strict=True):
        interval = f"[{r.low:+.1f}, {r.high:+.1f}]"
        print(f"{name:{width}}{r.first:8.1f}{r.second:8.1f}{r.difference:+8.1f}   {interval:16}{r.p:8.3f}")
    models = (
        " ".join(dict.fromkeys(str(score.settings.get("model")) for score in latest(scores).values()))
        for scores in (first, second)
    )
    print("A: model {}, B: model {}".format(*models))
    print(f"paired bootstrap|draws:{args.draws}|seed:{SEED}")
    if args.published:
        print("\n" + published_table([result.protocol for result in results]))
