"""What reaches a terminal or a pipe, and what happens to streams that are closed or broken."""

import io
import os
import pty
import subprocess
import sys

import pytest
from conftest import COMPATIBILITY, forked_commands, lxsr_here, refused

from fairseq_lxsr.cli.streams import EscapedStream, Messages, escaped_streams, results
from fairseq_lxsr.errors import InputError, SentenceError, error_message, printable

MODEL = COMPATIBILITY / "best.model"
ODD = "a dog \x1b[2J\x1b]0;gone\x07 \x9b31m\x7f\b\r sees"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m \x90 \x85", r"\x9b31m \x90 \x85"),
        ("over\rwritten\b\x7f\v\f\x00", r"over\rwritten\x08\x7f\x0b\x0c\x00"),
        ("العربية ไทย 中文 😀 \u00a0\u200d", "العربية ไทย 中文 😀 \u00a0\u200d"),
    ],
)
def test_control_characters_are_shown(text, shown):
    assert printable(text) == shown == printable(f"{text}", but="\n\t")
    assert str(InputError(f"{text}: no such file")) == f"{shown}: no such file"
    assert str(SentenceError(0, "a", text)).endswith(shown)
    assert error_message(FileNotFoundError(2, "none", text)).startswith(f"{shown}: none")
    output = io.StringIO()
    print(text, text, file=EscapedStream(output))
    assert output.getvalue() == f"{shown} {shown}\n"


def test_a_progress_bar_moves_and_what_it_says_does_not():
    output = io.StringIO()
    stream = Messages(output)
    for text in ("\r\x1b[2J: 3 it", "\n", "\x1b[A\x1b[A", "x\x1b[A"):
        stream.write(text)
    assert output.getvalue() == "\r\\x1b[2J: 3 it\n\x1b[A\x1b[Ax\\x1b[A"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    (folder / "text").write_text(f"{ODD}\na house\n", newline="\n")
    lxsr_here("index", "--model", MODEL, "--input", folder / "text", "--output", folder / "index")
    return folder / "index"


def on_terminal(*arguments) -> bytes:
    """What a terminal gets of a command."""
    leader, terminal = pty.openpty()
    subprocess.run(
        [forked_commands() / "lxsr", *arguments], stdout=terminal, stderr=terminal, timeout=60
    )
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(leader, 65536):
            shown += block
    except OSError:  # EIO is the end
        pass
    os.close(leader)
    return shown.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("output", [(), ("--output", "-")])
def test_a_corpus_does_not_command_a_terminal(index, output):
    shown = on_terminal("search", "--index", index, "a dog", ODD, *output)
    assert b"sees" in shown
    assert not {*range(32), 127} & set(shown.replace(b"\n", b"").replace(b"\t", b""))
    assert b"\xc2\x9b" not in shown


@pytest.mark.parametrize("name", ["no\x1b[2Jindex, two\nlines, c1\x9b31m, b\rack", "\udc9b\udcff"])
def test_a_file_name_does_not_command_a_terminal(index, tmp_path, name):
    for arguments in (
        ("search", "--index", name, "x"),
        ("embed", "--model", name, "--input", "x", "--output", "y"),
        ("embed", "--model", MODEL, "--input", tmp_path / name, "--output", tmp_path / name),
        ("corpus", "show", name),
        ("report", name, f"--{name}"),
    ):
        shown = on_terminal(*arguments)
        assert not {*range(32), 127} & set(shown.replace(b"\n", b"")), arguments
        assert b"\xc2\x9b" not in shown
        assert shown.count(b"\n") == 1


def test_results_in_a_pipe_are_exact(index, tmp_path):
    done = lxsr_here("search", "--index", index, "a dog", "--output", "-", "--k", "2")
    lxsr_here("search", "--index", index, "a dog", "--output", tmp_path / "found", "--k", "2")
    assert done.stdout.encode() == (tmp_path / "found").read_bytes()
    assert "\x1b[2J\x1b]0;gone\x07" in done.stdout


def test_results_need_a_standard_output(index, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InputError, match="standard output"):
        results()


def run_with(index, streams: str, *arguments) -> subprocess.CompletedProcess:
    command = f'exec "$0" "$@" {streams}'
    words = ["sh", "-c", command, sys.executable, "-m", "fairseq_lxsr.cli.main", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=index.parent)


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a system without /dev/full")


@pytest.mark.parametrize(
    ("streams", "status"),
    [
        (">&-", 2),
        pytest.param(">/dev/full", 2, marks=FULL),
        ("2>&-", 0),
        pytest.param("2>/dev/full", 0, marks=FULL),
        ("<&- >&- 2>&-", 2),
        pytest.param(">/dev/full 2>/dev/full", 2, marks=FULL),
    ],
)
def test_a_search_ends_with_a_status_and_a_line_where_there_is_a_stream(index, streams, status):
    done = run_with(index, streams, "search", "--index", "index", "a dog")
    assert done.returncode == status
    assert "Traceback" not in done.stderr + done.stdout
    if status and "2>" not in streams:
        refused(done, "standard output")


def test_no_file_gets_the_number_of_a_stream_that_is_closed(index, tmp_path):
    code = "import sys; from fairseq_lxsr.cli.streams import escaped_streams\n"
    code += f"with escaped_streams(): sys.exit(open({str(tmp_path / 'x')!r}, 'w').fileno() < 3)"
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], timeout=60
    )
    assert done.returncode == 0


def test_messages_that_nobody_can_read_do_not_end_the_work():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as broken:
        stream = Messages(broken)
        print("one", file=stream, flush=True)
        print("two", file=stream, flush=True)


def test_streams_are_as_before_afterwards():
    before = sys.stdout, sys.stderr
    with escaped_streams():
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before


def test_a_pipe_in_the_place_of_a_model_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    done = lxsr_here(
        "embed", "--model", tmp_path, "--input", "x", "--output", tmp_path / "y", check=False
    )
    refused(done, "config.json")
