"""Sentences in their contexts, for training without parallel text.

Every random choice is a function of (seed, epoch, sample) alone, see `draws`. A sample is what the
encoder reads: the sentences before, one in the middle, and the sentences after; those before and
after are of one document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

from fairseq_lxsr.training import dataset as sampling
from fairseq_lxsr.training.dataset import EpochDataset, padded, to_tensors
from fairseq_lxsr.training.draws import ContextDraw, uniform
from fairseq_lxsr.training.pairs import strip_eos
from fairseq_lxsr.vectors.rows import FloatArray, IntArray


@dataclass(frozen=True)
class DocumentCorpus:
    """The sentences of one language, document after document; each sentence ends in EOS."""

    language: str
    sentences: FairseqDataset  # pieces of all sentences
    starts: IntArray  # [documents + 1] first sentence of each document, then the number of all sentences

    def around(self, index: IntArray, context: int) -> tuple[IntArray, IntArray]:
        """Find the first sentences [N], and the last (exclusive) [N], of contexts of N sentences in
        their documents.
        """
        document = np.searchsorted(self.starts, index, side="right")
        first = np.maximum(index - context, self.starts[document - 1])
        return first, np.minimum(index + context + 1, self.starts[document])


@dataclass(frozen=True)
class CoherentPairs:
    """Sentences of two languages that mining found to be similar, and their similarity."""

    left: IntArray  # [N, 2] index of the language and of the sentence in it
    right: IntArray  # [N, 2] the same of the other side
    labels: FloatArray  # [N] cosines


class ContextDataset(EpochDataset):
    """Samples that consist of a context, a middle sentence and a label; sub-classes set the
    attributes for an epoch.
    """

    places: IntArray  # [S, 2] language and sentence whose context is read
    middles: IntArray  # [S, 2] language and sentence that is read in the middle
    labels: FloatArray  # [S]

    def __init__(
        self,
        corpora: Sequence[DocumentCorpus],
        *,
        context: int = 1,
        max_positions: int = 150,
        **options: Any,
    ):
        super().__init__(max_positions=max_positions, **options)
        self.corpora = list(corpora)
        self.context = context
        # number of pieces before each sentence: the length of a context is a difference of two
        self.pieces_before = [
            np.concatenate(([0], np.cumsum(corpus.sentences.sizes - 1))) for corpus in self.corpora
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict:
        language, sentence = self.places[index]
        corpus = self.corpora[language]
        first, last = (int(bound) for bound in corpus.around(sentence, self.context))
        parts = [corpus.sentences[other] for other in range(first, last)]
        other, middle = self.middles[index]
        parts[sentence - first] = self.corpora[other].sentences[middle]
        pieces = np.concatenate([strip_eos(part, self.eos_idx) for part in parts])[
            : self.max_positions
        ]
        return {"id": index, "pieces": pieces, "label": self.labels[index]}

    @property
    def lengths(self) -> IntArray:
        """Number of pieces of each sample [S], at most `max_positions`."""
        lengths = np.empty(len(self), dtype=np.int64)
        for number, corpus in enumerate(self.corpora):
            here = self.places[:, 0] == number
            sentence, before = self.places[here, 1], self.pieces_before[number]
            first, last = corpus.around(sentence, self.context)
            lengths[here] = before[last] - before[first] - corpus.sentences.sizes[sentence] + 1
        for number, corpus in enumerate(self.corpora):
            here = self.middles[:, 0] == number
            lengths[here] += corpus.sentences.sizes[self.middles[here, 1]] - 1
        return lengths.clip(max=self.max_positions)

    def ordered_indices(self) -> IntArray:
        """Sort the samples of this epoch by length, equal lengths in random order, and leave out
        empty ones.
        """
        lengths = self.lengths
        indices = np.flatnonzero(lengths)
        if self.shuffle:
            indices = np.random.default_rng((self.seed, self.epoch)).permutation(indices)
        return indices[np.argsort(lengths[indices], kind="stable")]

    def batch_by_size(
        self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1
    ):
        """Cut into batches of `max_sentences` samples, or of at most `max_tokens` tokens."""
        return sampling.cut_into_batches(indices, self.lengths[indices], max_sentences, max_tokens)

    def num_tokens_vec(self, indices):
        return self.lengths[indices]

    def size(self, index: int) -> int:
        return int(self.lengths[index])

    num_tokens = size

    def collater(self, samples: list[dict]) -> dict:
        """Make a batch: `net_input` with `tokens` [B, T], `label` [B] float32, `id` [B],
        `nsentences`, `ntokens`.
        """
        if not samples:
            return {}
        tokens = padded([sample["pieces"] for sample in samples], self.padding_idx)
        return to_tensors(
            {
                "id": np.array([sample["id"] for sample in samples]),
                "nsentences": len(samples),
                "ntokens": int((tokens != self.padding_idx).sum()),
                "net_input": {"tokens": tokens},
                "label": np.array([sample["label"] for sample in samples], dtype=np.float32),
            }
        )


class ReplacedSentences(ContextDataset):
    """Stage 1: every sentence that has a context, in its place or exchanged for another.

    With `both`, every sentence twice per epoch, once in its place and once exchanged; else once,
    with one of the two drawn. The other sentence is one of all languages with `negatives` corpus,
    as Wang et al. draw it, else of its own.
    """

    def __init__(
        self,
        corpora: Sequence[DocumentCorpus],
        *,
        both: bool = False,
        negatives: str = "language",
        **options: Any,
    ):
        super().__init__(corpora, **options)
        self.both, self.negatives = both, negatives
        places = []
        for number, corpus in enumerate(self.corpora):
            sentences = np.arange(corpus.starts[-1])
            first, last = corpus.around(sentences, self.context)
            alone = sentences[last - first > 1]
            places.append(np.stack((np.full_like(alone, number), alone), axis=1))
        self.places = np.concatenate(places * (1 + both))
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        samples = np.arange(len(self))
        # with both, the first half of the samples stays in its place
        stays = (
            2 * samples < len(self)
            if self.both
            else uniform(self.seed, epoch, samples, ContextDraw.STAYS) < 0.5
        )
        self.labels = stays.astype(np.float32)
        self.middles = np.where(stays[:, None], self.places, self._others(epoch))

    def _others(self, epoch: int) -> IntArray:
        """Draw another sentence for every sample [S, 2], of its language or of all."""
        language, sentence = self.places.T
        sizes = np.array([corpus.starts[-1] for corpus in self.corpora])
        before = sizes.cumsum() - sizes
        whole = self.negatives == "corpus"
        number, count = (
            (before[language] + sentence, sizes.sum()) if whole else (sentence, sizes[language])
        )
        # a step of 1 to count - 1, modulo the number of sentences, always reaches another sentence
        drawn = uniform(self.seed, epoch, np.arange(len(self)), ContextDraw.REPLACEMENT)
        others = (number + 1 + (drawn * (count - 1)).astype(np.int64)) % count
        if whole:
            language = np.searchsorted(before, others, side="right") - 1
            others = others - before[language]
        return np.stack((language, others), axis=1)


class InsertedSentences(ContextDataset):
    """Stage 2: both sentences of every mined pair, each in the context of the other."""

    def __init__(self, corpora: Sequence[DocumentCorpus], mined: CoherentPairs, **options: Any):
        super().__init__(corpora, **options)
        self.places = np.concatenate((mined.left, mined.right))
        self.middles = np.concatenate((mined.right, mined.left))
        self.labels = np.tile(mined.labels, 2).astype(np.float32)
