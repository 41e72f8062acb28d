"""`lxsr eval`: score an encoder by one of the field's protocols."""

import argparse
from typing import TYPE_CHECKING

from fairseq_lxsr.atomic import refuse_overlap
from fairseq_lxsr.cli.models import add_any_model_options, load_any, model_files
from fairseq_lxsr.evaluation.protocols import all_protocols
from fairseq_lxsr.ranges import FILE_NAME

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.protocols import Plan
    from fairseq_lxsr.evaluation.score import Score


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


def run(args: argparse.Namespace) -> None:
    """Append scores to the file as they are measured; print the table and the signatures, even of partial results."""
    from fairseq_lxsr.evaluation.published import published_table
    from fairseq_lxsr.evaluation.score import append_scores
    from fairseq_lxsr.evaluation.table import report_scores

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
