"""Resumable arrays, computed block by block on disk.

A rerun skips finished blocks.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.format import open_memmap

from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.records import Record, difference, open_array
from fairseq_lxsr.files.write import naming, remove_planted, reserve

LOCK_FILE = "lock"
WORK_MARKER = ".lxsr-work"
# Number of sentences to embed, and queries to search, before results are saved.
ENCODE_ROWS = 20_000
SEARCH_ROWS = 32_768
# Name under which `Record.counts` stores the checksum of the finished rows.
CRC = "crc32"
# Number of rows to read at a time when computing a checksum.
CHECKED_ROWS = 1 << 16
Compute = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Shape, type and settings of an array on disk; rows are along the first axis.

    Attributes:
        shape: shape of the array.
        dtype: type of an element, or of a row.
        settings: everything that the rows depend on.
    """

    shape: tuple[int, ...]
    dtype: Any
    settings: dict[str, Any]

    def fit(self, array: np.ndarray) -> bool:
        """Return whether an array has the expected shape and type."""
        return array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous


def resumable_array(
    path: Path, rows: Rows, compute: Compute, block: int, show_progress: bool = False
) -> np.ndarray:
    """Compute a memory-mapped .npy file block by block, or finish an interrupted one.

    Rows are written to PATH.partial. PATH.json records how many rows are safe on disk, their CRC-32
    and their settings. If the process is killed, the next call resumes there; the final bytes are
    the same if `compute` returns the same rows. Rows with other settings and damaged rows are
    recomputed.

    Args:
        path: output file.
        rows: shape, type and settings of the array.
        compute: returns the rows from start to stop (exclusive).
        block: number of rows to compute at a time.
        show_progress: show a progress bar.

    Returns:
        The complete array, memory-mapped.
    """
    partial = path.with_name(f"{path.name}.partial")
    record = path.with_name(f"{path.name}.json")
    for side_file in (partial, record):
        remove_planted(side_file)
    done, crc = _finished_rows(record, rows, show_progress)
    if done == rows.shape[0]:
        complete = _open_intact(path, "r", rows, done, crc)
        if complete is not None:
            return complete
    stored = _open_intact(partial, "r+", rows, done, crc) if done else None
    if stored is None:
        path.unlink(missing_ok=True)
        done = 0
        crc = 0
        stored = _new_array(partial, record, rows)
    with Progress(
        total=len(stored),
        initial=done,
        desc=path.stem,
        unit=" rows",
        disable=not show_progress,
    ) as bar:
        for start in range(done, len(stored), block):
            stop = min(start + block, len(stored))
            stored[start:stop] = compute(start, stop)
            stored.flush()
            crc = checksum(stored[start:stop], crc)
            Record(rows.settings, {"lines": stop, CRC: crc}).write(record)
            bar.update(stop - start)
    # Some systems do not rename a file that is still mapped.
    del stored
    partial.replace(path)
    return open_array(path)


def _new_array(partial: Path, record: Path, rows: Rows) -> np.memmap:
    """Create a file, and allocate space for all rows.

    Otherwise, writing to a mapped file on a full disk would kill the process.
    """
    # Otherwise the old record would be mistaken for the progress of the new rows.
    record.unlink(missing_ok=True)
    with naming(partial):
        array = open_memmap(partial, "w+", dtype=rows.dtype, shape=rows.shape)
    try:
        with naming(partial), open(partial, "r+b") as stream:
            reserve(stream, partial.stat().st_size)
    except OSError:
        partial.unlink()
        raise
    return array


def _finished_rows(record_file: Path, rows: Rows, show_progress: bool) -> tuple[int, int]:
    """Return the number of finished rows and their checksum; both 0 if they cannot be reused."""
    try:
        record = Record.read(record_file)
    except InputError as error:
        say(f"{error}; recomputing its rows")
        return 0, 0
    if record is None:
        return 0, 0
    differing = difference(record.settings, rows.settings)
    if differing:
        if show_progress:
            say(f"{record_file} is from a run with {differing}; recomputing its rows")
        return 0, 0
    if record.lines > rows.shape[0]:
        return 0, 0
    return record.lines, record.counts.get(CRC, 0)


