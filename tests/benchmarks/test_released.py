"""The comparison with the released lightweight model runs, with a stand-in for the released code."""

import hashlib
import json
from pathlib import Path

import pytest
from conftest import main_here

from benchmarks.released import lightweight, model

STAND_IN = Path(__file__).parent / "released_stand_in"


@pytest.mark.smoke
def test_the_recipe_released_has_the_losses_of_the_stand_in_and_paper_others(
    toy_work, tmp_path, monkeypatch
):
    for name in model.BLOBS:
        text = (STAND_IN / name).read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
        monkeypatch.setitem(model.BLOBS, name, blob)
    output = tmp_path / "out.jsonl"
    options = ("--updates", 4, "--batch-size", 16, "--width", 64, "--layers", 1)
    folders = ("--data", toy_work / "data-bin", "--released", STAND_IN)
    main_here(lightweight, *folders, *options, "--output", output)
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert [result["recipe"] for result in results] == ["released", "paper"]
    released, paper = results
    assert len(released["ours"]) == 4
    assert released["largest relative difference"] < 1e-5
    assert paper["largest relative difference"] > 1e-2
