"""Document and title classification: MLDoc (Schwenk and Li 2018), RCV2 titles, or labelled text in
their format.

A language has the files train (train.1000), dev (or val) and test, with lines `label<TAB>text`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.labelled import ClassifierConfig, LabelledFeatures
from fairseq_lxsr.evaluation.named_sets import TEXT_SUFFIXES, first_file
from fairseq_lxsr.evaluation.protocols.protocol import TransferProtocol, comma_separated
from fairseq_lxsr.evaluation.score import Score, text_hash
from fairseq_lxsr.evaluation.texts import read_columns, rows_of
from fairseq_lxsr.options import CLASSIFIERS, FILE_NAME, option

PART_FILES = {"train": ("train.1000", "train"), "dev": ("dev", "val", "valid"), "test": ("test",)}
HELD_OUT_EVERY = 10
TITLE_L2 = (0.0, 1e-4, 1e-3, 1e-2)
COPYRIGHT = re.compile(r"\([cC]\) Reuters Limited 199[0-9]\.")
ABBREVIATIONS = {" Co .": " Co.", " Inc . ": " Inc. "}
# Schwenk and Li 2018 as in LASER's code; the lightweight paper; for titles one hidden layer and L2
# chosen on dev
DOCUMENT_CLASSIFIERS = {
    "mldoc": {
        "mlp": ClassifierConfig(),
        "linear": ClassifierConfig(hidden=(), dropout=0, input_dropout=0),
    },
    "titles": {
        "mlp": ClassifierConfig(hidden=(10,), l2=TITLE_L2),
        "linear": ClassifierConfig(hidden=(), dropout=0, input_dropout=0, l2=TITLE_L2),
    },
}


@dataclass(frozen=True)
class Labelled:
    """The texts of one part and their labels."""

    text: Text
    labels: list[str]

    @property
    def file(self) -> str:
        return self.text.file


def read_part(data: str, language: str, part: str) -> Labelled | None:
    """Read DATA/LANG.PART, DATA/LANG/PART or DATA/PART.LANG, optionally with .tsv and .gz; None
    where there is none.
    """
    path = first_file(
        (
            Path(data) / pattern
            for name in PART_FILES[part]
            for pattern in (f"{language}.{name}", f"{language}/{name}", f"{name}.{language}")
        ),
        TEXT_SUFFIXES,
    )
    if path is None:
        return None
    labels, lines = zip(*read_columns(path, "label<TAB>text"), strict=True)
    return Labelled(Text(lines, language, str(path)), [label.strip() for label in labels])


def read_language(data: str, language: str, learn: bool, test: bool = True) -> dict[str, Labelled]:
    """Read train and dev to learn, and test to test; without dev, every 10th line of train is held
    out.
    """
    needed = [*(("train", "dev") if learn else ()), *(("test",) if test else ())]
    parts = {part: read_part(data, language, part) for part in needed}
    if parts.get("train") and not parts["dev"]:
        whole = parts["train"]
        assert whole is not None
        held_out = np.arange(len(whole.labels)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        parts["train"], parts["dev"] = _rows(whole, ~held_out), _rows(whole, held_out)
    missing = [part for part, found in parts.items() if found is None or not found.labels]
    if missing:
        names = " or ".join(f"{language}.{name}" for name in PART_FILES[missing[0]])
        raise InputError(
            f"{data}: no {names} (also .tsv, .gz) with text; check --data and the languages"
        )
    return {part: found for part, found in parts.items() if found is not None}


def _rows(whole: Labelled, chosen: np.ndarray) -> Labelled:
    rows = chosen.nonzero()[0]
    return Labelled(rows_of(whole.text, rows), [whole.labels[row] for row in rows])


def without_copyright(found: Labelled) -> Labelled:
    """Remove Reuters' copyright line and the space before the dot of Co. and Inc. from documents.

    Source: the two patterns of LASER's code (tasks/mldoc/mldoc.sh, lines 60 and 61), which does so
    for all parts.
    """
    lines = []
    for line in found.text.lines:
        for written, wanted in ABBREVIATIONS.items():
            line = line.replace(written, wanted)
        lines.append(COPYRIGHT.sub("", line))
    return replace(found, text=replace(found.text, lines=lines))


@dataclass(frozen=True, kw_only=True)
class Titles(TransferProtocol):
    """Accuracy on titles for every pair of a train language and a test language."""

    data: str = option(
        "LANG.train, LANG.dev, LANG.test (.tsv, .gz)", allowed=FILE_NAME, metavar="FOLDER"
    )
    train_langs: tuple[str, ...] | None = option(
        "trained in (default: all of --langs; en for en to X)",
        None,
        type=comma_separated("languages"),
        metavar="LANGS",
    )
    classifier: str = option(
        "mlp as in LASER's code, linear as in Mao et al. (default: mlp)", "mlp", CLASSIFIERS
    )

    name = "titles"
    strip_copyright = False

    def texts(self) -> dict[str, dict[str, Labelled]]:
        """Read the parts of every language, by language, see `read_language`."""
        train_langs = self.train_langs or self.langs
        return {
            language: read_language(
                self.data, language, language in train_langs, language in self.langs
            )
            for language in dict.fromkeys([*self.langs, *train_langs])
        }

    def scores(
        self,
        texts: Mapping[str, Mapping[str, Labelled]],
        encoder: Encoder,
        config: ClassifierConfig | None = None,
    ) -> list[Score]:
        read = without_copyright if self.strip_copyright else lambda found: found
        features = {
            language: {part: _embed(encoder, read(found)) for part, found in parts.items()}
            for language, parts in texts.items()
        }
        config = config or self.changed(DOCUMENT_CLASSIFIERS[self.name][self.classifier])
        from fairseq_lxsr.evaluation.classifier import transfer_scores  # torch takes a second

        scores = transfer_scores(
            self.name, features, self.train_langs or self.langs, config, encoder.fingerprint
        )
        signed = {"copyright": "stripped"} if self.strip_copyright else {}
        return [replace(score, settings=signed | score.settings) for score in scores]


def _embed(encoder: Encoder, found: Labelled) -> LabelledFeatures:
    text = text_hash(found.text.lines, found.labels)
    return LabelledFeatures(embed(encoder, found.text), found.labels, found.text.file, text)


@dataclass(frozen=True, kw_only=True)
class MLDoc(Titles):
    """Accuracy on documents, as on titles."""

    strip_copyright: bool = option(
        "read the documents without Reuters' copyright line, as LASER's code; embeddings made elsewhere are used as "
        "they are",
        False,
    )

    name = "mldoc"
