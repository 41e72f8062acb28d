"""The study of long trainings of the paper's models: its plan, and a small run on a CPU."""

import json

import pytest
import torch
from conftest import main_here

from benchmarks.made_up import write_studies
from benchmarks.quality import at_length
from benchmarks.quality.at_length import Speed


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Synthetic evaluation text."""
    folder = tmp_path_factory.mktemp("at_length")
    write_studies(folder, 2000)
    return folder


def small_run(data_bin, data, folder, *rows):
    """Return the options of a small run."""
    inputs = ("--data-bin", data_bin, "--data", data, "--rows", *rows)
    sizes = ("--device", "cpu", "--small", "--batch-size", 8, "--train-options=--num-workers 0")
    return (*inputs, *sizes, "--output", folder / "results.json")


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_rows_are_trained_and_measured_even_if_one_fails(tmp_path, toy_work, data, monkeypatch):
    monkeypatch.setitem(at_length.ROWS, "align", ("paper", "--align-weight", "many"))
    trimmed = tmp_path / "trimmed"
    main_here(at_length, "--data", data, "--trim", trimmed)
    options = small_run(toy_work / "data-bin", trimmed, tmp_path, "align", "layers_0", "released")
    done = main_here(at_length, *options, "--epochs", 0.1, "--together", 2, check=False)
    assert done.returncode == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["pairs"] == 900
    dictionary = next((toy_work / "data-bin").glob("dict.*.txt"))
    assert results["pieces"] == len(dictionary.read_text(encoding="utf-8").splitlines())
    assert "argument --align-weight" in results["rows"].pop("align")["training failed"]
    assert list(results["rows"]) == ["layers_0", "released"]
    for figures in results["rows"].values():
        assert figures["updates"] == figures["updates planned"] == 12
        assert figures["epochs"] == pytest.approx(12 * 8 / 900)
        assert figures["loss curve"][-1] == [12, figures["final loss"]]
        pud = figures["retrieval"]["PUD"]["en-fr"]
        assert 0 <= pud["P@1"] <= pud["alone"] <= 100
        for name in at_length.CLASSIFICATION:
            assert 0 <= figures[name]["fr"] <= 100


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_a_trial_measures_the_speed_of_a_row(tmp_path, toy_work):
    small = (*at_length.SMALL, "--num-workers", "0")
    setting = at_length.Setting(
        toy_work / "data-bin", tmp_path, tmp_path / "work", "cpu", 8, 1, 1, small, trial=0.5
    )
    speed = setting.try_speed("layers_0")
    assert speed.updates_per_second > 0
    assert speed.overhead >= 0
    assert not list((tmp_path / "work").rglob("*.pt"))


@pytest.mark.slow
@pytest.mark.usefixtures("python_is_a_fork")
def test_the_number_of_updates_follows_from_the_seconds(tmp_path, toy_work, data, monkeypatch):
    monkeypatch.setattr(at_length.Setting, "try_speed", lambda *_: Speed(1, 4))
    options = small_run(toy_work / "data-bin", data, tmp_path, "layers_0")
    main_here(at_length, *options, "--seconds", 6, "--work", tmp_path / "work")
    results = json.loads((tmp_path / "results.json").read_text())
    assert 0 < results["updates planned"] < 20
    assert 0 < results["rows"]["layers_0"]["updates"] <= results["updates planned"]
    assert results["rows"]["layers_0"]["trial"] == {"overhead": 1, "updates_per_second": 4}
    assert (tmp_path / "work" / "logs" / "layers_0.log").exists()


def test_the_update_rate_ignores_zero_rates():
    """fairseq writes a rate of zero at the beginning."""
    lines = [{"ups": "0"}, {"ups": "2.00"}, {"ups": "1.00"}, {"ups": "4.00"}]
    assert at_length.Log(lines, 4, 9.0).updates_per_second() == pytest.approx(3 / 1.75)
    assert at_length.Log(lines, 4, 9.0).updates_per_second(3) == 4
    assert at_length.Log(lines[:1], 1, 2.0).updates_per_second() == 0.5


def test_rows_run_in_order_on_the_free_places():
    assert at_length.last_end([3, 1, 1], 3) == 3
    assert at_length.last_end([3, 1, 1, 2], 2) == 4
    assert at_length.last_end([3, 1, 1], 1) == 5


def test_the_slowest_row_ends_in_time():
    fast = Speed(10, 50)
    slow = Speed(10, 10)
    assert at_length.most_updates([fast, slow], 2, 110) == 1000
    assert at_length.most_updates([fast, slow], 1, 140) == 1000
    assert at_length.most_updates([fast, slow], 2, 9) == 0


def test_too_few_seconds_for_a_row_are_refused(tmp_path, toy_work, data, monkeypatch):
    monkeypatch.setattr(at_length.Setting, "try_speed", lambda *_: Speed(20, 1))
    options = small_run(toy_work / "data-bin", data, tmp_path, "layers_0")
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
