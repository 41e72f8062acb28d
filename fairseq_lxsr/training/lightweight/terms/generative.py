"""Term `gen`: predicts words of a sentence or its translation (Mao et al. 2021, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import ReconstructionHead, TransformerConfig
from fairseq_lxsr.options import LOSS_WEIGHT, option
from fairseq_lxsr.training.dataset import SIDES, Part
from fairseq_lxsr.training.lightweight.parts.masking import (
    MaskedTargets,
    Masking,
    MaskingVocabulary,
)
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

TARGET_IDS = ("original", "masked")
MASKING_OF_OBJECTIVE = {
    "ugt": "one",
    "xtr": "none",
    "smlm": "one",
    "mlm": "tokens",
    "mlm_xtr": "tokens",
}


@dataclass
class GenerativeOptions(FairseqDataclass):
    objective: ChoiceEnum((*losses.OBJECTIVES, "none")) = option(  # type: ignore[valid-type]
        "generative objective, which determines what is masked and what is predicted; none "
        "disables it",
        "ugt",
    )
    gen_weight: float = option(
        "weight of the generative loss selected by --objective; 0 disables it", 1.0, LOSS_WEIGHT
    )
    target_weights: ChoiceEnum(losses.TARGET_WEIGHTS) = option(  # type: ignore[valid-type]
        "word weights in the generative targets: types (each word counts once, as in the "
        "authors' experiments), counts (a word counts each time it occurs, Eq. 3 as printed)",
        "types",
    )
    target_ids: ChoiceEnum(TARGET_IDS) = option(  # type: ignore[valid-type]
        "pieces of its translation that a sentence predicts: original, or masked (with <mask> "
        "in place of the masked word, as in the released code, which also masks a word with "
        "--objective xtr)",
        "original",
    )
    target_overlap: ChoiceEnum(losses.TARGET_OVERLAPS) = option(  # type: ignore[valid-type]
        "weight of a masked word that also occurs in the translation, with --objective ugt or "
        "mlm_xtr (the paper is ambiguous): sum (of its weights as a masked word and as a "
        "translated word, so that all weights sum to one), translation (only the latter, as in "
        "the released code)",
        "sum",
    )


class GenerativeTerm(Term):
    """KL divergence between the distributions of target words and predicted words.

    For `mlm`, this is the cross-entropy of each masked piece, predicted from its own state.
    """

    name, Options = "gen", GenerativeOptions

    def __init__(self, cfg: Any, vocabulary: MaskingVocabulary):
        super().__init__(cfg.gen_weight)
        self.objective = str(cfg.objective)
        self.vocabulary = vocabulary
        self.weights = str(cfg.target_weights)
        self.overlap = str(cfg.target_overlap)
        self.masked_targets = cfg.target_ids == "masked"
        self.needs_states = self.objective == "mlm"

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "GenerativeTerm | None":
        objective = str(cfg.objective)
        if objective == "none":
            return None
        if cfg.hard_negatives != "none":
            raise InputError(
                f"--hard-negatives {cfg.hard_negatives} does not support --objective {objective}, "
                "because its masks would reveal which sentence is the negative; use --objective "
                "none"
            )
        if cfg.word_dropout and objective == "mlm":
            raise InputError(
                f"--word-dropout {cfg.word_dropout} does not support --objective mlm, which "
                "predicts each piece from its own state; use another objective"
            )
        return cls(cfg, setting.vocabulary)

    def parts(self, split: Split) -> Sequence[Part]:
        masking = MASKING_OF_OBJECTIVE[self.objective]
        if self.objective == "xtr" and self.masked_targets:
            # The released code masks one piece of every pair, whatever the objective.
            masking = "one"
        parts: list[Part] = [Masking(masking, self.vocabulary)]
        if self.masked_targets:
            parts.append(MaskedTargets())
        return parts

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        head = ReconstructionHead(
            config.output_dim, config.embed_dim, config.vocab_size, config.layer_norm_eps
        )
        return {"head": head}

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor:
        """Compute the logits of both sides.

        For `mlm`, there is one row per masked piece.

        Returns:
            Logits [2B, V], sources first; [K + K', V] for `mlm`.
        """
        if self.needs_states:
            rows = [
                encoded["states"][side].flatten(0, 1)[batch[f"{side}_positions"]]  # type: ignore[literal-required]
                for side in SIDES
            ]
        else:
            rows = [encoded["embeddings"][side] for side in SIDES]
        return model.head(torch.cat(rows), model.encoder.embed_tokens.weight)

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor:
        logits = encoded["outputs"][self.name]
        padding_idx = self.vocabulary.padding_idx
        masked_ids = (batch["source_masked_ids"], batch["target_masked_ids"])
        if self.needs_states:
            index = (batch["source_masked_index"], batch["target_masked_index"])
            return losses.token_loss(logits, masked_ids, index, padding_idx)
        tokens = (batch["source_tokens"], batch["target_tokens"])
        targets = losses.sentence_targets(
            self.objective, tokens, masked_ids, padding_idx, self.weights, self.overlap
        )
        return losses.sentence_loss(logits, *targets)
