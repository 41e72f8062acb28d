"""`lxsr export-model`: a fairseq checkpoint becomes a model folder that needs no fairseq."""

import argparse

from fairseq_lxsr.checkpoint import export_checkpoint


def add_parser(verbs) -> None:
    parser = verbs.add_parser("export-model", help="checkpoint to model folder", description=__doc__)
    parser.add_argument(
        "--checkpoint", required=True, metavar="FILE.pt", help="for example checkpoints/checkpoint_best.pt"
    )
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="model folder to write; an older one is replaced whole"
    )
    parser.add_argument("--data", metavar="FOLDER", help="fairseq-preprocess folder (default: the one trained on)")
    parser.add_argument("--sentencepiece-model", metavar="FILE", help="default: sentencepiece.model of the data folder")
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="whether the training text was lower-cased (default: as text.json of the data folder says)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    folder = export_checkpoint(args.checkpoint, args.output, args.data, args.sentencepiece_model, args.lowercase)
    print(f"{folder}: exported from {args.checkpoint}")
