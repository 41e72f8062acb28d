"""`lxsr compare` on score files: several runs of a system, and what its intervals cover."""

import numpy as np
import pytest

from fairseq_lxsr.cli.main import main
from fairseq_lxsr.evaluation.score import Outcomes, append_scores, from_hits


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two runs of each of the systems a and b, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for name, chance in {"a1": 0.6, "a2": 0.62, "b1": 0.8, "b2": 0.83}.items():
        scores = []
        for task in ("en->fr", "fr->en"):
            hits = (rng.random(200) < chance).astype(int).tolist()
            settings = {"metric": "nn", "model": name}
            scores.append(from_hits("xsr", task, {"P@1": Outcomes(hits)}, settings))
        append_scores(f"{name}.jsonl", scores)
    return tmp_path


def compare(capsys, *words: str) -> str:
    main(["compare", *words])
    return capsys.readouterr().out


def test_with_one_run_of_each_system_the_output_says_what_the_interval_leaves_out(files, capsys):
    output = compare(capsys, "a1.jsonl", "b1.jsonl")
    assert "A: model a1, B: model b1" in output
    assert "between training runs" in output
    assert "runs:1,1" in output


def test_several_runs_of_each_system_are_compared(files, capsys):
    output = compare(capsys, "a1.jsonl", "a2.jsonl", "--with", "b1.jsonl", "b2.jsonl")
    assert "models a1 a2" in output
    assert "models b1 b2" in output
    assert "random start" not in output
    assert "runs:2,2" in output


def test_a_system_with_one_run_is_named(files, capsys):
    output = compare(capsys, "a1.jsonl", "a2.jsonl", "--with", "b1.jsonl")
    assert "One run of B: " in output


def test_p_values_are_corrected_for_the_number_of_comparisons(files, capsys):
    output = compare(capsys, "a1.jsonl", "b1.jsonl")
    assert "2 comparisons" in output
    rows = [line for line in output.splitlines() if line.startswith("xsr")]
    assert len(rows) == 2
    for row in rows:
        p, corrected = map(float, row.split()[-2:])
        assert p <= corrected <= 2 * p + 0.001


def test_100_draws_are_enough_for_two_comparisons(files, capsys):
    assert "--draws" not in compare(capsys, "a1.jsonl", "b1.jsonl", "--draws", "100")


def test_too_few_draws_for_many_comparisons_are_reported(files, capsys):
    for number in range(5):
        for name in ("a1", "b1"):
            settings = {"metric": f"m{number}", "model": name}
            hits = {"P@1": Outcomes([1, 0])}
            append_scores(f"{name}.jsonl", [from_hits("xsr", "en->fr", hits, settings)])
    assert "--draws 280" in compare(capsys, "a1.jsonl", "b1.jsonl", "--draws", "100")


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("a1.jsonl", "a2.jsonl", "b1.jsonl"), ("a1.jsonl a2.jsonl b1.jsonl", "--with")),
        (("a1.jsonl", "a1.jsonl", "--with", "b1.jsonl"), ("a1.jsonl: ", "model a1")),
        (("a1.jsonl",), ("a1.jsonl", "--published")),
    ],
)
def test_arguments_that_cannot_be_compared_are_refused(files, capsys, words, fragments):
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *words])
    message = capsys.readouterr().err
    for fragment in fragments:
        assert fragment in message
