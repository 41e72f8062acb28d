"""examples/europarl_laser/choose.py exports the epoch with the best classifiers on development sets."""

import re
import shutil

import pytest
import small_model
import torch
from conftest import ROOT, load_script, main_here, refused
from safetensors.torch import load_file

TABLE = "embed_tokens.weight"
# `epoch  9: accuracy on dev 33.3`, and a mark for one epoch.
EPOCH = re.compile(r"^epoch +(\d+): accuracy on dev +([0-9.]+)( <- exported)?$", re.MULTILINE)
pytestmark = pytest.mark.usefixtures("python_is_a_fork")


@pytest.fixture(scope="module")
def choose():
    return load_script(ROOT / "examples" / "europarl_laser" / "choose.py")


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints of epochs 2, 9 and 10 with random vectors, and others that are no epochs."""
    data = small_model.write_pieces(tmp_path / "data")
    folder = tmp_path / "run"
    folder.mkdir()
    for seed, name in enumerate(("2", "9", "10", "_best", "_last", "_1_500")):
        torch.manual_seed(seed)
        state = small_model.checkpoint_state(data)
        for value in state["model"].values():
            value.copy_(torch.randn(value.shape))
        torch.save(state, folder / f"checkpoint{name}.pt")
    return folder


@pytest.fixture
def documents(tmp_path):
    """Documents without test sets, which the choice must not read."""
    test_sets = shutil.ignore_patterns("*.test")
    golden = ROOT / "tests" / "golden" / "mldoc"
    return shutil.copytree(golden, tmp_path / "mldoc", ignore=test_sets)


def options(checkpoints, documents, tmp_path):
    folders = ("--checkpoints", checkpoints, "--data", documents, "--output", tmp_path / "model")
    return (*folders, "--langs", "en,fr")


def assert_exported(checkpoints, epoch, model):
    """Check that a model has the vectors of an epoch."""
    state = torch.load(checkpoints / f"checkpoint{epoch}.pt", weights_only=True)
    expected = state["model"][f"encoder.{TABLE}"]
    assert load_file(model / "model.safetensors")[TABLE].equal(expected)


def test_the_epoch_with_the_best_accuracy_on_the_development_sets_is_exported(
    choose, checkpoints, documents, tmp_path
):
    done = main_here(choose, *options(checkpoints, documents, tmp_path))

    rows = EPOCH.findall(done.stdout)
    assert [epoch for epoch, _, _ in rows] == ["2", "9", "10"]
    [(exported, best_accuracy)] = [(epoch, accuracy) for epoch, accuracy, mark in rows if mark]
    assert float(best_accuracy) == max(float(accuracy) for _, accuracy, _ in rows)
    assert_exported(checkpoints, exported, tmp_path / "model")


@pytest.mark.parametrize(
    ("accuracies", "best"), [((10, 30, 20), "9"), ((30, 30, 30), "2"), ((1, 2, 3), "10")]
)
def test_the_first_of_the_best_epochs_is_exported(
    choose, checkpoints, documents, tmp_path, monkeypatch, accuracies, best
):
    # Accuracies of epochs 2, 9 and 10, instead of training classifiers.
    remaining = iter(accuracies)
    monkeypatch.setattr(choose, "accuracy", lambda *_: next(remaining))

    main_here(choose, *options(checkpoints, documents, tmp_path))

    assert_exported(checkpoints, best, tmp_path / "model")


def test_a_folder_without_checkpoints_of_epochs_is_refused(
    choose, checkpoints, documents, tmp_path
):
    """Trainings save them without --no-epoch-checkpoints."""
    folder = tmp_path / "data"

    done = main_here(choose, *options(folder, documents, tmp_path), check=False)

    refused(done, f"{folder}: ", "--no-epoch-checkpoints")


def test_missing_documents_are_refused(choose, checkpoints, documents, tmp_path):
    (documents / "fr.train.1000").unlink()

    done = main_here(choose, *options(checkpoints, documents, tmp_path), check=False)

    refused(done, "fr.train.1000")
    assert not (tmp_path / "model").exists()
