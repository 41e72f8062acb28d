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


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        # The squared distances of the rows are (1 - 3)^2 and 1^2 + 2^2, the squared norms of the
        # teacher 9 and 1, whose mean is 5.
        ("mse", (4 + 5) / 5),
        # The cosines of student and teacher are 1 in the first row and 0 in the second.
        ("cosine", (1 - 1) + (1 - 0)),
        # The cosine of the first row with the second is 0 for the student and 1 for the teacher;
        # so is that of the second with the first.
        ("similarity", (0 - 1) ** 2 + (0 - 1) ** 2),
    ],
    ids=DISTILL_LOSSES,
)
def test_values_equal_those_worked_out_by_hand(form, expected):
    student = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    teacher = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    assert distillation_loss(student, teacher, form).item() == pytest.approx(expected)


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
@pytest.mark.parametrize("factor", [100, 1e-3])
def test_scaling_student_and_teacher_alike_does_not_change_the_loss(form, factor):
    teacher = torch.randn(6, 3)
    student = torch.randn(6, 3)
    scaled_loss = distillation_loss(factor * student, factor * teacher, form)
    torch.testing.assert_close(scaled_loss, distillation_loss(student, teacher, form))


def test_the_similarity_loss_takes_a_student_in_half_precision_of_another_width():
    """The values are compared with the reference, which reads float32."""
    student = torch.randn(4, 3).half()
    teacher = torch.randn(4, 8)

    loss = distillation_loss(student, teacher, "similarity")

    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, slow_distillation(student.float(), teacher, "similarity"))


@pytest.mark.parametrize(
    ("student", "teacher", "form"),
    [
        ((4, 3), (4, 8), "mse"),
        # torch would broadcast these two: one column to five, one row to four.
        ((4, 1), (4, 5), "mse"),
        ((4, 5), (1, 5), "cosine"),
        # The widths may differ for this form, but not the numbers of rows.
        ((4, 3), (3, 3), "similarity"),
    ],
    ids=["width", "one column", "one row", "rows"],
)
def test_embeddings_of_shapes_that_do_not_match_are_refused(student, teacher, form):
    with pytest.raises(ValueError, match=r"student \(.*\) and teacher \(.*\) must have the same"):
        distillation_loss(torch.ones(student), torch.ones(teacher), form)


@pytest.mark.parametrize("form", DISTILL_LOSSES)
def test_the_loss_of_no_rows_is_zero(form):
    assert distillation_loss(torch.ones(0, 3), torch.ones(0, 3), form) == 0
