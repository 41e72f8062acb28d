"""`lxsr export`: export a checkpoint as a model folder, and a model folder to other formats.

A model folder can be used without fairseq.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.cli.options import OUR_MODEL, add_options, filled
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, STATIC_TYPES, STORED_TYPES, option

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.evaluation.score import Score
    from fairseq_lxsr.export.card_content import TextSources

OUTPUT_HELP = "output folder; a folder from an earlier export is replaced"
_NORMALIZE_HELP = "scale embeddings to unit length"
_FILE: dict[str, Any] = {"allowed": FILE_NAME, "metavar": "FILE"}
_FOLDER: dict[str, Any] = {"allowed": FILE_NAME, "metavar": "FOLDER"}


@dataclass(frozen=True)
class FolderExport:
    """The options of `lxsr export folder`."""

    checkpoint: str = option(
        "fairseq-train checkpoint, such as checkpoints/checkpoint_best.pt",
        allowed=FILE_NAME,
        metavar="FILE.pt",
    )
    output: str = option(OUTPUT_HELP, **_FOLDER)
    dtype: str | None = option(
        "data type of the stored weights: float16 halves the file size, int8 reduces it to a "
        "quarter, int4 reduces the token embeddings to an eighth (default: float32, or with "
        "`lxsr train --from` the type of the model that training continued from)",
        None,
        STORED_TYPES,
    )
    ema: bool = option(
        "export the moving average of the weights, which fairseq-train --store-ema stores", False
    )
    data: str | None = option(
        "data folder (default: text/ next to the checkpoint, or the training data)",
        None,
        **_FOLDER,
    )
    sentencepiece_model: str | None = option(
        "SentencePiece model (default: sentencepiece.model in the data folder)", None, **_FILE
    )
    lowercase: bool | None = option(
        "whether the training text was lower-cased (default: as in text.json in the data folder)",
        None,
        action=argparse.BooleanOptionalAction,
    )

    def run(self) -> None:
        from fairseq_lxsr.encoder import SentenceEncoder
        from fairseq_lxsr.export.card import write_card
        from fairseq_lxsr.export.folder import describe_update, export_checkpoint

        inputs: list[str | Path | None] = [self.checkpoint, self.sentencepiece_model]
        if self.data:
            inputs += [path for path in Path(self.data).glob("*") if path.is_file()]
        refuse_overlap([self.output], inputs)
        folder = export_checkpoint(
            self.checkpoint,
            self.output,
            self.data,
            self.sentencepiece_model,
            self.lowercase,
            self.dtype,
            self.ema,
        )
        # Every model folder contains a card; `lxsr export card` adds scores to it later.
        write_card(folder, SentenceEncoder.from_pretrained(folder))
        print(f"{folder}: exported {describe_update(self.checkpoint)} of {self.checkpoint}")


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """Options for the information in a model card that is not in the model folder."""

    scores: tuple[str, ...] = option(
        "score files of this model, written by `lxsr eval --output`",
        (),
        FILE_NAME,
        nargs="+",
        metavar="FILE.jsonl",
    )
    sources: str | None = option(
        "sources and licences of the training text, as in examples/pretrained/sources.json",
        None,
        FILE_NAME,
        metavar="FILE.json",
    )
    name: str = option(
        "name of the model in its card (default: the name of --push, or of the folder)",
        "",
        metavar="NAME",
    )

    def read(self, *outputs: str | Path) -> "tuple[list[Score], TextSources | None]":
        """Read the score and source files, after checking that no output overwrites them."""
        from fairseq_lxsr.evaluation.score import read_scores
        from fairseq_lxsr.export.card_content import TextSources

        refuse_overlap(outputs, [*self.scores, self.sources])
        scores = []
        for path in self.scores:
            scores += read_scores(path)
        if self.sources is None:
            return scores, None
        return scores, TextSources.read(self.sources)


@dataclass(frozen=True)
class CardExport(CardOptions):
    """The options of `lxsr export card`."""

    model: str = option(OUR_MODEL, **_FOLDER)

    def run(self) -> None:
        from fairseq_lxsr.encoder import SentenceEncoder
        from fairseq_lxsr.encoder.locate import find_model, is_cached_from_hub
        from fairseq_lxsr.encoder.model_folder import CARD_FILE, CARD_FILES
        from fairseq_lxsr.export.card import write_card

        folder = find_model(self.model)
        if is_cached_from_hub(folder):
            raise InputError(
                f"--model {self.model}: {folder} is a copy of a model on a hub; expected a model "
                "folder of your own: write one with `lxsr export hub --scores FILE.jsonl`"
            )
        scores, sources = self.read(*(folder / name for name in CARD_FILES))
        encoder = SentenceEncoder.from_pretrained(folder, "cpu")
        write_card(folder, encoder, scores, sources, self.name)
        print(f"{folder / CARD_FILE}: written")


@dataclass(frozen=True)
class Conversion:
    """The options of all exports that start from a model folder."""

    model: str = option(OUR_MODEL, **_FOLDER)
    output: str = option(OUTPUT_HELP, **_FOLDER)

    def load_encoder(self) -> "SentenceEncoder":
        """Load the model folder, after checking that --output is not one of its files."""
        from fairseq_lxsr.embeddings import model_files
        from fairseq_lxsr.encoder import SentenceEncoder

        refuse_overlap([self.output], model_files([self.model]))
        return SentenceEncoder.from_pretrained(self.model, "cpu")


@dataclass(frozen=True)
class SentenceTransformersExport(Conversion):
    """The options of `lxsr export sentence-transformers`."""

    normalize: bool = option(_NORMALIZE_HELP, False)
    drop_order: bool = option(
        "omit the word order coefficients of a model without layers; if they are kept, loading "
        "the folder requires this package and trust_remote_code=True",
        False,
    )
    dtype: str = option(
        "type of the stored weights of a model without layers and word order: float16 halves the "
        "folder, int8 reduces it to a quarter",
        "float32",
        STATIC_TYPES,
    )

    def run(self) -> None:
        from fairseq_lxsr.export import export_sentence_transformers

        encoder = self.load_encoder()
        difference = export_sentence_transformers(
            encoder, self.output, (), self.normalize, self.drop_order, self.dtype
        )
        if difference is None:
            check = "were not compared, because sentence-transformers is not installed"
        else:
            check = f"differ by at most {difference:.1g}"
        print(f"{self.output}: for sentence-transformers; its vectors {check}")
        self.print_requirements(encoder)

    def print_requirements(self, encoder: "SentenceEncoder") -> None:
        """If sentence-transformers alone cannot load the folder, print why."""
        from fairseq_lxsr.export.st_folder import unsupported_feature, without_order

        exported = encoder
        if self.drop_order:
            exported = without_order(encoder)
        reason = unsupported_feature(exported)
        if not reason:
            return
        advice = ""
        is_bag = getattr(exported.size, "is_bag", False)
        if is_bag and not unsupported_feature(without_order(exported)):
            advice = "; --drop-order omits them"
        print(
            f"{self.output}: requires this package and trust_remote_code=True, for {reason}{advice}"
        )


@dataclass(frozen=True)
class WebExport(Conversion):
    """The options of `lxsr export web`."""

    input: tuple[str, ...] = option("sentences to search, one per line", nargs="+", **_FILE)
    title: str = option("page heading", "Nearest sentences", metavar="TEXT")
    example: str = option("query shown when the page opens (default: none)", "", metavar="SENTENCE")

    def run(self) -> None:
        from fairseq_lxsr.export import export_web
        from fairseq_lxsr.export.web_page import PAGE_FILE

        refuse_overlap([self.output], self.input)
        encoder = self.load_encoder()
        sentences: list[str] = []
        for path in self.input:
            sentences += read_lines(path)
        count = export_web(encoder, sentences, self.output, self.title, self.example)
        page = Path(self.output) / PAGE_FILE
        megabytes = page.stat().st_size / 1e6
        print(f"{page}: {count:,} sentences, {megabytes:.1f} MB; open it in a browser")


@dataclass(frozen=True)
class OnnxExport(Conversion):
    """The options of `lxsr export onnx`."""

    normalize: bool = option(_NORMALIZE_HELP, False)
    int8: bool = option("store 8-bit weights", False)
    classifier: str | None = option(
        "add a linear classifier to the graph: a NumPy file with the coef, intercept and classes "
        "of scikit-learn (default: none)",
        None,
        allowed=FILE_NAME,
        metavar="FILE.npz",
    )

    def run(self) -> None:
        from fairseq_lxsr.export import export_onnx
        from fairseq_lxsr.export.onnx import TOKENIZER_CONFIG_FILE

        refuse_overlap([self.output], [self.classifier])
        encoder = self.load_encoder()
        agreement = export_onnx(encoder, self.output, self.normalize, self.int8, self.classifier)
        if self.int8:
            check = f"lowest cosine similarity {agreement:.4f} to the original vectors"
        else:
            check = f"its vectors differ by at most {agreement:.1g}"
        limitation = ""
        if not (Path(self.output) / TOKENIZER_CONFIG_FILE).exists():
            limitation = (
                "; not for transformers.js, whose unigram models do not use bytes for characters "
                "without a word piece"
            )
        print(f"{self.output}: for ONNX Runtime; {check}{limitation}")


@dataclass(frozen=True)
class HubExport(SentenceTransformersExport, CardOptions):
    """The options of `lxsr export hub`."""

    onnx: bool = option("also write onnx/model.onnx, for a model without layers", False)
    push: str | None = option(
        "also upload the folder to a hub, as this model; the token is HF_TOKEN, or what `hf auth "
        "login` has stored (default: nothing is uploaded)",
        None,
        metavar="ORG/NAME",
    )
    private: bool = option("with --push: make a new repository private", False)
    revision: str | None = option(
        "with --push: upload to this branch, created if it does not exist (default: main)",
        None,
        metavar="BRANCH",
    )

    def check_push(self) -> None:
        """Check the options of --push, before the export takes time."""
        from fairseq_lxsr.export.hub import check_push

        if self.push is not None:
            check_push(self.push)
            return
        for name, value in (("--private", self.private), ("--revision", self.revision)):
            if value:
                raise InputError(f"{name} requires --push ORG/NAME; use both, or neither")

    def run(self) -> None:
        from fairseq_lxsr.encoder.hub import HUB
        from fairseq_lxsr.encoder.pin import PIN, listing_of
        from fairseq_lxsr.export import export_hub, push_to_hub
        from fairseq_lxsr.files.open import sha256

        self.check_push()
        scores, sources = self.read(self.output)
        encoder = self.load_encoder()
        export_hub(
            encoder,
            self.output,
            scores,
            sources,
            self.normalize,
            self.drop_order,
            self.onnx,
            self.dtype,
            name=self.name or self.push,
        )
        advice = "; upload it with --push ORG/NAME, or with the tool of the hub"
        if self.push is not None:
            advice = ""
        print(f"{self.output}: for a model hub{advice}")
        self.print_requirements(encoder)
        if self.push is None:
            return
        address = push_to_hub(self.output, self.push, self.private, self.revision)
        print(f"{self.push}: uploaded, {address}")
        revision = f"@{self.revision}" if self.revision else ""
        checksum = sha256(listing_of(Path(self.output)))
        print(f"load exactly this model as {HUB}{self.push}{revision}{PIN}{checksum}")


# Options and description of each export format.
FORMS: dict[str, tuple[type, str]] = {
    "folder": (FolderExport, "a model folder from a fairseq-train checkpoint"),
    "card": (CardExport, "a new model card (README.md) in a model folder, with scores"),
    "sentence-transformers": (
        SentenceTransformersExport,
        "a folder for sentence-transformers, and for model2vec if the model has no layers",
    ),
    "hub": (HubExport, "a folder for a model hub: for sentence-transformers, with a model card"),
    "web": (
        WebExport,
        "a page that searches sentences in the browser, with a model without layers",
    ),
    "onnx": (OnnxExport, "a folder for ONNX Runtime, the tokenizers library and transformers.js"),
}


def add_parser(verbs) -> None:
    forms = verbs.add_parser("export", description=__doc__).add_subparsers(
        title="forms", required=True, metavar="FORM"
    )
    for name, (kind, summary) in FORMS.items():
        form = forms.add_parser(name, help=summary, description=f"Write {summary}.")
        add_options(form, kind)
        form.set_defaults(run=lambda args, kind=kind: filled(kind, args).run())
