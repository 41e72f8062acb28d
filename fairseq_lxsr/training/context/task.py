"""fairseq task `sent_context`, which trains sentence embeddings without parallel text."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.data import ConcatDataset, Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.records import open_array
from fairseq_lxsr.modules.sizes import POSITIONS
from fairseq_lxsr.options import CONTEXT_NEGATIVES, option
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE
from fairseq_lxsr.training.context.dataset import (
    CoherentPairs,
    DocumentCorpus,
    InsertedSentences,
    ReplacedSentences,
)
from fairseq_lxsr.training.corpora import load_dictionary, read_sentences, refuse_further_parts
from fairseq_lxsr.training.task import LxsrTask, LxsrTaskConfig

logger = logging.getLogger(__name__)

# First columns in a file of mined pairs; the sentences follow.
COLUMNS = ("score", "cosine", "language", "sentence", "language", "sentence")


@dataclass
class SentContextConfig(LxsrTaskConfig):
    both_samples: bool = option(
        "use every sentence twice per epoch, in its own context and replaced by another sentence, "
        "instead of choosing one of the two at random; not with --mined",
        False,
    )
    negatives: ChoiceEnum(CONTEXT_NEGATIVES) = option(  # type: ignore[valid-type]
        "source of the replacement sentences: language (the language of the original sentence) or "
        "corpus (all languages, as in Wang et al.); not with --mined",
        "language",
    )
    langs: Optional[str] = option(
        "comma-separated languages, such as en,fr (default: every train.LANG in the folder)",
        None,
    )
    mined: Optional[str] = option(
        "file of mined pairs: learn how well each sentence matches the context of its partner, "
        "instead of whether a sentence is in its own context",
        None,
    )
    max_positions: int = option(
        "maximum number of word pieces in a sentence with its context; longer samples are "
        "truncated",
        150,
        POSITIONS,
    )


@register_task("sent_context", dataclass=SentContextConfig)
class SentContextTask(LxsrTask):
    """Builds batches of sentences in context for `--criterion sent_context_loss`."""

    def __init__(self, cfg: SentContextConfig):
        super().__init__(cfg)
        self.languages = find_languages(self.shards[0], cfg.langs)
        if cfg.both_samples and cfg.mined is not None:
            raise InputError("--both-samples cannot be combined with --mined; use one")
        if cfg.negatives != "language" and cfg.mined is not None:
            raise InputError(
                f"--negatives {cfg.negatives} cannot be combined with --mined; use one"
            )
        logger.info(
            f"languages {', '.join(self.languages)}; dictionary of {len(self.dictionary):,} entries"
        )

    def read_dictionary(self, folder: Path) -> Dictionary:
        path = folder / DICTIONARY_FILE
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; expected a data folder of `lxsr train-context`"
            )
        return load_dictionary(path)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Load a split in all languages, or, with `--mined`, the mined pairs of all shards."""
        mined = self.cfg.mined
        if mined is not None and split != "train":
            raise InputError(f"--mined provides no {split} samples; use --disable-validation")
        folders = self.shards
        if mined is None:
            folders = [self.folder_of(split, epoch)]
        if combine:
            for folder in folders:
                refuse_further_parts(folder, split, self.languages)
        corpora = [
            read_documents(folders, split, language, self.num_symbols)
            for language in self.languages
        ]
        options: dict[str, Any] = {
            "padding_idx": self.dictionary.pad(),
            "eos_idx": self.dictionary.eos(),
            "max_positions": self.cfg.max_positions,
            "seed": self.cfg.seed,
            "shuffle": split == "train",
        }
        dataset: InsertedSentences | ReplacedSentences
        if mined is not None:
            dataset = InsertedSentences(corpora, read_mined(Path(mined), corpora), **options)
        else:
            options["negatives"] = str(self.cfg.negatives)
            dataset = ReplacedSentences(corpora, doubled=self.cfg.both_samples, **options)
        if not len(dataset):
            raise InputError(
                f"{folders[0]}: no {split} document has at least two sentences; check the documents"
            )
        num_documents = sum(len(corpus.starts) - 1 for corpus in corpora)
        logger.info(f"{split}: {len(dataset):,} samples from {num_documents:,} documents")
        self.datasets[split] = dataset

    def max_positions(self) -> int:
        return self.cfg.max_positions