def _open_intact(path: Path, mode: str, rows: Rows, done: int, crc: int) -> np.memmap | None:
    """Open an array if the checksum of its first `done` rows matches; return None otherwise."""
    array: np.memmap | None
    try:
        # `open_array` returns a `numpy.memmap` if it receives a path.
        array = cast(np.memmap, open_array(path, mode))
    except FileNotFoundError:
        return None
    except ValueError:
        array = None
    if array is None or not rows.fit(array) or checksum(array[:done]) != crc:
        say(f"{path} is damaged, or was written by an older version; recomputing its rows")
        return None
    return array


def is_intact(path: Path) -> bool:
    """Return whether an array is finished and its rows are undamaged."""
    with contextlib.suppress(OSError, ValueError):
        record = Record.read(path.with_name(f"{path.name}.json"))
        array = open_array(path)
        if record is None or not array.ndim or not array.flags.c_contiguous:
            return False
        return record.lines == len(array) and record.counts.get(CRC, 0) == checksum(array)
    return False


def checksum(rows: np.ndarray, crc: int = 0) -> int:
    """Return the CRC-32 of rows; `crc` is the checksum of the previous rows."""
    for start in range(0, len(rows), CHECKED_ROWS):
        block = np.ascontiguousarray(rows[start : start + CHECKED_ROWS])
        crc = zlib.crc32(block.view(np.uint8).data, crc)
    return crc


# -- work folders


@contextlib.contextmanager
def work_folder(folder: Path, verb: str, keep: bool = True) -> Iterator[None]:
    """Lock a new or existing work folder inside the block.

    Args:
        folder: folder to lock, and to create if it is missing.
        verb: the command. A folder of another command is rejected, because a run removes files
            that it does not need.
        keep: keep the folder when the work is done. If the work fails, the folder is kept if
            another run can resume from it.

    Raises:
        InputError: if another command created the folder, or another process is using it.
    """
    existed = folder.exists()
    if existed and not _belongs_to(folder, verb):
        raise InputError(
            f"{folder} exists and was not created by `lxsr {verb}`; choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_marker(folder, verb, remove=not existed)
    is_over = False
    try:
        with locked(folder / LOCK_FILE, folder):
            try:
                yield
                is_over = not keep
            except BaseException:
                is_over = not _can_resume(folder)
                raise
            finally:
                if is_over:
                    _empty(folder)
    finally:
        if is_over and not (keep and existed):
            # The folder is not empty if another run is already using it.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _write_marker(folder: Path, verb: str, remove: bool) -> None:
    """Write the name of the command into the folder. An interruption may leave an empty file.

    Args:
        folder: the work folder.
        verb: the command.
        remove: whether to remove the folder if writing fails, for example on a full disk.
    """
    marker = folder / WORK_MARKER
    try:
        with naming(marker):
            marker.write_text(verb, encoding="utf-8")
    except OSError:
        if remove:
            marker.unlink(missing_ok=True)
            folder.rmdir()
        raise


def _can_resume(folder: Path) -> bool:
    """Return whether a folder contains a result or a progress record for another run to reuse."""
    names = {path.name for path in folder.iterdir() if path.suffix != ".partial"}
    return bool(names - {WORK_MARKER, LOCK_FILE})


def _empty(folder: Path) -> None:
    """Remove all files except the lock."""
    # Remove the marker last, so that after an interruption this command accepts the folder.
    for path in sorted(folder.iterdir(), key=lambda path: path.name == WORK_MARKER):
        if path.name != LOCK_FILE:
            path.unlink()


def _belongs_to(folder: Path, verb: str) -> bool:
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    if not names - {LOCK_FILE}:
        return True
    if WORK_MARKER not in names:
        return False
    # An interruption may leave an empty marker.
    return (folder / WORK_MARKER).read_text("utf-8", "replace") in ("", verb)
