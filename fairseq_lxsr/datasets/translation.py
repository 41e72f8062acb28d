"""Batches of sentences and their translations, which train LASER and T-LASER."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.batch import padded, to_tensors
from fairseq_lxsr.datasets.pairs import PairCorpus, PairDataset


class TranslationDataset(PairDataset):
    """Pairs with a direction, source to target.

    Args:
        corpora: one per direction.
        target_languages: index of the target language of each corpus.
        options: see `PairDataset`.
    """

    def __init__(self, corpora: Sequence[PairCorpus], target_languages: Sequence[int], **options: Any):
        super().__init__(corpora, **options)
        self.target_languages = list(target_languages)

    def num_tokens_vec(self, indices):
        return super().num_tokens_vec(indices) + 1  # EOS, or the tag

    def collater(self, samples: list[dict]) -> dict:
        """Pad both sides.

        Returns:
            `net_input` with `src_tokens` [B, S] without EOS, `target_language` [B] and `prev_output_tokens` [B, T], the
                target after an EOS; `target` [B, T] with EOS; `target_positions` [P], where its real pieces are in the
                flattened target; `target_tokens` [B, T - 1] without EOS, as the encoder reads them; `id` [B];
                `nsentences`; `ntokens` (P).
        """
        if not samples:
            return {}
        samples = self.resegmented(samples)
        sources, targets = ([sample[side] for sample in samples] for side in ("source", "target"))
        eos = np.array([self.eos_idx])
        previous = padded([np.concatenate((eos, target)) for target in targets], self.padding_idx)
        gold = padded([np.concatenate((target, eos)) for target in targets], self.padding_idx)
        positions = np.flatnonzero(gold != self.padding_idx)  # computed on the host: a device would have to synchronize
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
