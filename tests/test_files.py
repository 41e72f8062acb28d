import errno
import fcntl
import gzip
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from functools import partial

import pytest

from fairseq_lxsr import SentenceEncoder, files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import (
    SENTENCE_BYTES,
    Lines,
    atomic_folder,
    atomic_write,
    is_blank,
    locked,
    one_line,
    read_lines,
    read_parallel,
    restore_folder,
)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("line", [b"\n", b"short\n"])
def test_a_packed_file_that_unfolds_without_end_is_refused(tmp_path, monkeypatch, ending, line):
    """Many lines, each as it should be."""
    monkeypatch.setattr(files, "FREE", 100_000)
    path = tmp_path / f"x{ending}"
    with atomic_write(path, "wb") as stream:
        stream.write(line * 200_000)
    with pytest.raises(InputError, match=f"x{ending}: unfolds to more than 100 times its [0-9,]+ bytes; expected text"):
        for _ in read_lines(path):
            pass


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "x").write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(tmp_path / "x")) == ["a", "\ufeffb"]


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\u2028still one\r\ntwo\x0bstill two\nthree".encode())
    assert list(read_lines(path)) == ["one\u2028still one", "two\x0bstill two", "three"]


def test_packed_files_are_read_as_they_are(tmp_path):
    with atomic_write(tmp_path / "text.gz") as stream:
        stream.write("eins\nzwei\n")
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == b"eins\nzwei\n"
    assert list(read_lines(tmp_path / "text.gz")) == ["eins", "zwei"]


