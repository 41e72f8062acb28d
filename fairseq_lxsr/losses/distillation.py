"""Distillation: a model learns the embeddings of another model, the teacher."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_lxsr.losses.precision import in_float32

DISTILL_LOSSES = ("mse", "cosine", "similarity")


@in_float32
def distillation_loss(student: Tensor, teacher: Tensor, form: str = "mse") -> Tensor:
    """Return the distance between student and teacher embeddings, summed over rows.

    Use it to train a small encoder, or a new language, from a better model; the two need not have
    the same word pieces. With `mse` the student learns the teacher's embeddings, with `cosine`
    their directions, and with `similarity` only their similarities.

    `mse` is the squared distance (Reimers and Gurevych 2020), divided by the teacher's mean squared
    norm, so that the teacher's scale does not matter. `cosine` is 1 - cosine. `similarity` is the
    squared difference of all cosines between rows (Tung and Mori 2019), summed over the R x R
    cells; the widths may differ.

    Example:
        >>> import torch
        >>> student, teacher = torch.eye(2), torch.eye(2, 3)  # embeddings of the same sentences
        >>> distillation_loss(student, teacher, "similarity").item()
        0.0

    Args:
        student: [R, D] embeddings to train.
        teacher: [R, E] embeddings of the teacher; D = E except for `similarity`.
        form: one of `DISTILL_LOSSES`.

    Returns:
        A scalar.

    Raises:
        ValueError: if the form is unknown, or if shapes differ.
    """
    if form not in DISTILL_LOSSES:
        raise ValueError(f"form is {form!r}; expected one of {DISTILL_LOSSES}")
    if len(student) != len(teacher) or (form != "similarity" and student.shape != teacher.shape):
        raise ValueError(
            f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)}; expected equal "
            "shapes"
        )
    if form == "mse":
        unit = (teacher.square().sum() / max(1, len(teacher))).clamp_min(1e-12)
        return (student - teacher).square().sum() / unit
    student = F.normalize(student, dim=1)
    teacher = F.normalize(teacher, dim=1)
    if form == "cosine":
        return len(student) - (student * teacher).sum()
    return (student @ student.T - teacher @ teacher.T).square().sum()
