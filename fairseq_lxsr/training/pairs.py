"""Sentence pairs of one or several language pairs as a fairseq dataset."""

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

COUNTED_AT_ONCE = 1 << 16  # sentences that are read at once to count their pieces
WHOLE = 1 << 30  # pieces: no sentence has more


@dataclass(frozen=True)
class PairCorpus:
    """The two aligned sides of one language pair as fairseq-preprocess wrote them; each sentence
    ends in EOS.
    """

    name: str  # for example en-fr
    source: FairseqDataset
    target: FairseqDataset
    # number of pairs of each kind of text, which follow each other in this order; empty where it is
    # unknown
    sources: Mapping[str, int] = field(default_factory=dict)


class PairDataset(EpochDataset):
    """Pairs without EOS, cut at `max_positions`; a batch comes from one corpus; sub-classes build
    it in `collater`.

    Args:
        corpora: one per language pair; pair indices run through all of them, N in total. A pair
            that occurs k times in an epoch has the indices i, i + N, ..., each with its own draws
            (such as masks) and in a batch of its own.
        temperature: distribution of an epoch over language pairs, see
            `sampling.samples_per_corpus`.
        source_temperature: distribution of the part of a language pair over its sources; at 1 they
            are one text.
        subword_dropout: draws new segmentations every epoch; batches are still cut by the lengths
            without it.
        by_length: pairs of similar length are together in a batch; off for any pairs.
        drop_last: leave out the last batch of a pass over a language pair unless it is full.
        options: see `EpochDataset`.
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
        self.temperature, self.source_temperature = temperature, source_temperature
        self.subword_dropout = subword_dropout
        self.by_length, self.drop_last = by_length, drop_last
        self.offsets = np.cumsum([0] + [len(corpus.source) for corpus in self.corpora])
        sizes = [
            np.stack((corpus.source.sizes, corpus.target.sizes), axis=1) for corpus in self.corpora
        ]
        full = np.concatenate(sizes) - 1  # [N, 2] pieces without EOS
        self.num_cut = int((full > self.max_positions).any(axis=1).sum())
        self.lengths = full.clip(max=self.max_positions)
        self.num_empty = int((full < 1).any(axis=1).sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict:
        which = self.corpus_of(index)
        local = index % len(self) - self.offsets[which]
        corpus = self.corpora[which]
        sides = (strip_eos(side[local], self.eos_idx) for side in (corpus.source, corpus.target))
        source, target = (ids[: self.max_positions] for ids in sides)
        return {"id": index, "source": source, "target": target}

    def __getitems__(self, indices: Sequence[int]) -> list[dict]:
        """Read the samples of a batch, which torch's DataLoader asks for at once."""
        number = np.asarray(indices) % len(self)
        which = np.searchsorted(self.offsets, number, side="right") - 1
        if len(indices) == 0 or (which != which[0]).any():
            return [self[index] for index in indices]
        corpus, rows = self.corpora[which[0]], number - self.offsets[which[0]]
        sides = (
            read_rows(side, rows, self.eos_idx, self.max_positions)
            for side in (corpus.source, corpus.target)
        )
        return [
            {"id": index, "source": u, "target": v}
            for index, u, v in zip(indices, *sides, strict=True)
        ]

    def resegmented(self, samples: list[dict]) -> list[dict]:
        """Apply subword dropout, if any, to the pairs of a batch at once: one by one takes 18 times
        as long.
        """
        if not self.subword_dropout:
            return samples
        index, samples = (
            np.array([sample["id"] for sample in samples]),
            [dict(sample) for sample in samples],
        )
        for number, side in enumerate(SIDES):
            split = self.subword_dropout(
                [sample[side] for sample in samples], self.epoch, index, number
            )
            for sample, ids in zip(samples, split, strict=True):
                sample[side] = ids[: self.max_positions]
        return samples

    def corpus_of(self, index: int) -> int:
        """Index of the corpus of a pair."""
        return int(np.searchsorted(self.offsets, index % len(self), side="right")) - 1

    # -- order and batches

    def ordered_indices(self) -> np.ndarray:
        """Order the indices of this epoch: the rounds of one language pair after those of another,
        each `arranged`.
        """
        rng = np.random.default_rng((self.seed, self.epoch))
        if self.shuffle:
            drawn = [sampling.rounds(sources, counts, rng) for sources, counts in self.draws()]
        else:
            drawn = [[indices] for indices in self._usable()]
        return np.concatenate(
            [
                self.arranged(indices) + number * len(self)
                for rounds in drawn
                for number, indices in enumerate(rounds)
            ]
        )

    def draws(self) -> list[tuple[list[np.ndarray], np.ndarray]]:
        """List for each language pair the usable pairs of each of its sources, and how many an
        epoch draws of them.
        """
        usable = self._usable()
        totals = sampling.samples_per_corpus([len(indices) for indices in usable], self.temperature)
        found = []
        for corpus, start, indices, total in zip(
            self.corpora, self.offsets[:-1], usable, totals, strict=True
        ):
            sizes = list(corpus.sources.values()) if self.source_temperature != 1 else []
            sources = np.split(indices, np.searchsorted(indices, start + np.cumsum(sizes)[:-1]))
            counts = sampling.samples_per_corpus(
                list(map(len, sources)), self.source_temperature, total
            )
            found.append((sources, counts))
        return found

    def _usable(self) -> list[np.ndarray]:
        """List the pairs of each corpus that have no empty side."""
        return [
            np.arange(start, end)[(self.lengths[start:end] > 0).all(axis=1)]
            for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]

    def arranged(self, indices: np.ndarray) -> np.ndarray:
        """Order the pairs of a round, which come in random order, for validation in that of the
        text.
        """
        return sampling.sort_by_length(indices, *self.lengths.T) if self.by_length else indices

    def batch_by_size(
        self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1
    ):
        """Cut into batches of exactly `max_sentences` pairs, or of at most `max_tokens` tokens per
        side.

        Each batch comes from one round of one language pair, where no pair is twice: a sentence is
        never its own negative. Its size is exact, whatever `required_batch_size_multiple` says:
        in-batch negatives depend on it.
        """
        number, pair = np.divmod(indices, len(self))
        corpus = np.asarray(np.searchsorted(self.offsets, pair, side="right"))
        starts = np.flatnonzero(np.diff(number * len(self.offsets) + corpus)) + 1
        parts = np.split(indices, starts)
        cut = [
            sampling.cut_into_batches(part, self.num_tokens_vec(part), max_sentences, max_tokens)
            for part in parts
        ]
        if self.drop_last and max_sentences is None:
            raise InputError(
                "--drop-last without --batch-size, which says when a batch is full; expected both"
            )
        if (
            self.drop_last
        ):  # in the last round of a language pair only: a small one has a rest in each of many
            last = {name: place for place, name in enumerate(corpus[[0, *starts]].tolist())}
            for place in last.values():
                if len(cut[place][-1]) != max_sentences:
                    cut[place] = cut[place][:-1]
            if not any(cut):
                raise InputError(
                    f"--drop-last: {len(indices):,} pairs of training text make no full batch of --batch-size "
                    f"{max_sentences}; expected a smaller --batch-size"
                )
        mean = len(indices) / max(1, sum(map(len, cut)))
        if (
            self.source_temperature != 1
            and self.epoch == 1
            and len(indices) > (max_sentences or 0) > 2 * mean
        ):
            logger.warning(
                f"--source-temperature {self.source_temperature:g}: batches have {mean:.0f} pairs in the mean: no "
                "pair is twice in one and a small source is drawn often; leave it out, or lower the temperature"
            )
        return [batch for batches in cut for batch in batches]

    def num_tokens(self, index: int) -> int:
        return int(self.num_tokens_vec(index))

    def num_tokens_vec(self, indices):
        return self.lengths[indices % len(self)].max(axis=-1)

    def size(self, index: int) -> tuple[int, int]:
        return tuple(self.lengths[index % len(self)])


