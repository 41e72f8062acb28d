"""Term `distill`: trains the embeddings to match the embeddings of a teacher model."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
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
    TeacherEmbeddings,
    TeacherRows,
    embedding_folders,
    missing_teacher,
    read_teacher,
    teacher_files,
)
from fairseq_lxsr.training.lightweight.terms.alignment import WIDTHS
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

logger = logging.getLogger(__name__)

# The distillation loss that uses the teacher's embeddings as candidates, without a projection.
CONTRAST = "contrast"


@dataclass
class DistillationOptions(FairseqDataclass):
    teacher_embeddings: Optional[str] = option(
        "folder with a teacher's embeddings of the training text, for --distill-loss: "
        "train.SRC-TGT.LANG.npy for one language or both, one row per sentence",
        None,
    )
    distill_loss: ChoiceEnum((*losses.DISTILL_LOSSES, CONTRAST)) = option(  # type: ignore[valid-type]
        "distillation loss: mse or cosine (distance after a learnt projection to the teacher's "
        "width), similarity (distance between the cosine similarity matrices of a batch), "
        "contrast (the align loss with the teacher's embeddings as candidates and no projection, "
        "so that both models share one vector space)",
        "mse",
    )


def one_teacher(folders: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> str | None:
    """Return the fingerprint of the model that all teacher embeddings are compatible with.

    This is the model that computed them, or that model's own teacher. The result is None if the
    embeddings have no description from `lxsr embed`.

    Raises:
        InputError: if the embeddings come from several models that are not compatible.
    """
    models = set()
    for folder, pair in itertools.product(folders, pairs):
        for name in teacher_files("train", pair):
            path = folder / name
            if path.is_file():
                description = embeddings_description(path)
                models.add(str(description.get("space") or description.get("model", "")))
    if len(models) > 1:
        names = ", ".join(sorted(name or "one without description" for name in models))
        raise InputError(
            f"{folders[0]} contains embeddings from several models, {names}; use embeddings "
            "from one model"
        )
    return models.pop() or None


def first_teacher(folders: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> TeacherEmbeddings:
    """Read the teacher embeddings of the first language pair that has any.

    Raises:
        InputError: if no folder contains embeddings of any pair.
    """
    # A shard may not contain every language pair.
    for pair, folder in itertools.product(pairs, folders):
        teacher = read_teacher(folder, "train", pair)
        if teacher is not None:
            return teacher
    raise missing_teacher(folders[0], pairs[0])


class DistillationTerm(Term):
    """Distance between the student's embeddings and the teacher's.

    Args:
        form: value of --distill-loss; `mse` and `cosine` project the student's embeddings to the
            teacher's width.
        folders: folders with the teacher's embeddings, one per data folder, or one for all.
        width: width of the teacher's embeddings.
        scale: for `contrast`, factor applied to the cosine similarities (1 / temperature).
        widths: for `contrast`, Matryoshka widths whose losses are summed.
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
        self.form = form
        self.folders = folders
        self.width = width
        self.has_projection = form in ("mse", "cosine")
        self.scale = scale
        self.widths = sorted({*widths, width})

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "DistillationTerm | None":
        if cfg.teacher_embeddings is None:
            if cfg.distill_loss != DistillationOptions().distill_loss:
                raise InputError(f"--distill-loss {cfg.distill_loss} requires --teacher-embeddings")
            return None
        folders = embedding_folders(
            "--teacher-embeddings", cfg.teacher_embeddings, setting.shards, setting.pairs
        )
        teacher = first_teacher(folders, setting.pairs)
        if str(cfg.distill_loss) != CONTRAST:
            return cls(str(cfg.distill_loss), folders, teacher.width)
        widths: Sequence[int] = ()
        if cfg.matryoshka:
            widths = WIDTHS.parse(cfg.matryoshka)
        term = cls(CONTRAST, folders, teacher.width, 1 / cfg.align_temperature, widths)
        model = one_teacher(folders, setting.pairs)
        if model:
            term.state[TEACHER] = model
        return term

    def parts(self, split: Split) -> Sequence[Part]:
        """Read the teacher embeddings of a split.

        Splits other than `train` may lack them. In this case, their loss does not include
        distillation.
        """
        folder = self.folders[0]
        if split.name == "train":
            folder = self.folders[(split.epoch - 1) % len(self.folders)]
        teachers = []
        for pair, corpus in split.corpora.items():
            teacher = read_teacher(folder, split.name, pair, len(corpus.source))
            if teacher is None:
                if split.name == "train":
                    raise missing_teacher(folder, pair)
                missing = teacher_files(split.name, pair)
                logger.warning(
                    f"{folder}: no {missing[0]}; the {split.name} loss is computed without "
                    "distillation"
                )
                return ()
            if teacher.width != self.width:
                raise InputError(
                    f"{folder}: {split.name} embeddings are {teacher.width} wide, but the "
                    f"embeddings in {self.folders[0]} are {self.width} wide"
                )
            teachers.append(teacher)
        return [TeacherRows(teachers)]

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        if self.form == CONTRAST and config.output_dim != self.width:
            raise InputError(
                f"--distill-loss {CONTRAST} requires the width of the teacher in "
                f"{self.folders[0]}, {self.width}, but the model has {config.output_dim}; use "
                f"--encoder-embed-dim {self.width}"
            )
        if not self.has_projection:
            return {}
        return {"projection": nn.Linear(config.output_dim, self.width, bias=False)}

    def output(self, model: Any, encoded: Encoded, batch: Batch) -> Tensor:
        """Return the source and target embeddings, stacked.

        For `mse` and `cosine`, they are projected to the teacher's width.

        Returns:
            Embeddings [2B, E'], sources first.
        """
        student = torch.cat((encoded["embeddings"]["source"], encoded["embeddings"]["target"]))
        if self.has_projection:
            student = model.projection(student)
        return student

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor | None:
        """Average the losses of both sides, so that each pair counts once."""
        student = encoded["outputs"][self.name]
        teacher = batch.get("teacher")
        if teacher is None:
            if not training:
                return None
            # A worker that has run out of batches may receive a validation batch, possibly without
            # teacher embeddings, but it must log the same names as the other workers.
            return 0 * student.float().sum()
        if self.form != CONTRAST:
            return losses.distillation_loss(student, teacher, self.form) / 2
        total = student.new_zeros((), dtype=torch.float32)
        # Handle the two sides separately, because the teacher may support only one language.
        for own_side, teacher_side in zip(student.chunk(2), teacher.chunk(2), strict=True):
            total = total + losses.matryoshka_alignment_loss(
                own_side,
                teacher_side,
                widths=self.widths,
                similarity="cosine",
                scale=self.scale,
            )
        return total / 2
