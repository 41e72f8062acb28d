"""examples/paracrawl/shares.sh trains on every 8th, 4th, 2nd and on each pair of a text.

These are the shares of table 10 of the paper.
"""

import gzip
import shutil
import subprocess

import pytest
from conftest import ROOT

PAIRS = 17
STEPS = (8, 4, 2, 1)


@pytest.mark.parametrize("is_packed", [False, True], ids=["text", "gzip"])
def test_each_share_is_trained_on_every_8th_4th_2nd_and_1st_pair(tmp_path, is_packed):
    folder = tmp_path / "examples" / "paracrawl"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "paracrawl" / "shares.sh", folder)
    # In place of the training, print its arguments.
    (folder / "run.sh").write_text('echo "$WORK $1 $2 $3"\n')
    for language in ("en", "fr"):
        lines = "".join(f"{language} {number}\n" for number in range(1, PAIRS + 1))
        if is_packed:
            (tmp_path / f"text.{language}.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (tmp_path / f"text.{language}").write_text(lines)

    command = ["env", "WORK=work", "bash", folder / "shares.sh", "fr", "text", "--fp16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    # A training of each share, the smallest first, with its own folder and text.
    trainings = [f"work/every-{step} fr work/every-{step}/text --fp16" for step in STEPS]
    assert done.stdout.splitlines() == trainings
    for step in STEPS:
        for language in ("en", "fr"):
            text = (tmp_path / f"work/every-{step}" / f"text.{language}").read_text()
            numbers = range(step, PAIRS + 1, step)
            assert text.splitlines() == [f"{language} {number}" for number in numbers]
