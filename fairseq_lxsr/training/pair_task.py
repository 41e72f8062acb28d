"""Base class of tasks that train on sentence pairs."""

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
from fairseq_lxsr.options import NON_NEGATIVE, below, option, positive
from fairseq_lxsr.text.segmentations import expected_rows, merged_from, split_probability
from fairseq_lxsr.training.corpora import (
    joined_dictionary,
    language_pairs,
    read_corpus,
    refuse_further_parts,
)
from fairseq_lxsr.training.pairs import PairCorpus, PairDataset, count_pieces
from fairseq_lxsr.training.subword_dropout import SubwordDropout
from fairseq_lxsr.training.task import LxsrTask, LxsrTaskConfig
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

logger = logging.getLogger(__name__)

# Key of the task state that fairseq stores in a checkpoint.
LONGEST = "max_positions"
# Probabilities that differ by less than this are considered equal.
PROBABILITY_TOLERANCE = 1e-6
# Advice for missing splits.
MISSING_SPLIT_HINTS = {
    "valid": " with --valid-size N, or --disable-validation",
    "test": " with --test-size N",
}


@dataclass
class PairTaskConfig(LxsrTaskConfig):
    lang_pairs: Optional[str] = option(
        "comma-separated language pairs, such as en-fr,en-de (default: every train.SRC-TGT "
        "in the data folder)",
        None,
    )
    max_positions: int = option(
        "maximum number of pieces in a sentence; longer sentences are truncated", 200, POSITIONS
    )
    sampling_temperature: float = option(
        "sampling temperature: an epoch samples each language pair in proportion to "
        "size^(1/temperature); 1 keeps the proportions of the text, 5 makes them more equal, and "
        "inf makes them equal",
        1.0,
        positive(infinite=True),
    )
    source_temperature: float = option(
        "like --sampling-temperature, for the data sources within a language pair, which are the "
        "corpora that were named in `lxsr prepare`",
        1.0,
        positive(infinite=True),
    )
    subword_dropout: float = option(
        "probability of splitting a piece of the training text into its two parts",
        0.0,
        below(1),
    )
    rare_subword_dropout: float = option(
        "additional splitting of rare pieces (K): a piece that occurs n times in the training text "
        "is also split with probability K / (K + n)",
        0.0,
        NON_NEGATIVE,
    )


