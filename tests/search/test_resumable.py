"""Arrays of long computations that continue after an interruption, and their work folders."""

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


def ones(start, stop):
    return 1


def numbers(start, stop):
    return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]


def must_not_compute(start, stop):
    pytest.fail("rows are computed")


def interrupted_at_row_40(start, stop):
    if start == 40:
        raise ZeroDivisionError
    return 1


def disk_is_full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", disk_is_full)
    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)
    assert not list(tmp_path.iterdir())


def test_a_work_folder_on_a_full_disk_is_removed_if_it_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_text", disk_is_full)
    work = tmp_path / "work"
    with pytest.raises(OSError, match=r"work/\.lxsr-work"), work_folder(work, "mine"):
        pytest.fail("the work begins")
    assert not work.exists()
    work.mkdir()
    with pytest.raises(OSError, match=r"work/\.lxsr-work"), work_folder(work, "mine"):
        pytest.fail("the work begins")
    assert work.exists()


def test_the_error_of_a_full_disk_names_the_array(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.resumable.open_memmap", disk_is_full)
    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)


def test_a_killed_computation_is_continued_to_the_same_bytes(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "x.npy")], env=os.environ, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    blocks = []

    def compute(start, stop):
        blocks.append((start, stop))
        return numbers(start, stop)

    array = resumable_array(tmp_path / "x.npy", ROWS, compute, block=10)

    assert blocks == [(40, 50), (50, 60), (60, 70), (70, 80), (80, 90), (90, 95)]
    np.testing.assert_array_equal(array, numbers(0, 95))
    resumable_array(tmp_path / "y.npy", ROWS, numbers, block=10)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"x.npy", "x.npy.json", "y.npy", "y.npy.json"}
    resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)


def test_rows_of_other_settings_or_shapes_are_not_used(tmp_path):
    path = tmp_path / "x.npy"
    old = Rows((95, 2), np.float32, {"k": 4})
    new = Rows((95, 2), np.float32, {"k": 5})
    resumable_array(path, old, numbers, block=10)
    with pytest.raises(ZeroDivisionError):
        resumable_array(path, new, interrupted_at_row_40, block=10)
    assert not path.exists()
    assert (resumable_array(path, new, ones, block=10) == 1).all()
    np.testing.assert_array_equal(resumable_array(path, old, numbers, block=10), numbers(0, 95))
    narrow = Rows((95, 1), np.float32, {"k": 4})
    assert resumable_array(path, narrow, ones, block=50).shape == (95, 1)


def test_files_that_are_not_resumable_arrays_are_replaced(tmp_path):
    path = tmp_path / "x.npy"
    for name in ("x.npy", "x.npy.json"):
        for content in (
            b"",
            b"PK\x03\x04",
            b"{",
            b'{"settings": {}, "counts": {"lines": "95"}, "text": ""}',
        ):
            resumable_array(path, ROWS, ones, block=10)
            (tmp_path / name).write_bytes(content)
            assert (resumable_array(path, ROWS, ones, block=10) == 1).all()


def test_a_work_folder_in_use_is_refused(tmp_path):
    for keep in (True, True, False):
        with work_folder(tmp_path / "work", "mine", keep):
            (tmp_path / "work" / "rows").touch()
            with pytest.raises(InputError, match=rf"work: .*\(process {os.getpid()} on"):
                work_folder(tmp_path / "work", "mine").__enter__()
    assert not list(tmp_path.iterdir())


def test_other_folders_and_files_are_refused_as_work_folders(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match=folder.name):
            work_folder(folder, "mine", keep=False).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_work_folder_of_another_command_is_refused(tmp_path):
    with work_folder(tmp_path / "work", "embed"):
        (tmp_path / "work" / "rows").touch()
    with pytest.raises(InputError, match="work exists"):
        work_folder(tmp_path / "work", "index").__enter__()
    assert (tmp_path / "work" / "rows").exists()
    # An interrupted command may leave the file empty.
    (tmp_path / "work" / ".lxsr-work").write_text("")
    with work_folder(tmp_path / "work", "index"):
        pass


STARTED = {"work", ".lxsr-work", "x.npy.partial", "x.npy.json"}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("failing_row", "expected_names"), [(0, set()), (10, STARTED)])
def test_a_failure_leaves_only_rows_to_continue_with(tmp_path, keep, failing_row, expected_names):
    def fail(start, stop):
        if start == failing_row:
            raise ZeroDivisionError
        return 1

    with pytest.raises(ZeroDivisionError), work_folder(tmp_path / "work", "mine", keep):
        resumable_array(tmp_path / "work" / "x.npy", ROWS, fail, block=10)
    assert {path.name for path in tmp_path.rglob("*")} == expected_names


def test_a_failure_empties_a_folder_that_was_empty(tmp_path):
    with pytest.raises(ZeroDivisionError), work_folder(tmp_path, "mine"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_an_array_with_a_flipped_bit_is_computed_again(tmp_path, name, capsys):
    """Anywhere in the header, the rows or the description."""
    rows = Rows((50, 2), np.dtype([("a", np.float32, (2,)), ("b", np.int64)]), {"k": 4})
    path = tmp_path / "x.npy"

    def compute(start, stop):
        block = np.zeros((stop - start, 2), rows.dtype)
        block["b"] = np.arange(start, stop)[:, None]
        return block

    expected = resumable_array(path, rows, compute, block=20)
    content = (tmp_path / name).read_bytes()
    num_recomputed = 0
    for position in range(0, len(content), 1 + len(content) // 60):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / name).write_bytes(damaged)
        was_intact = is_intact(path)
        assert (resumable_array(path, rows, compute, block=20) == expected).all()
        is_recomputed = "recomputing" in capsys.readouterr().err
        assert is_recomputed or was_intact or name == "x.npy.json"
        num_recomputed += is_recomputed
        assert is_intact(path)
    assert num_recomputed > 20


def test_damaged_rows_of_an_interrupted_run_are_computed_again(tmp_path, capsys):
    path = tmp_path / "x.npy"
    partial = tmp_path / "x.npy.partial"
    with pytest.raises(ZeroDivisionError):
        resumable_array(path, ROWS, interrupted_at_row_40, block=10)
    content = partial.read_bytes()
    # The last row was not yet computed, so its damage changes nothing.
    partial.write_bytes(content[:-1] + b"\7")
    assert (resumable_array(path, ROWS, ones, block=10) == 1).all()
    assert "x.npy.partial is damaged" not in capsys.readouterr().err
    path.unlink()

    with pytest.raises(ZeroDivisionError):
        resumable_array(path, ROWS, interrupted_at_row_40, block=10)
    partial.write_bytes(content[:200] + b"\7" + content[201:])
    assert (resumable_array(path, ROWS, ones, block=10) == 1).all()
    assert capsys.readouterr().err.count("x.npy.partial is damaged") == 1


@pytest.mark.parametrize("suffix", ["partial", "json"])
def test_links_and_pipes_next_to_an_array_are_neither_read_nor_written(tmp_path, suffix):
    victim = tmp_path / "victim"
    for number, create in enumerate((os.symlink, os.link, lambda _, path: os.mkfifo(path))):
        victim.write_bytes(b"precious")
        path = tmp_path / f"x{number}.npy"
        create(victim, tmp_path / f"x{number}.npy.{suffix}")
        array = resumable_array(path, ROWS, lambda start, stop: start, block=50)
        assert (array[0, 0], array[94, 1]) == (0, 50)
        assert victim.read_bytes() == b"precious"
        assert not path.is_symlink()
