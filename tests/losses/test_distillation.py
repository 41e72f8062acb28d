"""Distances of a student from the embeddings of its teacher."""

import pytest
import torch
from same_gradients import assert_same_with_gradients

from fairseq_lxsr.losses import DISTILL_LOSSES, distillation_loss


def slow_distillation(student, teacher, form):
    """One row, or one pair of rows, at a time."""

    def cosine(first, second):
        return (first * second).sum() / (first.norm() * second.norm())

    rows = range(len(student))
    loss = 0
    if form == "mse":
        mean_square = sum((teacher[row] ** 2).sum() for row in rows) / len(teacher)
        for row in rows:
            loss += ((student[row] - teacher[row]) ** 2).sum() / mean_square
    elif form == "cosine":
        for row in rows:
            loss += 1 - cosine(student[row], teacher[row])
    else:
        for first in rows:
            for second in rows:
                of_student = cosine(student[first], student[second])
                of_teacher = cosine(teacher[first], teacher[second])
                loss += (of_student - of_teacher) ** 2
    return loss


def test_values_equal_those_worked_out_by_hand():
    student = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    teacher = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    # The mean of |t|^2 is 5.
    assert distillation_loss(student, teacher, "mse").item() == pytest.approx((4 + 1 + 4) / 5)
    assert distillation_loss(student, teacher, "cosine").item() == pytest.approx(0 + 1)
    # The cosine of the two rows is 0 for the student and 1 for the teacher, and counts twice.
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
def test_the_loss_of_the_embeddings_of_the_teacher_is_zero(form):
    teacher = torch.randn(6, 3)
    assert distillation_loss(teacher.clone(), teacher, form).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("form", DISTILL_LOSSES)
def test_the_scale_of_student_and_teacher_makes_no_difference(form):
    teacher = torch.randn(6, 3)
    student = torch.randn(6, 3)
    loss = distillation_loss(student, teacher, form)
    for factor in (100, 1e-3):
        scaled_loss = distillation_loss(factor * student, factor * teacher, form)
        torch.testing.assert_close(scaled_loss, loss)


def test_similarity_takes_embeddings_of_different_widths_and_half_precision():
    student = torch.randn(4, 3).half()
    teacher = torch.randn(4, 8)
    assert distillation_loss(student, teacher, "similarity").dtype is torch.float32


@pytest.mark.parametrize(
    ("student", "teacher", "form"),
    [
        ((4, 3), (4, 8), "mse"),
        ((4, 1), (4, 5), "mse"),
        ((4, 5), (1, 5), "cosine"),
        ((4, 3), (3, 3), "similarity"),
    ],
)
def test_embeddings_of_shapes_that_do_not_fit_are_refused(student, teacher, form):
    with pytest.raises(ValueError, match=r"student \(.*teacher \("):
        distillation_loss(torch.ones(student), torch.ones(teacher), form)


@pytest.mark.parametrize("form", DISTILL_LOSSES)
def test_the_loss_of_no_rows_is_zero(form):
    assert distillation_loss(torch.ones(0, 3), torch.ones(0, 3), form) == 0
