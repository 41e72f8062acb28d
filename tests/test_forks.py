"""Commands that run in forks behave like commands in new processes."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import forked_commands, forked_environment


def forked(code: str, *arguments, **options) -> subprocess.Popen:
    words = [forked_commands() / "python", "-c", code, *arguments]
    return subprocess.Popen(
        words, env=forked_environment(**options), stdout=-1, stderr=-1, text=True
    )


@pytest.mark.parametrize(
    ("code", "status", "output", "error"),
    [
        ("import sys; print(sys.argv)", 0, "['-c', 'a', 'b']\n", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("import sys; sys.exit('bad news')", 1, "", "bad news\n"),
        ("import sys; sys.excepthook = lambda *_: sys.exit(7); 1 / 0", 7, "", ""),
        ("import atexit; atexit.register(print, 'the end')", 0, "the end\n", ""),
        ("import os; print(os.environ['COLOUR'])", 0, "red\n", ""),
    ],
)
def test_a_fork_has_the_output_and_status_of_python(code, status, output, error):
    process = forked(code, "a", "b", COLOUR="red")
    assert process.communicate(timeout=60) == (output, error)
    assert process.returncode == status


def test_an_exception_has_its_traceback():
    process = forked("1 / 0")
    assert "ZeroDivisionError" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


def test_a_fork_dies_with_its_command():
    process = forked("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    fork = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{fork}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)
