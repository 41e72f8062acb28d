"""Writes embeddings of any number of lines to one file, in constant memory; an interrupted run can resume."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from fairseq_lxsr.embeddings.codes import Calibration
from fairseq_lxsr.embeddings.formats import Layout, find_format
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import Record, difference, is_count, parse_json
from fairseq_lxsr.files.write import atomic_write, check_replaceable, naming

WINDOW = 20_000  # lines that are sorted by length and written together
INDEX_VERSION = 1
CALIBRATION = "calibration"  # in the description
MET = ("empty", "long")  # kinds of sentences that are counted separately
Encode = Callable[[list[str], Counter[str]], np.ndarray]


def index_path(output: Path) -> Path:
    """Return the path of the description beside a file of embeddings."""
    return output.with_name(f"{output.name}.json")


def side_files(output: Path) -> list[Path]:
    """Return the files beside a file of embeddings: its description and those that exist until it is complete."""
    ends = ("partial", "progress", "whole", "lock")
    return [index_path(output), *(output.with_name(f"{output.name}.{end}") for end in ends)]


def embed_lines(
    lines: Iterable[str],
    encode: Encode,
    output: Path,
    layout: Layout,
    settings: dict[str, Any],
    *,
    resume: bool = False,
    total: int | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Write the embedding of every line; the file appears under its name only when it is complete.

    Until then rows lie in OUTPUT.partial, OUTPUT.progress counts the rows that are safe on disk, and OUTPUT.lock names
    the process that writes them. The bytes do not depend on interruptions.

    Args:
        lines: any number of lines; to resume, the same lines from the beginning.
        encode: maps sentences to embeddings [n, D], and adds the numbers of `empty` and `long` ones to the counter.
        output: file to write.
        layout: format of the file.
        settings: all other settings that the bytes depend on, with a calibration of int8 where there is one; they are
            stored in the index.
        resume: resume an interrupted run, and keep a complete file.
        total: number of lines, for the progress bar.
        show_progress: show a progress bar.

    Returns:
        The index, which is also in OUTPUT.json: count, dimension, dtype, format, counts, settings, hash of the text,
            checksum.

    Raises:
        InputError: where the interrupted run had other settings or text, for input without lines, embeddings of another
            shape than [n, layout.width], where `output` is not a file, and while another process writes it.
    """
    settings = {"format": layout.format, "dtype": layout.dtype, "dimension": layout.width, **settings}
    check_replaceable(output)
    partial, progress, lock = (output.with_name(f"{output.name}.{end}") for end in ("partial", "progress", "lock"))
    with locked(lock, output):
        if resume and output.exists() and not partial.exists():
            index = _complete(output, settings, lines)
            progress.unlink(missing_ok=True)
            return index
        done = _so_far(partial, progress, settings, layout) if resume else Record(settings, {})
        if not done.lines:
            progress.unlink(missing_ok=True)  # else it would be taken for the progress of the new rows
        done = _rows(partial, progress, lines, encode, layout, done, total, show_progress)
        return _finish(output, partial, progress, layout, done)


def _rows(
    partial: Path,
    progress: Path,
    lines: Iterable[str],
    encode: Encode,
    layout: Layout,
    done: Record,
    total: int | None,
    show_progress: bool,
) -> Record:
    """Write all rows that are not `done`, and return the record of all."""
    with naming(partial):
        try:
            with open(partial, "r+b" if done.lines else "wb") as stream:
                for now in _append(stream, lines, encode, layout, done, total, show_progress):
                    now.write(progress)
                    done = now
                stream.seek(0)
                stream.write(find_format(layout.format).header(layout, done.lines))
            if not done.lines:
                raise InputError("no lines to embed; expected one sentence a line")
        finally:
            if not done.lines:
                partial.unlink(missing_ok=True)  # no later run could resume from it
    return done


def _finish(output: Path, partial: Path, progress: Path, layout: Layout, done: Record) -> dict[str, Any]:
    """Write the index, then rename the rows; the rename comes last because afterwards nothing can be resumed."""
    whole = find_format(layout.format).finish(partial, layout)
    index = {
        "index_version": INDEX_VERSION,
        "count": done.lines,
        **done.settings,
        **{name: done.counts.get(name, 0) for name in MET},
        "text": done.text,
        "sha256": sha256(whole),
    }
    with atomic_write(index_path(output)) as stream:
        stream.write(json.dumps(index, indent=2) + "\n")
    whole.replace(output)
    for path in (partial, progress):
        path.unlink(missing_ok=True)
    return index


