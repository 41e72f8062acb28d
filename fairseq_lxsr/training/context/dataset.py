"""Datasets of sentences in context, for training without parallel text.

Every random choice depends only on (seed, epoch, sample); see `draws`. A sample is the encoder
input: a sentence, surrounded by the sentences before and after a position in a document.
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
    """All sentences in one language, stored document by document.

    Attributes:
        language: language of the sentences.
        sentences: piece ids of every sentence; each ends in EOS.
        starts: index of each document's first sentence, followed by the total number of sentences
            [documents + 1].
    """

    language: str
    sentences: FairseqDataset
    starts: IntArray

    def around(self, index: IntArray, context: int) -> tuple[IntArray, IntArray]:
        """Find the context of sentences within their documents.

        Args:
            index: sentence indices [N].
            context: number of context sentences on each side.

        Returns:
            Index of the first sentence in each context, and of the sentence after the last one, [N]
            each.
        """
        document = np.searchsorted(self.starts, index, side="right")
        begin = np.maximum(index - context, self.starts[document - 1])
        end = np.minimum(index + context + 1, self.starts[document])
        return begin, end


@dataclass(frozen=True)
class CoherentPairs:
    """Mined pairs of similar sentences.

    Attributes:
        left: language index and sentence index of one side [N, 2].
        right: language index and sentence index of the other side [N, 2].
        labels: cosine similarities [N].
    """

    left: IntArray
    right: IntArray
    labels: FloatArray


class ContextDataset(EpochDataset):
    """Base class of the datasets: a sample is a context, a sentence for its middle, and a label.

    Attributes:
        places: language and sentence whose context is used [S, 2].
        middles: language and sentence to insert in the middle of the context [S, 2].
        labels: values that the model learns to predict [S].
    """

    places: IntArray
    middles: IntArray
    labels: FloatArray

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
        # With cumulative piece counts, the length of a context is a difference of two counts.
        self.pieces_before = []
        for corpus in self.corpora:
            lengths = corpus.sentences.sizes - 1
            self.pieces_before.append(np.concatenate(([0], np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict:
        language, sentence = self.places[index]
        corpus = self.corpora[language]
        begin, end = (int(bound) for bound in corpus.around(sentence, self.context))
        parts = [corpus.sentences[row] for row in range(begin, end)]
        middle_language, middle = self.middles[index]
        parts[sentence - begin] = self.corpora[middle_language].sentences[middle]
        pieces = np.concatenate([strip_eos(part, self.eos_idx) for part in parts])
        pieces = pieces[: self.max_positions]
        return {"id": index, "pieces": pieces, "label": self.labels[index]}

    @property
    def lengths(self) -> IntArray:
        """Number of pieces per sample [S], at most `max_positions`."""
        lengths = np.empty(len(self), dtype=np.int64)
        for number, corpus in enumerate(self.corpora):
            in_language = self.places[:, 0] == number
            sentence = self.places[in_language, 1]
            before = self.pieces_before[number]
            begin, end = corpus.around(sentence, self.context)
            replaced = corpus.sentences.sizes[sentence] - 1
            lengths[in_language] = before[end] - before[begin] - replaced
        for number, corpus in enumerate(self.corpora):
            in_language = self.middles[:, 0] == number
            lengths[in_language] += corpus.sentences.sizes[self.middles[in_language, 1]] - 1
        return lengths.clip(max=self.max_positions)

    def ordered_indices(self) -> IntArray:
        """Return the indices of the non-empty samples, sorted by length.

        In training, samples of equal length are in random order.
        """
        lengths = self.lengths
        indices = np.flatnonzero(lengths)
        if self.shuffle:
            indices = np.random.default_rng((self.seed, self.epoch)).permutation(indices)
        return indices[np.argsort(lengths[indices], kind="stable")]

    def batch_by_size(
        self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1
    ):
        """Split samples into batches of `max_sentences`, or of at most `max_tokens` tokens."""
        return sampling.cut_into_batches(indices, self.lengths[indices], max_sentences, max_tokens)

    def num_tokens_vec(self, indices):
        return self.lengths[indices]

    def size(self, index: int) -> int:
        return int(self.lengths[index])

    num_tokens = size

    def collater(self, samples: list[dict]) -> dict:
        """Combine samples into a batch.

        Returns:
            `net_input` with `tokens` [B, T], `label` [B] float32, `id` [B], `nsentences` and
            `ntokens`.
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
    """Stage 1: each context contains its original sentence, or a random replacement.

    Args:
        corpora: corpora of all languages.
        doubled: use every sentence twice per epoch, in its own context and replaced. Otherwise,
            choose one of the two at random.
        negatives: source of the replacements: `language` (the sentence's language) or `corpus` (all
            languages, as in Wang et al.).
        **options: additional arguments of `ContextDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[DocumentCorpus],
        *,
        doubled: bool = False,
        negatives: str = "language",
        **options: Any,
    ):
        super().__init__(corpora, **options)
        self.is_doubled = doubled
        self.negatives = negatives
        places = []
        for number, corpus in enumerate(self.corpora):
            sentences = np.arange(corpus.starts[-1])
            begin, end = corpus.around(sentences, self.context)
            # A document with only one sentence provides no context.
            with_context = sentences[end - begin > 1]
            language = np.full_like(with_context, number)
            places.append(np.stack((language, with_context), axis=1))
        self.places = np.concatenate(places * (1 + doubled))
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        samples = np.arange(len(self))
        if self.is_doubled:
            # The first half of the samples keeps the original sentences.
            stays = 2 * samples < len(self)
        else:
            stays = uniform(self.seed, epoch, samples, ContextDraw.STAYS) < 0.5
        self.labels = stays.astype(np.float32)
        self.middles = np.where(stays[:, None], self.places, self._replacements(epoch))

    def _replacements(self, epoch: int) -> IntArray:
        """Draw a replacement for each sample, from its own language or from all languages.

        Returns:
            Language and sentence index of each replacement [S, 2].
        """
        language, sentence = self.places.T
        sizes = np.array([corpus.starts[-1] for corpus in self.corpora])
        before = sizes.cumsum() - sizes
        from_all = self.negatives == "corpus"
        if from_all:
            number = before[language] + sentence
            count = sizes.sum()
        else:
            number = sentence
            count = sizes[language]
        # An offset from 1 to count - 1, modulo count, never selects the same sentence.
        drawn = uniform(self.seed, epoch, np.arange(len(self)), ContextDraw.REPLACEMENT)
        replacement = (number + 1 + (drawn * (count - 1)).astype(np.int64)) % count
        if from_all:
            language = np.searchsorted(before, replacement, side="right") - 1
            replacement = replacement - before[language]
        return np.stack((language, replacement), axis=1)


class InsertedSentences(ContextDataset):
    """Stage 2: each sentence of a mined pair is inserted into the context of the other one."""

    def __init__(self, corpora: Sequence[DocumentCorpus], mined: CoherentPairs, **options: Any):
        super().__init__(corpora, **options)
        self.places = np.concatenate((mined.left, mined.right))
        self.middles = np.concatenate((mined.right, mined.left))
        self.labels = np.tile(mined.labels, 2).astype(np.float32)
