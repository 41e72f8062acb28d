"""fairseq task `sent_context`: sentences and their contexts, which train embeddings without
parallel text.
"""

import itertools
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

from fairseq_lxsr.errors import InputError
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
from fairseq_lxsr.training.corpora import load_dictionary, read_sentences
from fairseq_lxsr.training.task import LxsrTask, LxsrTaskConfig

logger = logging.getLogger(__name__)

# of mined pairs; text follows
COLUMNS = ("score", "cosine", "language", "sentence", "language", "sentence")


@dataclass
class SentContextConfig(LxsrTaskConfig):
    both_samples: bool = option(
        "every sentence twice in an epoch, in its place and replaced by another; without it once, one of "
        "the two at random; not with --mined",
        False,
    )
    negatives: ChoiceEnum(CONTEXT_NEGATIVES) = option(  # type: ignore[valid-type]
        "sentences that are put in the place of another: of its language, or of the whole corpus, all languages "
        "together (Wang et al.); not with --mined",
        "language",
    )
    langs: Optional[str] = option(
        "languages, for example en,fr; without it every train.LANG of the folder", None
    )
    mined: Optional[str] = option(
        "a file of mined pairs: learn how well a sentence fits into the place of the other; without it, "
        "whether a sentence is the one that stood in its place",
        None,
    )
    max_positions: int = option(
        "pieces of a sentence with its context; the rest is cut", 150, POSITIONS
    )


@register_task("sent_context", dataclass=SentContextConfig)
class SentContextTask(LxsrTask):
    """Makes batches of sentences in their contexts, of all languages, for `--criterion
    sent_context_loss`.
    """

    def __init__(self, cfg: SentContextConfig):
        super().__init__(cfg)
        self.languages = find_languages(self.shards[0], cfg.langs)
        if cfg.both_samples and cfg.mined is not None:
            raise InputError(
                "--both-samples with --mined, whose pairs have no samples; expected one of them"
            )
        if cfg.negatives != "language" and cfg.mined is not None:
            raise InputError(
                f"--negatives {cfg.negatives} with --mined, whose pairs have none; expected one of them"
            )
        logger.info(f"{', '.join(self.languages)}; dictionary of {len(self.dictionary):,}")

    def read_dictionary(self, folder: Path) -> Dictionary:
        path = folder / DICTIONARY_FILE
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; expected a data folder of `lxsr train-context`"
            )
        return load_dictionary(path)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Read `split` of every language; with `--mined` the samples are the mined pairs of all
        shards.
        """
        if self.cfg.mined is not None and split != "train":
            raise InputError(f"--mined has no {split} samples; expected --disable-validation")
        folders = [self.folder_of(split, epoch)] if self.cfg.mined is None else self.shards
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
        if self.cfg.mined is not None:
            dataset = InsertedSentences(
                corpora, read_mined(Path(self.cfg.mined), corpora), **options
            )
        else:
            options["negatives"] = str(self.cfg.negatives)
            dataset = ReplacedSentences(corpora, both=self.cfg.both_samples, **options)
        if not len(dataset):
            raise InputError(
                f"{folders[0]}: no sentence of {split} has another beside it; look at the documents"
            )
        documents = sum(len(corpus.starts) - 1 for corpus in corpora)
        logger.info(f"{split}: {len(dataset):,} samples of {documents:,} documents")
        self.datasets[split] = dataset

    def max_positions(self) -> int:
        return self.cfg.max_positions


def find_languages(folder: Path, wanted: str | None) -> list[str]:
    """Find the languages, from `--langs` or from the names of the training files."""
    there = sorted(path.name.split(".")[1] for path in folder.glob("train.*.documents.npy"))
    if not there:
        raise InputError(
            f"{folder}: has no train.LANG.documents.npy; expected a data folder of `lxsr train-context`"
        )
    if wanted is None:
        return there
    languages = [name.strip() for name in wanted.split(",")]
    for language in languages:
        if language not in there:
            raise InputError(
                f"--langs {language}: {folder} has no text of it; it has {', '.join(there)}"
            )
    return languages


def read_documents(
    folders: Sequence[Path], split: str, language: str, num_symbols: int
) -> DocumentCorpus:
    """Read the documents of one language from all data folders, one after the other; ids are below
    `num_symbols`.
    """
    parts = [_read_part(folder, split, language, num_symbols) for folder in folders]
    if len(parts) == 1:
        return parts[0]
    ends = itertools.accumulate((part.starts[-1] for part in parts), initial=0)
    starts = [part.starts[:-1] + before for part, before in zip(parts, ends, strict=False)]
    starts.append(np.array([sum(part.starts[-1] for part in parts)]))
    return DocumentCorpus(
        language, ConcatDataset([part.sentences for part in parts]), np.concatenate(starts)
    )


def _read_part(folder: Path, split: str, language: str, num_symbols: int) -> DocumentCorpus:
    prefix = folder / f"{split}.{language}"
    sentences, path = read_sentences(prefix, num_symbols), Path(f"{prefix}.documents.npy")
    if not path.is_file():
        raise InputError(f"{path}: no such file; prepare the documents again")
    try:
        starts = np.array(open_array(path))
    except ValueError as error:
        raise InputError(
            f"{path}: no array of numbers ({error}); prepare the documents again"
        ) from None
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or not len(starts):
        raise InputError(
            f"{path}: {starts.dtype} of shape {starts.shape}; expected numbers [documents + 1]"
        )
    if starts[0] != 0 or starts[-1] != len(sentences) or (starts[1:] < starts[:-1]).any():
        raise InputError(
            f"{path}: from sentence {starts[0]:,} to {starts[-1]:,} of {len(sentences):,}; expected all of them in "
            "order, prepare the documents again"
        )
    return DocumentCorpus(language, sentences, starts)


def read_mined(path: Path, corpora: list[DocumentCorpus]) -> CoherentPairs:
    """Read a file of mined pairs, tab-separated `COLUMNS`."""
    numbers = {corpus.language: number for number, corpus in enumerate(corpora)}
    left, right, labels = [], [], []
    for row, line in enumerate(read_lines(path, is_sentence=False), start=1):
        fields = line.split("\t")
        try:
            cosine, places = (
                float(fields[1]),
                [(numbers[fields[at]], int(fields[at + 1])) for at in (2, 4)],
            )
            inside = math.isfinite(cosine) and all(
                0 <= at < len(corpora[of].sentences) for of, at in places
            )
        except (IndexError, ValueError, KeyError):
            inside = False
        if not inside:
            raise InputError(
                f"{path}, line {row}: {line!r:.60}; expected {', '.join(COLUMNS)} of the data folder"
            )
        labels.append(cosine)
        left.append(places[0])
        right.append(places[1])
    if not labels:
        raise InputError(f"{path}: empty file; expected mined pairs")
    return CoherentPairs(np.array(left), np.array(right), np.array(labels))
