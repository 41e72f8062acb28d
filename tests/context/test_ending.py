"""A run that is terminated ends its training too."""

import os
import signal
import subprocess
import sys

from conftest import ROOT, wait_until

# Starts a training, as `lxsr train-context` does, that prints its process id and sleeps.
SCRIPT = """
import os, sys
from pathlib import Path
from fairseq_lxsr.context.rounds import run_logged
from fairseq_lxsr.errors import Terminated
lock = os.open(os.devnull, os.O_RDONLY)
training = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
try:
    run_logged([sys.executable, "-c", training], Path(sys.argv[1]), [lock])
except Terminated:
    sys.exit(143)
"""


def is_running(process_id):
    try:
        # Signal 0 is not sent, but fails if there is no such process.
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_to_the_run_ends_its_training_too(tmp_path):
    log = tmp_path / "train.log"
    run = subprocess.Popen([sys.executable, "-c", SCRIPT, log], cwd=ROOT)
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), run)
    training = int(log.read_text())
    assert is_running(training)

    run.send_signal(signal.SIGTERM)

    assert run.wait(30) == 128 + signal.SIGTERM
    assert not is_running(training)
