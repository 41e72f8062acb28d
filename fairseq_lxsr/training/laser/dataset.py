"""Batches of sentence pairs for training LASER and T-LASER on translation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.training.dataset import padded, to_tensors
from fairseq_lxsr.training.pairs import PairCorpus, PairDataset


class TranslationDataset(PairDataset):
    """Source and target sentences, with one corpus per translation direction.

    Args:
        corpora: one corpus per direction.
        target_languages: target language index of each corpus.
        target_start: ids that the decoder predicts before each target: BOS, or none.
        **options: additional arguments of `PairDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        target_languages: Sequence[int],
        target_start: Sequence[int] = (),
        **options: Any,
    ):
        super().__init__(corpora, **options)
        self.target_languages = list(target_languages)
        self.target_start = np.array(target_start, dtype=np.int64)

    def num_tokens_vec(self, indices):
        # Count one more position, for the target's EOS or for the tag that T-LASER prepends.
        return super().num_tokens_vec(indices) + 1 + len(self.target_start)

    def collater(self, samples: list[dict]) -> dict:
        """Combine sentence pairs into a batch.

        Returns:
            `net_input`, with `src_tokens` [B, S] without EOS, `target_language` [B] and
            `prev_output_tokens` [B, T]: EOS, `target_start` and the target pieces;
            `target` [B, T]: `target_start`, the target pieces and EOS;
            `target_positions` [P], the non-padding positions in the flattened `target`;
            `target_tokens` [B, T'], only the target pieces, as encoder input;
            `id` [B], `nsentences` (B) and `ntokens` (P).
        """
        if not samples:
            return {}
        samples = self.resegmented(samples)
        sources = [sample["source"] for sample in samples]
        targets = [sample["target"] for sample in samples]
        eos = np.array([self.eos_idx])
        start = self.target_start
        previous = padded(
            [np.concatenate((eos, start, target)) for target in targets], self.padding_idx
        )
        gold = padded(
            [np.concatenate((start, target, eos)) for target in targets], self.padding_idx
        )
        # Find the positions here, because on the device this would require a copy to the host.
        positions = np.flatnonzero(gold != self.padding_idx)
        index = np.array([sample["id"] for sample in samples])
        language = self.target_languages[self.corpus_of(index[0])]
        return to_tensors(
            {
                "id": index,
                "nsentences": len(samples),
                "ntokens": len(positions),
                "net_input": {
                    "src_tokens": padded(sources, self.padding_idx),
                    "target_language": np.full(len(samples), language),
                    "prev_output_tokens": previous,
                },
                "target": gold,
                "target_positions": positions,
                "target_tokens": padded(targets, self.padding_idx),
            }
        )
