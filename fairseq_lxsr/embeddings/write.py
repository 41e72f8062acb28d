"""Writes embeddings of any number of lines to one file, in constant memory; an interrupted run can
resume.
"""

import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.embeddings.codes import Calibration
from fairseq_lxsr.embeddings.formats import Layout, find_format
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import READ_BYTES, sha256
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.records import Record, difference, is_count, parse_json, sealed
from fairseq_lxsr.files.write import (
    atomic_write,
    check_replaceable,
    create,
    naming,
    no_follow,
    remove_planted,
    sync,
)

WINDOW = 20_000  # lines that are sorted by length and written together
INDEX_VERSION = 1
CALIBRATION = "calibration"  # in the description
MET = ("empty", "long")  # kinds of sentences that are counted separately
CRC_OF_ROWS = "crc32"  # among the counts of unfinished embeddings
Encode = Callable[[list[str], Counter[str]], np.ndarray]


def index_path(output: Path) -> Path:
    """Return the path of the description beside a file of embeddings."""
    return output.with_name(f"{output.name}.json")


def side_files(output: Path) -> list[Path]:
    """Return the description of a file of embeddings, and the files beside it until it is
    complete.
    """
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
    """Write the embedding of every line to a file, as `EmbeddingsFile`; its bytes do not depend on
    interruptions.

    Args:
        lines: any number of lines; to resume, the same lines from the beginning.
        encode: maps sentences to embeddings [n, D], and adds the numbers of `empty` and `long` ones
            to the counter.
        output: file to write.
        layout: format of the file.
        settings: all other settings that the bytes depend on, with a calibration of int8 where
            there is one; they are stored in the index.
        resume: resume an interrupted run, and keep a complete file.
        total: number of lines, for the progress bar.

    Returns:
        The index, which is also in OUTPUT.json: count, settings, counts, hash of the text,
            checksum.

    Raises:
        InputError: where the interrupted run had other settings or text, for input without lines,
            embeddings of another shape than [n, layout.width], where `output` is not a file, and
            while another process writes it.
    """
    file = EmbeddingsFile(output, layout, settings)
    hidden = None if show_progress else True  # None shows it on a terminal only
    with locked(file.lock, output):
        if resume and output.exists() and not file.partial.exists():
            return file.check_complete(lines)
        remaining = file.begin(lines, resume)
        try:
            with Progress(total=total, initial=file.rows, unit=" sentences", disable=hidden) as bar:
                while window := list(islice(remaining, WINDOW)):
                    file.append(window, encode(window, file.counts))
                    bar.update(len(window))
            return file.finish()
        finally:
            if not file.rows:
                file.partial.unlink(missing_ok=True)  # no later run could resume from it


