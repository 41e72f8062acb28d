"""XNLI: natural language inference across languages (Conneau et al. 2018).

A classifier labels sentence pairs as entailment, contradiction or neutral. It is trained in one
language.

The published files are xnli.test.tsv and xnli.dev.tsv with a header, and multinli.train.en.tsv or
the MultiNLI file. Other text is read from LANG.SPLIT.tsv with lines
`label<TAB>premise<TAB>hypothesis`, where SPLIT is train, dev or test.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, embed
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.labelled import ClassifierConfig, LabelledFeatures
from fairseq_lxsr.evaluation.named_sets import first_file
from fairseq_lxsr.evaluation.protocols.protocol import TransferProtocol
from fairseq_lxsr.evaluation.score import Score, text_hash
from fairseq_lxsr.evaluation.texts import check_pair, read_columns
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import FILE_NAME, XNLI_PRESETS, option
from fairseq_lxsr.vectors.rows import FloatArray

# `laser` follows Artetxe and Schwenk (2019b), with the hyperparameters in LASER's code (200 epochs,
# batches of 128). `wang` follows Wang et al., who use no dropout and do not normalise.
NLI_CLASSIFIERS = {
    "laser": ClassifierConfig(
        (512, 384), 0.3, 0.3, epochs=200, batch_size=128, normalise=False, seeds=1
    ),
    "wang": ClassifierConfig(
        (512, 384), 0, 0, epochs=200, batch_size=128, normalise=False, seeds=1
    ),
}
# Presets that scale sentence embeddings to unit length.
NORMALISED = {"laser"}
# The English training file of MultiNLI, whose name contains no language.
ENGLISH_TRAIN_FILE = "multinli_1.0_train.txt"
# Labels that the translated training set spells differently.
LABELS = {"contradictory": "contradiction"}
# Column names in the headers of the published files.
NLI_COLUMNS = {
    "label": ("gold_label", "label"),
    "premise": ("sentence1", "premise"),
    "hypothesis": ("sentence2", "hypo", "hypothesis"),
}
# Label of a pair on which the annotators did not agree.
UNLABELLED = "-"


@dataclass(frozen=True)
class NliPairs:
    """Premises, hypotheses and labels of one split in one language."""

    premises: Text
    hypotheses: Text
    labels: list[str]
    file: Path


def nli_features(premises: FloatArray, hypotheses: FloatArray) -> FloatArray:
    """Build the features [p, h, |p - h|, p * h] of pairs.

    Args:
        premises: embeddings [N, D].
        hypotheses: embeddings [N, D].

    Returns:
        Features, float32 [N, 4D].
    """
    check_pair(premises, hypotheses)
    return np.concatenate(
        [premises, hypotheses, np.abs(premises - hypotheses), premises * hypotheses],
        axis=1,
        dtype=np.float32,
    )


def read_nli_pairs(data: str, language: str, split: str) -> NliPairs:
    """Read the NLI pairs of one split in one language.

    Args:
        data: folder with the published files or with LANG.SPLIT.tsv.
        language: language of the text.
        split: train, dev or test.

    Returns:
        Premises, hypotheses and labels.

    Raises:
        InputError: if a file is missing, a line is invalid, or a file does not contain the
            language.
    """
    file = first_file([Path(data) / f"{language}.{split}.tsv"])
    if file:
        rows = read_columns(file, "label<TAB>premise<TAB>hypothesis", tabs_in_last=False)
        return _pairs(file, language, enumerate(rows, start=1))
    names = _published_names(language, split)
    file = first_file(Path(data) / name for name in names)
    if file:
        return _pairs(file, language, _read_published(file, language))
    raise InputError(
        f"{data}: neither {language}.{split}.tsv nor {' nor '.join(names)} (also .gz); check "
        "--data and the languages"
    )


def _published_names(language: str, split: str) -> list[str]:
    if split != "train":
        return [f"xnli.{split}.tsv"]
    names = [f"multinli.train.{language}.tsv"]
    if language == "en":
        names.append(ENGLISH_TRAIN_FILE)
    return names


def _read_published(path: Path, language: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number, label, premise and hypothesis of the pairs of a language.

    Unlabelled pairs are skipped, as is common practice.
    """
    lines = enumerate(read_lines(path), start=1)
    _, first_line = next(lines, (1, ""))
    header = first_line.split("\t")
    columns = _find_columns(path, header)
    language_column = header.index("language") if "language" in header else None
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) < len(header):
            raise InputError(
                f"{path}, line {number}: {len(fields)} columns; expected {len(header)}, as in "
                "the header"
            )
        if language_column is not None and fields[language_column] != language:
            continue
        row = [fields[column] for column in columns]
        if row[0] != UNLABELLED:
            yield number, row


