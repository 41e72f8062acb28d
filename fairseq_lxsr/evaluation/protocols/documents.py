"""Document and title classification: MLDoc (Schwenk and Li 2018), RCV2 titles and similar text.

Every language has the files train (or train.1000), dev (or val, valid) and test, with lines
`label<TAB>text`.
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

SPLIT_FILES = {"train": ("train.1000", "train"), "dev": ("dev", "val", "valid"), "test": ("test",)}
# Without a dev file, every tenth line of the training file is held out.
HELD_OUT_EVERY = 10
TITLE_L2 = (0.0, 1e-4, 1e-3, 1e-2)
COPYRIGHT = re.compile(r"\([cC]\) Reuters Limited 199[0-9]\.")
ABBREVIATIONS = {" Co .": " Co.", " Inc . ": " Inc. "}
# `mlp` follows Schwenk and Li 2018, like LASER's code; `linear` follows Mao et al. 2021. For
# titles, the network of `mlp` has one hidden layer, and the L2 strength is selected on dev.
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
    """Texts and labels of one split (train, dev or test)."""

    text: Text
    labels: list[str]

    @property
    def file(self) -> str:
        return self.text.file


def read_split(data: str, language: str, split: str) -> Labelled | None:
    """Read the labelled texts of one split in one language.

    Args:
        data: folder with files LANG.SPLIT, LANG/SPLIT or SPLIT.LANG, with or without .tsv and .gz.
        language: language of the text.
        split: train, dev or test.

    Returns:
        Texts and labels, or None if the file is missing.
    """
    names: list[Path] = []
    for name in SPLIT_FILES[split]:
        for pattern in (f"{language}.{name}", f"{language}/{name}", f"{name}.{language}"):
            names.append(Path(data) / pattern)
    path = first_file(names, TEXT_SUFFIXES)
    if path is None:
        return None
    labels, lines = zip(*read_columns(path, "label<TAB>text"), strict=True)
    return Labelled(Text(lines, language, str(path)), [label.strip() for label in labels])


def read_language(data: str, language: str, learn: bool, test: bool = True) -> dict[str, Labelled]:
    """Read the labelled texts of all required splits in one language.

    Args:
        data: folder with the files; see `read_split`.
        language: language of the text.
        learn: whether to read train and dev. If dev is missing, every tenth line of train is held
            out instead.
        test: whether to read test.

    Returns:
        Labelled texts by split.

    Raises:
        InputError: if a split is missing.
    """
    names = [*(["train", "dev"] if learn else []), *(["test"] if test else [])]
    files = {split: read_split(data, language, split) for split in names}
    train = files.get("train")
    if train and not files["dev"]:
        row_numbers = np.arange(len(train.labels))
        is_held_out = row_numbers % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        files["train"] = _select_rows(train, ~is_held_out)
        files["dev"] = _select_rows(train, is_held_out)
    splits = {}
    for split, labelled in files.items():
        if labelled is None or not labelled.labels:
            expected = " or ".join(f"{language}.{name}" for name in SPLIT_FILES[split])
            raise InputError(
                f"{data}: no {expected} (also .tsv, .gz) with text; check --data and the languages"
            )
        splits[split] = labelled
    return splits


def _select_rows(labelled: Labelled, is_selected: np.ndarray) -> Labelled:
    rows = is_selected.nonzero()[0]
    return Labelled(rows_of(labelled.text, rows), [labelled.labels[row] for row in rows])


def without_copyright(labelled: Labelled) -> Labelled:
    """Remove Reuters' copyright line, and the space before the period in "Co ." and "Inc .".

    LASER's code applies the same two patterns to all splits (tasks/mldoc/mldoc.sh, lines 60 and
    61).

    Args:
        labelled: documents and their labels.

    Returns:
        The documents without them, with the same labels.
    """
    lines = []
    for line in labelled.text.lines:
        for spaced, abbreviation in ABBREVIATIONS.items():
            line = line.replace(spaced, abbreviation)
        lines.append(COPYRIGHT.sub("", line))
    return replace(labelled, text=replace(labelled.text, lines=lines))


@dataclass(frozen=True, kw_only=True)
class Titles(TransferProtocol):
    """Accuracy on titles for every combination of training and test language."""

    data: str = option(
        "folder with LANG.train, LANG.dev and LANG.test (also .tsv, .gz)",
        allowed=FILE_NAME,
        metavar="FOLDER",
    )
    train_langs: tuple[str, ...] | None = option(
        "training languages, for example en (default: all of --langs)",
        None,
        type=comma_separated("languages"),
        metavar="LANGS",
    )
    classifier: str = option(
        "classifier: mlp, as in LASER, or linear, as in Mao et al. (default: mlp)",
        "mlp",
        CLASSIFIERS,
    )

    name = "titles"
    strip_copyright = False

    def texts(self) -> dict[str, dict[str, Labelled]]:
        """Read the splits of every language; see `read_language`.

        Returns:
            Documents by language, then by split.
        """
        train_langs = self.train_langs or self.langs
        texts = {}
        for language in dict.fromkeys([*self.langs, *train_langs]):
            texts[language] = read_language(
                self.data, language, learn=language in train_langs, test=language in self.langs
            )
        return texts

    def scores(
        self,
        texts: Mapping[str, Mapping[str, Labelled]],
        encoder: Encoder,
    ) -> list[Score]:
        features: dict[str, dict[str, LabelledFeatures]] = {}
        for language, splits in texts.items():
            features[language] = {}
            for split, labelled in splits.items():
                if self.strip_copyright:
                    labelled = without_copyright(labelled)
                features[language][split] = _embed(encoder, labelled)
        config = self.with_user_options(DOCUMENT_CLASSIFIERS[self.name][self.classifier])
        # Imported here, because importing torch takes a second.
        from fairseq_lxsr.evaluation.classifier import transfer_scores

        train_langs = self.train_langs or self.langs
        scores = transfer_scores(self.name, features, train_langs, config, encoder.fingerprint)
        if not self.strip_copyright:
            return scores
        return [
            replace(score, settings={"copyright": "stripped"} | score.settings) for score in scores
        ]


def _embed(encoder: Encoder, labelled: Labelled) -> LabelledFeatures:
    text = text_hash(labelled.text.lines, labelled.labels)
    features = embed(encoder, labelled.text)
    return LabelledFeatures(features, labelled.labels, labelled.text.file, text)


@dataclass(frozen=True, kw_only=True)
class MLDoc(Titles):
    """Accuracy on documents for every combination of training and test language."""

    strip_copyright: bool = option(
        "remove Reuters' copyright line from the documents, as in LASER; precomputed "
        "embeddings are not changed",
        False,
    )

    name = "mldoc"
