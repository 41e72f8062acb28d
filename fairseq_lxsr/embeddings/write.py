"""Writes the embeddings of any number of lines to one file, in constant memory.

An interrupted run can be resumed.
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

# Number of lines to sort by length, embed and write together.
WINDOW = 20_000
INDEX_VERSION = 1
# Key of the int8 calibration in the description.
CALIBRATION = "calibration"
# Kinds of sentences to count separately.
COUNTED_KINDS = ("empty", "long")
# Kinds of lines to count separately; zeros are left out.
ENTITY_KINDS = ("entities_replaced", "entities_kept")
# Key of the row checksum in the progress record.
CRC_OF_ROWS = "crc32"
Encode = Callable[[list[str], Counter[str]], np.ndarray]


def index_path(output: Path) -> Path:
    """Return the path of the description of an embedding file.

    Args:
        output: embedding file.

    Returns:
        The path FILE.json.
    """
    return output.with_name(f"{output.name}.json")


def side_files(output: Path) -> list[Path]:
    """Return the paths of an embedding file's description and temporary files.

    Args:
        output: embedding file.

    Returns:
        The paths, whether or not the files exist.
    """
    suffixes = ("json", "partial", "progress", "whole", "lock")
    return [output.with_name(f"{output.name}.{suffix}") for suffix in suffixes]


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
    """Write the embedding of every line to a file; see `EmbeddingsFile`.

        def encode(lines, counts):
            return encoder.encode(lines, counts=counts)

        layout = Layout("npy", "float32", encoder.output_dim)
        embed_lines(read_lines("test.en"), encode, Path("test.en.npy"), layout, {"model": "m"})

    A run that is interrupted and resumed writes the same bytes.

    Args:
        lines: any number of lines. To resume a run, pass the same lines from the beginning.
        encode: maps sentences to embeddings [n, D], and adds the numbers of `empty` and `long`
            sentences to the counter.
        output: output file.
        layout: format of the file.
        settings: all other settings that affect the output, to be stored in the description. They
            may include an int8 calibration.
        resume: whether to resume an interrupted run. A complete file is checked and kept.
        total: number of lines, for the progress bar.
        show_progress: whether to show progress on standard error.

    Returns:
        The description, which is also written to OUTPUT.json: number of lines, settings, other
        counts, hash of the text, and checksum of the file.

    Raises:
        InputError: if the interrupted run had other settings or another text, the input has no
            lines, the embeddings do not have the shape [n, layout.width], `output` is not a file,
            or another process is writing to it.
    """
    file = EmbeddingsFile(output, layout, settings)
    with locked(file.lock, output):
        if resume and output.exists() and not file.partial.exists():
            return file.check_complete(lines)
        try:
            remaining = file.begin(lines, resume)
            with Progress(
                total=total,
                initial=file.rows,
                desc="embed",
                unit=" sentences",
                disable=not show_progress,
            ) as bar:
                while window := list(islice(remaining, WINDOW)):
                    file.append(window, encode(window, file.counts))
                    bar.update(len(window))
            return file.finish()
        finally:
            if file.is_new and not file.rows:
                # Without a progress record, no later run can resume from this file.
                file.partial.unlink(missing_ok=True)


class EmbeddingsFile:
    """Writes embeddings to a file atomically. An interrupted run can be resumed.

        file = EmbeddingsFile(output, layout, settings)
        with locked(file.lock, output):
            for window in windows(file.begin(lines, resume=True)):
                file.append(window, encode(window, file.counts))
            description = file.finish()

    Until the file is complete, the rows are in OUTPUT.partial, OUTPUT.progress counts the rows that
    are safe on disk, and OUTPUT.lock contains the name of the process that writes them.

    Args:
        output: output file.
        layout: format of the file.
        settings: see `embed_lines`.

    Attributes:
        counts: numbers of `lines`, and of sentences of each of the `COUNTED_KINDS` and
            `ENTITY_KINDS`.
        text: hash of the lines.
        is_new: whether `begin` has created a new file of rows, instead of resuming an earlier one.
    """

    def __init__(self, output: Path, layout: Layout, settings: dict[str, Any]):
        check_replaceable(output)
        self.output = output
        self.layout = layout
        self.format = find_format(layout.format)
        self.settings = {
            "format": layout.format,
            "dtype": layout.dtype,
            "dimension": layout.width,
            **settings,
        }
        self.partial = output.with_name(f"{output.name}.partial")
        self.progress = output.with_name(f"{output.name}.progress")
        self.lock = output.with_name(f"{output.name}.lock")
        self.counts: Counter[str] = Counter()
        self.text = ""
        self.is_new = False

    @property
    def rows(self) -> int:
        """Number of rows that are safe on disk."""
        return self.counts["lines"]

    def begin(self, lines: Iterable[str], resume: bool) -> Iterator[str]:
        """Return the lines to embed: all, or the remaining ones after an interrupted run.

        Args:
            lines: all lines of the text.
            resume: continue after the rows that are already written.

        Returns:
            The lines to embed, read once.

        Raises:
            InputError: if the interrupted run had other settings or another text.
        """
        for path in (self.partial, self.progress, self.partial.with_suffix(".whole")):
            remove_planted(path)
        if resume and self.partial.exists():
            record = Record.read(self.progress)
            if record:
                self._resume(record)
        if not self.rows:
            # Otherwise, an old record would be mistaken for the progress of the new rows.
            self.progress.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)
            # Set this first, because an interrupt may come as soon as the file exists.
            self.is_new = True
            # Keep the file mode of the file that will be replaced.
            os.close(create(self.partial, self.output))
        remaining = iter(lines)
        if hash_lines(islice(remaining, self.rows)) != (self.rows, self.text):
            raise InputError(
                f"the first {self.rows:,} lines of the input differ from the embedded lines; "
                "use the same input, or run without --resume"
            )
        return remaining

    def _resume(self, record: Record) -> None:
        """Continue after the rows that an interrupted run has recorded as finished."""
        # Do not compare the calibration, because it was determined by the first rows.
        ignored = {CALIBRATION: None}
        _check_settings(self.progress, record.settings | ignored, self.settings | ignored)
        if record.lines and self.layout.dtype == "int8":
            try:
                Calibration.from_json(record.settings[CALIBRATION], self.layout.width)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self.progress}: no valid calibration ({error!r}); run without --resume"
                ) from None
        if self.partial.stat().st_size < self._size(record.lines):
            raise InputError(
                f"{self.partial}: fewer than the {record.lines:,} rows in {self.progress.name}; "
                "run without --resume"
            )
        if record.counts.get(CRC_OF_ROWS, 0) != self.crc(record.lines):
            raise InputError(
                f"{self.partial}: damaged: checksum mismatch with {self.progress.name}; "
                "run without --resume"
            )
        self.settings = record.settings
        self.counts = Counter(record.counts)
        self.text = record.text

    def crc(self, rows: int) -> int:
        """Return the CRC-32 of the first rows of the partial file.

        Args:
            rows: number of rows to include.

        Returns:
            The checksum.
        """
        crc = 0
        remaining = rows * self.layout.row_size
        with open(self.partial, "rb") as stream:
            stream.seek(self._size(0))
            while block := stream.read(min(remaining, READ_BYTES)):
                crc = zlib.crc32(block, crc)
                remaining -= len(block)
        return crc

    def _size(self, rows: int) -> int:
        """Return the size in bytes of a partial file with the given number of rows."""
        return len(self.format.header(self.layout, rows)) + rows * self.layout.row_size

    def append(self, lines: list[str], embeddings: np.ndarray) -> None:
        """Write the embeddings of the next lines safely to disk.

        Args:
            lines: n lines.
            embeddings: embeddings of the lines [n, D].
        """
        expected_shape = (len(lines), self.layout.width)
        if embeddings.shape != expected_shape:
            raise InputError(
                f"embeddings have shape {list(embeddings.shape)} for {len(lines):,} lines; "
                f"expected {list(expected_shape)}: set the layout to the width of the encoder"
            )
        rows = self.layout.row_bytes(self._rounded(embeddings))
        with naming(self.partial), open(self.partial, "r+b", opener=no_follow) as stream:
            stream.seek(self._size(self.rows))
            # Remove rows that an interrupted run wrote but did not record.
            stream.truncate()
            stream.write(rows)
            stream.flush()
            os.fsync(stream.fileno())
        self.counts["lines"] += len(lines)
        self.counts[CRC_OF_ROWS] = zlib.crc32(rows, self.counts[CRC_OF_ROWS])
        self.text = _text_hash(self.text, lines)
        Record(self.settings, dict(self.counts), self.text).write(self.progress)

    def _rounded(self, embeddings: np.ndarray) -> np.ndarray:
        """Convert embeddings to int8 codes for an int8 layout. The first window determines the
        scales."""
        if not np.isfinite(embeddings).all():
            raise InputError("embeddings contain NaN or infinity; use another model")
        if self.layout.dtype != "int8":
            return embeddings
        if CALIBRATION not in self.settings:
            self.settings[CALIBRATION] = Calibration.of(embeddings).to_json()
        calibration = Calibration.from_json(self.settings[CALIBRATION], self.layout.width)
        return calibration.codes(embeddings)

    def finish(self) -> dict[str, Any]:
        """Write the description, rename the file of rows, and return the description.

        The rows are renamed last, because nothing can be resumed after that.

        Returns:
            The content of the description.
        """
        if not self.rows:
            raise InputError("no lines to embed; expected one sentence per line")
        with naming(self.partial), open(self.partial, "r+b", opener=no_follow) as stream:
            stream.write(self.format.header(self.layout, self.rows))
        finished = self.format.finish(self.partial, self.layout)
        description = {
            "index_version": INDEX_VERSION,
            "count": self.rows,
            **self.settings,
            **{kind: self.counts[kind] for kind in COUNTED_KINDS},
            **{kind: self.counts[kind] for kind in ENTITY_KINDS if self.counts[kind]},
            "text": self.text,
            "sha256": sha256(finished),
        }
        # If the disk fails here, the description of an earlier file is unchanged.
        sync(finished)
        with atomic_write(index_path(self.output)) as stream:
            stream.write(json.dumps(sealed(description), indent=2) + "\n")
        finished.replace(self.output)
        for path in (self.partial, self.progress):
            path.unlink(missing_ok=True)
        return description

    def check_complete(self, lines: Iterable[str]) -> dict[str, Any]:
        """Return the description of a complete file, after checking its text and settings.

        Args:
            lines: all lines of the text.

        Returns:
            The content of the description.

        Raises:
            InputError: if the file was written from other lines, or with other settings.
        """
        path = index_path(self.output)
        try:
            description = parse_json(path.read_text(encoding="utf-8"))
            settings = {name: description[name] for name in self.settings}
            embedded = (description["count"], description["text"])
            checksum = description["sha256"]
            counts = ("count", *COUNTED_KINDS)
            if not all(is_count(description[name]) for name in counts):
                raise TypeError(f"{', '.join(counts)} must be integers of at least 0")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a valid description of {self.output} ({error!r}); "
                "run without --resume"
            ) from None
        _check_settings(path, settings, self.settings)
        line_count, text = hash_lines(lines)
        if (line_count, text) != embedded:
            raise InputError(
                f"{self.output}: {embedded[0]:,} embeddings of a text that differs from these "
                f"{line_count:,} lines; run without --resume"
            )
        if sha256(self.output) != checksum:
            raise InputError(
                f"{self.output}: checksum mismatch with {path.name}; run without --resume"
            )
        self.progress.unlink(missing_ok=True)
        return description


def _check_settings(path: Path, stored: dict[str, Any], settings: dict[str, Any]) -> None:
    change = difference(stored, settings)
    if change:
        raise InputError(f"{path}: from a run with {change}; run without --resume to start again")


def hash_lines(lines: Iterable[str]) -> tuple[int, str]:
    """Return the number of lines and their hash, which descriptions store as `text`.

    Args:
        lines: lines of a text.

    Returns:
        The number of lines, and their hash in hexadecimal digits.
    """
    remaining = iter(lines)
    count = 0
    text = ""
    while window := list(islice(remaining, WINDOW)):
        count += len(window)
        text = _text_hash(text, window)
    return count, text


def _text_hash(before: str, window: list[str]) -> str:
    """Hash all lines up to the end of a window, given the hash of the lines before it."""
    joined = "\n".join([before, *window])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()