class PairTask(LxsrTask):
    """Reads aligned text with a joined dictionary. Subclasses build the dataset."""

    def __init__(self, cfg: PairTaskConfig):
        super().__init__(cfg)
        self.state.merge_state_dict({LONGEST: cfg.max_positions})
        self.subword_dropout: SubwordDropout | None = None
        self.expected: ExpectedRows | None = None
        names = ", ".join("-".join(pair) for pair in self.pairs)
        logger.info(f"{names}; dictionary of {len(self.dictionary):,} entries")

    def read_dictionary(self, folder: Path) -> Dictionary:
        self.pairs = self.choose_pairs(folder)
        return joined_dictionary(folder, self.pairs)

    def choose_pairs(self, folder: Path) -> list[tuple[str, str]]:
        """Return the language pairs to train on, as (source, target) tuples."""
        return language_pairs(folder, self.cfg.lang_pairs)

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> PairDataset:
        """Build the dataset of one split.

        Args:
            corpora: corpora of all language pairs that have this split.
            split: train, valid or test.
            epoch: one-based number of the epoch.
            options: additional arguments of `PairDataset`.
        """
        raise NotImplementedError

    def build_model(self, cfg, from_checkpoint: bool = False):
        # Check this early: fairseq only reads the validation text after building the model.
        if not from_checkpoint:
            self._check_validation_text()
        return super().build_model(cfg, from_checkpoint)

    def _check_validation_text(self) -> None:
        options = self.run_options
        if options is None or options.dataset.disable_validation:
            return
        for split in options.dataset.valid_subset.split(","):
            self.read_corpora(split, epoch=1)

    def _make_subword_dropout(self) -> SubwordDropout | None:
        """Set up subword dropout, and store its probabilities for `lxsr export`.

        Returns:
            The subword dropout, or None if the options do not enable it.
        """
        if not (self.cfg.subword_dropout or self.cfg.rare_subword_dropout):
            return None
        probability = self.split_probability()
        is_split = (self.halves[:, 0] >= 0) & (probability[: self.num_symbols] > 0)
        logger.info(
            f"subword dropout: {np.count_nonzero(is_split):,} pieces can be split into two parts"
        )
        self.state.merge_state_dict({SPLIT_PROBABILITY: probability[: self.num_symbols].tolist()})
        return SubwordDropout(
            self.dictionary.symbols, self.dictionary.nspecial, probability, self.cfg.seed
        )

    def split_probability(self) -> FloatArray:
        """Compute the probability of splitting each symbol [V], from the text of all shards.

        No symbol is split more often than in the training run that this one continues.
        """
        rare_dropout = self.cfg.rare_subword_dropout
        counts = np.zeros(len(self.dictionary), np.int64)
        # Pieces only need to be counted for --rare-subword-dropout.
        if rare_dropout:
            for epoch in range(1, len(self.shards) + 1):
                for corpus in self.read_corpora("train", epoch).values():
                    counts += count_pieces(corpus, len(counts))
        unlimited = split_probability(counts, self.cfg.subword_dropout, rare_dropout)
        probability = split_probability(
            counts, self.cfg.subword_dropout, rare_dropout, self._earlier_split_probability()
        )
        is_limited = probability < unlimited - PROBABILITY_TOLERANCE
        num_limited = np.count_nonzero(is_limited[: self.num_symbols])
        if num_limited:
            logger.warning(
                f"--rare-subword-dropout {rare_dropout:g}: {num_limited:,} symbols are split only "
                "as often as in the training run that this one continues, where they may have "
                "been more frequent"
            )
        return probability

    def _earlier_split_probability(self) -> FloatArray | None:
        """Read the split probabilities of the training run that this one continues.

        A run without subword dropout has not stored any, so they are all 0.

        Returns:
            The probabilities [V], or None for a new model.
        """
        start = self.starting_checkpoint()
        if start is None:
            return None
        stored = read_checkpoint(start.path).get("task_state", {}).get(SPLIT_PROBABILITY, [])
        return np.pad(np.array(stored, np.float32), (0, len(self.dictionary) - len(stored)))

    def post_validate(self, model, stats: dict[str, Any], agg) -> None:
        super().post_validate(model, stats, agg)
        # Discard these embeddings, because the weights are about to change.
        self.expected = None

    def valid_step(self, sample: dict, model, criterion) -> tuple:
        """Validate with the embeddings that `lxsr export` would write.

        With subword dropout, these are the expected embeddings. The generative loss also predicts
        pieces with these embeddings, so it is higher than in training.
        """
        probability = self.state.state_dict.get(SPLIT_PROBABILITY)
        if probability is not None and self.expected is None:
            self.expected = ExpectedRows(model, self.halves, probability)
        with self.expected.in_place() if self.expected else nullcontext():
            return super().valid_step(sample, model, criterion)

    @cached_property
    def halves(self) -> IntArray:
        """Ids of the two parts of each piece [V, 2]; see `merged_from`."""
        return merged_from(self.dictionary.symbols[: self.num_symbols], self.dictionary.nspecial)

    def read_corpora(self, split: str, epoch: int) -> dict[tuple[str, str], PairCorpus]:
        """Read `split` for every language pair that has it, from this epoch's shard."""
        folder = self.folder_of(split, epoch)
        corpora = {}
        for pair in self.pairs:
            corpus = read_corpus(folder, split, *pair, self.num_symbols)
            if corpus is not None:
                corpora[pair] = corpus
        if not corpora:
            names = ", ".join(f"{split}.{'-'.join(pair)}" for pair in self.pairs)
            raise InputError(
                f"{folder}: no {names}; expected an output folder of fairseq-preprocess or `lxsr "
                f"prepare`{MISSING_SPLIT_HINTS.get(split, '')}"
            )
        return corpora

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Read `split` for all language pairs, and build its dataset.

        Raises:
            InputError: if `combine` is set and the folder contains additional files of the split,
                such as train1.
        """
        if combine:
            names = []
            for source, target in self.pairs:
                names += [f"{source}-{target}", f"{target}-{source}"]
            refuse_further_parts(self.folder_of(split, epoch), split, names)
        corpora = self.read_corpora(split, epoch)
        is_training = split == "train"
        # fairseq-validate has loaded the stored probabilities, but must not split pieces.
        is_loaded = SPLIT_PROBABILITY in self.state.state_dict
        if is_training and self.subword_dropout is None and not is_loaded:
            self.subword_dropout = self._make_subword_dropout()
        options: dict[str, Any] = {
            "eos_idx": self.dictionary.eos(),
            "max_positions": self.longest,
            "seed": self.cfg.seed,
            "shuffle": is_training,
            "temperature": self.cfg.sampling_temperature,
            "source_temperature": self.cfg.source_temperature,
        }
        if is_training:
            options["subword_dropout"] = self.subword_dropout
        dataset = self.make_dataset(corpora, split, epoch, options)
        if dataset.num_empty == len(dataset):
            raise InputError(
                f"{self.folder_of(split, epoch)}: every {split} pair has an empty side; check the "
                "text it was built from"
            )
        logger.info(
            f"{split}: {len(dataset):,} pairs, {dataset.num_empty:,} skipped (empty side), "
            f"{dataset.num_cut:,} truncated to {self.longest} pieces"
        )
        if is_training:
            self.log_sources(dataset)
        self.datasets[split] = dataset

    def log_sources(self, dataset: PairDataset) -> None:
        """Log the size of each named data source, and how many pairs an epoch draws from it."""
        temperature = self.cfg.source_temperature
        if not any(corpus.sources for corpus in dataset.corpora):
            if temperature == 1:
                return
            raise InputError(
                f"--source-temperature {temperature:g}: {self.shards[0]} has no "
                "train.SRC-TGT.sources.json; prepare the text with source names: "
                "`lxsr prepare --data NAME=PREFIX --data NAME=PREFIX`"
            )
        for corpus, (_, counts) in zip(dataset.corpora, dataset.draws(), strict=True):
            for number, (name, size) in enumerate(corpus.sources.items()):
                message = f"{corpus.name}: source {name}, {size:,} pairs"
                if temperature != 1:
                    message += f", {counts[number]:,} drawn per epoch"
                logger.info(message)

    @property
    def languages(self) -> list[str]:
        """Target languages of a translation model, in the order of the language embeddings.

        Checkpoints store them.
        """
        return self.state.state_dict[LANGUAGES]

    @languages.setter
    def languages(self, languages: list[str]) -> None:
        self.state.merge_state_dict({LANGUAGES: languages})

    @property
    def longest(self) -> int:
        """Maximum number of pieces in a sentence; a loaded checkpoint may limit it further."""
        return min(self.cfg.max_positions, self.state.state_dict[LONGEST])

    def max_positions(self) -> int | tuple[int, int]:
        return self.longest


class ExpectedRows:
    """The embeddings that `lxsr export` would write for the current weights of a model.

    They are equal to the current embeddings if sentence embeddings are not sums of piece
    embeddings.

    Args:
        model: the model in training.
        halves: ids of the two parts of each piece [V, 2].
        probability: probability that training splits each piece [V].
    """

    def __init__(self, model: nn.Module, halves: IntArray, probability: Sequence[float]):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        self._weight = network.embed_tokens.weight
        self._rows = self._weight
        if getattr(network.config, "sums_rows", False):
            table = self._weight.detach().float().cpu().numpy()
            rows = expected_rows(table, halves, np.array(probability, np.float32))
            self._rows = torch.from_numpy(rows).to(self._weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager that temporarily stores these embeddings in the model."""
        trained = self._weight.data
        self._weight.data = self._rows.data
        try:
            yield
        finally:
            self._weight.data = trained
