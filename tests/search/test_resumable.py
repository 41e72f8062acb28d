"""Work that survives kill -9."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.resumable import claim_folder, resumable_array

SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from fairseq_lxsr.search.resumable import resumable_array

def compute(start, stop):
    if start >= 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]

resumable_array(Path(sys.argv[1]), (95, 2), np.float32, compute, block=10)
"""


def test_a_full_disk_is_an_error_before_anything_is_computed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.npy\.partial'"):
        resumable_array(tmp_path / "x.npy", (95, 2), np.float32, lambda *_: pytest.fail("computed"), block=10)
    assert not list(tmp_path.iterdir())


def test_goes_on_after_kill_with_the_same_bytes(tmp_path):
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "x.npy")], env=os.environ, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    asked = []

    def compute(start, stop):
        asked.append((start, stop))
        return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]

    found = resumable_array(tmp_path / "x.npy", (95, 2), np.float32, compute, block=10)
    assert asked == [(40, 50), (50, 60), (60, 70), (70, 80), (80, 90), (90, 95)]
    resumable_array(tmp_path / "y.npy", (95, 2), np.float32, compute, block=10)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    np.testing.assert_array_equal(found, np.arange(95)[:, None] * [1, 2])
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "y.npy"}
    resumable_array(tmp_path / "x.npy", (95, 2), np.float32, lambda *_: pytest.fail("was there"), block=10)


def test_a_folder_belongs_to_one_run(tmp_path):
    claim_folder(tmp_path / "work", {"k": 4, "model": "a"})
    claim_folder(tmp_path / "work", {"k": 4, "model": "a"})
    with pytest.raises(InputError, match="is from a run with k 4, now 5"):
        claim_folder(tmp_path / "work", {"k": 5, "model": "a"})
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is no work folder"):
        claim_folder(tmp_path, {})
    (tmp_path / "work" / "settings.json").write_text("{")
    with pytest.raises(InputError, match="not the settings of an earlier run"):
        claim_folder(tmp_path / "work", {})
