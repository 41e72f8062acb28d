"""`lxsr export-model`: a fairseq checkpoint becomes a model folder that needs no fairseq."""

import argparse

from fairseq_lxsr.checkpoint import export_checkpoint
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_sentence_transformers


def add_parser(verbs) -> None:
    parser = verbs.add_parser("export-model", help="checkpoint to model folder", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", metavar="FILE.pt", help="for example checkpoints/checkpoint_best.pt")
    what.add_argument("--model", metavar="FOLDER", help="a model folder, for --to sentence-transformers")
    parser.add_argument(
        "--to",
        choices=("folder", "sentence-transformers"),
        default="folder",
        help="a model folder, or one that sentence-transformers loads (default: folder)",
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
    if args.to == "sentence-transformers":
        if args.model is None:
            raise InputError(
                "--to sentence-transformers expects --model FOLDER; export the checkpoint to a folder first"
            )
        difference = export_sentence_transformers(SentenceEncoder.from_pretrained(args.model, "cpu"), args.output)
        print(f"{args.output}: for sentence-transformers; its vectors differ by at most {difference:.1g}")
        return
    if args.checkpoint is None:
        raise InputError(f"{args.model} is a model folder already; name a format, --to sentence-transformers")
    folder = export_checkpoint(args.checkpoint, args.output, args.data, args.sentencepiece_model, args.lowercase)
    print(f"{folder}: exported from {args.checkpoint}")
