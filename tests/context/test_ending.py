"""A run that is terminated ends its training too."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, wait_until

SCRIPT = """
import os, sys
from pathlib import Path
from fairseq_lxsr.context.rounds import run_logged
from fairseq_lxsr.errors import Terminated
lock = os.open(os.devnull, os.O_RDONLY)
code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
try:
    run_logged([sys.executable, "-c", code], Path(sys.argv[1]), [lock])
except Terminated:
    sys.exit(143)
"""


def test_sigterm_ends_the_training_too(tmp_path):
    log = tmp_path / "train.log"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, log], cwd=ROOT)
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), process)
    child = int(log.read_text())
    # The process exists.
    os.kill(child, 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
