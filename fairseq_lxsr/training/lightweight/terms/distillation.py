"""Term `distill`: the embeddings learn to be those of another model, the teacher."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.encoder.model_folder import TEACHER
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import embeddings_description
from fairseq_lxsr.modules import TransformerConfig
from fairseq_lxsr.options import option
from fairseq_lxsr.training.dataset import Part
from fairseq_lxsr.training.lightweight.parts.teacher import (
    TeacherRows,
    embedding_folders,
    read_teacher,
    teacher_files,
)
from fairseq_lxsr.training.lightweight.terms.alignment import WIDTHS
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

logger = logging.getLogger(__name__)

CONTRAST = "contrast"  # the teacher's embeddings as candidates, without a projection


@dataclass
class DistillationOptions(FairseqDataclass):
    teacher_embeddings: Optional[str] = option(
        "folder with a teacher's embeddings of the training text, to learn from by --distill-loss: "
        "train.SRC-TGT.LANG.npy, of either language or both, a row for each sentence",
        None,
    )
    distill_loss: ChoiceEnum((*losses.DISTILL_LOSSES, CONTRAST)) = option(  # type: ignore[valid-type]
        "distance from the teacher's embeddings: mse or cosine, through a learnt projection to their width; "
        "similarity, of all cosines within a batch; contrast, as align with the teacher's embeddings, without a "
        "projection, so that embeddings of both models can be compared",
        "mse",
    )


def one_teacher(folders: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> str | None:
    """Return the fingerprint of the model in whose space all embeddings are: the one that made
    them, or its teacher.

    Where `lxsr embed` did not describe them, the answer is None.
    """
    paths = [
        folder / name
        for folder in folders
        for pair in pairs
        for name in teacher_files("train", pair)
    ]
    described = [embeddings_description(path) for path in paths if path.is_file()]
    models = {str(about.get("space") or about.get("model", "")) for about in described}
    if len(models) > 1:
        names = ", ".join(sorted(name or "one without a description" for name in models))
        raise InputError(
            f"{folders[0]}: embeddings of several models, {names}; expected one, whose space it is"
        )
    return models.pop() or None


class DistillationTerm(Term):
    """Distance from the teacher's embeddings; `mse` and `cosine` project the student's to their
    width.

    The folders have the teacher's embeddings, of `width` units, one folder for each data folder or
    one for all. `contrast` multiplies the cosines by `scale` (1 / temperature), and adds the loss
    of the first units alone, for each of `widths`.
    """

    name, Options = "distill", DistillationOptions

    def __init__(
        self,
        form: str,
        folders: Sequence[Path],
        width: int,
        scale: float = 1.0,
        widths: Sequence[int] = (),
    ):
        super().__init__(weight=1.0)
        self.form, self.folders, self.width = form, folders, width
        self.has_projection = form in ("mse", "cosine")
        self.scale, self.widths = scale, sorted({*widths, width})

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "DistillationTerm | None":
        if cfg.teacher_embeddings is None:
            if cfg.distill_loss != DistillationOptions().distill_loss:
                raise InputError(
                    f"--distill-loss {cfg.distill_loss} without --teacher-embeddings: give both"
                )
            return None
        folders = embedding_folders(
            "--teacher-embeddings", cfg.teacher_embeddings, setting.shards, setting.pairs
        )
        opened = (
            read_teacher(folder, "train", pair) for pair in setting.pairs for folder in folders
        )
        # a shard may lack a pair
        teacher = next((found for found in opened if found is not None), None)
        if teacher is None:
            name = teacher_files("train", setting.pairs[0])
            raise InputError(f"{folders[0]}: has no {name}; make them with `lxsr embed`")
        if str(cfg.distill_loss) != CONTRAST:
            return cls(str(cfg.distill_loss), folders, teacher.width)
        widths = WIDTHS.parse(cfg.matryoshka) if cfg.matryoshka else ()
        term = cls(CONTRAST, folders, teacher.width, 1 / cfg.align_temperature, widths)
        if model := one_teacher(folders, setting.pairs):
            term.state[TEACHER] = model
        return term

    def parts(self, split: Split) -> Sequence[Part]:
        """Read the teacher's embeddings; splits other than train may lack them, and then have no
        such part.
        """
        turn = (split.epoch - 1) % len(self.folders) if split.name == "train" else 0
        folder, teachers = self.folders[turn], []
        for pair, corpus in split.corpora.items():
            teacher = read_teacher(folder, split.name, pair, len(corpus.source))
            if teacher is None:
                missing = teacher_files(split.name, pair)
                if split.name == "train":
                    raise InputError(f"{folder}: has no {missing}; make them with `lxsr embed`")
                logger.warning(
                    f"{folder}: has no {missing[0]}; the loss of {split.name} leaves distillation out"
                )
                return ()
            if teacher.width != self.width:
                raise InputError(
                    f"{folder}: {split.name} has other widths than {self.width}; expected one width"
                )
            teachers.append(teacher)
        return [TeacherRows(teachers)]

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        if self.form == CONTRAST and config.output_dim != self.width:
            raise InputError(
                f"--distill-loss {CONTRAST}: embeddings of {config.output_dim} units, and {self.width} of the teacher "
                f"in {self.folders[0]}; expected the same width, --encoder-embed-dim {self.width}"
            )
        return (
            {"projection": nn.Linear(config.output_dim, self.width, bias=False)}
            if self.has_projection
            else {}
        )

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor:
        """Embeddings [2B, E'], sources first, projected to the teacher's width for `mse` and
        `cosine`.
        """
        student = torch.cat((encoded["embeddings"]["source"], encoded["embeddings"]["target"]))
        return model.projection(student) if self.has_projection else student

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Mean over both sides, so that a pair counts once.

        A worker without a batch left may train on one of validation, without a teacher, and must
        log the same names.
        """
        student, teacher = encoded["outputs"][self.name], batch.get("teacher")
        if teacher is None:
            return 0 * student.float().sum() if training else None
        if self.form != CONTRAST:
            return losses.distillation_loss(student, teacher, self.form) / 2
        # each by itself: the teacher may know one alone
        sides = zip(student.chunk(2), teacher.chunk(2), strict=True)
        contrast = partial(
            losses.matryoshka_alignment_loss,
            widths=self.widths,
            similarity="cosine",
            scale=self.scale,
        )
        return (
            sum(
                (contrast(*side) for side in sides),
                start=student.new_zeros((), dtype=torch.float32),
            )
            / 2
        )
