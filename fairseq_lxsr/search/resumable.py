"""Arrays computed block by block on disk: what was finished before an interruption is not computed again."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from tqdm import tqdm

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write, naming


def resumable_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: Any,
    compute: Callable[[int, int], np.ndarray],
    block: int,
    show_progress: bool = False,
) -> np.ndarray:
    """A memory-mapped .npy whose rows start to stop are `compute(start, stop)`.

    Rows are written to PATH.partial, and PATH.progress counts those that are safe on disk; after a kill at any moment
    the next call goes on from there, with the same final bytes as long as `compute` gives the same rows.
    """
    if not path.exists():
        partial, progress = path.with_name(f"{path.name}.partial"), path.with_name(f"{path.name}.progress")
        done = _rows_done(partial, progress)
        rows = open_memmap(partial, "r+") if done else _new_array(partial, progress, dtype, shape)
        bar = tqdm(total=len(rows), initial=done, desc=path.stem, unit=" rows", disable=None if show_progress else True)
        with bar:
            for start in range(done, len(rows), block):
                stop = min(start + block, len(rows))
                rows[start:stop] = compute(start, stop)
                rows.flush()
                with atomic_write(progress) as stream:
                    stream.write(json.dumps({"rows": stop}))
                bar.update(stop - start)
        del rows
        partial.replace(path)
        progress.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _new_array(partial: Path, progress: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A file with room for all rows: writing to a mapped one on a full disk would kill the process."""
    progress.unlink(missing_ok=True)
    rows = open_memmap(partial, "w+", dtype=dtype, shape=shape)
    try:
        with naming(partial), open(partial, "r+b") as stream:
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(stream.fileno(), 0, partial.stat().st_size)
    except OSError:
        partial.unlink()
        raise
    return rows


def _rows_done(partial: Path, progress: Path) -> int:
    if not (partial.exists() and progress.exists()):
        return 0
    try:
        return int(json.loads(progress.read_text(encoding="utf-8"))["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{progress}: not a count of rows ({error!r}); delete it to start this step again") from None


def claim_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Make a work folder, or take up one that was made with the same settings.

    Raises: InputError naming the setting that differs.
    """
    marker = folder / "settings.json"
    if marker.exists():
        try:
            old = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            old = None
        if not isinstance(old, dict):
            raise InputError(f"{marker}: not the settings of an earlier run; delete {folder}")
        for name in settings | old:
            if old.get(name) != settings.get(name):
                raise InputError(
                    f"{folder} is from a run with {name} {old.get(name)!r}, now {settings.get(name)!r}; delete it or "
                    "choose another --work"
                )
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: exists and is no work folder of this command; choose another --work")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(marker) as stream:
            stream.write(json.dumps(settings, indent=2) + "\n")
