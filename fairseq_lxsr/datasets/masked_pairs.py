"""Batches of masked sentence pairs, as the lightweight model is trained on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.hard_negatives import HardNegatives
from fairseq_lxsr.datasets.masking import (
    IntArray,
    MaskedBatch,
    MaskingVocabulary,
    mask_one_piece,
    mask_tokens,
    without_pieces,
)
from fairseq_lxsr.datasets.pairs import SIDES, PairCorpus, PairDataset, padded, to_tensors
from fairseq_lxsr.datasets.teacher import TeacherEmbeddings

MULTIPLIER = np.int64(6364136223846793005)  # of Knuth's MMIX generator
MASKINGS = ("one", "tokens", "none")


class SentencePairDataset(PairDataset):
    """Pairs without EOS, masked on the fly.

    Args:
        masking: `one` piece of one side (xtr, smlm, ugt), 15 % of the `tokens` of both (mlm, mlm_xtr), or `none`.
        hard_negatives: where given, makes one more negative for each pair.
        word_dropout: probability with which a piece is not read.
        number_texts: tell which sentences of a batch have the same text.
        teachers: embeddings to learn from, one for each corpus.
        options: see `PairDataset`.
    """

    def __init__(
        self,
        corpora: Sequence[PairCorpus],
        vocabulary: MaskingVocabulary,
        eos_idx: int,
        masking: str = "one",
        hard_negatives: HardNegatives | None = None,
        word_dropout: float = 0.0,
        number_texts: bool = False,
        teachers: Sequence[TeacherEmbeddings] | None = None,
        **options: Any,
    ):
        if masking not in MASKINGS:
            raise ValueError(f"masking is {masking!r}; expected one of {MASKINGS}")
        super().__init__(corpora, padding_idx=vocabulary.padding_idx, eos_idx=eos_idx, **options)
        self.vocabulary = vocabulary
        self.masking = masking
        self.hard_negatives = hard_negatives
        self.word_dropout = word_dropout
        self.number_texts = number_texts
        self.teachers = teachers

    def collater(self, samples: list[dict]) -> dict:
        """Pad and mask.

        Returns a dict: `net_input` (`source`, `target` [B, T] as the encoder reads them), `source_tokens`,
        `target_tokens` [B, T] unmasked, `source_hidden`, `target_hidden` [B, M] the masked pieces, `id` [B],
        `nsentences`, `ntokens`; with `tokens` masking also `source_predict`, `target_predict` [K] the places of the
        masked pieces in their side read as one row, and `source_hidden_index`, `target_hidden_index` [K] in `hidden`;
        with `number_texts` also `text_number` [2, B], equal for equal texts of a side; with `teachers` also `teacher`
        [2B, E], sources first; with `hard_negatives` also `negative` [B, T] in `net_input` and `negative_of` [B, 2].
        """
        if not samples:
            return {}
        # before pieces are split anew, which hides what is equal
        texts = [text_numbers(side) for side in self._padded(samples)] if self.number_texts else []
        samples = self.resegmented(samples)
        index = np.array([sample["id"] for sample in samples])
        tokens = self._padded(samples)
        batch: dict[str, Any] = {
            "id": index,
            "nsentences": len(samples),
            "ntokens": int(sum((side != self.padding_idx).sum() for side in tokens)),
            "net_input": {},
        }
        if self.number_texts:
            batch["text_number"] = np.stack(texts)
        for side, original, masked in zip(SIDES, tokens, self._mask(tokens[0], tokens[1], index), strict=True):
            batch |= {f"{side}_tokens": original, f"{side}_hidden": masked.hidden}
            batch["net_input"][side] = masked.tokens
            if self.masking == "tokens":
                # found here, on the host: a device would have to synchronise to know how many there are
                rows, columns = np.nonzero(masked.hidden != self.padding_idx)
                batch[f"{side}_predict"] = rows * original.shape[1] + masked.positions[rows, columns]
                batch[f"{side}_hidden_index"] = rows * masked.hidden.shape[1] + columns
        if self.word_dropout:  # of hard negatives too it changed nothing
            for number, side in enumerate(SIDES):
                batch["net_input"][side] = without_pieces(
                    batch["net_input"][side], index, number, self.seed, self.epoch, self.word_dropout, self.vocabulary
                )
        if self.hard_negatives:
            batch["net_input"]["negative"], batch["negative_of"] = self.hard_negatives(
                samples, self.other_sentence, self.seed, self.epoch, self.padding_idx, self.max_positions
            )
        if self.teachers is not None:
            which = self.corpus_of(index[0])  # of all: a batch is of one corpus
            rows = index % len(self) - self.offsets[which]
            batch["teacher"] = np.concatenate(self.teachers[which].rows(rows))
        return to_tensors(batch)

    def _padded(self, samples: list[dict]) -> list[IntArray]:
        """Both sides as [B, T] ids."""
        return [padded([sample[side] for sample in samples], self.padding_idx) for side in SIDES]

    def other_sentence(self, index: int, drawn: float, side: str) -> IntArray:
        """The sentence that a number in [0, 1) draws from one side of the corpus that a pair is of."""
        start, end = self.offsets[self.corpus_of(index) :][:2]
        return self[int(start + drawn * (end - start))][side]

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


def text_numbers(tokens: IntArray) -> IntArray:
    """tokens [B, T] -> [B], equal for equal rows and, but for one case in 2^64, for no others."""
    with np.errstate(over="ignore"):
        return (tokens * MULTIPLIER ** np.arange(tokens.shape[1])).sum(axis=1)
