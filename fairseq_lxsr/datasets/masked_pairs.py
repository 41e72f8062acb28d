"""Batches of masked sentence pairs, as the lightweight model is trained on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.masking import BoolArray, MaskedBatch, MaskingVocabulary, mask_one_piece, mask_tokens
from fairseq_lxsr.datasets.pairs import SIDES, PairCorpus, PairDataset, padded, to_tensors
from fairseq_lxsr.datasets.word_swaps import swap_negatives

MASKINGS = ("one", "tokens", "none")


class SentencePairDataset(PairDataset):
    """Pairs without EOS, masked on the fly.

    Args:
        masking: `one` piece of one side (xtr, smlm, ugt), 15 % of the `tokens` of both (mlm, mlm_xtr), or `none`.
        starts_word: [V] pieces that a word begins with; where given, every batch has negatives with words exchanged.
        options: see `PairDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        vocabulary: MaskingVocabulary,
        eos_idx: int,
        masking: str = "one",
        starts_word: BoolArray | None = None,
        **options: Any,
    ):
        if masking not in MASKINGS:
            raise ValueError(f"masking is {masking!r}; expected one of {MASKINGS}")
        super().__init__(corpora, padding_idx=vocabulary.padding_idx, eos_idx=eos_idx, **options)
        self.vocabulary = vocabulary
        self.masking = masking
        self.starts_word = starts_word

    def collater(self, samples: list[dict]) -> dict:
        """Pad and mask.

        Returns a dict: `net_input` (`source`, `target` [B, T] as the encoder reads them), `source_tokens`,
        `target_tokens` [B, T] unmasked, `source_hidden`, `target_hidden` [B, M] the masked pieces, `id` [B],
        `nsentences`, `ntokens`; with `tokens` masking also `source_predict`, `target_predict` [K] the places of the
        masked pieces in their side read as one row, and `source_hidden_index`, `target_hidden_index` [K] in `hidden`;
        with `starts_word` also `negative` [B, T] in `net_input` and `negative_of` [B, 2], see `swap_negatives`.
        """
        if not samples:
            return {}
        index = np.array([sample["id"] for sample in samples])
        tokens = [padded([sample[side] for sample in samples], self.padding_idx) for side in SIDES]
        batch: dict[str, Any] = {
            "id": index,
            "nsentences": len(samples),
            "ntokens": int(sum((side != self.padding_idx).sum() for side in tokens)),
            "net_input": {},
        }
        for side, original, masked in zip(SIDES, tokens, self._mask(tokens[0], tokens[1], index), strict=True):
            batch |= {f"{side}_tokens": original, f"{side}_hidden": masked.hidden}
            batch["net_input"][side] = masked.tokens
            if self.masking == "tokens":
                # found here, on the host: a device would have to synchronise to know how many there are
                rows, columns = np.nonzero(masked.hidden != self.padding_idx)
                batch[f"{side}_predict"] = rows * original.shape[1] + masked.positions[rows, columns]
                batch[f"{side}_hidden_index"] = rows * masked.hidden.shape[1] + columns
        if self.starts_word is not None:
            negatives = swap_negatives(samples, self.starts_word, self.seed, self.epoch, self.padding_idx)
            batch["net_input"]["negative"], batch["negative_of"] = negatives
        return to_tensors(batch)

    def _mask(self, source, target, index) -> tuple[MaskedBatch, MaskedBatch]:
        if self.masking == "one":
            return mask_one_piece(source, target, index, self.seed, self.epoch, self.vocabulary)
        if self.masking == "tokens":
            source, target = (
                mask_tokens(tokens, index, side, self.seed, self.epoch, self.vocabulary)
                for side, tokens in enumerate((source, target))
            )
            return source, target
        nothing = np.full((len(index), 1), self.padding_idx)
        empty = np.zeros_like(nothing)
        return MaskedBatch(source, nothing, empty), MaskedBatch(target, nothing, empty)
