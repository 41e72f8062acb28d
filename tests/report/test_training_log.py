"""Curves from logs of fairseq-train in all its formats."""

import pytest

from fairseq_lxsr.report.charts import training_chart
from fairseq_lxsr.report.training_log import read_log

JSON = """2026-11-21 | INFO | train_inner | {"epoch": 1, "loss": "14.1", "sim": "0.0006", "num_updates": "50"}
2026-11-21 | INFO | valid | {"epoch": 1, "valid_loss": "8.8", "valid_accuracy": "0.97", "valid_num_updates": "60"}
2026-11-21 | INFO | train | {"epoch": 1, "train_loss": "9.9", "train_num_updates": "60"}
"""
SIMPLE = """2026-11-21 | INFO | train_inner | epoch 001:     50 / 270 loss=14.1, sim=0.0006, num_updates=50, wall=457
2026-11-21 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.8 | accuracy 0.97 | num_updates 60
2026-11-21 | INFO | train | epoch 001 | loss 9.9 | num_updates 60
"""


# A log that another logger writes, without the date before its lines.
JSON_WITHOUT_DATE = JSON.replace("2026-11-21 | INFO | train_inner | ", "")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(JSON, id="json"),
        pytest.param(SIMPLE, id="simple"),
        pytest.param(JSON_WITHOUT_DATE + JSON, id="json, training lines twice"),
    ],
)
def test_values_of_training_and_validation_are_read_in_both_formats_of_a_log(tmp_path, text):
    (tmp_path / "train.log").write_text("some other line: {1}\n" + text)

    curves = read_log(tmp_path / "train.log", "run")

    # By the number of updates.
    assert curves.name == "run"
    assert curves.train["loss"] == {50: 14.1}
    assert curves.train["sim"] == {50: 0.0006}
    assert curves.valid["loss"] == {60: 8.8}
    assert curves.valid["accuracy"] == {60: 0.97}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0"])
def test_losses_that_a_logarithmic_axis_cannot_show_are_left_out_and_counted(tmp_path, value):
    log = "loss=2, num_updates=9\n"
    log += f"loss={value}, num_updates=50\n"
    log += "loss=1, num_updates=99\n"
    (tmp_path / "train.log").write_text(log)

    chart = training_chart([read_log(tmp_path / "train.log")])

    [curve] = chart.figure.data
    assert curve.x == (9, 99)
    assert curve.y == (2, 1)
    assert "training: from 2 to 1. 1 values are not finite" in chart.caption


def test_a_log_without_a_loss_has_no_chart(tmp_path):
    (tmp_path / "train.log").write_text("wps=9, num_updates=9\n")

    assert training_chart([read_log(tmp_path / "train.log")]) is None


def test_a_file_that_names_updates_but_has_no_numbers_is_not_a_log(tmp_path):
    (tmp_path / "other.log").write_text('num_updates\n{\n"num_updates": {}\n')

    assert read_log(tmp_path / "other.log") is None


def test_the_losses_of_training_and_validation_are_two_curves(tmp_path):
    training = "loss=9, num_updates=5\n"
    validation = "| valid on 'valid' subset | loss 3 | num_updates 10\n"
    (tmp_path / "train.log").write_text(training + validation)
    log = read_log(tmp_path / "train.log")

    figure = training_chart([log]).figure

    assert [curve.name for curve in figure.data] == ["training", "validation"]


def log_with_validations(folder):
    """A log with a training loss, and validations at the updates 10, 20 and 30."""
    lines = ["loss=9, num_updates=5\n"]
    for loss, update in ((3, 10), (2, 20), (2.5, 30)):
        lines.append(f"| valid on 'valid' subset | loss {loss} | num_updates {update}\n")
    (folder / "train.log").write_text("".join(lines))
    return read_log(folder / "train.log")


def test_no_update_is_marked_if_none_was_exported(tmp_path):
    log = log_with_validations(tmp_path)

    assert not training_chart([log]).figure.layout.shapes


def test_the_exported_update_is_marked(tmp_path):
    log = log_with_validations(tmp_path)
    log.exported = 20

    chart = training_chart([log])

    # A vertical line, with a label, and words in the caption.
    [mark] = chart.figure.layout.shapes
    assert mark.x0 == mark.x1 == 20
    assert "update 20" in chart.figure.layout.annotations[0].text
    assert "at update 20." in chart.caption


def test_the_caption_says_why_validation_losses_may_be_lower(tmp_path):
    log = log_with_validations(tmp_path)

    assert "validation batches have other sizes" in training_chart([log]).caption


def test_the_caption_says_nothing_of_validation_batches_if_there_was_no_validation(tmp_path):
    (tmp_path / "train.log").write_text("loss=9, num_updates=5\n")

    chart = training_chart([read_log(tmp_path / "train.log")])

    assert "batch" not in chart.caption


def test_curves_of_several_logs_are_named_by_their_log(tmp_path):
    logs = []
    for name in ("first.log", "second.log"):
        (tmp_path / name).write_text("loss=3, num_updates=9\n")
        logs.append(read_log(tmp_path / name))

    figure = training_chart(logs).figure

    curve_names = [curve.name for curve in figure.data]
    assert curve_names == ["first.log: training", "second.log: training"]
