"""Commands killed at random moments; `python tests/kill_at_random.py FOLDER` does the same at
large.
"""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    script = [sys.executable, ROOT / "tests" / "kill_at_random.py", tmp_path]
    command = [
        *script,
        "--verbs",
        "embed",
        "mine",
        "--lines",
        "3000",
        "--kills",
        "3",
        "--block",
        "300",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    embedded, mined = map(json.loads, done.stdout.splitlines())
    assert embedded["kills"] == mined["kills"] == 3
