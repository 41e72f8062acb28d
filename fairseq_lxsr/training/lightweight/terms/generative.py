"""Term `gen`: predict words of the sentence or of its translation from each encoder pass (Mao et
al. 2021, 3.2).
"""

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
    "xtr": "one",
    "smlm": "one",
    "mlm": "tokens",
    "mlm_xtr": "tokens",
}


@dataclass
class GenerativeOptions(FairseqDataclass):
    objective: ChoiceEnum((*losses.OBJECTIVES, "none")) = option(  # type: ignore[valid-type]
        "generative loss: what is masked and what is predicted from it; none leaves both out", "ugt"
    )
    gen_weight: float = option(
        "weight of the generative loss chosen by --objective; 0 leaves it out", 1.0, LOSS_WEIGHT
    )
    target_weights: ChoiceEnum(losses.TARGET_WEIGHTS) = option(  # type: ignore[valid-type]
        "weight of a word in the generative targets: types counts it once (what the authors ran), "
        "counts as often as it occurs (Eq. 3 as printed)",
        "types",
    )
    target_ids: ChoiceEnum(TARGET_IDS) = option(  # type: ignore[valid-type]
        "ids of the other sentence that a sentence predicts: original, or masked, where <mask> is a target "
        "and the masked word is not (the released code)",
        "original",
    )
    target_overlap: ChoiceEnum(losses.TARGET_OVERLAPS) = option(  # type: ignore[valid-type]
        "weight of a masked word that is also in the other sentence, with --objective ugt or mlm_xtr; the paper can be "
        "read both ways: sum of its half and its share, so that the weights sum to one, or its share in the "
        "translation alone, the first of the printed cases that fits (the released code)",
        "sum",
    )


class GenerativeTerm(Term):
    """KL divergence from the words to predict, or for `mlm` cross-entropy of each masked piece from
    its own state.
    """

    name, Options = "gen", GenerativeOptions

    def __init__(self, cfg: Any, vocabulary: MaskingVocabulary):
        super().__init__(cfg.gen_weight)
        self.objective, self.vocabulary = str(cfg.objective), vocabulary
        self.weights, self.overlap = str(cfg.target_weights), str(cfg.target_overlap)
        self.masked_targets = cfg.target_ids == "masked"
        self.needs_states = self.objective == "mlm"

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "GenerativeTerm | None":
        objective = str(cfg.objective)
        if objective == "none":
            return None
        if cfg.hard_negatives != "none":
            raise InputError(
                f"--hard-negatives {cfg.hard_negatives} with --objective {objective}, whose masks would tell them "
                "apart; expected none"
            )
        if cfg.word_dropout and objective == "mlm":
            raise InputError(
                f"--word-dropout {cfg.word_dropout} with --objective mlm, which predicts pieces from their own states; "
                "expected another objective"
            )
        return cls(cfg, setting.vocabulary)

    def parts(self, split: Split) -> Sequence[Part]:
        masking = Masking(MASKING_OF_OBJECTIVE[self.objective], self.vocabulary)
        return [masking, MaskedTargets()] if self.masked_targets else [masking]

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        sizes = config.output_dim, config.embed_dim, config.vocab_size
        return {"head": ReconstructionHead(*sizes, config.layer_norm_eps)}

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor:
        """Logits [2B, V], source passes first; for `mlm` [K + K', V], one row for each masked
        piece.
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
        logits, padding_idx = encoded["outputs"][self.name], self.vocabulary.padding_idx
        masked_ids = batch["source_masked_ids"], batch["target_masked_ids"]
        if self.needs_states:
            index = batch["source_masked_index"], batch["target_masked_index"]
            return losses.token_loss(logits, masked_ids, index, padding_idx)
        tokens = batch["source_tokens"], batch["target_tokens"]
        targets = losses.sentence_targets(
            self.objective, tokens, masked_ids, padding_idx, self.weights, self.overlap
        )
        return losses.sentence_loss(logits, *targets)
