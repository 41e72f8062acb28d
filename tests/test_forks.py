"""Commands that run in forks behave like commands in new processes."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import forked_commands, forked_environment


def start_forked_python(code: str, *arguments, **variables) -> subprocess.Popen:
    """Start `python -c code arguments` of the forked commands, with variables of the environment."""
    command = [forked_commands() / "python", "-c", code, *arguments]
    return subprocess.Popen(
        command,
        env=forked_environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("code", "status", "output", "error"),
    [
        pytest.param("import sys; print(sys.argv)", 0, "['-c', 'a', 'b']\n", "", id="arguments"),
        pytest.param("import os; print(os.environ['COLOUR'])", 0, "red\n", "", id="environment"),
        pytest.param("import sys; sys.exit(3)", 3, "", "", id="status"),
        pytest.param("import sys; sys.exit('bad news')", 1, "", "bad news\n", id="message"),
        pytest.param(
            "import sys; sys.excepthook = lambda *_: sys.exit(7); 1 / 0", 7, "", "", id="hook"
        ),
        pytest.param(
            "import atexit; atexit.register(print, 'the end')", 0, "the end\n", "", id="atexit"
        ),
    ],
)
def test_a_fork_has_the_output_and_status_of_python(code, status, output, error):
    process = start_forked_python(code, "a", "b", COLOUR="red")

    assert process.communicate(timeout=60) == (output, error)
    assert process.returncode == status


def test_a_fork_that_raises_an_exception_prints_it_and_has_status_1():
    process = start_forked_python("1 / 0")

    _, error = process.communicate(timeout=60)

    assert "ZeroDivisionError" in error
    assert process.returncode == 1


def test_a_fork_dies_if_its_command_is_killed():
    """The command is a small client; the fork, another process, runs the code."""
    process = start_forked_python("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    fork = int(process.stdout.readline())

    process.kill()
    process.communicate(timeout=60)

    deadline = time.monotonic() + 20
    while Path(f"/proc/{fork}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    # Signal 0 only asks whether the process exists.
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)
