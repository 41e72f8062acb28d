"""The study of long trainings of the paper's models: its plan, and a small run on a CPU."""

import json

import pytest
import torch
from conftest import main_here

from benchmarks.made_up import write_studies
from benchmarks.quality import at_length
from benchmarks.quality.at_length import Speed

BATCH_SIZE = 8
# `toy_work` has 1200 pairs, of which 100 are for validation and 200 for the test.
TRAINING_PAIRS = 900


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Synthetic evaluation text."""
    folder = tmp_path_factory.mktemp("at_length")
    write_studies(folder, 2000)
    return folder


def options_of_small_run(data_bin, data, folder, *rows):
    """Return the options of a run of some rows, each with a small model."""
    inputs = ("--data-bin", data_bin, "--data", data, "--rows", *rows)
    sizes = ("--device", "cpu", "--small", "--batch-size", BATCH_SIZE)
    training = ("--train-options=--num-workers 0",)
    return (*inputs, *sizes, *training, "--output", folder / "results.json")


@pytest.fixture(scope="module")
def run_with_a_failing_row(tmp_path_factory, toy_work, data, python_is_a_fork):
    """A run of a tenth of an epoch; fairseq-train refuses the options of the row `align`.

    Returns:
        The finished command and its results.
    """
    folder = tmp_path_factory.mktemp("failing_row")
    trimmed = folder / "trimmed"
    main_here(at_length, "--data", data, "--trim", trimmed)
    rows = ("align", "layers_0", "released")
    options = options_of_small_run(toy_work / "data-bin", trimmed, folder, *rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(at_length.ROWS, "align", ("paper", "--align-weight", "not-a-number"))
        done = main_here(at_length, *options, "--epochs", 0.1, "--together", 2, check=False)
    return done, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_a_row_that_fails_has_its_error_in_the_results_and_the_other_rows_are_trained(
    run_with_a_failing_row,
):
    done, results = run_with_a_failing_row

    assert done.returncode == 1
    assert list(results["rows"]) == ["align", "layers_0", "released"]
    assert "argument --align-weight" in results["rows"]["align"]["training failed"]
    assert "updates" in results["rows"]["layers_0"]
    assert "updates" in results["rows"]["released"]


@pytest.mark.slow
def test_the_results_have_the_numbers_of_training_pairs_and_of_pieces(
    run_with_a_failing_row, toy_work
):
    _, results = run_with_a_failing_row
    # A line for each piece.
    dictionary = next((toy_work / "data-bin").glob("dict.*.txt")).read_text(encoding="utf-8")

    assert results["pairs"] == TRAINING_PAIRS
    assert results["pieces"] == len(dictionary.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("row", ["layers_0", "released"])
def test_a_row_has_the_length_of_its_training_and_its_losses(run_with_a_failing_row, row):
    _, results = run_with_a_failing_row
    figures = results["rows"][row]

    # A tenth of 900 pairs is 11.25 batches of 8.
    assert figures["updates"] == figures["updates planned"] == 12
    assert figures["epochs"] == pytest.approx(12 * BATCH_SIZE / TRAINING_PAIRS)
    assert figures["loss curve"][-1] == [12, figures["final loss"]]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["layers_0", "released"])
def test_a_row_has_scores_of_retrieval_and_classification(run_with_a_failing_row, row):
    _, results = run_with_a_failing_row
    figures = results["rows"][row]

    # With distractors, no more translations are the nearest than among the translations alone.
    pud = figures["retrieval"]["PUD"]["en-fr"]
    assert 0 <= pud["P@1"] <= pud["alone"] <= 100
    for name in at_length.CLASSIFICATION:
        assert 0 <= figures[name]["fr"] <= 100


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_a_trial_measures_the_speed_of_a_row_and_saves_no_checkpoint(tmp_path, toy_work):
    setting = at_length.Setting(
        data_bin=toy_work / "data-bin",
        text=tmp_path,
        work=tmp_path / "work",
        device="cpu",
        batch_size=BATCH_SIZE,
        seed=1,
        together=1,
        options=(*at_length.SMALL, "--num-workers", "0"),
        trial=0.5,
    )

    speed = setting.try_speed("layers_0")

    assert speed.updates_per_second > 0
    assert speed.overhead >= 0
    assert not list((tmp_path / "work").rglob("*.pt"))


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_with_seconds_as_many_updates_are_planned_as_the_speed_of_the_trial_allows(
    tmp_path, toy_work, data, monkeypatch
):
    """--work keeps the log of the training."""
    # Instead of a trial: a second of overhead, then 4 updates a second.
    monkeypatch.setattr(at_length.Setting, "try_speed", lambda *_: Speed(1, 4))
    options = options_of_small_run(toy_work / "data-bin", data, tmp_path, "layers_0")

    main_here(at_length, *options, "--seconds", 6, "--work", tmp_path / "work")

    results = json.loads((tmp_path / "results.json").read_text())
    row = results["rows"]["layers_0"]
    assert row["trial"] == {"overhead": 1, "updates_per_second": 4}
    # Five seconds of updates; fewer are planned, because a part of the time is a reserve.
    assert 0 < results["updates planned"] < 5 * 4
    assert 0 < row["updates"] <= results["updates planned"]
    assert (tmp_path / "work" / "logs" / "layers_0.log").exists()


def log_of_rates(*rates):
    """Return the log of 9 seconds of training whose intervals have these updates per second."""
    lines = [{"ups": rate} for rate in rates]
    return at_length.Log(lines, updates=len(rates), seconds=9.0)


def test_the_update_rate_is_that_of_all_intervals_except_those_with_a_rate_of_zero():
    """fairseq writes a rate of zero at the beginning."""
    log = log_of_rates("0", "2.00", "1.00", "4.00")

    # Intervals of equal length: an update of each takes 1/2, 1 and 1/4 s.
    assert log.updates_per_second() == pytest.approx(3 / (1 / 2 + 1 + 1 / 4))
    assert log.updates_per_second(first=3) == 4


def test_without_another_rate_than_zero_the_update_rate_is_that_of_the_whole_training():
    log = log_of_rates("0")

    assert log.updates_per_second() == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("durations", "places", "end"),
    [
        # All at once.
        ((3, 1, 1), 3, 3),
        # One after the other.
        ((3, 1, 1), 1, 3 + 1 + 1),
        # The place that is not taken by the first row trains the other three.
        ((3, 1, 1, 2), 2, 1 + 1 + 2),
    ],
)
def test_each_row_begins_as_soon_as_a_place_is_free(durations, places, end):
    assert at_length.last_end(durations, places) == end


# Seconds of overhead, and updates per second: 1,000 updates take 30 s and 110 s.
FAST = Speed(10, 50)
SLOW = Speed(10, 10)


@pytest.mark.parametrize(
    ("places", "seconds", "updates"),
    [
        # Side by side, the slow row ends last.
        (2, 110, 1000),
        # One after the other.
        (1, 30 + 110, 1000),
        # Less time than the overhead.
        (2, 9, 0),
    ],
)
def test_all_rows_have_as_many_updates_as_end_in_time(places, seconds, updates):
    assert at_length.most_updates([FAST, SLOW], places, seconds) == updates


def test_too_few_seconds_for_one_update_are_refused(tmp_path, toy_work, data, monkeypatch):
    # Instead of a trial: the overhead alone is longer than the 15 s.
    monkeypatch.setattr(at_length.Setting, "try_speed", lambda *_: Speed(20, 1))
    options = options_of_small_run(toy_work / "data-bin", data, tmp_path, "layers_0")

    done = main_here(at_length, *options, "--seconds", 15, check=False)

    assert done.returncode == 2
    assert "too few for one update" in done.stderr


def test_a_missing_gpu_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ("--data-bin", tmp_path, "--data", tmp_path, "--epochs", 1)

    done = main_here(at_length, *options, check=False)

    message = "at_length.py: error: no GPU; expected one, or --device cpu\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [((), "--data-bin is required"), (("--data-bin", "x"), "specify --epochs or")],
)
def test_missing_options_are_named(options, message):
    done = main_here(at_length, "--data", "x", *options, check=False)

    assert message in done.stderr
