"""Work that survives kill -9."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.resumable import Rows, is_intact, resumable_array, work_folder

ROWS = Rows((95, 2), np.float32, {})
SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from fairseq_lxsr.search.resumable import Rows, resumable_array

def compute(start, stop):
    if start >= 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]

resumable_array(Path(sys.argv[1]), Rows((95, 2), np.float32, {}), compute, block=10)
"""


def test_a_full_disk_is_an_error_before_anything_is_computed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, lambda *_: pytest.fail("computed"), block=10)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_has_no_room_for_the_work_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    for existed in (False, True):
        work = tmp_path / "work"
        with pytest.raises(OSError, match=r"work/\.lxsr-work"), work_folder(work, "mine"):
            pytest.fail("begun")
        assert work.exists() == existed
        work.mkdir(exist_ok=True)


def test_a_full_disk_names_the_array(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fairseq_lxsr.search.resumable.open_memmap", full)
    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, lambda *_: pytest.fail("computed"), block=10)


def test_goes_on_after_kill_with_the_same_bytes(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "x.npy")], env=os.environ, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    asked = []

    def compute(start, stop):
        asked.append((start, stop))
        return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]

    found = resumable_array(tmp_path / "x.npy", ROWS, compute, block=10)
    assert asked == [(40, 50), (50, 60), (60, 70), (70, 80), (80, 90), (90, 95)]
    resumable_array(tmp_path / "y.npy", ROWS, compute, block=10)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    np.testing.assert_array_equal(found, np.arange(95)[:, None] * [1, 2])
    assert {path.name for path in tmp_path.iterdir()} == {
        "x.npy",
        "x.npy.json",
        "y.npy",
        "y.npy.json",
    }
    resumable_array(tmp_path / "x.npy", ROWS, lambda *_: pytest.fail("was there"), block=10)


def test_rows_of_other_settings_are_computed_anew(tmp_path):
    def numbers(first):
        return lambda start, stop: (
            np.arange(first + start, first + stop, dtype=np.float32)[:, None] * [1, 1]
        )

    def stopped(start, stop):
        if start == 40:
            raise ZeroDivisionError
        return numbers(500)(start, stop)

    old, new = Rows((95, 2), np.float32, {"k": 4}), Rows((95, 2), np.float32, {"k": 5})
    resumable_array(tmp_path / "x.npy", old, numbers(0), block=10)
    with pytest.raises(ZeroDivisionError):
        resumable_array(tmp_path / "x.npy", new, stopped, block=10)
    assert not (tmp_path / "x.npy").exists()
    assert resumable_array(tmp_path / "x.npy", new, numbers(500), block=10)[0, 0] == 500
    assert resumable_array(tmp_path / "x.npy", old, numbers(0), block=10)[94, 0] == 94
    assert resumable_array(
        tmp_path / "x.npy", Rows((95, 1), np.float32, {"k": 4}), lambda *_: 7, 50
    ).shape == (95, 1)


