"""Arrays that are computed block by block on disk; after an interruption finished blocks are not computed again."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.records import Record, difference, open_array
from fairseq_lxsr.files.write import naming, reserve

LOCK_FILE, WORK_MARKER = "lock", ".lxsr-work"
ENCODE_ROWS, SEARCH_ROWS = 20_000, 32_768  # sentences, queries between two points at which work is saved
Compute = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Description of an array on disk, whose rows lie along the first axis."""

    shape: tuple[int, ...]
    dtype: Any  # of an element, or of a row
    settings: dict[str, Any]  # all that the rows depend on

    def fit(self, array: np.ndarray) -> bool:
        return array.shape == self.shape and array.dtype == self.dtype


def resumable_array(path: Path, rows: Rows, compute: Compute, block: int, show_progress: bool = False) -> np.ndarray:
    """Compute a memory-mapped .npy whose rows start to stop are `compute(start, stop)`.

    Rows are written to PATH.partial, and PATH.json records how many are safe on disk and their settings. After a kill
    at any moment the next call resumes there, and gives the same final bytes if `compute` gives the same rows. Rows of
    other settings are computed again.
    """
    partial, record = (path.with_name(f"{path.name}.{end}") for end in ("partial", "json"))
    done = _rows_done(record, rows, show_progress)
    whole = _opened(path, "r", rows) if done == rows.shape[0] else None
    if whole is not None:
        return whole
    stored = _opened(partial, "r+", rows) if done else None
    if stored is None:
        path.unlink(missing_ok=True)
        done, stored = 0, _new_array(partial, record, rows)
    bar = tqdm(total=len(stored), initial=done, desc=path.stem, unit=" rows", disable=None if show_progress else True)
    with bar:
        for start in range(done, len(stored), block):
            stop = min(start + block, len(stored))
            stored[start:stop] = compute(start, stop)
            stored.flush()
            Record(rows.settings, {"lines": stop}).write(record)
            bar.update(stop - start)
    del stored
    partial.replace(path)
    return open_array(path)


def _new_array(partial: Path, record: Path, rows: Rows) -> np.memmap:
    """Create a file with space for all rows, because writing to a mapped file on a full disk would kill the process."""
    record.unlink(missing_ok=True)  # else it would be taken for the record of the new rows
    array = open_memmap(partial, "w+", dtype=rows.dtype, shape=rows.shape)
    try:
        with naming(partial), open(partial, "r+b") as stream:
            reserve(stream, partial.stat().st_size)
    except OSError:
        partial.unlink()
        raise
    return array


def _rows_done(record: Path, rows: Rows, show_progress: bool) -> int:
    """Return the number of rows that are finished."""
    try:
        found = Record.read(record)
    except InputError:
        found = None
    differing = difference(found.settings, rows.settings) if found else None
    if differing and show_progress:
        print(f"{record}: from a run with {differing}; these rows are computed anew", file=sys.stderr)
    return 0 if found is None or differing or found.lines > rows.shape[0] else found.lines


def _opened(path: Path, mode: str, rows: Rows) -> np.memmap | None:
    try:
        array = open_array(path, mode)
    except (FileNotFoundError, ValueError):
        return None
    return array if rows.fit(array) else None


@contextlib.contextmanager
def work_folder(folder: Path, verb: str, keep: bool = True) -> Iterator[None]:
    """Lock a work folder inside the block; the folder is new or from an earlier run.

    A folder of another `verb` is refused, because a run removes what it does not need. When the work is done, the
    folder stays with `keep`; when it fails, if anything is in it that another run can resume from.
    """
    there, over = folder.exists(), False
    if there and not _is_of(folder, verb):
        raise InputError(f"{folder}: exists and is not a folder of this command; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WORK_MARKER).write_text(verb, encoding="utf-8")  # where it is interrupted, the file is empty
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
    return any(path.suffix != ".partial" and path.name not in (WORK_MARKER, LOCK_FILE) for path in folder.iterdir())


def _empty(folder: Path) -> None:
    for path in sorted(folder.iterdir(), key=lambda path: path.name == WORK_MARKER):  # the marker comes last
        if path.name != LOCK_FILE:
            path.unlink()


def _is_of(folder: Path, verb: str) -> bool:
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    marker = folder / WORK_MARKER  # empty in a folder of an older version
    return not names - {LOCK_FILE} or (WORK_MARKER in names and marker.read_text("utf-8", "replace") in ("", verb))
