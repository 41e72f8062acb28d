"""examples/europarl_laser/choose.py: the epoch whose classifiers are best on the development sets
is exported.
"""

import re
import shutil

import pytest
import small_model
import torch
from conftest import ROOT, load_script, main_here, refused
from safetensors.torch import load_file

TABLE = "embed_tokens.weight"
pytestmark = pytest.mark.usefixtures("python_is_a_fork")


@pytest.fixture(scope="module")
def choose():
    return load_script(ROOT / "examples" / "europarl_laser" / "choose.py")


@pytest.fixture
def checkpoints(tmp_path):
    """Epochs 2, 9 and 10 of a model with random vectors, the best and the last one beside them."""
    data, folder = small_model.write_pieces(tmp_path / "data"), tmp_path / "run"
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
    unwanted = shutil.ignore_patterns("*.test")
    return shutil.copytree(ROOT / "tests" / "golden" / "mldoc", tmp_path / "mldoc", ignore=unwanted)


def options(checkpoints, documents, tmp_path):
    folders = ("--checkpoints", checkpoints, "--data", documents, "--output", tmp_path / "model")
    return (*folders, "--langs", "en,fr")


def table(checkpoints, name):
    return torch.load(checkpoints / f"checkpoint{name}.pt", weights_only=True)["model"][
        f"encoder.{TABLE}"
    ]


def test_every_epoch_is_measured_on_the_development_sets(choose, checkpoints, documents, tmp_path):
    done = main_here(choose, *options(checkpoints, documents, tmp_path))
    found = re.findall(
        r"^epoch +(\d+): accuracy on dev +([0-9.]+)( <- exported)?$", done.stdout, re.MULTILINE
    )
    assert [epoch for epoch, *_ in found] == ["2", "9", "10"]
    [best] = [epoch for epoch, _, mark in found if mark]
    assert float({epoch: value for epoch, value, _ in found}[best]) == max(
        float(value) for _, value, _ in found
    )
    assert load_file(tmp_path / "model" / "model.safetensors")[TABLE].equal(
        table(checkpoints, best)
    )


@pytest.mark.parametrize(
    ("accuracies", "best"), [((10, 30, 20), "9"), ((30, 30, 30), "2"), ((1, 2, 3), "10")]
)
def test_the_best_one_is_exported(
    choose, checkpoints, documents, tmp_path, monkeypatch, accuracies, best
):
    values = iter(accuracies)
    monkeypatch.setattr(choose, "accuracy", lambda *_: next(values))
    main_here(choose, *options(checkpoints, documents, tmp_path))
    assert load_file(tmp_path / "model" / "model.safetensors")[TABLE].equal(
        table(checkpoints, best)
    )


def test_what_is_missing_is_said_in_one_line(choose, checkpoints, documents, tmp_path):
    done = main_here(choose, *options(tmp_path / "data", documents, tmp_path), check=False)
    refused(done, f"{tmp_path / 'data'}: ", "--no-epoch-checkpoints")
    (documents / "fr.train.1000").unlink()
    refused(
        main_here(choose, *options(checkpoints, documents, tmp_path), check=False),
        "fr.train.1000",
    )
    assert not (tmp_path / "model").exists()
