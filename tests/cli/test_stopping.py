"""How `lxsr` ends after signals, and if nobody reads its output or a stream is closed."""

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


def run_lxsr(*arguments, **options) -> tuple[int, str]:
    """Exit status and standard error of `lxsr` in a process of its own."""
    environment = dict(os.environ)
    environment.pop("PYTHONUNBUFFERED", None)
    command = [*LXSR, *arguments]
    result = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, timeout=60, env=environment, **options
    )
    return result.returncode, result.stderr


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_ends_a_command_with_its_status_one_line_and_no_file(
    tmp_path, number, status, word
):
    """The status is 128 plus the number of the signal, as of a shell."""
    output = tmp_path / "o.npy"
    command = [*LXSR, "embed", "--model", MODEL, "--input", "-", "--output", output]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # More lines than the sample that is searched for entities, and fewer than are written at once:
    # the command waits for more.
    process.stdin.write("a dog\n" * 15_000)
    process.stdin.flush()
    wait_until((tmp_path / "o.npy.partial").exists, process)

    process.send_signal(number)
    # It must end although its standard input is open.
    process.wait(60)
    _, errors = process.communicate()

    assert process.returncode == status
    messages = [line for line in errors.splitlines() if line.startswith("lxsr: ")]
    assert len(messages) == 1
    assert messages[0].startswith(f"lxsr: {word}; ")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_callback_of_python_ends_the_program(number):
    """Python ignores exceptions in callbacks, for example at the end of an import.

    The program ends with status 1 if the interrupt is lost.
    """
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


def test_a_signal_that_the_parent_process_ignores_does_not_end_a_program():
    code = """
        import os, signal
        from fairseq_lxsr.errors import sigterm_as_interrupt

        # As a parent process such as nohup does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with sigterm_as_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        print("still running")
    """
    assert python(textwrap.dedent(code)) == "still running\n"


@pytest.fixture
def unread_pipe():
    """A pipe whose reader has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("arguments", [["corpus", "list"], ["--help"]])
def test_a_command_whose_output_nobody_reads_ends_without_an_error(arguments, unread_pipe):
    assert run_lxsr(*arguments, stdout=unread_pipe) == (0, "")


# Unbuffered, the write itself fails; otherwise the flush at the end.
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_command_whose_error_nobody_reads_has_status_2(unbuffered, unread_pipe):
    command = [*LXSR, "corpus", "show", "none"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}

    result = subprocess.run(
        command, stdout=unread_pipe, stderr=unread_pipe, env=environment, timeout=60
    )

    assert result.returncode == 2


def test_a_command_has_the_status_of_sigpipe_and_no_error_if_its_reader_ends_early():
    """`lxsr compare` is replaced by a command that writes more than a pipe holds, which is 64 kB."""
    code = """
        from fairseq_lxsr.cli import evaluate, main

        def run_compare(args):
            for _ in range(99):
                print("x" * 9999, flush=True)

        evaluate.run_compare = run_compare
        main.main(["compare", "a", "b"])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()
        status = process.wait(60)

    assert errors == b""
    assert status == 128 + signal.SIGPIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")
def test_a_command_that_cannot_write_its_output_ends_with_one_line_of_error():
    """Every write to /dev/full fails, as on a full disk."""
    with open("/dev/full", "w") as full:
        status, errors = run_lxsr("corpus", "list", stdout=full)

    assert status == 2
    assert len(errors.splitlines()) == 1
    assert errors.startswith("lxsr: error: ")


@pytest.mark.parametrize("descriptor", [0, 1, 2], ids=["stdin", "stdout", "stderr"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [("list", 0), ("show no-such-corpus", 2)],
    ids=["valid", "invalid"],
)
def test_a_closed_stream_does_not_change_the_exit_status(descriptor, arguments, status):
    code = f'exec "$0" -m fairseq_lxsr.cli.main corpus {arguments} {descriptor}>&-'
    command = ["sh", "-c", code, sys.executable]

    result = subprocess.run(command, capture_output=True, timeout=60)

    assert result.returncode == status


@pytest.mark.parametrize("verb", ["embed", "index", "search"])
def test_a_command_that_reads_a_closed_standard_input_is_refused(tmp_path, monkeypatch, verb):
    (tmp_path / "text").write_text("a dog\na house\n")
    shutil.copytree(MODEL, tmp_path / "model")
    index = ("index", "--model", "model", "--input", "text", "--output", "index")
    lxsr_here(*index, folder=tmp_path)
    option = ("--index", "index") if verb == "search" else ("--model", "model")

    # This is what Python does if standard input is closed.
    monkeypatch.setattr(sys, "stdin", None)
    command = (verb, *option, "--input", "-", "--output", "o")
    result = lxsr_here(*command, check=False, folder=tmp_path)

    refused(result, "standard input")


def test_standard_input_for_two_options_is_refused():
    """The first would read all of it."""
    command = [forked_commands() / "lxsr", "eval", "tatoeba", "--model", MODEL]
    command += ["--source", "-", "--target", "-"]

    result = subprocess.run(
        command, input="a dog\na cat\n", capture_output=True, text=True, timeout=60
    )

    refused(result, "standard input")


def test_characters_that_the_encoding_of_the_output_lacks_are_escaped(monkeypatch):
    # Otherwise, a pipe would get UTF-8.
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    # The path that the command prints: a letter that ASCII lacks, and a byte that UTF-8 lacks.
    monkeypatch.setattr(user_dir, "PACKAGE", "/caf\u00e9/\udcff")

    main(["user-dir"])

    assert output.getvalue() == b"/caf\\xe9/\\udcff\n"
