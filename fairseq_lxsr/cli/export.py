"""`lxsr export`: a fairseq checkpoint as a model folder that needs no fairseq, and that folder for
other programs.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.cli.options import OUR_MODEL, add_options, filled
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, STORED_TYPES, option

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder

OUTPUT_HELP = "folder to write; an older one of this command is replaced whole"
_FILE: dict[str, Any] = {"allowed": FILE_NAME, "metavar": "FILE"}
_FOLDER: dict[str, Any] = {"allowed": FILE_NAME, "metavar": "FOLDER"}


@dataclass(frozen=True)
class FolderExport:
    """a model folder from a checkpoint of fairseq-train"""

    checkpoint: str = option(
        "such as checkpoints/checkpoint_best.pt", allowed=FILE_NAME, metavar="FILE.pt"
    )
    output: str = option(OUTPUT_HELP, **_FOLDER)
    dtype: str = option(
        "stored: float16 is half, int8 a quarter, int4 an eighth for pieces",
        "float32",
        STORED_TYPES,
    )
    ema: bool = option(
        "take the moving average of the weights, of fairseq-train --store-ema", False
    )
    data: str | None = option(
        "fairseq-preprocess folder (default: text/ beside the checkpoint, or the one trained on)",
        None,
        **_FOLDER,
    )
    sentencepiece_model: str | None = option(
        "default: sentencepiece.model of the data folder", None, **_FILE
    )
    lowercase: bool | None = option(
        "whether the training text was lower-cased (default: as text.json of the data folder says)",
        None,
        action=argparse.BooleanOptionalAction,
    )

    def run(self) -> None:
        from fairseq_lxsr.encoder import SentenceEncoder
        from fairseq_lxsr.export.card import write_card
        from fairseq_lxsr.export.folder import export_checkpoint

        data = filter(Path.is_file, Path(self.data).glob("*")) if self.data else ()
        refuse_overlap([self.output], [self.checkpoint, self.sentencepiece_model, *data])
        folder = export_checkpoint(
            self.checkpoint,
            self.output,
            self.data,
            self.sentencepiece_model,
            self.lowercase,
            self.dtype,
            self.ema,
        )
        write_card(folder, SentenceEncoder.from_pretrained(folder))
        print(f"{folder}: exported from {self.checkpoint}")


@dataclass(frozen=True, kw_only=True)
class _Card:
    scores: tuple[str, ...] = option(
        "what `lxsr eval --output` wrote of this model",
        (),
        FILE_NAME,
        nargs="+",
        metavar="FILE.jsonl",
    )
    sources: str | None = option(
        "sources of its text, as examples/pretrained/sources.json",
        None,
        FILE_NAME,
        metavar="FILE.json",
    )

    def about(self, output: str | Path) -> tuple[Any, Any]:
        """Read the scores and sources of a card, which must not be the output."""
        from fairseq_lxsr.evaluation.score import read_scores
        from fairseq_lxsr.export.card import TextSources

        refuse_overlap([output], [*self.scores, self.sources])
        scores = [score for path in self.scores for score in read_scores(path)]
        return scores, TextSources.read(self.sources) if self.sources else None


@dataclass(frozen=True)
class CardExport(_Card):
    """a new model card (README.md) in a model folder, with scores"""

    model: str = option(OUR_MODEL, **_FOLDER)

    def run(self) -> None:
        from fairseq_lxsr.encoder import SentenceEncoder
        from fairseq_lxsr.encoder.locate import find_model
        from fairseq_lxsr.encoder.model_folder import CARD_FILE
        from fairseq_lxsr.export.card import write_card

        folder = find_model(self.model)
        about = self.about(folder / CARD_FILE)
        write_card(folder, SentenceEncoder.from_pretrained(folder, "cpu"), *about)
        print(f"{folder / CARD_FILE}: written")


@dataclass(frozen=True)
class _Converted:
    model: str = option(OUR_MODEL, **_FOLDER)
    output: str = option(OUTPUT_HELP, **_FOLDER)

    def encoder(self) -> "SentenceEncoder":
        """Load the model folder, after checking that --output is not one of its files."""
        from fairseq_lxsr.embeddings import model_files
        from fairseq_lxsr.encoder import SentenceEncoder

        refuse_overlap([self.output], model_files([self.model]))
        return SentenceEncoder.from_pretrained(self.model, "cpu")


@dataclass(frozen=True)
class SentenceTransformersExport(_Converted):
    """a folder that sentence-transformers loads, and model2vec where a model has no layers"""

    normalize: bool = option("embeddings of length one", False)
    drop_order: bool = option(
        "leave out the coefficients of the order of words, with which the folder of a model without layers needs this "
        "package and trust_remote_code=True",
        False,
    )

    def run(self) -> None:
        from fairseq_lxsr.export import export_sentence_transformers

        encoder = self.encoder()
        difference = export_sentence_transformers(
            encoder, self.output, (), self.normalize, self.drop_order
        )
        found = "were not compared: sentence-transformers is not installed"
        found = found if difference is None else f"differ by at most {difference:.1g}"
        print(f"{self.output}: for sentence-transformers; its vectors {found}")
        self.print_needs(encoder)

    def print_needs(self, encoder: "SentenceEncoder") -> None:
        """Say in one line if the folder does not load by sentence-transformers alone, and why."""
        from fairseq_lxsr.export.st_folder import unsupported_feature, without_order

        if why := unsupported_feature(without_order(encoder) if self.drop_order else encoder):
            drop = (
                "; --drop-order leaves them out" if "order" in why and encoder.size.is_bag else ""
            )
            print(f"{self.output}: needs this package and trust_remote_code=True, for {why}{drop}")


@dataclass(frozen=True)
class WebExport(_Converted):
    """a page that searches sentences in the browser, for a model without layers"""

    input: tuple[str, ...] = option("sentences to search, one a line", nargs="+", **_FILE)
    title: str = option("heading of the page", "Nearest sentences", metavar="TEXT")
    example: str = option("first query (default: none)", "", metavar="SENTENCE")

    def run(self) -> None:
        from fairseq_lxsr.export import export_web
        from fairseq_lxsr.export.web_page import PAGE_FILE

        refuse_overlap([self.output], self.input)
        encoder = self.encoder()
        sentences = [line for path in self.input for line in read_lines(path)]
        count = export_web(encoder, sentences, self.output, self.title, self.example)
        page = Path(self.output) / PAGE_FILE
        print(
            f"{page}: {count:,} sentences, {page.stat().st_size / 1e6:.1f} MB; open it in a browser"
        )


@dataclass(frozen=True)
class OnnxExport(_Converted):
    """a folder for ONNX Runtime, the library tokenizers and transformers.js"""

    normalize: bool = option("embeddings of length one", False)
    int8: bool = option("8-bit weights", False)

    def run(self) -> None:
        from fairseq_lxsr.export import export_onnx
        from fairseq_lxsr.export.onnx import TOKENIZER_CONFIG_FILE

        agreement = export_onnx(self.encoder(), self.output, self.normalize, self.int8)
        found = (
            f"least cosine {agreement:.4f}"
            if self.int8
            else f"its vectors differ by at most {agreement:.1g}"
        )
        if not (Path(self.output) / TOKENIZER_CONFIG_FILE).exists():
            found += "; not for transformers.js, whose unigram models have no bytes for letters without a piece"
        print(f"{self.output}: for onnx; {found}")


@dataclass(frozen=True)
class HubExport(SentenceTransformersExport, _Card):
    """a folder for a hub of models, to upload with its own tool: for sentence-transformers, with a
    card
    """

    onnx: bool = option("write onnx/model.onnx too, of a model without layers", False)

    def run(self) -> None:
        from fairseq_lxsr.export import export_hub

        about, encoder = self.about(self.output), self.encoder()
        export_hub(encoder, self.output, *about, self.normalize, self.drop_order, self.onnx)
        print(f"{self.output}: for a hub of models; upload it with the tool of the hub")
        self.print_needs(encoder)


FORMS = {
    "folder": FolderExport,
    "card": CardExport,
    "sentence-transformers": SentenceTransformersExport,
    "hub": HubExport,
    "web": WebExport,
    "onnx": OnnxExport,
}


def add_parser(verbs) -> None:
    forms = verbs.add_parser("export", description=__doc__).add_subparsers(
        title="forms", required=True, metavar="FORM"
    )
    for name, kind in FORMS.items():
        form = forms.add_parser(name, help=kind.__doc__, description=f"Write {kind.__doc__}.")
        add_options(form, kind)
        form.set_defaults(run=lambda args, kind=kind: filled(kind, args).run())
