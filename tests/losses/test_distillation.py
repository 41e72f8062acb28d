"""Distances from a teacher's embeddings."""

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import DISTILL_LOSSES, distillation_loss


def slow_distillation(student, teacher, form):
    """One row, or one pair of rows, at a time."""

    def cosine(a, b):
        return (a * b).sum() / (a.norm() * b.norm())

    rows = range(len(student))
    if form == "mse":
        unit = sum((teacher[i] ** 2).sum() for i in rows) / len(teacher)
        return sum(((student[i] - teacher[i]) ** 2).sum() for i in rows) / unit
    if form == "cosine":
        return sum(1 - cosine(student[i], teacher[i]) for i in rows)
    return sum(
        (cosine(student[i], student[j]) - cosine(teacher[i], teacher[j])) ** 2
        for i in rows
        for j in rows
    )


def test_values_worked_out_by_hand():
    student, teacher = (
        torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        torch.tensor([[3.0, 0.0], [1.0, 0.0]]),
    )
    # mean |t|^2 is 5
    assert distillation_loss(student, teacher, "mse").item() == pytest.approx((4 + 1 + 4) / 5)
    assert distillation_loss(student, teacher, "cosine").item() == pytest.approx(0 + 1)
    # 0 and 1, twice
    assert distillation_loss(student, teacher, "similarity").item() == pytest.approx(2)


@pytest.mark.parametrize("form", DISTILL_LOSSES)
@pytest.mark.parametrize("rows", [1, 5])
def test_values_and_gradients_equal_the_slow_reference(form, rows):
    torch.manual_seed(rows)
    student = torch.randn(rows, 4, dtype=torch.double, requires_grad=True)
    teacher = torch.randn(rows, 4, dtype=torch.double)
    expected = slow_distillation(student, teacher, form)
    assert_same_with_gradients(distillation_loss(student, teacher, form), expected, student)


@pytest.mark.parametrize("form", DISTILL_LOSSES)
def test_the_teacher_itself_costs_nothing_at_any_scale(form):
    teacher = torch.randn(6, 3)
    assert distillation_loss(teacher.clone(), teacher, form).item() == pytest.approx(0, abs=1e-5)
    student = torch.randn(6, 3)
    once, *scaled = (
        distillation_loss(factor * student, factor * teacher, form) for factor in (1, 100, 1e-3)
    )
    for other in scaled:
        torch.testing.assert_close(other, once)


def test_only_similarity_takes_other_widths_and_half_precision_is_widened():
    student, teacher = torch.randn(4, 3), torch.randn(4, 8)
    assert distillation_loss(student.half(), teacher, "similarity").dtype is torch.float32
    shapes = [
        ((4, 3), (4, 8), "mse"),
        ((4, 1), (4, 5), "mse"),
        ((4, 5), (1, 5), "cosine"),
        ((4, 3), (3, 3), "similarity"),
    ]
    for ours, theirs, form in shapes:
        with pytest.raises(ValueError, match=r"student \(.*teacher \("):
            distillation_loss(torch.ones(ours), torch.ones(theirs), form)
    for form in DISTILL_LOSSES:
        assert distillation_loss(torch.ones(0, 3), torch.ones(0, 3), form) == 0
