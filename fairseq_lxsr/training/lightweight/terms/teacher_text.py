"""Term `teach`: each text must retrieve its teacher embedding in the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import TransformerConfig
from fairseq_lxsr.options import LOSS_WEIGHT, option
from fairseq_lxsr.training.dataset import Part
from fairseq_lxsr.training.lightweight.parts.teacher_text import (
    DrawnTeacherTexts,
    TeacherText,
    read_teacher_texts,
)
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

# Factor applied to cosine similarities with the teacher's embeddings.
TEACHER_SCALE = 20.0


@dataclass
class TeacherTextOptions(FairseqDataclass):
    teacher_text: Optional[str] = option(
        "folder with additional training texts in any language and their teacher embeddings: "
        "NAME.txt, one word or sentence per line, and NAME.npy, one row per line; one text is "
        "drawn per sentence pair, from all files with equal probability",
        None,
    )
    teacher_text_weight: float = option("weight of the loss of --teacher-text", 1.0, LOSS_WEIGHT)


class TeacherTextTerm(Term):
    """Cross-entropy over the cosine similarities to the teacher's embeddings.

    A learnt projection maps the embeddings to the teacher's width. Use this term for words that do
    not occur in the pairs: a text can be a single word, and does not need a translation.

    Args:
        weight: weight of the term.
        texts: texts of each file.
    """

    name, Options = "teach", TeacherTextOptions

    def __init__(self, weight: float, texts: Sequence[TeacherText]):
        super().__init__(weight)
        self.texts = texts

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "TeacherTextTerm | None":
        weight = cfg.teacher_text_weight
        if cfg.teacher_text is None:
            if weight != TeacherTextOptions().teacher_text_weight:
                raise InputError(f"--teacher-text-weight {weight} requires --teacher-text")
            return None
        if not weight:
            return None
        return cls(weight, read_teacher_texts(Path(cfg.teacher_text), setting.shards))

    def parts(self, split: Split) -> Sequence[Part]:
        if split.name != "train":
            return []
        return [DrawnTeacherTexts(self.texts)]

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        teacher_width = self.texts[0].vectors.shape[1]
        return {"teacher_map": nn.Linear(config.output_dim, teacher_width, bias=False)}

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor | None:
        """Project the embeddings of the drawn texts to the teacher's width [B, E']."""
        student = encoded["embeddings"].get("teacher_text")
        if student is None:
            return None
        return model.teacher_map(student)

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Average the losses of both directions, summed over the pairs."""
        student = encoded["outputs"].get(self.name)
        if student is None:
            if not training:
                return None
            # A worker that has run out of batches may receive a validation batch without teacher
            # embeddings, but it must log the same names as the other workers.
            return 0 * encoded["embeddings"]["source"].float().sum()
        both_directions = losses.alignment_loss(
            student, batch["teacher_text"], similarity="cosine", scale=TEACHER_SCALE
        )
        return both_directions / 2
