"""Batches of sentence pairs for task `xling_sent`, with the fields that the loss terms need."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import SIDES, Batch, DrawnPairs, Part, to_tensors
from fairseq_lxsr.training.lightweight.near import NearPairs
from fairseq_lxsr.training.pairs import PairCorpus, PairDataset


class SentencePairDataset(PairDataset):
    """Sentence pairs without EOS, with additional batch fields for the loss terms.

    Args:
        corpora: one corpus per language pair.
        parts: functions that add fields to a batch, called in this order.
        near: groups of similar pairs in each corpus, which stay together in a batch; empty if pairs
            are not grouped.
        options: additional arguments of `PairDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        parts: Sequence[Part] = (),
        near: Sequence[NearPairs] = (),
        **options: Any,
    ):
        super().__init__(corpora, **options)
        self.parts = list(parts)
        self.near = near

    def arranged(self, indices: np.ndarray) -> np.ndarray:
        """Group the similar pairs of a round, and sort the groups by mean length."""
        if not self.near or not len(indices):
            return super().arranged(indices)
        corpus = self.corpus_of(indices[0])
        groups = self.near[corpus].groups(indices - self.offsets[corpus])
        sizes = np.array([len(group) for group in groups])
        ordered = np.concatenate(groups) + self.offsets[corpus]
        means = np.add.reduceat(self.num_tokens_vec(ordered), sizes.cumsum() - sizes) / sizes
        return ordered[np.argsort(np.repeat(means, sizes), kind="stable")]

    def collater(self, samples: list[dict]) -> Batch:
        """Build a batch: pad both sides, then let each `Part` add its fields."""
        if not samples:
            return {}
        pairs = DrawnPairs(self, self.resegmented(samples))
        tokens = dict(zip(SIDES, pairs.tokens, strict=True))
        batch: dict[str, Any] = {
            "id": pairs.index,
            "nsentences": len(samples),
            "ntokens": int(sum((side != self.padding_idx).sum() for side in pairs.tokens)),
            "net_input": dict(tokens),
            **{f"{side}_tokens": ids for side, ids in tokens.items()},
        }
        for part in self.parts:
            part(batch, pairs)
        return to_tensors(batch)

    def other_sentence(self, index: int, drawn: float, side: str) -> np.ndarray:
        """Read a random sentence from one side of the corpus that a pair belongs to.

        Args:
            index: index of the pair.
            drawn: random number in [0, 1) that selects the sentence.
            side: source or target.
        """
        start, end = self.offsets[self.corpus_of(index) :][:2]
        return self[int(start + drawn * (end - start))][side]
