"""Term `teach`: text of any one language must find a teacher's embedding of it among those of the
batch.
"""

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

TEACHER_SCALE = 20.0  # of the cosines with the teacher's embeddings


@dataclass
class TeacherTextOptions(FairseqDataclass):
    teacher_text: Optional[str] = option(
        "folder with text of any languages and a teacher's embeddings of it, to learn beside the pairs: NAME.txt, "
        "words or sentences, and NAME.npy, a row for each line; a text is drawn for each pair, from all files alike",
        None,
    )
    teacher_text_weight: float = option("weight of the loss of --teacher-text", 1.0, LOSS_WEIGHT)


class TeacherTextTerm(Term):
    """Cross-entropy over the cosines to the teacher's embeddings, through a learnt projection to
    their width.

    For words that the pairs lack: a word is a text of its own and needs no translation. `texts` are
    those of each file.
    """

    name, Options = "teach", TeacherTextOptions

    def __init__(self, weight: float, texts: Sequence[TeacherText]):
        super().__init__(weight)
        self.texts = texts

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "TeacherTextTerm | None":
        if cfg.teacher_text is not None and cfg.teacher_text_weight:
            return cls(
                cfg.teacher_text_weight, read_teacher_texts(Path(cfg.teacher_text), setting.shards)
            )
        if (
            cfg.teacher_text is None
            and cfg.teacher_text_weight != TeacherTextOptions().teacher_text_weight
        ):
            raise InputError(
                f"--teacher-text-weight {cfg.teacher_text_weight} without --teacher-text: give both"
            )
        return None

    def parts(self, split: Split) -> Sequence[Part]:
        return [DrawnTeacherTexts(self.texts)] if split.name == "train" else []

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        return {
            "teacher_map": nn.Linear(config.output_dim, self.texts[0].vectors.shape[1], bias=False)
        }

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor | None:
        """Embeddings of the drawn texts, projected to the teacher's width [B, E]."""
        student = encoded["embeddings"].get("teacher_text")
        return None if student is None else model.teacher_map(student)

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Mean over both directions.

        A worker without a batch left may train on one of validation, without a teacher, and must
        log the same names.
        """
        student = encoded["outputs"].get(self.name)
        if student is None:
            return 0 * encoded["embeddings"]["source"].float().sum() if training else None
        return (
            losses.alignment_loss(
                student, batch["teacher_text"], similarity="cosine", scale=TEACHER_SCALE
            )
            / 2
        )