@pytest.mark.parametrize("spoilt", ["x.npy", "x.npy.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"{", b'{"settings": {}, "counts": {"lines": "95"}, "text": ""}'],
)
def test_what_is_no_work_of_ours_is_computed_anew(tmp_path, spoilt, content):
    resumable_array(tmp_path / "x.npy", ROWS, lambda start, stop: 1, block=10)
    (tmp_path / spoilt).write_bytes(content)
    assert (resumable_array(tmp_path / "x.npy", ROWS, lambda start, stop: 1, block=10) == 1).all()


def test_a_folder_belongs_to_one_command(tmp_path):
    for keep in (True, True, False):  # also a second time
        with work_folder(tmp_path / "work", "mine", keep):
            (tmp_path / "work" / "rows").touch()
            with pytest.raises(InputError, match=rf"work: .*\(process {os.getpid()} on"):
                work_folder(tmp_path / "work", "mine").__enter__()
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match=folder.name):
            work_folder(folder, "mine", keep=False).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with work_folder(tmp_path / "work", "embed"):
        (tmp_path / "work" / "rows").touch()
    with pytest.raises(InputError, match="work exists"):
        work_folder(tmp_path / "work", "index").__enter__()
    assert (tmp_path / "work" / "rows").exists()
    (tmp_path / "work" / ".lxsr-work").write_text("")  # of an older version, or interrupted
    with work_folder(tmp_path / "work", "index"):
        pass


STARTED = {"work", ".lxsr-work", "x.npy.partial", "x.npy.json"}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("computed", "left"), [(0, set()), (10, STARTED)])
def test_a_failure_leaves_what_can_be_resumed_and_nothing_else(tmp_path, keep, computed, left):
    def fail(start, stop):
        if start == computed:
            raise ZeroDivisionError
        return 1

    with pytest.raises(ZeroDivisionError), work_folder(tmp_path / "work", "mine", keep):
        resumable_array(tmp_path / "work" / "x.npy", ROWS, fail, block=10)
    assert {path.name for path in tmp_path.rglob("*")} == left
    (tmp_path / "there").mkdir()
    with pytest.raises(ZeroDivisionError), work_folder(tmp_path / "there", "mine"):
        raise ZeroDivisionError
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("spoilt", ["x.npy", "x.npy.json"])
def test_a_flipped_bit_is_computed_again(tmp_path, spoilt, capsys):
    """In any place: the shape, the order of the numbers, a number, the number of rows, the
    settings, the checksum.
    """
    rows = Rows((50, 2), np.dtype([("a", np.float32, (2,)), ("b", np.int64)]), {"k": 4})

    def compute(start, stop):
        block = np.zeros((stop - start, 2), rows.dtype)
        block["b"] = np.arange(start, stop)[:, None]
        return block

    good = resumable_array(tmp_path / "x.npy", rows, compute, block=20)
    content, said = (tmp_path / spoilt).read_bytes(), 0
    for place in range(0, len(content), 1 + len(content) // 60):
        (tmp_path / spoilt).write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        whole = is_intact(tmp_path / "x.npy")
        assert (resumable_array(tmp_path / "x.npy", rows, compute, block=20) == good).all()
        again = "recomputing" in capsys.readouterr().err
        assert again or whole or spoilt == "x.npy.json"
        said += again
        assert is_intact(tmp_path / "x.npy")
    assert said > 20


def test_damaged_rows_of_an_interrupted_run_are_computed_again(tmp_path, capsys):
    def stopped(start, stop):
        if start == 40:
            raise ZeroDivisionError
        return 1

    path = tmp_path / "x.npy"
    for spoil in (
        lambda content: content[:-1] + b"\7",
        lambda content: content[:200] + b"\7" + content[201:],
    ):
        with pytest.raises(ZeroDivisionError):
            resumable_array(path, ROWS, stopped, block=10)
        partial = tmp_path / "x.npy.partial"
        partial.write_bytes(spoil(partial.read_bytes()))
        assert (resumable_array(path, ROWS, lambda start, stop: 1, block=10) == 1).all()
        path.unlink()
    # rows that nobody had counted are not
    assert capsys.readouterr().err.count("x.npy.partial is damaged") == 1


@pytest.mark.parametrize("end", ["partial", "json"])
def test_what_was_planted_beside_an_array_is_never_used(tmp_path, end):
    victim = tmp_path / "victim"
    for number, plant in enumerate((os.symlink, os.link, lambda _, path: os.mkfifo(path))):
        victim.write_bytes(b"precious")
        plant(victim, tmp_path / f"x{number}.npy.{end}")
        array = resumable_array(
            tmp_path / f"x{number}.npy", ROWS, lambda start, stop: start, block=50
        )
        assert (array[0, 0], array[94, 1]) == (0, 50)
        assert victim.read_bytes() == b"precious"
        assert not (tmp_path / f"x{number}.npy").is_symlink()
