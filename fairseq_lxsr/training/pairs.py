"""fairseq dataset of sentence pairs in one or more language pairs."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training import dataset as sampling
from fairseq_lxsr.training.dataset import SIDES, EpochDataset
from fairseq_lxsr.training.subword_dropout import SubwordDropout

logger = logging.getLogger(__name__)

# Number of sentences to read at once when counting pieces.
COUNTED_AT_ONCE = 1 << 16
# A length limit that no sentence reaches.
UNLIMITED = 1 << 30


@dataclass(frozen=True)
class PairCorpus:
    """The two aligned sides of one language pair, in fairseq-preprocess format.

    Attributes:
        name: language pair, such as en-fr.
        source: source sentences, each ending in EOS.
        target: target sentences, each ending in EOS.
        sources: number of pairs per data source, in text order; empty if unknown.
    """

    name: str
    source: FairseqDataset
    target: FairseqDataset
    sources: Mapping[str, int] = field(default_factory=dict)


class PairDataset(EpochDataset):
    """Sentence pairs without EOS, truncated to `max_positions` pieces.

    Each batch comes from one corpus. Subclasses build the batch in `collater`.

    Args:
        corpora: one corpus per language pair, N pairs in total, with consecutive pair indices. A
            pair that occurs k times in an epoch has the indices i, i + N, ...; the occurrences are
            in different batches, and their random numbers, such as those for masks, differ.
        temperature: sampling temperature for language pairs; see `dataset.samples_per_corpus`.
        source_temperature: sampling temperature for the data sources of a language pair; 1 treats
            them as one text.
        subword_dropout: draws new segmentations every epoch. Batches are built from the lengths
            before dropout.
        by_length: put pairs of similar length into the same batch; otherwise, pairs are batched in
            their random order.
        drop_last: drop the last batch of a pass over a language pair if it is not full.
        options: additional arguments of `EpochDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        *,
        temperature: float = 1.0,
        source_temperature: float = 1.0,
        subword_dropout: SubwordDropout | None = None,
        by_length: bool = True,
        drop_last: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        self.corpora = list(corpora)
        self.temperature = temperature
        self.source_temperature = source_temperature
        self.subword_dropout = subword_dropout
        self.by_length = by_length
        self.drop_last = drop_last
        self.offsets = np.cumsum([0] + [len(corpus.source) for corpus in self.corpora])
        sizes = [
            np.stack((corpus.source.sizes, corpus.target.sizes), axis=1) for corpus in self.corpora
        ]
        # [N, 2] Number of pieces on each side, excluding EOS.
        full_lengths = np.concatenate(sizes) - 1
        self.num_cut = int((full_lengths > self.max_positions).any(axis=1).sum())
        self.lengths = full_lengths.clip(max=self.max_positions)
        self.num_empty = int((full_lengths < 1).any(axis=1).sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict:
        number = self.corpus_of(index)
        corpus = self.corpora[number]
        row = index % len(self) - self.offsets[number]
        return {
            "id": index,
            "source": strip_eos(corpus.source[row], self.eos_idx)[: self.max_positions],
            "target": strip_eos(corpus.target[row], self.eos_idx)[: self.max_positions],
        }

    def __getitems__(self, indices: Sequence[int]) -> list[dict]:
        """Read all samples of a batch in one call, for torch's DataLoader."""
        pairs = np.asarray(indices) % len(self)
        numbers = np.searchsorted(self.offsets, pairs, side="right") - 1
        if len(indices) == 0 or (numbers != numbers[0]).any():
            return [self[index] for index in indices]
        corpus = self.corpora[numbers[0]]
        rows = pairs - self.offsets[numbers[0]]
        sources = read_rows(corpus.source, rows, self.eos_idx, self.max_positions)
        targets = read_rows(corpus.target, rows, self.eos_idx, self.max_positions)
        return [
            {"id": index, "source": source, "target": target}
            for index, source, target in zip(indices, sources, targets, strict=True)
        ]

    def resegmented(self, samples: list[dict]) -> list[dict]:
        """Apply subword dropout, if enabled, to all pairs of a batch.

        Doing this for each pair separately would take 18 times as long.
        """
        if not self.subword_dropout:
            return samples
        index = np.array([sample["id"] for sample in samples])
        samples = [dict(sample) for sample in samples]
        for number, side in enumerate(SIDES):
            sentences = [sample[side] for sample in samples]
            sentences = self.subword_dropout(sentences, self.epoch, index, number)
            for sample, ids in zip(samples, sentences, strict=True):
                sample[side] = ids[: self.max_positions]
        return samples

    def corpus_of(self, index: int) -> int:
        """Return the index of the corpus that a pair belongs to."""
        return int(np.searchsorted(self.offsets, index % len(self), side="right")) - 1

    # -- sorting and batching

    def ordered_indices(self) -> np.ndarray:
        """Return the pair indices of this epoch in training order.

        Within each round, `arranged` defines the order.
        """
        rng = np.random.default_rng((self.seed, self.epoch))
        if self.shuffle:
            corpora = [sampling.rounds(sources, counts, rng) for sources, counts in self.draws()]
        else:
            corpora = [[indices] for indices in self._usable()]
        ordered = []
        for rounds in corpora:
            for number, indices in enumerate(rounds):
                ordered.append(self.arranged(indices) + number * len(self))
        return np.concatenate(ordered)

    def draws(self) -> list[tuple[list[np.ndarray], np.ndarray]]:
        """Return the pairs that this epoch draws from each language pair.

        Returns:
            For each language pair, the usable pairs of each source, and the number of pairs that an
            epoch draws from each source.
        """
        usable = self._usable()
        totals = sampling.samples_per_corpus([len(indices) for indices in usable], self.temperature)
        draws = []
        for corpus, start, indices, total in zip(
            self.corpora, self.offsets[:-1], usable, totals, strict=True
        ):
            sizes: list[int] = []
            if self.source_temperature != 1:
                sizes = list(corpus.sources.values())
            sources = np.split(indices, np.searchsorted(indices, start + np.cumsum(sizes)[:-1]))
            source_sizes = [len(source) for source in sources]
            counts = sampling.samples_per_corpus(source_sizes, self.source_temperature, total)
            draws.append((sources, counts))
        return draws

    def _usable(self) -> list[np.ndarray]:
        """Return the pairs in each corpus that have two non-empty sides."""
        return [
            np.arange(start, end)[(self.lengths[start:end] > 0).all(axis=1)]
            for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]

    def arranged(self, indices: np.ndarray) -> np.ndarray:
        """Sort the pairs of a round for batching.

        The given pairs are in random order, or in text order for validation.
        """
        if not self.by_length:
            return indices
        return sampling.sort_by_length(indices, *self.lengths.T)

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Split an epoch into batches.

        Each batch comes from one round of one language pair, in which no pair is repeated, so a
        sentence is never its own negative. Batch sizes are exact, and
        `required_batch_size_multiple` is ignored, because the size determines the number of
        in-batch negatives.

        Args:
            indices: pair indices from `ordered_indices`.
            max_tokens: maximum number of tokens per side and batch; None for no limit.
            max_sentences: number of pairs per batch; None for no limit.
            required_batch_size_multiple: ignored.

        Returns:
            Pair indices of each batch.

        Raises:
            InputError: if `drop_last` is set without `max_sentences`, or no batch remains.
        """
        if self.drop_last and max_sentences is None:
            raise InputError("--drop-last requires --batch-size")
        _log_limits(max_tokens, max_sentences)
        round_number, pair = np.divmod(indices, len(self))
        corpus = np.asarray(np.searchsorted(self.offsets, pair, side="right"))
        starts = np.flatnonzero(np.diff(round_number * len(self.offsets) + corpus)) + 1
        rounds = [
            sampling.cut_into_batches(part, self.num_tokens_vec(part), max_sentences, max_tokens)
            for part in np.split(indices, starts)
        ]
        if self.drop_last and max_sentences is not None:
            _drop_last_batches(rounds, corpus[[0, *starts]].tolist(), max_sentences)
            if not any(rounds):
                raise InputError(
                    f"--drop-last: {len(indices):,} training pairs do not fill a batch of "
                    f"--batch-size {max_sentences}; use a smaller --batch-size"
                )
        batches = list(itertools.chain.from_iterable(rounds))
        if self.source_temperature != 1 and self.epoch == 1:
            self._warn_of_small_batches(len(indices), len(batches), max_sentences or 0)
        return batches

    def _warn_of_small_batches(self, num_pairs: int, num_batches: int, max_sentences: int) -> None:
        mean = num_pairs / max(1, num_batches)
        if num_pairs > max_sentences > 2 * mean:
            logger.warning(
                f"--source-temperature {self.source_temperature:g}: batches have {mean:.0f} pairs "
                "on average, because a small source is drawn often and no batch repeats a pair; "
                "lower the temperature, or drop the option"
            )

    def num_tokens(self, index: int) -> int:
        return int(self.num_tokens_vec(index))

    def num_tokens_vec(self, indices):
        return self.lengths[indices % len(self)].max(axis=-1)

    def size(self, index: int) -> tuple[int, int]:
        return tuple(self.lengths[index % len(self)])


def _log_limits(max_tokens: int | None, max_sentences: int | None) -> None:
    """Log both batch limits if there are two, because users may expect only one to apply."""
    if max_tokens is not None and max_sentences is not None:
        logger.info(
            f"a batch has at most {max_sentences:,} pairs (--batch-size) and {max_tokens:,} "
            "tokens per side (--max-tokens)"
        )


def _drop_last_batches(rounds: list[list], corpora: list[int], max_sentences: int) -> None:
    """Drop the last batch of each corpus if it is not full.

    The other rounds keep their last batch, because a small corpus has many rounds.

    Args:
        rounds: batches of each round; changed in place.
        corpora: corpus index of each round.
        max_sentences: number of pairs in a full batch.
    """
    last_rounds = {corpus: position for position, corpus in enumerate(corpora)}
    for position in last_rounds.values():
        if len(rounds[position][-1]) != max_sentences:
            rounds[position] = rounds[position][:-1]


def read_rows(
    sentences: FairseqDataset, rows: np.ndarray, eos_idx: int, longest: int
) -> list[np.ndarray]:
    """Read sentences without EOS, truncated to `longest` pieces.

    All rows of a memory-mapped file are read at once, which is ten times faster.
    """
    if not isinstance(sentences, MMapIndexedDataset):
        return [strip_eos(sentences[row], eos_idx)[:longest] for row in rows.tolist()]
    index = sentences._index
    ids = np.frombuffer(sentences._bin_buffer, dtype=index.dtype)
    starts = index._pointers[rows] // ids.itemsize
    lengths = index.sizes[rows].astype(np.int64)
    lengths -= (lengths > 0) & (ids[starts + np.maximum(lengths, 1) - 1] == eos_idx)
    lengths = lengths.clip(max=longest)
    ends = lengths.cumsum()
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])
    return sampling.split_pieces(ids[places].astype(np.int64), ends - lengths)


def count_pieces(corpus: PairCorpus, num_symbols: int) -> np.ndarray:
    """Count the occurrences [V] of each dictionary entry in both sides of a corpus."""
    counts = np.zeros(num_symbols, np.int64)
    for side in (corpus.source, corpus.target):
        for start in range(0, len(side), COUNTED_AT_ONCE):
            rows = np.arange(start, min(start + COUNTED_AT_ONCE, len(side)))
            ids = np.concatenate(read_rows(side, rows, -1, UNLIMITED))
            counts += np.bincount(ids, minlength=num_symbols)
    return counts


def strip_eos(tokens: torch.Tensor, eos_idx: int) -> np.ndarray:
    """Remove the EOS, if any, at the end of a sentence of shape [T]."""
    ids = tokens.numpy()
    if len(ids) and ids[-1] == eos_idx:
        return ids[:-1]
    return ids
