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

NUM_ROWS = 95
ROWS = Rows((NUM_ROWS, 2), np.float32, {})
# A program that computes the rows of `numbers` and kills itself before row 40.
KILLED_PROGRAM = """
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
    """Compute (N, 2N) for row N."""
    return np.arange(start, stop, dtype=np.float32)[:, None] * [1, 2]


def must_not_compute(start, stop):
    """Stands for a computation that must not be done."""
    pytest.fail("rows are computed")


def interrupted_at_row_40(start, stop):
    if start == 40:
        raise ZeroDivisionError
    return 1


def disk_is_full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_before_anything_is_computed_or_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", disk_is_full)

    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
def test_a_work_folder_on_a_full_disk_is_removed_if_it_is_new(tmp_path, monkeypatch, is_new):
    work = tmp_path / "work"
    if not is_new:
        work.mkdir()
    monkeypatch.setattr(Path, "write_text", disk_is_full)

    with pytest.raises(OSError, match=r"work/\.lxsr-work"), work_folder(work, "mine"):
        pytest.fail("the work begins")

    assert work.exists() == (not is_new)


def test_the_error_of_a_disk_that_is_full_at_the_header_names_the_array(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.resumable.open_memmap", disk_is_full)

    with pytest.raises(OSError, match=r"x\.npy\.partial"):
        resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)


def test_a_killed_computation_is_continued_to_the_same_bytes(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_PROGRAM, str(tmp_path / "x.npy")],
        env=os.environ,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.npy").exists()
    blocks = []

    def recording_numbers(start, stop):
        blocks.append((start, stop))
        return numbers(start, stop)

    array = resumable_array(tmp_path / "x.npy", ROWS, recording_numbers, block=10)

    # The first 40 rows are not computed again.
    assert blocks == [(40, 50), (50, 60), (60, 70), (70, 80), (80, 90), (90, 95)]
    np.testing.assert_array_equal(array, numbers(0, NUM_ROWS))
    resumable_array(tmp_path / "y.npy", ROWS, numbers, block=10)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"x.npy", "x.npy.json", "y.npy", "y.npy.json"}


def test_a_complete_array_is_not_computed_again(tmp_path):
    resumable_array(tmp_path / "x.npy", ROWS, numbers, block=10)

    array = resumable_array(tmp_path / "x.npy", ROWS, must_not_compute, block=10)

    np.testing.assert_array_equal(array, numbers(0, NUM_ROWS))


@pytest.fixture
def other_settings(tmp_path):
    """The path of a complete array with the setting k = 4, and the same rows with k = 5."""
    path = tmp_path / "x.npy"
    resumable_array(path, Rows((NUM_ROWS, 2), np.float32, {"k": 4}), numbers, block=10)
    return path, Rows((NUM_ROWS, 2), np.float32, {"k": 5})


def test_an_interrupted_computation_with_other_settings_leaves_no_array(other_settings):
    path, rows = other_settings

    with pytest.raises(ZeroDivisionError):
        resumable_array(path, rows, interrupted_at_row_40, block=10)

    assert not path.exists()


def test_rows_of_other_settings_are_not_used(other_settings):
    path, rows = other_settings

    array = resumable_array(path, rows, ones, block=10)

    assert (array == 1).all()


def test_rows_of_an_interrupted_computation_with_other_settings_are_not_used(other_settings):
    path, rows = other_settings
    with pytest.raises(ZeroDivisionError):
        resumable_array(path, rows, interrupted_at_row_40, block=10)

    # The settings are those of the first computation again.
    array = resumable_array(path, Rows((NUM_ROWS, 2), np.float32, {"k": 4}), numbers, block=10)

    np.testing.assert_array_equal(array, numbers(0, NUM_ROWS))


def test_rows_of_another_shape_are_not_used(other_settings):
    path, _ = other_settings
    narrow = Rows((NUM_ROWS, 1), np.float32, {"k": 4})

    array = resumable_array(path, narrow, ones, block=50)

    assert array.shape == (NUM_ROWS, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"{",
        b'{"settings": {}, "counts": {"lines": "95"}, "text": ""}',
    ],
    ids=["empty", "zip", "half json", "other json"],
)
@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_an_array_is_computed_again_if_it_or_its_description_is_another_file(
    tmp_path, name, content
):
    resumable_array(tmp_path / "x.npy", ROWS, numbers, block=10)
    (tmp_path / name).write_bytes(content)

    array = resumable_array(tmp_path / "x.npy", ROWS, ones, block=10)

    assert (array == 1).all()


def test_a_work_folder_in_use_is_refused(tmp_path):
    # The folder is new, then kept from an earlier command, then removed at the end.
    for keep in (True, True, False):
        with work_folder(tmp_path / "work", "mine", keep):
            (tmp_path / "work" / "rows").touch()

            with pytest.raises(InputError, match=rf"work: .*\(process {os.getpid()} on"):
                work_folder(tmp_path / "work", "mine").__enter__()


@pytest.mark.parametrize("keep", [True, False])
def test_a_work_folder_is_kept_at_the_end_if_asked_for(tmp_path, keep):
    with work_folder(tmp_path / "work", "mine", keep):
        (tmp_path / "work" / "rows").touch()

    assert (tmp_path / "work").exists() == keep
    # The lock is removed.
    assert {path.name for path in tmp_path.iterdir()} <= {"work"}


@pytest.mark.parametrize("name", ["own", "own/text"], ids=["folder", "file"])
def test_other_folders_and_files_are_refused_as_work_folders_and_not_changed(tmp_path, name):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "text").write_text("text")

    with pytest.raises(InputError, match=name):
        work_folder(tmp_path / name, "mine", keep=False).__enter__()

    assert [path.name for path in (tmp_path / "own").iterdir()] == ["text"]


def test_the_work_folder_of_another_command_is_refused_and_not_changed(tmp_path):
    with work_folder(tmp_path / "work", "embed"):
        (tmp_path / "work" / "rows").touch()

    with pytest.raises(InputError, match="work exists"):
        work_folder(tmp_path / "work", "index").__enter__()

    assert (tmp_path / "work" / "rows").exists()


def test_a_work_folder_without_the_name_of_a_command_is_used(tmp_path):
    """An interrupted command may leave the file with its name empty."""
    with work_folder(tmp_path / "work", "embed"):
        (tmp_path / "work" / "rows").touch()
    (tmp_path / "work" / ".lxsr-work").write_text("")

    with work_folder(tmp_path / "work", "index"):
        pass


# The files of a computation that has stored a block.
STARTED = {"work", ".lxsr-work", "x.npy.partial", "x.npy.json"}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("failing_row", "expected_names"),
    [(0, set()), (10, STARTED)],
    ids=["first block", "second block"],
)
def test_a_failure_leaves_a_work_folder_only_if_it_has_rows_to_continue_with(
    tmp_path, keep, failing_row, expected_names
):
    def fail_at_row(start, stop):
        if start == failing_row:
            raise ZeroDivisionError
        return 1

    with pytest.raises(ZeroDivisionError), work_folder(tmp_path / "work", "mine", keep):
        resumable_array(tmp_path / "work" / "x.npy", ROWS, fail_at_row, block=10)

    assert {path.name for path in tmp_path.rglob("*")} == expected_names


def test_a_failure_leaves_a_work_folder_empty_that_was_empty_before(tmp_path):
    with pytest.raises(ZeroDivisionError), work_folder(tmp_path, "mine"):
        raise ZeroDivisionError

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_an_array_with_a_flipped_bit_is_noticed_and_computed_again(tmp_path, name, capsys):
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
    # About 60 positions.
    for position in range(0, len(content), 1 + len(content) // 60):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / name).write_bytes(damaged)
        was_intact = is_intact(path)

        array = resumable_array(path, rows, compute, block=20)

        assert (array == expected).all()
        assert is_intact(path)
        is_recomputed = "recomputing" in capsys.readouterr().err
        # A bit of the description may be in a field that does not count.
        assert is_recomputed or was_intact or name == "x.npy.json"
        num_recomputed += is_recomputed
    assert num_recomputed > 20


@pytest.fixture
def interrupted(tmp_path):
    """An array of which the first 40 rows are computed, and the file with them."""
    with pytest.raises(ZeroDivisionError):
        resumable_array(tmp_path / "x.npy", ROWS, interrupted_at_row_40, block=10)
    return tmp_path / "x.npy", tmp_path / "x.npy.partial"


def test_damaged_rows_of_an_interrupted_run_are_reported_and_computed_again(interrupted, capsys):
    path, partial = interrupted
    content = bytearray(partial.read_bytes())
    # The header has 128 bytes and a row 8, so this is row 9.
    content[200] = 7
    partial.write_bytes(content)

    array = resumable_array(path, ROWS, ones, block=10)

    assert (array == 1).all()
    assert capsys.readouterr().err.count("x.npy.partial is damaged") == 1


def test_damage_beyond_the_computed_rows_of_an_interrupted_run_is_not_reported(interrupted, capsys):
    path, partial = interrupted
    content = bytearray(partial.read_bytes())
    # In the last row, which was not yet computed.
    content[-1] = 7
    partial.write_bytes(content)

    array = resumable_array(path, ROWS, ones, block=10)

    assert (array == 1).all()
    assert "x.npy.partial is damaged" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "plant",
    [os.symlink, os.link, lambda _, path: os.mkfifo(path)],
    ids=["symlink", "hard link", "pipe"],
)
@pytest.mark.parametrize("suffix", ["partial", "json"])
def test_links_and_pipes_planted_next_to_an_array_are_neither_read_nor_written(
    tmp_path, suffix, plant
):
    """Another user of a shared folder may plant them."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / "x.npy"
    plant(victim, tmp_path / f"x.npy.{suffix}")

    def first_row_of_block(start, stop):
        return start

    array = resumable_array(path, ROWS, first_row_of_block, block=50)

    # The first and the second block.
    assert array[0, 0] == 0
    assert array[94, 1] == 50
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()
