"""Control characters in output and messages, and streams that are closed or broken."""

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
    ("text", "escaped"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m \x90 \x85", r"\x9b31m \x90 \x85"),
        ("over\rwritten\b\x7f\v\f\x00", r"over\rwritten\x08\x7f\x0b\x0c\x00"),
        ("العربية ไทย 中文 😀 \u00a0\u200d", "العربية ไทย 中文 😀 \u00a0\u200d"),
    ],
)
def test_control_characters_are_escaped(text, escaped):
    assert printable(text) == escaped
    assert printable(text, but="\n\t") == escaped
    assert str(InputError(f"{text}: no such file")) == f"{escaped}: no such file"
    assert str(SentenceError(0, "a", text)).endswith(escaped)
    assert error_message(FileNotFoundError(2, "none", text)).startswith(f"{escaped}: none")
    output = io.StringIO()
    print(text, text, file=EscapedStream(output))
    assert output.getvalue() == f"{escaped} {escaped}\n"


def test_control_characters_of_a_progress_bar_are_kept_and_those_of_its_text_escaped():
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
    """The bytes that a terminal gets from a command."""
    leader, terminal = pty.openpty()
    command = [forked_commands() / "lxsr", *arguments]
    subprocess.run(command, stdout=terminal, stderr=terminal, timeout=60)
    os.close(terminal)
    output = b""
    try:
        while block := os.read(leader, 65536):
            output += block
    except OSError:
        # EIO is the end.
        pass
    os.close(leader)
    return output.replace(b"\r\n", b"\n")


def has_control_characters(output: bytes) -> bool:
    """Whether there is a control character of ASCII or C1 except line feeds."""
    ascii_controls = {*range(32), 127} - {ord("\n")}
    return not ascii_controls.isdisjoint(output) or b"\xc2\x9b" in output


@pytest.mark.parametrize("output", [(), ("--output", "-")])
def test_control_characters_of_a_corpus_do_not_reach_a_terminal(index, output):
    table = on_terminal("search", "--index", index, "a dog", ODD, *output)
    assert b"sees" in table
    assert not has_control_characters(table.replace(b"\t", b""))


@pytest.mark.parametrize("name", ["no\x1b[2Jindex, two\nlines, c1\x9b31m, b\rack", "\udc9b\udcff"])
def test_control_characters_of_a_file_name_do_not_reach_a_terminal(index, tmp_path, name):
    for arguments in (
        ("search", "--index", name, "x"),
        ("embed", "--model", name, "--input", "x", "--output", "y"),
        ("embed", "--model", MODEL, "--input", tmp_path / name, "--output", tmp_path / name),
        ("corpus", "show", name),
        ("report", name, f"--{name}"),
    ):
        message = on_terminal(*arguments)
        assert not has_control_characters(message), arguments
        assert message.count(b"\n") == 1


def test_a_pipe_gets_the_same_bytes_as_a_file(index, tmp_path):
    command = ("search", "--index", index, "a dog", "--k", "2", "--output")
    table = lxsr_here(*command, "-").stdout
    lxsr_here(*command, tmp_path / "table")
    assert table.encode() == (tmp_path / "table").read_bytes()
    assert "\x1b[2J\x1b]0;gone\x07" in table


def test_a_missing_standard_output_is_refused(index, monkeypatch):
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
def test_closed_and_full_streams_end_a_search_without_a_traceback(index, streams, status):
    result = run_with(index, streams, "search", "--index", "index", "a dog")
    assert result.returncode == status
    assert "Traceback" not in result.stderr + result.stdout
    if status and "2>" not in streams:
        refused(result, "standard output")


def test_files_do_not_get_the_descriptors_of_closed_streams(index, tmp_path):
    code = "import sys; from fairseq_lxsr.cli.streams import escaped_streams\n"
    code += f"with escaped_streams(): sys.exit(open({str(tmp_path / 'x')!r}, 'w').fileno() < 3)"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command, timeout=60).returncode == 0


def test_messages_to_a_broken_stream_are_dropped():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as broken:
        stream = Messages(broken)
        print("one", file=stream, flush=True)
        print("two", file=stream, flush=True)


def test_escaped_streams_are_restored():
    before = (sys.stdout, sys.stderr)
    with escaped_streams():
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before


def test_a_pipe_instead_of_the_file_of_a_model_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    command = ("embed", "--model", tmp_path, "--input", "x", "--output", tmp_path / "y")
    refused(lxsr_here(*command, check=False), "config.json")