def _find_columns(path: Path, header: list[str]) -> list[int]:
    """Return the column indices of the label, premise and hypothesis."""
    columns = []
    for names in NLI_COLUMNS.values():
        present = [name for name in names if name in header]
        if not present:
            raise InputError(
                f"{path}, line 1: invalid header {header!r:.80}; "
                "expected a header with columns for the label and both sentences"
            )
        columns.append(header.index(present[0]))
    return columns


def _pairs(path: Path, language: str, numbered_rows: Iterable[tuple[int, list[str]]]) -> NliPairs:
    numbers = []
    rows = []
    for number, row in numbered_rows:
        numbers.append(number - 1)
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no pairs in {language}; check --data and the languages")
    labels, premises, hypotheses = zip(*rows, strict=True)
    text_rows = np.array(numbers)
    total = sum(1 for _ in read_lines(path))
    return NliPairs(
        Text(premises, language, f"{path}.premise", text_rows, total),
        Text(hypotheses, language, f"{path}.hypothesis", text_rows, total),
        [LABELS.get(label.strip(), label.strip()) for label in labels],
        path,
    )


def _embed(encoder: Encoder, pairs: NliPairs, normalise: bool) -> LabelledFeatures:
    premises = embed(encoder, pairs.premises)
    hypotheses = embed(encoder, pairs.hypotheses)
    if normalise:
        premises = premises / np.linalg.norm(premises, axis=1, keepdims=True)
        hypotheses = hypotheses / np.linalg.norm(hypotheses, axis=1, keepdims=True)
    text = text_hash(pairs.premises.lines, pairs.hypotheses.lines, pairs.labels)
    features = nli_features(premises, hypotheses)
    return LabelledFeatures(features, pairs.labels, pairs.premises.file, text)


@dataclass(frozen=True, kw_only=True)
class Xnli(TransferProtocol):
    """Accuracy in every language of a classifier trained and selected in one language."""

    data: str = option(
        "folder with the published files, or with LANG.SPLIT.tsv",
        allowed=FILE_NAME,
        metavar="FOLDER",
    )
    train_lang: str = option("training language (default: en)", "en", metavar="LANG")
    preset: str = option("classifier settings (default: laser)", "laser", XNLI_PRESETS)

    def texts(self) -> dict[str, dict[str, NliPairs]]:
        """Read the test split in every language, and train and dev in the training language.

        Returns:
            NLI pairs by language, then by split.
        """
        texts = {}
        for language in self.langs:
            texts[language] = {"test": read_nli_pairs(self.data, language, "test")}
        train_splits = texts.setdefault(self.train_lang, {})
        for split in ("train", "dev"):
            train_splits[split] = read_nli_pairs(self.data, self.train_lang, split)
        return texts

    def scores(
        self,
        texts: Mapping[str, Mapping[str, NliPairs]],
        encoder: Encoder,
    ) -> list[Score]:
        normalise = self.preset in NORMALISED
        features: dict[str, dict[str, LabelledFeatures]] = {}
        for language, splits in texts.items():
            features[language] = {}
            for split, pairs in splits.items():
                features[language][split] = _embed(encoder, pairs, normalise)
        config = self.with_user_options(NLI_CLASSIFIERS[self.preset])
        # Imported here, because importing torch takes a second.
        from fairseq_lxsr.evaluation.classifier import transfer_scores

        scores = transfer_scores("xnli", features, [self.train_lang], config, encoder.fingerprint)
        for score in scores:
            score.settings["norm"] = "l2-sentence" if normalise else "none"
        return scores