@pytest.mark.parametrize(("ending", "program"), [(".gz", "zcat"), (".xz", "xzcat"), (".zst", "zstdcat")])
def test_packed_bytes_under_another_name_are_recognised(tmp_path, ending, program):
    with atomic_write(tmp_path / f"packed{ending}") as stream:
        stream.write("one\ntwo\n")
    plain = (tmp_path / f"packed{ending}").rename(tmp_path / "plain")
    with pytest.raises(
        InputError, match=rf"plain, line 1: packed bytes; .* through {program}, or give a file named \*{ending}"
    ):
        list(read_lines(plain))


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_folder_leaves_the_old_folder_and_nothing_else(tmp_path):
    with atomic_folder(tmp_path / "model", "config.json") as work:
        (work / "config.json").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model", "config.json") as work:
        (work / "config.json").write_text("new")
        raise ZeroDivisionError
    assert (tmp_path / "model" / "config.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_killed_while_writing_leaves_nothing_under_the_name(tmp_path):
    """kill -9 in the middle: what is left is a hidden work folder, never the folder itself."""
    code = f"""
import os, signal
from fairseq_lxsr.files import atomic_folder
with atomic_folder({str(tmp_path / "model")!r}, "config.json") as work:
    (work / "config.json").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()


def test_folder_replaces_its_own_kind_only(tmp_path):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "model", "config.json") as work:
            (work / "config.json").write_text(content)
    assert (tmp_path / "model" / "config.json").read_text() == "new"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InputError, match="not replaced"), atomic_folder(tmp_path / "other", "config.json"):
        pass


CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "open"}


def killed_before_change(number: int, action) -> bool:
    """Run `action` in a process that is killed just before its file change of this number, from 1.

    Returns: whether it was killed; not where it makes fewer changes.
    """
    child = os.fork()
    if not child:
        seen = itertools.count(1)

        def watch(event, arguments):
            reads = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if event in CHANGES and not reads and next(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def write_folder(path, content: str) -> None:
    with atomic_folder(path, "marker") as work:
        for name in ("marker", "data"):
            (work / name).write_text(content)


def contents(path) -> set[str]:
    return {(path / name).read_text() for name in ("marker", "data")}


@pytest.mark.parametrize("reads_first", [True, False], ids=["then read", "then written"])
def test_killed_before_any_change_a_folder_is_the_old_one_or_the_new_one(tmp_path, reads_first):
    found = []
    for number in itertools.count(1):
        path = tmp_path / str(number) / "model"
        write_folder(path, "old")
        killed = killed_before_change(number, lambda path=path: write_folder(path, "new"))
        if reads_first:
            restore_folder(path)
            found.append(*contents(path))
        with pytest.raises(ZeroDivisionError), atomic_folder(path, "marker"):
            raise ZeroDivisionError
        assert contents(path) <= {"old", "new"}
        write_folder(path, "newest")
        assert contents(path) == {"newest"}
        assert list(path.parent.iterdir()) == [path]
        if not killed:
            break
    assert number > 8
    assert found == sorted(found, reverse=True)


def test_a_reader_that_restores_the_old_folder_too_early_does_no_harm(tmp_path, monkeypatch):
    path, replace = tmp_path / "model", os.replace
    write_folder(path, "old")

    def replace_then_restore(source, target):
        replace(source, target)
        if source == path:
            monkeypatch.setattr(os, "replace", replace)
            restore_folder(path)

    monkeypatch.setattr(os, "replace", replace_then_restore)
    write_folder(path, "new")
    assert contents(path) == {"new"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    path, replace = tmp_path / "model", os.replace
    write_folder(path, "old")

    def refuse(source, target):
        if target == path:
            monkeypatch.setattr(os, "replace", replace)
            raise PermissionError(1, "no", str(path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_folder(path, "new")
    assert contents(path) == {"old"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "", "..", "../model/../model", "../.."])
def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch, name):
    write_folder(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")
    with pytest.raises(InputError, match="is the current folder or holds it"):
        write_folder(name, "new")
    assert contents(tmp_path / "model") == {"old"}
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    write_folder("../other/../other", "new")
    assert contents(tmp_path / "other") == {"new"}


def test_permissions_are_those_of_any_new_file(tmp_path):
    with atomic_write(tmp_path / "new") as stream:
        stream.write("x")
    (tmp_path / "plain").write_text("x")
    assert os.stat(tmp_path / "new").st_mode == os.stat(tmp_path / "plain").st_mode


def test_unequal_files_are_counted_to_the_end(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(InputError, match=r"a has 3 lines and .*b has 1"):
        list(read_parallel(tmp_path / "a", tmp_path / "b"))
    with pytest.raises(InputError, match=r"b has 1 lines and .*a has 3"):
        list(read_parallel(tmp_path / "b", tmp_path / "a"))


def test_what_a_killed_process_left_is_removed(tmp_path):
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom fairseq_lxsr.files import atomic_folder, atomic_write\n"
        "with atomic_write(sys.argv[1] + '/file'), atomic_folder(sys.argv[1] + '/folder', 'marker') as work:\n"
        "    (work / 'x').write_text('x')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_write(tmp_path / "file") as stream, atomic_write(tmp_path / "file2"):
        stream.write("whole")
        with atomic_folder(tmp_path / "folder", "marker") as work:
            (work / "marker").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file2", "folder"]


def test_lines_by_number(tmp_path):
    path = tmp_path / "text"
    path.write_text("one\n\ndeux é\nlast without an end", encoding="utf-8")
    lines = Lines(path)
    assert len(lines) == 4
    assert [lines[number] for number in (3, 0, 2, 1)] == ["last without an end", "one", "deux é", ""]
    assert lines[1:3] == ["", "deux é"]


HOLD = """
import sys, time
from fairseq_lxsr.files import locked
with locked(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_says_who_holds_it_and_ends_with_its_process(tmp_path):
    path = tmp_path / "new" / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        expected = rf"the folder: another run works in it \(process {holder.pid} on {socket.gethostname()}\); wait"
        with pytest.raises(InputError, match=expected), locked(path, "the folder"):
            pass
        holder.kill()
    with locked(path, "the folder"), pytest.raises(InputError, match=str(os.getpid())), locked(path, "the folder"):
        pass
    assert not path.exists()


def test_a_forked_process_does_not_hold_the_lock(tmp_path):
    with locked(tmp_path / "lock", "x"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path / "lock", "x"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between opening the file and taking the lock its holder may have ended, which removes the file."""
    path, taken = tmp_path / "lock", []
    flock = fcntl.flock

    def remove_first(lock, how):
        if not taken:
            path.unlink()
        taken.append(lock)
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked(path, "x"), pytest.raises(InputError), locked(path, "x"):
        pass
    assert len(taken) == 3


@pytest.mark.parametrize("content", [b"notes", b"process 12 on host\nnotes", b"process on host", b"x" * 10**6])
def test_a_file_that_is_no_lock_is_not_touched(tmp_path, content):
    path, linked = tmp_path / "x.lock", tmp_path / "link.lock"
    path.write_bytes(content)
    linked.symlink_to(path)
    with pytest.raises(InputError, match=r"x.lock: would be the lock, and is another file; move it"), locked(path, "x"):
        pass
    with pytest.raises(OSError, match="symbolic links"), locked(linked, "x"):
        pass
    assert path.read_bytes() == content
    assert linked.is_symlink()


@pytest.mark.parametrize("use", [atomic_write, atomic_folder, lambda path: locked(path.with_name("lock"), path)])
def test_a_path_without_permission_is_the_one_that_was_given(tmp_path, monkeypatch, use):
    """The names of temporary files and of locks say nothing."""

    def refuse(path, *others, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PermissionError) as caught, use(tmp_path / "given"):
        pass
    assert caught.value.filename == str(tmp_path / "given")


def test_a_file_within_that_cannot_be_written_is_the_one_that_was_given(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_folder(tmp_path / "given", "marker") as work:
        (work / "none" / "x").write_text("x")
    assert caught.value.filename == str(tmp_path / "given")


def test_a_lock_of_a_killed_process_is_taken(tmp_path):
    path = tmp_path / "lock"
    for left in ("", "process 12 on some-host.example"):
        path.write_text(left)
        with locked(path, "x"):
            assert path.read_text().startswith(f"process {os.getpid()} on ")
        assert not path.exists()


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_a_line_without_an_end_is_not_read(tmp_path, packed, monkeypatch):
    """No more of it is unpacked than a line may have."""
    path, record = tmp_path / f"text{packed}", 2**25
    monkeypatch.setattr(files, "RECORD_BYTES", record)
    with atomic_write(path) as stream:
        stream.write("one\n")
        for _ in range(4):
            stream.write("a" * 10**7)
    for read in (read_lines, partial(read_lines, max_words=None), lambda path: read_parallel(path, path)):
        tracemalloc.start()
        with pytest.raises(InputError, match=r"text.*, line 2: begins with b'aaaaa.* has more than [13]\S* bytes"):
            list(read(path))
        assert tracemalloc.get_traced_memory()[1] < 2.5 * record
        tracemalloc.stop()
    with pytest.raises(InputError, match="line 2: begins"):
        Lines(tmp_path / "text") if not packed else list(read_lines(path))


def test_a_line_of_just_the_length_is_read(tmp_path):
    for number in (SENTENCE_BYTES, SENTENCE_BYTES + 1):
        (tmp_path / "text").write_bytes(b"a" * (number - 1) + b"\n")
        if number > SENTENCE_BYTES:
            with pytest.raises(InputError, match=r"more than 1,048,576 bytes; expected one sentence a line"):
                list(read_lines(tmp_path / "text"))
        else:
            assert [len(line) for line in read_lines(tmp_path / "text")] == [number - 1]


def test_what_is_no_file(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is a folder; expected a file"):
        list(read_lines(tmp_path))
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where standard input is closed
    with pytest.raises(InputError, match="standard input is closed"):
        list(read_lines("-"))


@pytest.mark.parametrize(
    "line",
    ["", " ", "\u200b", "\u200e", "\u200f \u061c", "\u200c", "▁", chr(0xD800), "\ufffd", "a", "\u00ad", "👍", "."],
)
def test_a_blank_line_has_no_pieces(line):
    _, lengths = SentenceEncoder.from_pretrained("lxsr-nine").split([line])
    assert is_blank(line) == (lengths[0] == 0)


def test_text_as_one_line():
    assert one_line(" a\t\nb \ud800") == "a b ?"
