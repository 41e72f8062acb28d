"""Arrays that are computed block by block on disk; after an interruption finished blocks are not
computed again.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.records import Record, difference, open_array
from fairseq_lxsr.files.write import naming, remove_planted, reserve

LOCK_FILE, WORK_MARKER = "lock", ".lxsr-work"
# sentences, queries between two points at which work is saved
ENCODE_ROWS, SEARCH_ROWS = (20_000, 32_768)
CRC = "crc32"  # of all finished rows, among the counts of a record
CHECKED_ROWS = 1 << 16  # rows that are read at once to check them
Compute = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Description of an array on disk, whose rows lie along the first axis."""

    shape: tuple[int, ...]
    dtype: Any  # of an element, or of a row
    settings: dict[str, Any]  # all that the rows depend on

    def fit(self, array: np.ndarray) -> bool:
        return array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous


def resumable_array(
    path: Path, rows: Rows, compute: Compute, block: int, show_progress: bool = False
) -> np.ndarray:
    """Compute a memory-mapped .npy whose rows start to stop are `compute(start, stop)`.

    Rows are written to PATH.partial, and PATH.json records how many are safe on disk, their CRC-32
    and their settings. After a kill at any moment the next call resumes there, and gives the same
    final bytes if `compute` gives the same rows. Rows of other settings are computed again, and so
    are damaged ones.
    """
    partial, record = (path.with_name(f"{path.name}.{end}") for end in ("partial", "json"))
    for side in (partial, record):
        remove_planted(side)
    done, crc = _rows_done(record, rows, show_progress)
    whole = _opened(path, "r", rows, done, crc) if done == rows.shape[0] else None
    if whole is not None:
        return whole
    stored = _opened(partial, "r+", rows, done, crc) if done else None
    if stored is None:
        path.unlink(missing_ok=True)
        done, crc, stored = 0, 0, _new_array(partial, record, rows)
    hidden = None if show_progress else True
    with Progress(
        total=len(stored), initial=done, desc=path.stem, unit=" rows", disable=hidden
    ) as bar:
        for start in range(done, len(stored), block):
            stop = min(start + block, len(stored))
            stored[start:stop] = compute(start, stop)
            stored.flush()
            crc = checksum(stored[start:stop], crc)
            Record(rows.settings, {"lines": stop, CRC: crc}).write(record)
            bar.update(stop - start)
    del stored
    partial.replace(path)
    return open_array(path)


def _new_array(partial: Path, record: Path, rows: Rows) -> np.memmap:
    """Create a file with space for all rows, because writing to a mapped file on a full disk would
    kill the process.
    """
    record.unlink(missing_ok=True)  # else it would be taken for the record of the new rows
    array = open_memmap(partial, "w+", dtype=rows.dtype, shape=rows.shape)
    try:
        with naming(partial), open(partial, "r+b") as stream:
            reserve(stream, partial.stat().st_size)
    except OSError:
        partial.unlink()
        raise
    return array


def _rows_done(record: Path, rows: Rows, show_progress: bool) -> tuple[int, int]:
    """Return the number of rows that are finished, and their checksum."""
    try:
        found = Record.read(record)
    except InputError as error:
        say(f"{error}; these rows are computed again")
        found = None
    differing = difference(found.settings, rows.settings) if found else None
    if differing and show_progress:
        say(f"{record}: from a run with {differing}; these rows are computed anew")
    usable = found is not None and not differing and found.lines <= rows.shape[0]
    return (found.lines, found.counts.get(CRC, 0)) if found and usable else (0, 0)


def _opened(path: Path, mode: str, rows: Rows, done: int, crc: int) -> np.memmap | None:
    """Open rows of which the first `done` have a checksum; None where there are no such rows, or
    they are damaged.
    """
    try:
        array = open_array(path, mode)
    except FileNotFoundError:
        return None
    except ValueError:
        array = None
    if array is None or not rows.fit(array) or checksum(array[:done]) != crc:
        say(f"{path}: damaged, or of an older version; these rows are computed again")
        return None
    return array


def is_intact(path: Path) -> bool:
    """Return whether all rows of a finished array are as they were computed."""
    with contextlib.suppress(OSError, ValueError):
        record = Record.read(path.with_name(f"{path.name}.json"))
        return (
            record is not None
            and record.lines == len(open_array(path))
            and rows_are_intact(path, record.counts)
        )
    return False


def rows_are_intact(path: Path, counts: Mapping[str, Any]) -> bool:
    """Return whether the finished rows of an array have the checksum that its record counts."""
    with contextlib.suppress(OSError, ValueError):
        array, lines = open_array(path), counts.get("lines", 0)
        whole = array.ndim and array.flags.c_contiguous and lines <= len(array)
        return bool(whole) and counts.get(CRC, 0) == checksum(array[:lines])
    return False


def checksum(rows: np.ndarray, before: int = 0) -> int:
    """Return the CRC-32 of rows; `before` is that of the rows before them."""
    for start in range(0, len(rows), CHECKED_ROWS):
        before = zlib.crc32(
            np.ascontiguousarray(rows[start : start + CHECKED_ROWS]).view(np.uint8).data, before
        )
    return before


@contextlib.contextmanager
def work_folder(folder: Path, verb: str, keep: bool = True) -> Iterator[None]:
    """Lock a work folder inside the block; the folder is new or from an earlier run.

    A folder of another `verb` is refused, because a run removes what it does not need. When the
    work is done, the folder stays with `keep`; when it fails, if anything is in it that another run
    can resume from.
    """
    there, over = folder.exists(), False
    if there and not _is_of(folder, verb):
        raise InputError(
            f"{folder}: exists and is not a folder of this command; choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # where it is interrupted, the file is empty
    (folder / WORK_MARKER).write_text(verb, encoding="utf-8")
    try:
        with locked(folder / LOCK_FILE, folder):
            try:
                yield
                over = not keep
            except BaseException:
                over = not _can_resume(folder)
                raise
            finally:
                if over:
                    _empty(folder)
    finally:
        if over and not (keep and there):
            with contextlib.suppress(OSError):  # the next run may use it already
                folder.rmdir()


def _can_resume(folder: Path) -> bool:
    """Return whether a folder has more than rows that no record calls finished."""
    return any(
        path.suffix != ".partial" and path.name not in (WORK_MARKER, LOCK_FILE)
        for path in folder.iterdir()
    )


def _empty(folder: Path) -> None:
    # the marker comes last
    for path in sorted(folder.iterdir(), key=lambda path: path.name == WORK_MARKER):
        if path.name != LOCK_FILE:
            path.unlink()


def _is_of(folder: Path, verb: str) -> bool:
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    marker = folder / WORK_MARKER  # empty in a folder of an older version
    return not names - {LOCK_FILE} or (
        WORK_MARKER in names and marker.read_text("utf-8", "replace") in ("", verb)
    )
