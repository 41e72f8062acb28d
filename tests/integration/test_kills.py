"""Kills commands at random moments; `python tests/kill_at_random.py FOLDER` does so more often."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_commands_killed_at_random_moments_leave_whole_files(tmp_path):
    command = [sys.executable, ROOT / "tests" / "kill_at_random.py", tmp_path]
    command += ["--verbs", "embed", "mine", "--lines", "3000", "--kills", "3", "--block", "300"]

    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)

    # The program checks the files after each kill, and prints a line for each verb.
    assert result.returncode == 0, result.stderr[-3000:]
    embedded, mined = map(json.loads, result.stdout.splitlines())
    assert embedded["kills"] == mined["kills"] == 3
