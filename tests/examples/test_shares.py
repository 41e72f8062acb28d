"""Shares of the training text, as table 10 of the paper has them."""

import gzip
import shutil
import subprocess

import pytest
from conftest import ROOT

PAIRS = 17


@pytest.mark.parametrize("is_packed", [False, True])
def test_each_share_is_trained_on_its_pairs(tmp_path, is_packed):
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
    shares = [f"work/every-{nth}" for nth in (8, 4, 2, 1)]
    assert done.stdout.splitlines() == [f"{share} fr {share}/text --fp16" for share in shares]
    for share, nth in zip(shares, (8, 4, 2, 1), strict=True):
        for language in ("en", "fr"):
            expected = [f"{language} {number}" for number in range(nth, PAIRS + 1, nth)]
            written = (tmp_path / share / f"text.{language}").read_text().splitlines()
            assert written == expected