class EmbeddingsFile:
    """Embeddings of lines on their way to a file, which appears under its name only when it is
    complete.

    Until then rows lie in OUTPUT.partial, OUTPUT.progress counts the rows that are safe on disk,
    and OUTPUT.lock names the process that writes them.

        file = EmbeddingsFile(output, layout, settings)
        with locked(file.lock, output):
            for window in windows(file.begin(lines, resume=True)):
                file.append(window, encode(window, file.counts))
            index = file.finish()
    """

    def __init__(self, output: Path, layout: Layout, settings: dict[str, Any]):
        check_replaceable(output)
        self.output, self.layout, self.format = output, layout, find_format(layout.format)
        self.settings = {
            "format": layout.format,
            "dtype": layout.dtype,
            "dimension": layout.width,
            **settings,
        }
        self.partial, self.progress, self.lock = (
            output.with_name(f"{output.name}.{end}") for end in ("partial", "progress", "lock")
        )
        # of `lines` and of the kinds of sentences that are met
        self.counts: Counter[str] = Counter()
        self.text = ""  # hash of the lines

    @property
    def rows(self) -> int:
        """Number of rows that are safe on disk."""
        return self.counts["lines"]

    def begin(self, lines: Iterable[str], resume: bool) -> Iterator[str]:
        """Return the lines that have no rows: all, or those that an interrupted run left."""
        for path in (self.partial, self.progress, self.partial.with_suffix(".whole")):
            remove_planted(path)
        if resume and self.partial.exists() and (done := Record.read(self.progress)):
            self._resume(done)
        if not self.rows:
            # else it would be taken for the progress of the new rows
            self.progress.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)
            os.close(create(self.partial, self.output))  # as private as the file that it replaces
        remaining = iter(lines)
        if hash_lines(islice(remaining, self.rows)) != (self.rows, self.text):
            raise InputError(
                f"the first {self.rows:,} lines of the input are not those that were embedded already; give the same "
                "input, or run without --resume"
            )
        return remaining

    def _resume(self, done: Record) -> None:
        without = {CALIBRATION: None}  # is not compared: the first rows made it
        _check_settings(self.progress, done.settings | without, self.settings | without)
        if done.lines and self.layout.dtype == "int8":
            try:
                Calibration.from_json(done.settings[CALIBRATION], self.layout.width)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self.progress}: has no calibration ({error!r}); run without --resume"
                ) from None
        if self.partial.stat().st_size < self._size(done.lines):
            raise InputError(
                f"{self.partial}: has less than the {done.lines:,} rows of {self.progress.name}; run without --resume"
            )
        crc = done.counts.get(CRC_OF_ROWS)  # that of an older version is missing
        if crc is not None and crc != self.crc(done.lines):
            raise InputError(
                f"{self.partial}: damaged, its rows are not those that {self.progress.name} counts; run without "
                "--resume"
            )
        self.settings, self.counts, self.text = done.settings, Counter(done.counts), done.text

    def crc(self, rows: int) -> int:
        """Return the CRC-32 of the first rows of the partial file."""
        crc, left = 0, rows * self.layout.row_size
        with open(self.partial, "rb") as stream:
            stream.seek(self._size(0))
            while block := stream.read(min(left, READ_BYTES)):
                crc, left = zlib.crc32(block, crc), left - len(block)
        return crc

    def _size(self, rows: int) -> int:
        """Return the size in bytes of a partial file."""
        return len(self.format.header(self.layout, rows)) + rows * self.layout.row_size

    def append(self, lines: list[str], embeddings: np.ndarray) -> None:
        """Write the embeddings [n, D] of the next n lines; they are safe on disk when this
        returns.
        """
        if embeddings.shape != (len(lines), self.layout.width):
            raise InputError(
                f"embeddings of shape {list(embeddings.shape)} for {len(lines):,} lines; expected "
                f"{[len(lines), self.layout.width]}: give the layout the width of the encoder"
            )
        rows = self.layout.row_bytes(self._rounded(embeddings))
        with naming(self.partial), open(self.partial, "r+b", opener=no_follow) as stream:
            stream.seek(self._size(self.rows))
            stream.truncate()  # rows that an interrupted run did not count
            stream.write(rows)
            stream.flush()
            os.fsync(stream.fileno())
        self.counts["lines"] += len(lines)
        self.counts[CRC_OF_ROWS] = zlib.crc32(rows, self.counts[CRC_OF_ROWS])
        self.text = _text_hash(self.text, lines)
        Record(self.settings, dict(self.counts), self.text).write(self.progress)

    def _rounded(self, embeddings: np.ndarray) -> np.ndarray:
        """Round embeddings to int8 where the layout says so; the first window calibrates."""
        dtype = self.layout.dtype
        if not np.isfinite(embeddings).all():
            raise InputError(
                "embeddings with NaN or infinity; expected finite numbers, take another model"
            )
        if dtype != "int8":
            return embeddings
        if CALIBRATION not in self.settings:
            self.settings[CALIBRATION] = Calibration.of(embeddings).to_json()
        return Calibration.from_json(self.settings[CALIBRATION], self.layout.width).codes(
            embeddings
        )

    def finish(self) -> dict[str, Any]:
        """Write the index, then rename the rows; the rename comes last because afterwards nothing
        can be resumed.
        """
        if not self.rows:
            raise InputError("no lines to embed; expected one sentence a line")
        with naming(self.partial), open(self.partial, "r+b", opener=no_follow) as stream:
            stream.write(self.format.header(self.layout, self.rows))
        whole = self.format.finish(self.partial, self.layout)
        index = {
            "index_version": INDEX_VERSION,
            "count": self.rows,
            **self.settings,
            **{name: self.counts[name] for name in MET},
            "text": self.text,
            "sha256": sha256(whole),
        }
        with atomic_write(index_path(self.output)) as stream:
            stream.write(json.dumps(sealed(index), indent=2) + "\n")
        sync(whole)
        whole.replace(self.output)
        for path in (self.partial, self.progress):
            path.unlink(missing_ok=True)
        return index

    def check_complete(self, lines: Iterable[str]) -> dict[str, Any]:
        """Return the index of a file that is complete already, of the same lines and settings."""
        path = index_path(self.output)
        try:
            index = parse_json(path.read_text(encoding="utf-8"))
            found = {name: index[name] for name in self.settings}
            count, text, checksum = index["count"], index["text"], index["sha256"]
            if not all(is_count(index[name]) for name in ("count", *MET)):
                raise TypeError(f"{', '.join(('count', *MET))} are not whole numbers of at least 0")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: does not describe {self.output} ({error!r}); run without --resume"
            ) from None
        _check_settings(path, found, self.settings)
        if (now := hash_lines(lines)) != (count, text):
            raise InputError(
                f"{self.output}: {count:,} embeddings of other text than these {now[0]:,} lines; run without --resume"
            )
        if sha256(self.output) != checksum:
            raise InputError(
                f"{self.output}: its checksum is not the one in {path.name}; run without --resume"
            )
        self.progress.unlink(missing_ok=True)
        return index


def _check_settings(path: Path, found: dict[str, Any], settings: dict[str, Any]) -> None:
    if differing := difference(found, settings):
        raise InputError(
            f"{path} is from a run with {differing}; run without --resume to start again"
        )


def hash_lines(lines: Iterable[str]) -> tuple[int, str]:
    """Return the number of lines and their hash, `text` in the description of their embeddings."""
    remaining, count, text = iter(lines), 0, ""
    while window := list(islice(remaining, WINDOW)):
        count += len(window)
        text = _text_hash(text, window)
    return count, text


def _text_hash(before: str, window: list[str]) -> str:
    """Hash all lines up to the end of a window, given the hash of the lines before it."""
    joined = "\n".join([before, *window])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()
