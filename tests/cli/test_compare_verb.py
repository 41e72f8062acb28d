"""`lxsr compare` on score files: several runs of a system, and what its intervals cover."""

import numpy as np
import pytest

from fairseq_lxsr.cli.main import main
from fairseq_lxsr.evaluation.score import Outcomes, append_scores, from_hits

# The systems a and b, two training runs of each, and the chance of each sentence to be found.
CHANCES = {"a1": 0.6, "a2": 0.62, "b1": 0.8, "b2": 0.83}
NUM_SENTENCES = 200


@pytest.fixture(autouse=True)
def score_files(tmp_path, monkeypatch):
    """A file of scores for each run, as a1.jsonl, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for name, chance in CHANCES.items():
        scores = []
        for task in ("en->fr", "fr->en"):
            hits = (rng.random(NUM_SENTENCES) < chance).astype(int).tolist()
            settings = {"metric": "nn", "model": name}
            scores.append(from_hits("xsr", task, {"P@1": Outcomes(hits)}, settings))
        append_scores(f"{name}.jsonl", scores)


@pytest.fixture
def compare(capsys):
    """A function that runs `lxsr compare` and returns its output."""

    def run_compare(*words: str) -> str:
        main(["compare", *words])
        return capsys.readouterr().out

    return run_compare


def test_one_run_of_each_system_is_compared_with_a_note_that_runs_vary(compare):
    output = compare("a1.jsonl", "b1.jsonl")

    assert "A: model a1, B: model b1" in output
    assert "runs:1,1" in output
    # The interval leaves out the variation between training runs.
    assert "between training runs" in output


def test_several_runs_of_each_system_are_compared_without_that_note(compare):
    output = compare("a1.jsonl", "a2.jsonl", "--with", "b1.jsonl", "b2.jsonl")

    assert "models a1 a2" in output
    assert "models b1 b2" in output
    assert "runs:2,2" in output
    assert "between training runs" not in output


def test_the_note_names_the_system_that_has_one_run_if_the_other_has_several(compare):
    output = compare("a1.jsonl", "a2.jsonl", "--with", "b1.jsonl")

    assert "One run of B: " in output


def test_p_values_are_at_most_multiplied_by_the_number_of_comparisons(compare):
    """The correction of Holm: the smallest p is multiplied by 2, the largest by 1."""
    output = compare("a1.jsonl", "b1.jsonl")

    # One for each direction.
    assert "2 comparisons" in output
    rows = [line for line in output.splitlines() if line.startswith("xsr")]
    assert len(rows) == 2
    rounding = 0.001
    for row in rows:
        p, corrected = map(float, row.split()[-2:])
        assert p <= corrected <= 2 * p + rounding


def test_enough_draws_for_two_comparisons_are_not_reported(compare):
    """Of 100 draws, the smallest corrected p is 2 / 101, below the usual level of 0.05."""
    output = compare("a1.jsonl", "b1.jsonl", "--draws", "100")

    assert "--draws" not in output


def test_too_few_draws_for_seven_comparisons_are_reported_with_a_sufficient_number(compare):
    """Of 100 draws, the smallest corrected p is 7 / 101, which cannot be below 0.05."""
    # Five metrics more than the two scores of each file.
    for number in range(5):
        for name in ("a1", "b1"):
            settings = {"metric": f"m{number}", "model": name}
            hits = {"P@1": Outcomes([1, 0])}
            append_scores(f"{name}.jsonl", [from_hits("xsr", "en->fr", hits, settings)])

    output = compare("a1.jsonl", "b1.jsonl", "--draws", "100")

    # With twice 7 / 0.05 draws, the smallest corrected p is 0.025.
    assert "--draws 280" in output


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        pytest.param(
            ("a1.jsonl", "a2.jsonl", "b1.jsonl"),
            ("a1.jsonl a2.jsonl b1.jsonl", "--with"),
            id="three without --with",
        ),
        pytest.param(
            ("a1.jsonl", "a1.jsonl", "--with", "b1.jsonl"),
            ("a1.jsonl: ", "model a1"),
            id="one run twice",
        ),
        pytest.param(("a1.jsonl",), ("a1.jsonl", "--published"), id="one"),
    ],
)
def test_score_files_that_cannot_be_compared_are_refused(capsys, words, fragments):
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *words])

    message = capsys.readouterr().err
    for fragment in fragments:
        assert fragment in message
