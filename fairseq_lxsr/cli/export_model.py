"""`lxsr export-model`: a fairseq checkpoint becomes a model folder that needs no fairseq."""

import argparse
from pathlib import Path

from fairseq_lxsr.choices import WEIGHT_TYPES
from fairseq_lxsr.cli.models import model_files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import refuse_overlap
from fairseq_lxsr.ranges import FILE_NAME


def add_parser(verbs) -> None:
    parser = verbs.add_parser("export-model", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--checkpoint", type=FILE_NAME, metavar="FILE.pt", help="for example checkpoints/checkpoint_best.pt"
    )
    what.add_argument("--model", type=FILE_NAME, metavar="FOLDER", help="a model folder, for the other formats")
    parser.add_argument(
        "--to",
        choices=("folder", "card", "sentence-transformers", "onnx"),
        default="folder",
        help="a model folder; a new model card (README.md) in a model folder; a folder that sentence-transformers "
        "loads; ONNX with tokenizer.json (default: folder)",
    )
    parser.add_argument(
        "--scores",
        nargs="+",
        default=[],
        type=FILE_NAME,
        metavar="FILE.jsonl",
        help="card: what `lxsr eval --output` wrote",
    )
    parser.add_argument(
        "--dtype",
        choices=WEIGHT_TYPES,
        default="float32",
        help="folder: weights on disk; float16 takes half the room, vectors differ by rounding (default: float32)",
    )
    parser.add_argument(
        "--ema", action="store_true", help="folder: the moving average of the weights, of fairseq-train --store-ema"
    )
    parser.add_argument("--normalize", action="store_true", help="ONNX: embeddings of length one")
    parser.add_argument("--int8", action="store_true", help="ONNX: 8-bit weights")
    parser.add_argument(
        "--output",
        type=FILE_NAME,
        metavar="FOLDER",
        help="folder to write (card: --model itself); an older one is replaced whole",
    )
    parser.add_argument(
        "--data", type=FILE_NAME, metavar="FOLDER", help="fairseq-preprocess folder (default: the one trained on)"
    )
    parser.add_argument(
        "--sentencepiece-model", type=FILE_NAME, metavar="FILE", help="default: sentencepiece.model of the data folder"
    )
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="whether the training text was lower-cased (default: as text.json of the data folder says)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if (args.normalize or args.int8) and args.to != "onnx":
        raise InputError("--normalize and --int8 are for --to onnx")
    if args.dtype != "float32" and args.to != "folder":
        raise InputError(f"--dtype {args.dtype} is for a model folder, not for --to {args.to}")
    if args.ema and args.checkpoint is None:
        raise InputError("--ema expects --checkpoint FILE.pt: a model folder holds one set of weights")
    if args.scores and args.to != "card":
        raise InputError("--scores is for --to card: a model is exported before it is evaluated")
    if args.output is not None and args.to == "card":
        raise InputError("--to card expects no --output: the card is written into --model FOLDER")
    if args.output is None and args.to != "card":
        raise InputError(f"--to {args.to} expects --output FOLDER")
    data = filter(Path.is_file, Path(args.data).glob("*")) if args.data else ()
    read = [args.checkpoint, args.sentencepiece_model, *args.scores, *data]
    refuse_overlap([args.output], [*read, *model_files([args.model] if args.model else [])])
    if args.to != "folder":
        convert(args)
    elif args.checkpoint is None:
        raise InputError(
            f"{args.model} is a model folder already; name another: --to sentence-transformers, --to onnx, --to card"
        )
    else:
        export(args)


def export(args: argparse.Namespace) -> None:
    """A model folder, with a card."""
    from fairseq_lxsr.checkpoint import export_checkpoint
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.report.model_card import write_card

    folder = export_checkpoint(
        args.checkpoint, args.output, args.data, args.sentencepiece_model, args.lowercase, args.dtype, args.ema
    )
    write_card(folder, SentenceEncoder.from_pretrained(folder))
    print(f"{folder}: exported from {args.checkpoint}")


def convert(args: argparse.Namespace) -> None:
    """A model folder for other programs."""
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.evaluation.score import read_scores
    from fairseq_lxsr.export import export_onnx, export_sentence_transformers
    from fairseq_lxsr.report.model_card import CARD_FILE, write_card

    if args.model is None:
        raise InputError(f"--to {args.to} expects --model FOLDER; export the checkpoint to a folder first")
    encoder = SentenceEncoder.from_pretrained(args.model, "cpu")
    if args.to == "card":
        write_card(args.model, encoder, [score for path in args.scores for score in read_scores(path)])
        print(f"{Path(args.model) / CARD_FILE}: written")
        return
    if args.to == "sentence-transformers":
        found = f"its vectors differ by at most {export_sentence_transformers(encoder, args.output):.1g}"
    else:
        agreement = export_onnx(encoder, args.output, args.normalize, args.int8)
        found = f"least cosine {agreement:.4f}" if args.int8 else f"its vectors differ by at most {agreement:.1g}"
    print(f"{args.output}: for {args.to}; {found}")
