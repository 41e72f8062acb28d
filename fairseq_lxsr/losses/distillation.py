"""Distillation: a student model learns the embeddings of a teacher model."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

DISTILL_LOSSES = ("mse", "cosine", "similarity")


@in_float32
def distillation_loss(student: Tensor, teacher: Tensor, form: str = "mse") -> Tensor:
    """Return the distillation loss between student and teacher embeddings, summed over rows.

    Use it to train a small encoder, or a new language, from a better model; the two models may use
    different word pieces. With `mse` the student learns the teacher's embeddings, with `cosine`
    only their directions, and with `similarity` only their similarities to each other.

    `mse` is the squared distance (Reimers and Gurevych 2020), divided by the teacher's mean squared
    norm to be independent of the teacher's scale. `cosine` is 1 - cosine. `similarity` is the
    squared difference between the two cosine matrices (Tung and Mori 2019), summed over the R x R
    entries; the two widths may differ.

    Example:
        >>> import torch
        >>> student, teacher = torch.eye(2), torch.eye(2, 3)  # the same sentences
        >>> distillation_loss(student, teacher, "similarity").item()
        0.0

    Args:
        student: [R, D] embeddings to train.
        teacher: [R, E] embeddings of the teacher; E must equal D, except for `similarity`.
        form: one of `DISTILL_LOSSES`.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: if the form is unknown, or if the shapes do not match.
    """
    if form not in DISTILL_LOSSES:
        raise ValueError(f"unknown form {form!r}; choose from {DISTILL_LOSSES}")
    if len(student) != len(teacher) or (form != "similarity" and student.shape != teacher.shape):
        raise ValueError(
            f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} must have the same "
            "shape; for similarity, the same number of rows"
        )
    if form == "mse":
        unit = (teacher.square().sum() / max(1, len(teacher))).clamp_min(1e-12)
        return (student - teacher).square().sum() / unit
    student = F.normalize(student, dim=1)
    teacher = F.normalize(teacher, dim=1)
    if form == "cosine":
        return len(student) - (student * teacher).sum()
    return (student @ student.T - teacher @ teacher.T).square().sum()