def _append(
    stream: BinaryIO,
    lines: Iterable[str],
    encode: Encode,
    layout: Layout,
    done: Record,
    total: int | None,
    progress: bool,
) -> Iterator[Record]:
    """Write the rows that are not done, and yield the record each time that its rows are safe on disk."""
    counts, text = Counter(done.counts), done.text
    stream.truncate(_size(layout, done.lines))
    stream.seek(_size(layout, done.lines))
    with tqdm(total=total, initial=done.lines, unit=" sentences", disable=None if progress else True) as bar:
        remaining = _skip(lines, done.lines, text)
        while window := list(islice(remaining, WINDOW)):
            embeddings = encode(window, counts)
            if embeddings.shape != (len(window), layout.width):
                raise InputError(
                    f"embeddings of shape {list(embeddings.shape)} for {len(window):,} lines; expected "
                    f"{[len(window), layout.width]}: give the layout the width of the encoder"
                )
            embeddings, settings = _rounded(embeddings, layout, done.settings)
            done = Record(settings, done.counts, done.text)
            stream.write(layout.row_bytes(embeddings))
            stream.flush()
            os.fsync(stream.fileno())
            counts["lines"] += len(window)
            text = _text_hash(text, window)
            yield Record(settings, dict(counts), text)
            bar.update(len(window))


def _rounded(embeddings: np.ndarray, layout: Layout, settings: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """Round embeddings to int8 where the layout says so; the first window calibrates, and settings then hold that."""
    if layout.dtype in ("int8", "binary") and not np.isfinite(embeddings).all():
        raise InputError(f"embeddings with NaN or infinity; expected finite numbers for --output-dtype {layout.dtype}")
    if layout.dtype != "int8":
        return embeddings, settings
    if CALIBRATION not in settings:
        settings = {**settings, CALIBRATION: Calibration.of(embeddings).to_json()}
    return Calibration.from_json(settings[CALIBRATION], layout.width).codes(embeddings), settings


def _size(layout: Layout, rows: int) -> int:
    """Return the size in bytes of a partial file with `rows` rows."""
    return len(find_format(layout.format).header(layout, rows)) + rows * layout.row_size


def _text_hash(before: str, window: list[str]) -> str:
    """Hash all lines up to the end of a window, given the hash of the lines before it."""
    joined = "\n".join([before, *window])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()


def _skip(lines: Iterable[str], count: int, text: str) -> Iterator[str]:
    """Yield the lines after the first `count`, whose hash must be `text`."""
    remaining = iter(lines)
    if hash_lines(islice(remaining, count)) != (count, text):
        raise InputError(
            f"the first {count:,} lines of the input are not those that were embedded already; give the same input, or "
            "run without --resume"
        )
    return remaining


def hash_lines(lines: Iterable[str]) -> tuple[int, str]:
    """Return the number of lines and their hash, `text` in the description of their embeddings."""
    remaining, count, text = iter(lines), 0, ""
    while window := list(islice(remaining, WINDOW)):
        count += len(window)
        text = _text_hash(text, window)
    return count, text


def _so_far(partial: Path, progress: Path, settings: dict[str, Any], layout: Layout) -> Record:
    """Return the record of an interrupted run."""
    done = Record.read(progress) if partial.exists() else None
    if done is None:
        return Record(settings, {})
    found, given = (
        {name: value for name, value in some.items() if name != CALIBRATION} for some in (done.settings, settings)
    )
    _check_settings(progress, found, given)
    if done.lines and layout.dtype == "int8":
        try:
            Calibration.from_json(done.settings[CALIBRATION], layout.width)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{progress}: has no calibration ({error!r}); run without --resume") from None
    if partial.stat().st_size < _size(layout, done.lines):
        raise InputError(f"{partial}: has less than the {done.lines:,} rows of {progress.name}; run without --resume")
    return done


def _complete(output: Path, settings: dict[str, Any], lines: Iterable[str]) -> dict[str, Any]:
    """Return the index of a file that is complete already."""
    path = index_path(output)
    try:
        index = parse_json(path.read_text(encoding="utf-8"))
        found = {name: index[name] for name in settings}
        count, text, checksum = index["count"], index["text"], index["sha256"]
        if not all(is_count(index[name]) for name in ("count", *MET)):
            raise TypeError(f"{', '.join(('count', *MET))} are not whole numbers of at least 0")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: does not describe {output} ({error!r}); run without --resume") from None
    _check_settings(path, found, settings)
    if (now := hash_lines(lines)) != (count, text):
        raise InputError(
            f"{output}: {count:,} embeddings of other text than these {now[0]:,} lines; run without --resume"
        )
    if sha256(output) != checksum:
        raise InputError(f"{output}: its checksum is not the one in {path.name}; run without --resume")
    return index


def _check_settings(path: Path, found: dict[str, Any], settings: dict[str, Any]) -> None:
    differing = difference(found, settings)
    if differing:
        raise InputError(f"{path} is from a run with {differing}; run without --resume to start again")
