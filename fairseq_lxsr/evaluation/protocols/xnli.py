"""XNLI: entailment, contradiction or neutral (Conneau et al. 2018); the classifier is trained in
English.

Data is read as published (xnli.test.tsv, xnli.dev.tsv with a header; multinli.train.en.tsv or the
MultiNLI file), or from LANG.PART.tsv with lines `label<TAB>premise<TAB>hypothesis`, where PART is
train, dev or test.
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

# Artetxe and Schwenk 2019b as in LASER's code (200 epochs, batch 128); Wang et al.: no dropout, not
# normalized
NLI_CLASSIFIERS = {
    "laser": ClassifierConfig(
        (512, 384), 0.3, 0.3, epochs=200, batch_size=128, normalise=False, seeds=1
    ),
    "wang": ClassifierConfig(
        (512, 384), 0, 0, epochs=200, batch_size=128, normalise=False, seeds=1
    ),
}
NORMALISED = {"laser"}  # presets that scale each sentence embedding to length one
ENGLISH_TRAIN_FILE = "multinli_1.0_train.txt"  # whose name has no language
LABELS = {"contradictory": "contradiction"}  # spelling of the translated training set
NLI_COLUMNS = {  # column names in the headers of the published files
    "label": ("gold_label", "label"),
    "premise": ("sentence1", "premise"),
    "hypothesis": ("sentence2", "hypo", "hypothesis"),
}


@dataclass(frozen=True)
class NliPairs:
    """Premises, hypotheses and labels of one part of one language."""

    premises: Text
    hypotheses: Text
    labels: list[str]
    file: Path


def nli_features(premises: FloatArray, hypotheses: FloatArray) -> FloatArray:
    """Build the features [p, h, |p - h|, p * h], float32 [N, 4D], of embeddings [N, D]."""
    check_pair(premises, hypotheses)
    return np.concatenate(
        [premises, hypotheses, np.abs(premises - hypotheses), premises * hypotheses],
        axis=1,
        dtype=np.float32,
    )


def read_nli_pairs(data: str, language: str, part: str) -> NliPairs:
    """Read a part of a language."""
    published = [f"xnli.{part}.tsv"] if part != "train" else [f"multinli.train.{language}.tsv"]
    if part == "train" and language == "en":
        published.append(ENGLISH_TRAIN_FILE)
    own = first_file([Path(data) / f"{language}.{part}.tsv"])
    if own:
        rows = read_columns(own, "label<TAB>premise<TAB>hypothesis", tabs_in_last=False)
        return _pairs(own, language, enumerate(rows, start=1))
    path = first_file(Path(data) / name for name in published)
    if path:
        return _pairs(path, language, _published(path, language))
    raise InputError(
        f"{data}: neither {language}.{part}.tsv nor {' nor '.join(published)} (also .gz); check --data and languages"
    )


def _published(path: Path, language: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows of a published file by its column names; unlabelled rows (-) are skipped, as is
    common practice.
    """
    lines = enumerate(read_lines(path), start=1)
    header = next(lines, (1, ""))[1].split("\t")
    try:
        places = [
            next(header.index(name) for name in names if name in header)
            for names in NLI_COLUMNS.values()
        ]
    except StopIteration:
        raise InputError(
            f"{path}, line 1: {header!r:.80}; expected a header naming label and both sentences"
        ) from None
    place = header.index("language") if "language" in header else None
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) < len(header):
            raise InputError(
                f"{path}, line {number}: {len(fields)} columns; expected {len(header)} as in the header"
            )
        if (place is None or fields[place] == language) and fields[places[0]] != "-":
            yield number, [fields[index] for index in places]


def _pairs(path: Path, language: str, rows: Iterable[tuple[int, list[str]]]) -> NliPairs:
    found = list(rows)
    if not found:
        raise InputError(f"{path}: nothing in it for {language}; check --data and the languages")
    labels, premises, hypotheses = zip(*(fields for _, fields in found), strict=True)
    where = np.array([number - 1 for number, _ in found])
    total = sum(1 for _ in read_lines(path))
    return NliPairs(
        Text(premises, language, f"{path}.premise", where, total),
        Text(hypotheses, language, f"{path}.hypothesis", where, total),
        [LABELS.get(label.strip(), label.strip()) for label in labels],
        path,
    )


def _embed(encoder: Encoder, pairs: NliPairs, normalise: bool) -> LabelledFeatures:
    sides = [embed(encoder, text) for text in (pairs.premises, pairs.hypotheses)]
    if normalise:
        sides = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    text = text_hash(pairs.premises.lines, pairs.hypotheses.lines, pairs.labels)
    return LabelledFeatures(nli_features(*sides), pairs.labels, pairs.premises.file, text)


@dataclass(frozen=True, kw_only=True)
class Xnli(TransferProtocol):
    """Accuracy in every language of a classifier that is trained and selected in one language."""

    data: str = option("the published files, or LANG.PART.tsv", allowed=FILE_NAME, metavar="FOLDER")
    train_lang: str = option("default: en", "en", metavar="LANG")
    preset: str = option("default: laser", "laser", XNLI_PRESETS)

    def texts(self) -> dict[str, dict[str, NliPairs]]:
        """Read test in every language, and train and dev in the language to learn in, by language
        and part.
        """
        texts = {
            language: {"test": read_nli_pairs(self.data, language, "test")}
            for language in self.langs
        }
        training = {
            part: read_nli_pairs(self.data, self.train_lang, part) for part in ("train", "dev")
        }
        texts.setdefault(self.train_lang, {}).update(training)
        return texts

    def scores(
        self,
        texts: Mapping[str, Mapping[str, NliPairs]],
        encoder: Encoder,
        config: ClassifierConfig | None = None,
    ) -> list[Score]:
        normalise = self.preset in NORMALISED
        features = {
            language: {part: _embed(encoder, pairs, normalise) for part, pairs in parts.items()}
            for language, parts in texts.items()
        }
        config = config or self.with_user_options(NLI_CLASSIFIERS[self.preset])
        from fairseq_lxsr.evaluation.classifier import transfer_scores  # torch takes a second

        scores = transfer_scores("xnli", features, [self.train_lang], config, encoder.fingerprint)
        for score in scores:
            score.settings["norm"] = "l2-sentence" if normalise else "none"
        return scores
