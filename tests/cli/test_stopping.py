"""How `lxsr` ends where it is not left to finish: signals, readers that are gone, streams that are
closed.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import COMPATIBILITY, forked_commands, lxsr_here, python, refused, wait_until

from fairseq_lxsr.cli import train as user_dir
from fairseq_lxsr.cli.main import main

MODEL = COMPATIBILITY / "best.model"
LXSR = (sys.executable, "-m", "fairseq_lxsr.cli.main")


def ended(*arguments, **options) -> tuple[int, str]:
    """Exit status and errors of `lxsr` in a process of its own."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*LXSR, *arguments], stderr=subprocess.PIPE, text=True, timeout=60, env=buffered, **options
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_leaves_one_line_and_no_file(tmp_path, number, status, word):
    output = tmp_path / "o.npy"
    command = [*LXSR, "embed", "--model", MODEL, "--input", "-", "--output", output]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # More than the sample in which entities are sought, and fewer than are written at once; then it
    # waits for more.
    process.stdin.write("a dog\n" * 15_000)
    process.stdin.flush()
    wait_until((tmp_path / "o.npy.partial").exists, process)
    process.send_signal(number)
    process.wait(60)  # before its standard input is closed
    _, errors = process.communicate()
    assert process.returncode == status
    said = [line for line in errors.splitlines() if line.startswith("lxsr: ")]
    assert len(said) == 1
    assert said[0].startswith(f"lxsr: {word}; ")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_callback_of_python_stops_it(number):
    """Python drops what is raised there, such as at the end of an import."""
    code = f"""
        import os, signal, time
        from fairseq_lxsr.errors import repeated_interrupts, sigterm_as_interrupt

        class Callback:
            def __del__(self):
                os.kill(os.getpid(), {int(number)})
                time.sleep(0)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        with sigterm_as_interrupt():
            try:
                with repeated_interrupts():
                    Callback()
                    time.sleep(60)
            except KeyboardInterrupt:
                raise SystemExit(0)
        raise SystemExit(1)
    """
    python(textwrap.dedent(code))


def test_a_signal_that_is_ignored_stays_ignored():
    code = "import os, signal; from fairseq_lxsr.errors import sigterm_as_interrupt\n"
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "with sigterm_as_interrupt(): os.kill(os.getpid(), signal.SIGTERM)"
    python(code)


@pytest.fixture
def unread():
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("arguments", [["corpus", "list"], ["--help"]])
def test_a_reader_that_is_gone(arguments, unread):
    assert ended(*arguments, stdout=unread) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_reads_the_error(unbuffered, unread):
    command, environment = (
        [*LXSR, "corpus", "show", "none"],
        os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert (
        subprocess.run(
            command, stdout=unread, stderr=unread, env=environment, timeout=60
        ).returncode
        == 2
    )


def test_a_reader_that_leaves_before_the_work_is_done():
    code = "import argparse, sys; from fairseq_lxsr.cli import evaluate, main\n"
    code += (
        "evaluate.run_compare = lambda args: [print('x' * 9999, flush=True) for _ in range(99)]\n"
    )
    code += "main.main(['compare', 'a', 'b'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 128 + signal.SIGPIPE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")
def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        status, errors = ended("corpus", "list", stdout=full)
    assert (status, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("lxsr: error: ")


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_closed_streams(closed):
    for arguments, status in (("list", 0), ("show no-such-corpus", 2)):
        command = f'exec "$0" -m fairseq_lxsr.cli.main corpus {arguments} {closed}>&-'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable], capture_output=True, timeout=60
        )
        assert done.returncode == status


@pytest.mark.parametrize("verb", ["embed", "index", "search"])
def test_closed_standard_input(tmp_path, monkeypatch, verb):
    text = tmp_path / "text"
    text.write_text("a dog\na house\n")
    shutil.copytree(MODEL, tmp_path / "model")
    model = ("--model", tmp_path / "model")
    lxsr_here("index", *model, "--input", text, "--output", tmp_path / "index")
    places = ("--index", tmp_path / "index") if verb == "search" else model
    monkeypatch.setattr(sys, "stdin", None)
    done = lxsr_here(verb, *places, "--input", "-", "--output", tmp_path / "o", check=False)
    refused(done, "standard input")


def test_standard_input_that_is_read_twice(tmp_path):
    command = [
        forked_commands() / "lxsr",
        "eval",
        "tatoeba",
        "--model",
        MODEL,
        "--source",
        "-",
        "--target",
        "-",
    ]
    done = subprocess.run(
        command, input="a dog\na cat\n", capture_output=True, text=True, timeout=60
    )
    refused(done, "standard input")


def test_output_that_the_terminal_cannot_show(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # else a pipe gets UTF-8
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    monkeypatch.setattr(user_dir, "PACKAGE", "/caf\u00e9/\udcff")
    main(["user-dir"])
    assert output.getvalue() == b"/caf\\xe9/\\udcff\n"
