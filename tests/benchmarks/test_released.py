"""The comparison with the released lightweight model runs, with a stand-in for the released code."""

import hashlib
import json
from pathlib import Path

import pytest
from conftest import main_here

from benchmarks.released import lightweight, model

# Two modules with the loss of the released code.
STAND_IN = Path(__file__).parent / "released_stand_in"
UPDATES = 4


def git_blob(text: bytes) -> str:
    """Return the name of a file's content in git, by which the benchmark knows the released code."""
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


@pytest.fixture(scope="module")
def results(toy_work, tmp_path_factory):
    """The comparison of both recipes with the stand-in, in the order of the recipes."""
    output = tmp_path_factory.mktemp("released") / "out.jsonl"
    options = ("--updates", UPDATES, "--batch-size", 16, "--width", 64, "--layers", 1)
    folders = ("--data", toy_work / "data-bin", "--released", STAND_IN)
    with pytest.MonkeyPatch.context() as patch:
        for name in model.BLOBS:
            patch.setitem(model.BLOBS, name, git_blob((STAND_IN / name).read_bytes()))
        main_here(lightweight, *folders, *options, "--output", output)
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.smoke
def test_the_recipes_released_and_paper_are_compared(results):
    assert [result["recipe"] for result in results] == ["released", "paper"]


@pytest.mark.smoke
def test_the_losses_of_the_recipe_released_are_those_of_the_released_code(results):
    released, _ = results

    assert len(released["ours"]) == UPDATES
    # What rounding to float32 explains.
    assert released["largest relative difference"] < 1e-5


@pytest.mark.smoke
def test_the_losses_of_the_recipe_paper_differ_from_those_of_the_released_code(results):
    _, paper = results

    assert paper["largest relative difference"] > 1e-2
