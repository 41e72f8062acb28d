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
# The beginning of a sequence that commands a terminal, and commands to clear it, to set its title
# and to make its text red.
ESCAPE = "\x1b"
CLEAR = "\x1b[2J"
SET_TITLE = "\x1b]0;title\x07"
RED = "\x9b31m"
# A sentence with commands to a terminal, and with characters that delete or overwrite.
SENTENCE_WITH_COMMANDS = f"a dog {CLEAR}{SET_TITLE} {RED}\x7f\b\r sees"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        pytest.param(CLEAR, r"\x1b[2J", id="clear"),
        pytest.param(SET_TITLE, r"\x1b]0;title\x07", id="title"),
        # The control characters C1, which also begin commands.
        pytest.param("\x9b31m \x90 \x85", r"\x9b31m \x90 \x85", id="C1"),
        pytest.param(
            "over\rwritten\b\x7f\v\f\x00", r"over\rwritten\x08\x7f\x0b\x0c\x00", id="overwritten"
        ),
        # Letters, emoji and invisible characters are no control characters.
        pytest.param(
            "العربية ไทย 中文 😀 \u00a0\u200d", "العربية ไทย 中文 😀 \u00a0\u200d", id="text"
        ),
    ],
)
def test_control_characters_are_escaped_in_text_errors_and_output(text, escaped):
    output = io.StringIO()
    print(text, text, file=EscapedStream(output))

    assert output.getvalue() == f"{escaped} {escaped}\n"
    assert printable(text) == escaped
    assert str(InputError(f"{text}: no such file")) == f"{escaped}: no such file"
    assert str(SentenceError(0, "a", text)).endswith(escaped)
    assert error_message(FileNotFoundError(2, "none", text)).startswith(f"{escaped}: none")


def test_control_characters_that_are_allowed_are_not_escaped():
    assert printable(f"a\tb\n{CLEAR}", but="\n\t") == "a\tb\n\\x1b[2J"


# tqdm moves the cursor up to the line of another bar.
CURSOR_UP = "\x1b[A"


@pytest.mark.parametrize(
    "text", ["\r", "\n", CURSOR_UP, CURSOR_UP * 2], ids=["return", "line", "up", "twice up"]
)
def test_the_movements_of_a_progress_bar_are_not_escaped_in_messages(text):
    output = io.StringIO()

    Messages(output).write(text)

    assert output.getvalue() == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [(f"\r{CLEAR}: 3 it", "\r\\x1b[2J: 3 it"), (f"x{CURSOR_UP}", "x\\x1b[A")],
    ids=["after a return", "in a text"],
)
def test_control_characters_in_the_text_of_a_progress_bar_are_escaped_in_messages(text, escaped):
    output = io.StringIO()

    Messages(output).write(text)

    assert output.getvalue() == escaped


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of a sentence with commands to a terminal and of a plain one."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "text").write_text(f"{SENTENCE_WITH_COMMANDS}\na house\n", newline="\n")
    lxsr_here("index", "--model", MODEL, "--input", folder / "text", "--output", folder / "index")
    return folder / "index"


def output_on_terminal(*arguments) -> bytes:
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


@pytest.mark.parametrize("output", [(), ("--output", "-")], ids=["list", "table"])
def test_control_characters_of_a_corpus_and_a_query_do_not_reach_a_terminal(index, output):
    queries = ("a dog", SENTENCE_WITH_COMMANDS)

    table = output_on_terminal("search", "--index", index, *queries, *output)

    assert b"sees" in table
    # Tabs separate the columns.
    assert not has_control_characters(table.replace(b"\t", b""))


