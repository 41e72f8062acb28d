"""`lxsr export`: a fairseq checkpoint as a model folder that needs no fairseq, and that folder for other programs."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import OUR_MODEL, model_files
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, STORED_TYPES

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder


def add_parser(verbs) -> None:
    add_forms(verbs.add_parser("export", description=__doc__))
    old = verbs.add_parser(
        "export-model",
        usage="lxsr export-model [--to FORM] [option of lxsr export FORM ...]",
        description="The older spelling of `lxsr export FORM`, for one release more.",
        allow_abbrev=False,
    )
    old.add_argument("--to", choices=FORMS, default="folder", help="default: folder")
    old.set_defaults(run=run_old_spelling, others=[])


def add_forms(parser: argparse.ArgumentParser) -> None:
    """Add each form of export with its options."""
    forms = parser.add_subparsers(title="forms", required=True, metavar="FORM")
    for name, (add_options, run, description) in FORMS.items():
        form = forms.add_parser(name, help=description, description=f"Write {description}.")
        add_options(form)
        form.set_defaults(run=run)


def run_old_spelling(args: argparse.Namespace) -> None:
    from fairseq_lxsr.cli.main import Parser  # which imports this module when it needs it

    words = [args.to, *args.others]
    print(f"lxsr: export-model goes with the next release; write: lxsr export {shlex.join(words)}", file=sys.stderr)
    parser = Parser(prog="lxsr export")
    add_forms(parser)
    args = parser.parse_args(words)
    args.run(args)


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=FILE_NAME,
        metavar="FILE.pt",
        help="of fairseq-train, for example checkpoints/checkpoint_best.pt",
    )
    add_output_option(parser)
    parser.add_argument(
        "--dtype",
        choices=STORED_TYPES,
        default="float32",
        help="weights on disk; float16 takes half the space, int8 a quarter; embeddings differ by rounding "
        "(default: float32)",
    )
    parser.add_argument(
        "--ema", action="store_true", help="take the moving average of the weights, of fairseq-train --store-ema"
    )
    parser.add_argument(
        "--data",
        type=FILE_NAME,
        metavar="FOLDER",
        help="fairseq-preprocess folder (default: text/ beside the checkpoint, or the one trained on)",
    )
    parser.add_argument(
        "--sentencepiece-model", type=FILE_NAME, metavar="FILE", help="default: sentencepiece.model of the data folder"
    )
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="whether the training text was lower-cased (default: as text.json of the data folder says)",
    )


def add_card_options(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument(
        "--scores",
        nargs="+",
        default=[],
        type=FILE_NAME,
        metavar="FILE.jsonl",
        help="what `lxsr eval --output` wrote of this model",
    )
    parser.add_argument(
        "--sources",
        type=FILE_NAME,
        metavar="FILE.json",
        help="sources of its text with licence and attribution, as examples/pretrained/sources.json",
    )


def add_converted_options(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_output_option(parser)


def add_onnx_options(parser: argparse.ArgumentParser) -> None:
    add_converted_options(parser)
    parser.add_argument("--normalize", action="store_true", help="embeddings of length one")
    parser.add_argument("--int8", action="store_true", help="8-bit weights")


def add_web_options(parser: argparse.ArgumentParser) -> None:
    add_converted_options(parser)
    parser.add_argument(
        "--input", required=True, nargs="+", type=FILE_NAME, metavar="FILE", help="sentences to search, one a line"
    )
    parser.add_argument("--title", default="Nearest sentences", metavar="TEXT", help="heading of the page")
    parser.add_argument("--example", default="", metavar="SENTENCE", help="first query")


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        type=FILE_NAME,
        metavar="FOLDER",
        help=OUR_MODEL,
    )


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        required=True,
        type=FILE_NAME,
        metavar="FOLDER",
        help="folder to write; an older one of this command is replaced whole",
    )


def run_folder(args: argparse.Namespace) -> None:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.export.card import write_card
    from fairseq_lxsr.export.folder import export_checkpoint

    data = filter(Path.is_file, Path(args.data).glob("*")) if args.data else ()
    refuse_overlap([args.output], [args.checkpoint, args.sentencepiece_model, *data])
    folder = export_checkpoint(
        args.checkpoint, args.output, args.data, args.sentencepiece_model, args.lowercase, args.dtype, args.ema
    )
    write_card(folder, SentenceEncoder.from_pretrained(folder))
    print(f"{folder}: exported from {args.checkpoint}")


def run_card(args: argparse.Namespace) -> None:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.encoder.find import find_model
    from fairseq_lxsr.evaluation.score import read_scores
    from fairseq_lxsr.export.card import CARD_FILE, TextSources, write_card

    folder = find_model(args.model)
    card = folder / CARD_FILE
    refuse_overlap([card], [*args.scores, args.sources])
    scores = [score for path in args.scores for score in read_scores(path)]
    sources = TextSources.read(args.sources) if args.sources else None
    write_card(folder, SentenceEncoder.from_pretrained(folder, "cpu"), scores, sources)
    print(f"{card}: written")


def run_sentence_transformers(args: argparse.Namespace) -> None:
    from fairseq_lxsr.export import export_sentence_transformers

    difference = export_sentence_transformers(loaded(args), args.output)
    found = "its vectors were not compared: sentence-transformers is not installed"
    if difference is not None:
        found = f"its vectors differ by at most {difference:.1g}"
    print(f"{args.output}: for sentence-transformers; {found}")


def run_onnx(args: argparse.Namespace) -> None:
    from fairseq_lxsr.export import export_onnx
    from fairseq_lxsr.export.onnx import TOKENIZER_CONFIG_FILE

    agreement = export_onnx(loaded(args), args.output, args.normalize, args.int8)
    found = f"least cosine {agreement:.4f}" if args.int8 else f"its vectors differ by at most {agreement:.1g}"
    if not (Path(args.output) / TOKENIZER_CONFIG_FILE).exists():
        found += "; not for transformers.js, whose unigram models have no bytes for letters without a piece"
    print(f"{args.output}: for onnx; {found}")


def run_web(args: argparse.Namespace) -> None:
    from fairseq_lxsr.export import export_web
    from fairseq_lxsr.export.web_page import PAGE_FILE

    refuse_overlap([args.output], args.input)
    encoder = loaded(args)
    sentences = [line for path in args.input for line in read_lines(path)]
    count = export_web(encoder, sentences, args.output, args.title, args.example)
    page = Path(args.output) / PAGE_FILE
    print(f"{page}: {count:,} sentences, {page.stat().st_size / 1e6:.1f} MB; open it in a browser")


def loaded(args: argparse.Namespace) -> "SentenceEncoder":
    """Load the model folder that --model names, after checking that --output is not one of its files."""
    from fairseq_lxsr.encoder import SentenceEncoder

    refuse_overlap([args.output], model_files([args.model]))
    return SentenceEncoder.from_pretrained(args.model, "cpu")


# for each form: the function that adds its options, the function that runs it, and what it writes
FORMS = {
    "folder": (add_folder_options, run_folder, "a model folder from a checkpoint of fairseq-train"),
    "card": (add_card_options, run_card, "a new model card (README.md) in a model folder, with scores"),
    "sentence-transformers": (
        add_converted_options,
        run_sentence_transformers,
        "a folder that sentence-transformers loads",
    ),
    "web": (add_web_options, run_web, "a page that searches sentences in the browser, for a model without layers"),
    "onnx": (add_onnx_options, run_onnx, "a folder for ONNX Runtime, the library tokenizers and transformers.js"),
}
