"""Every form in which fairseq-train writes its numbers."""

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


@pytest.mark.parametrize(
    "text", [JSON, SIMPLE, JSON.replace("2026-11-21 | INFO | train_inner | ", "") + JSON]
)
def test_both_formats(tmp_path, text):
    (tmp_path / "train.log").write_text("some other line: {1}\n" + text)
    curves = read_log(tmp_path / "train.log", "run")
    assert curves.name == "run"
    assert curves.train["loss"] == {50: 14.1}
    assert curves.train["sim"] == {50: 0.0006}
    assert curves.valid["loss"] == {60: 8.8}
    assert curves.valid["accuracy"] == {60: 0.97}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_told_and_not_drawn(tmp_path, value):
    losses = (9, 2), (300, value), (99, 1)
    lines = [f"loss={loss}, accuracy={loss}, num_updates={update}\n" for update, loss in losses]
    (tmp_path / "train.log").write_text("".join(lines))
    for chart in (
        training_chart([read_log(tmp_path / "train.log")], is_loss) for is_loss in (True, False)
    ):
        [row] = chart.rows
        assert row[1:4] == (2, 99, 2)
        assert row[5] == 1
        assert " 1 values " in chart.summary


def test_the_parts_of_a_loss_are_drawn(tmp_path):
    (tmp_path / "train.log").write_text("loss=3, align=1, distill=2, wps=9, num_updates=9\n")
    rows = training_chart([read_log(tmp_path / "train.log")], is_loss=True).rows
    assert [row[0] for row in rows] == [
        f"{name} (training)" for name in ("loss", "align", "distill")
    ]
    # other files have none
    (tmp_path / "other.log").write_text('num_updates\n{\n"num_updates": {}\n')
    assert read_log(tmp_path / "other.log") is None


def test_the_exported_update_is_marked(tmp_path):
    line = "| valid on 'valid' subset | loss {} | accuracy {} | num_updates {}\n"
    lines = [line.format(3, 0.9, 10), line.format(2, 0.8, 20), line.format(2.5, 0.9, 30)]
    (tmp_path / "train.log").write_text("".join(lines))
    log = read_log(tmp_path / "train.log")
    assert not training_chart([log], is_loss=True).figure.layout.shapes
    log.exported = 20
    for is_loss in (True, False):
        chart = training_chart([log], is_loss)
        [mark] = chart.figure.layout.shapes
        assert (mark.x0, mark.x1) == (20, 20)
        assert "update 20" in chart.figure.layout.annotations[0].text
        assert "update 20." in chart.summary