@pytest.mark.parametrize(
    "name",
    [
        f"no{CLEAR}index, two\nlines, c1{RED}, b\rack",
        # Bytes of a name that are not UTF-8.
        "\udc9b\udcff",
    ],
    ids=["commands", "bytes"],
)
def test_an_error_with_control_characters_of_a_file_name_is_one_line_without_them_on_a_terminal(
    tmp_path, name
):
    for arguments in (
        ("search", "--index", name, "x"),
        ("embed", "--model", name, "--input", "x", "--output", "y"),
        ("embed", "--model", MODEL, "--input", tmp_path / name, "--output", tmp_path / name),
        ("corpus", "show", name),
        ("report", name, f"--{name}"),
    ):
        message = output_on_terminal(*arguments)
        assert not has_control_characters(message), arguments
        assert message.count(b"\n") == 1, arguments


def test_a_pipe_gets_the_same_bytes_as_a_file_with_their_control_characters(index, tmp_path):
    command = ("search", "--index", index, "a dog", "--k", "2", "--output")

    table = lxsr_here(*command, "-").stdout
    lxsr_here(*command, tmp_path / "table")

    assert table.encode() == (tmp_path / "table").read_bytes()
    assert CLEAR + SET_TITLE in table


def test_results_without_a_standard_output_are_refused(monkeypatch):
    # This is what Python does if standard output is closed.
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(InputError, match="standard output"):
        results()


def search_with_streams(index, redirections: str) -> subprocess.CompletedProcess:
    """Run `lxsr search` in a shell that redirects its streams."""
    search = ("-m", "fairseq_lxsr.cli.main", "search", "--index", "index", "a dog")
    command = ["sh", "-c", f'exec "$0" "$@" {redirections}', sys.executable, *search]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=index.parent)


# Every write to /dev/full fails, as on a full disk.
NEEDS_FULL = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="a system without /dev/full"
)


@pytest.mark.parametrize(
    "redirections",
    [">&-", pytest.param(">/dev/full", marks=NEEDS_FULL)],
    ids=["closed", "full"],
)
def test_a_search_with_a_closed_or_full_standard_output_is_refused_in_one_line(index, redirections):
    refused(search_with_streams(index, redirections), "standard output")


@pytest.mark.parametrize(
    "redirections",
    ["<&- >&- 2>&-", pytest.param(">/dev/full 2>/dev/full", marks=NEEDS_FULL)],
    ids=["closed", "full"],
)
def test_a_search_with_all_streams_closed_or_full_ends_with_the_status_of_an_error(
    index, redirections
):
    assert search_with_streams(index, redirections).returncode == 2


@pytest.mark.parametrize(
    "redirections",
    ["2>&-", pytest.param("2>/dev/full", marks=NEEDS_FULL)],
    ids=["closed", "full"],
)
def test_a_search_with_a_closed_or_full_standard_error_writes_its_results(index, redirections):
    result = search_with_streams(index, redirections)

    assert result.returncode == 0
    assert "a house" in result.stdout


def test_a_file_does_not_get_the_descriptor_of_a_closed_stream(tmp_path):
    """Otherwise it would receive the output. The streams have the descriptors 0, 1 and 2."""
    code = f"""
import sys
from fairseq_lxsr.cli.streams import escaped_streams
with escaped_streams():
    descriptor = open({str(tmp_path / "x")!r}, "w").fileno()
sys.exit(0 if descriptor > 2 else 1)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]

    assert subprocess.run(command, timeout=60).returncode == 0


def test_messages_to_a_pipe_that_nobody_reads_raise_no_error():
    reading, writing = os.pipe()
    os.close(reading)

    with open(writing, "w", buffering=1) as broken:
        stream = Messages(broken)
        print("one", file=stream, flush=True)
        print("two", file=stream, flush=True)


def test_the_streams_are_restored_after_the_block_that_escapes_them():
    before = (sys.stdout, sys.stderr)

    with escaped_streams():
        assert (sys.stdout, sys.stderr) != before

    assert (sys.stdout, sys.stderr) == before


def test_a_pipe_in_place_of_a_file_of_a_model_is_refused(tmp_path):
    """Opening a pipe would wait for another program."""
    os.mkfifo(tmp_path / "config.json")

    command = ("embed", "--model", tmp_path, "--input", "x", "--output", tmp_path / "y")

    refused(lxsr_here(*command, check=False), "config.json")