def find_languages(folder: Path, langs: str | None) -> list[str]:
    """Return the training languages.

    Args:
        folder: data folder from `lxsr train-context`.
        langs: value of `--langs`; None for all languages in the folder.

    Raises:
        InputError: if the folder contains no documents, or none in one of the given languages.
    """
    available = sorted(path.name.split(".")[1] for path in folder.glob("train.*.documents.npy"))
    if not available:
        raise InputError(
            f"{folder}: no train.LANG.documents.npy; expected a data folder of `lxsr train-context`"
        )
    if langs is None:
        return available
    languages = [name.strip() for name in langs.split(",")]
    for language in languages:
        if language not in available:
            raise InputError(
                f"--langs {language}: {folder} has no text in this language; choose from "
                f"{listed(available)}"
            )
    return languages


def read_documents(
    folders: Sequence[Path], split: str, language: str, num_symbols: int
) -> DocumentCorpus:
    """Read and concatenate one language's documents from all data folders.

    Args:
        folders: data folders from `lxsr train-context`.
        split: `train` or `valid`.
        language: language to read.
        num_symbols: size of the dictionary; all ids must be below it.

    Raises:
        InputError: if a file is missing or damaged.
    """
    parts = [_read_part(folder, split, language, num_symbols) for folder in folders]
    if len(parts) == 1:
        return parts[0]
    starts = []
    num_sentences = 0
    for part in parts:
        starts.append(part.starts[:-1] + num_sentences)
        num_sentences += part.starts[-1]
    starts.append(np.array([num_sentences]))
    sentences = ConcatDataset([part.sentences for part in parts])
    return DocumentCorpus(language, sentences, np.concatenate(starts))


def _read_part(folder: Path, split: str, language: str, num_symbols: int) -> DocumentCorpus:
    prefix = folder / f"{split}.{language}"
    sentences = read_sentences(prefix, num_symbols)
    path = Path(f"{prefix}.documents.npy")
    if not path.is_file():
        raise InputError(f"{path}: no such file; prepare the documents again")
    try:
        starts = np.array(open_array(path))
    except ValueError as error:
        raise InputError(
            f"{path}: not an array of numbers ({error}); prepare the documents again"
        ) from None
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or not len(starts):
        raise InputError(
            f"{path}: {starts.dtype} of shape {starts.shape}; expected integers [documents + 1]: "
            "prepare the documents again"
        )
    if starts[0] != 0 or starts[-1] != len(sentences) or (starts[1:] < starts[:-1]).any():
        raise InputError(
            f"{path}: documents from sentence {starts[0]:,} to {starts[-1]:,} of "
            f"{len(sentences):,}; expected documents that cover all sentences in order: prepare "
            "the documents again"
        )
    return DocumentCorpus(language, sentences, starts)


def read_mined(path: Path, corpora: list[DocumentCorpus]) -> CoherentPairs:
    """Read a file of mined pairs.

    Args:
        path: file with the tab-separated `COLUMNS`.
        corpora: corpora that contain the mined sentences.

    Raises:
        InputError: if a line is invalid, or the file is empty.
    """
    numbers = {corpus.language: number for number, corpus in enumerate(corpora)}
    left = []
    right = []
    labels = []
    for line_number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        fields = line.split("\t")
        try:
            cosine = float(fields[1])
            if not math.isfinite(cosine):
                raise ValueError(cosine)
            left_place = _parse_place(fields[2], fields[3], numbers, corpora)
            right_place = _parse_place(fields[4], fields[5], numbers, corpora)
        except (IndexError, ValueError, KeyError):
            raise InputError(
                f"{path}, line {line_number}: {line!r:.60}; expected {', '.join(COLUMNS)} for the "
                "data folder"
            ) from None
        left.append(left_place)
        right.append(right_place)
        labels.append(cosine)
    if not labels:
        raise InputError(f"{path}: empty file; expected mined pairs")
    return CoherentPairs(np.array(left), np.array(right), np.array(labels))


def _parse_place(
    language: str, row: str, numbers: dict[str, int], corpora: list[DocumentCorpus]
) -> tuple[int, int]:
    """Parse a language and a sentence number, and return the language and sentence indices.

    Raises:
        KeyError: if the language is unknown.
        ValueError: if the corpus does not contain the sentence.
    """
    number = numbers[language]
    sentence = int(row)
    if not 0 <= sentence < len(corpora[number].sentences):
        raise ValueError(sentence)
    return number, sentence