def read_rows(
    sentences: FairseqDataset, rows: np.ndarray, eos_idx: int, longest: int
) -> list[np.ndarray]:
    """Read sentences without EOS, cut at `longest`: all at once from a file in memory takes a tenth
    of the time.
    """
    if not isinstance(sentences, MMapIndexedDataset):
        return [strip_eos(sentences[row], eos_idx)[:longest] for row in rows.tolist()]
    index = sentences._index
    ids = np.frombuffer(sentences._bin_buffer, dtype=index.dtype)
    starts, lengths = index._pointers[rows] // ids.itemsize, index.sizes[rows].astype(np.int64)
    lengths -= (lengths > 0) & (ids[starts + np.maximum(lengths, 1) - 1] == eos_idx)
    lengths = lengths.clip(max=longest)
    ends = lengths.cumsum()
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])
    return np.split(ids[places].astype(np.int64), ends[:-1])


def count_pieces(corpus: PairCorpus, num_symbols: int) -> np.ndarray:
    """Count how often both sides of a corpus have each entry of the dictionary [V]."""
    counts = np.zeros(num_symbols, np.int64)
    for side in (corpus.source, corpus.target):
        for start in range(0, len(side), COUNTED_AT_ONCE):
            rows = np.arange(start, min(start + COUNTED_AT_ONCE, len(side)))
            counts += np.bincount(
                np.concatenate(read_rows(side, rows, -1, WHOLE)), minlength=num_symbols
            )
    return counts


def strip_eos(tokens: torch.Tensor, eos_idx: int) -> np.ndarray:
    """Remove the EOS at the end of a sentence [T] of a data folder."""
    ids = tokens.numpy()
    return ids[:-1] if len(ids) and ids[-1] == eos_idx else ids
