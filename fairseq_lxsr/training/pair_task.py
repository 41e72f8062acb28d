"""The base of the tasks that train on sentence pairs."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_lxsr.encoder.checkpoint import LANGUAGES, SPLIT_PROBABILITY, read_checkpoint
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.modules.sizes import POSITIONS
from fairseq_lxsr.options import NOT_NEGATIVE, below, option, positive
from fairseq_lxsr.text.segmentations import expected_rows, merged_from, split_probability
from fairseq_lxsr.training.corpora import joined_dictionary, language_pairs, read_corpus
from fairseq_lxsr.training.pairs import PairCorpus, PairDataset, count_pieces
from fairseq_lxsr.training.subword_dropout import SubwordDropout
from fairseq_lxsr.training.task import LxsrTask, LxsrTaskConfig
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

logger = logging.getLogger(__name__)

LONGEST = "max_positions"  # in the state that fairseq keeps in a checkpoint
TOLERANCE = 1e-6  # of probabilities that are the same
FOR_SPLITS = {
    "valid": " with --valid-size N, or --disable-validation",
    "test": " with --test-size N",
}


@dataclass
class PairTaskConfig(LxsrTaskConfig):
    lang_pairs: Optional[str] = option(
        "language pairs, for example en-fr,en-de; without it every train.SRC-TGT of the folder",
        None,
    )
    max_positions: int = option("longest sentence, in pieces; the rest is cut off", 200, POSITIONS)
    sampling_temperature: float = option(
        "language pairs share an epoch by size^(1/temperature): 1 by size, 5 more evenly, inf evenly",
        1.0,
        positive(infinite=True),
    )
    source_temperature: float = option(
        "sources (kinds of text, named for lxsr prepare) share the part of a language pair by "
        "size^(1/temperature): 1 by size, 5 more evenly, inf evenly",
        1.0,
        positive(infinite=True),
    )
    subword_dropout: float = option(
        "probability with which a piece of the training text is replaced by the two it is made of",
        0.0,
        below(1),
    )
    rare_subword_dropout: float = option(
        "K: beside it a piece that the training text has n times is replaced with probability K / (K + n)",
        0.0,
        NOT_NEGATIVE,
    )


class PairTask(LxsrTask):
    """Reads aligned text of one joined dictionary; sub-classes build the dataset."""

    def __init__(self, cfg: PairTaskConfig):
        super().__init__(cfg)
        self.state.merge_state_dict({LONGEST: cfg.max_positions})
        self.subword_dropout: SubwordDropout | None = None
        self.expected: ExpectedRows | None = None
        logger.info(
            f"{', '.join('-'.join(pair) for pair in self.pairs)}; dictionary of {len(self.dictionary):,}"
        )

    def read_dictionary(self, folder: Path) -> Dictionary:
        self.pairs = self.choose_pairs(folder)
        return joined_dictionary(folder, self.pairs)

    def choose_pairs(self, folder: Path) -> list[tuple[str, str]]:
        """Choose the pairs to train on, as source and target language."""
        return language_pairs(folder, self.cfg.lang_pairs)

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> PairDataset:
        """Build the dataset of one split from the pairs that have it; `options` are those of
        `PairDataset`.
        """
        raise NotImplementedError

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Look for the text of validation first: fairseq reads it after the model is made, which
        may take minutes.
        """
        options = None if from_checkpoint else self.cfg._get_parent()
        if options is not None and not options.dataset.disable_validation:
            for split in options.dataset.valid_subset.split(","):
                self.read_corpora(split, epoch=1)
        return super().build_model(cfg, from_checkpoint)

    def _make_subword_dropout(self) -> SubwordDropout | None:
        """Build it, and keep its probabilities in checkpoints: `lxsr export` needs them."""
        if not (self.cfg.subword_dropout or self.cfg.rare_subword_dropout):
            return None
        probability = self.split_probability()
        splits = (self.halves[:, 0] >= 0) & (probability[: self.num_symbols] > 0)
        logger.info(
            f"subword dropout: {np.count_nonzero(splits):,} pieces may be read as their two parts"
        )
        self.state.merge_state_dict({SPLIT_PROBABILITY: probability[: self.num_symbols].tolist()})
        return SubwordDropout(
            self.dictionary.symbols, self.dictionary.nspecial, probability, self.cfg.seed
        )

    def split_probability(self) -> FloatArray:
        """Compute the probability with which each symbol is split, by the text of all shards,
        [V].
        """
        counts = np.zeros(len(self.dictionary), np.int64)
        for number in range(len(self.shards) if self.cfg.rare_subword_dropout else 0):
            for corpus in self.read_corpora("train", number + 1).values():
                counts += count_pieces(corpus, len(counts))
        options, before = (
            (self.cfg.subword_dropout, self.cfg.rare_subword_dropout),
            self._split_before(),
        )
        probability = split_probability(counts, *options, before)
        less = (probability < split_probability(counts, *options) - TOLERANCE)[: self.num_symbols]
        if less.any():
            logger.warning(
                f"--rare-subword-dropout {options[1]:g}: {np.count_nonzero(less):,} symbols are split less often, "
                "as in the training that this one goes on from, whose text may have had them more often"
            )
        return probability

    def _split_before(self) -> FloatArray | None:
        """Read the split probabilities [V] of the training that this one goes on from; None for a
        new model.

        A training without subword dropout stored none: all are 0.
        """
        start = self.starting_checkpoint()
        if start is None:
            return None
        stored = read_checkpoint(start.path).get("task_state", {}).get(SPLIT_PROBABILITY, [])
        return np.pad(np.array(stored, np.float32), (0, len(self.dictionary) - len(stored)))

    def post_validate(self, model, stats: dict[str, Any], agg) -> None:
        super().post_validate(model, stats, agg)
        self.expected = None  # the weights will change

    def valid_step(self, sample: dict, model, criterion) -> tuple:
        """Validate the model that `lxsr export` writes: with expected rows, after subword dropout.

        A generative loss compares with these rows too, so it is higher than in training.
        """
        probability = self.state.state_dict.get(SPLIT_PROBABILITY)
        if probability is not None and self.expected is None:
            self.expected = ExpectedRows(model, self.halves, probability)
        with self.expected.in_place() if self.expected else nullcontext():
            return super().valid_step(sample, model, criterion)

    @cached_property
    def halves(self) -> IntArray:
        """The two parts of each piece [V, 2], see `merged_from`."""
        return merged_from(self.dictionary.symbols[: self.num_symbols], self.dictionary.nspecial)

    def read_corpora(self, split: str, epoch: int) -> dict[tuple[str, str], PairCorpus]:
        """Read `split` of every language pair that has it, from the shard of this epoch."""
        folder = self.folder_of(split, epoch)
        read = {pair: read_corpus(folder, split, *pair, self.num_symbols) for pair in self.pairs}
        found = {pair: corpus for pair, corpus in read.items() if corpus is not None}
        if not found:
            names = ", ".join(f"{split}.{'-'.join(pair)}" for pair in self.pairs)
            expected = (
                f"the output of fairseq-preprocess or `lxsr prepare`{FOR_SPLITS.get(split, '')}"
            )
            raise InputError(f"{folder}: has no {names}; expected {expected}")
        return found

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Read `split` of all language pairs, and build its dataset."""
        found, folder = self.read_corpora(split, epoch), self.folder_of(split, epoch)
        loaded = (
            SPLIT_PROBABILITY in self.state.state_dict
        )  # fairseq-validate has loaded it, and reads its text whole
        if split == "train" and self.subword_dropout is None and not loaded:
            self.subword_dropout = self._make_subword_dropout()
        options: dict[str, Any] = {
            "eos_idx": self.dictionary.eos(),
            "max_positions": self.longest,
            "seed": self.cfg.seed,
            "shuffle": split == "train",
            "temperature": self.cfg.sampling_temperature,
            "source_temperature": self.cfg.source_temperature,
            "subword_dropout": self.subword_dropout if split == "train" else None,
        }
        dataset = self.make_dataset(found, split, epoch, options)
        if dataset.num_empty == len(dataset):
            raise InputError(
                f"{folder}: every pair of {split} has an empty side; look at the text it was made from"
            )
        logger.info(
            f"{split}: {len(dataset):,} pairs, {dataset.num_empty:,} skipped (empty side), "
            f"{dataset.num_cut:,} cut at {self.longest} pieces"
        )
        if split == "train":
            self.log_sources(dataset)
        self.datasets[split] = dataset

    def log_sources(self, dataset: PairDataset) -> None:
        """Log the sizes of all named sources, and how many pairs an epoch draws of each."""
        temperature = self.cfg.source_temperature
        if not any(corpus.sources for corpus in dataset.corpora):
            if temperature == 1:
                return
            raise InputError(
                f"--source-temperature {temperature:g}: {self.shards[0]} has no train.SRC-TGT.sources.json; expected "
                "text that was prepared with names: `lxsr prepare --data NAME=PREFIX --data NAME=PREFIX`"
            )
        for corpus, (_, counts) in zip(dataset.corpora, dataset.draws(), strict=True):
            for number, (name, size) in enumerate(corpus.sources.items()):
                drawn = f", {counts[number]:,} drawn in an epoch" if temperature != 1 else ""
                logger.info(f"{corpus.name}: source {name}, {size:,} pairs{drawn}")

    @property
    def languages(self) -> list[str]:
        """Target languages of a model that translates, in the order of their embeddings; kept in
        checkpoints.
        """
        return self.state.state_dict[LANGUAGES]

    @languages.setter
    def languages(self, languages: list[str]) -> None:
        self.state.merge_state_dict({LANGUAGES: languages})

    @property
    def longest(self) -> int:
        """Maximum number of pieces that are read of a sentence, at most that of the loaded model's
        training.
        """
        return min(self.cfg.max_positions, self.state.state_dict[LONGEST])

    def max_positions(self) -> int | tuple[int, int]:
        return self.longest


class ExpectedRows:
    """The rows that `lxsr export` writes for a model as it is, to be put in the place of those that
    are trained.

    Pieces have two parts, `halves` [V, 2], into which training splits them with a probability [V];
    a model that does not sum rows keeps its own.
    """

    def __init__(self, model: nn.Module, halves: IntArray, probability: Sequence[float]):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        self._weight = self._rows = network.embed_tokens.weight
        if getattr(network.config, "sums_rows", False):
            table = self._weight.detach().float().cpu().numpy()
            rows = expected_rows(table, halves, np.array(probability, np.float32))
            self._rows = torch.from_numpy(rows).to(self._weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have these rows until the context ends."""
        trained = self._weight.data
        self._weight.data = self._rows.data
        try:
            yield
        finally:
            self._weight.data = trained
