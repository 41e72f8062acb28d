"""Batches of sentence pairs for task `xling_sent`: both sides unchanged, and what the terms of the
loss need.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import SIDES, Batch, DrawnPairs, Part, to_tensors
from fairseq_lxsr.training.lightweight.near import NearPairs
from fairseq_lxsr.training.pairs import PairCorpus, PairDataset


class SentencePairDataset(PairDataset):
    """Pairs without EOS.

    The parts add to a batch in their order. `near` has groups of near pairs of each corpus, which
    stay together; it is empty for pairs of similar length, or any.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        parts: Sequence[Part] = (),
        near: Sequence[NearPairs] = (),
        **options: Any,
    ):
        super().__init__(corpora, **options)
        self.parts, self.near = list(parts), near

    def arranged(self, indices: np.ndarray) -> np.ndarray:
        """Order the pairs of a round by groups of near ones, and those by their mean length."""
        if not self.near or not len(indices):
            return super().arranged(indices)
        which = self.corpus_of(indices[0])
        groups = self.near[which].groups(indices - self.offsets[which])
        sizes = np.array(list(map(len, groups)))
        ordered = np.concatenate(groups) + self.offsets[which]
        means = np.add.reduceat(self.num_tokens_vec(ordered), sizes.cumsum() - sizes) / sizes
        return ordered[np.argsort(np.repeat(means, sizes), kind="stable")]

    def collater(self, samples: list[dict]) -> Batch:
        """Pad both sides, and let each part add its fields."""
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
        """Read the sentence that a number in [0, 1) draws from one side of the corpus of a pair."""
        start, end = self.offsets[self.corpus_of(index) :][:2]
        return self[int(start + drawn * (end - start))][side]
