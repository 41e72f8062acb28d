"""Reads text line by line with checks."""

import codecs
import contextlib
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from fairseq_lxsr.characters import INVISIBLE, VOWEL_MARKS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import READ_BYTES, open_binary

SENTENCE_BYTES = 2**20  # longest line of text; a tokenizer takes 80 times as much memory
# longest line that is not a sentence: scores with outcomes of a million queries, a document
RECORD_BYTES = 2**27
# how packed bytes begin, the program that unpacks them, and the ending of such a file
PACKERS = (
    *(
        (b"\x1f\x8b", "zcat", ".gz"),
        (b"\xfd7zXZ", "xzcat", ".xz"),
        (b"\x28\xb5\x2f\xfd", "zstdcat", ".zst"),
    ),
    *((b"BZh", "bzcat", ".bz2"), (b"PK\x03\x04", "unzip -p", ".zip")),
)
# endings of files whose lines are no sentences
MARK_UP = re.compile(
    r"\.(tmx|xlf|xliff|mqxliff|mxliff|sdlxliff|po|pot|jsonl?|sgml?|xml|html?|docx|xlsx|pdf|rtf)(\.(gz|xz|zst|bz2|zip))?$",
    re.IGNORECASE,
)
# fairseq-preprocess splits at white space, so a piece must not contain white space or control
# characters
BLANKS = r"[\s\x00-\x1f\u007f-\u009f\u200b\u2028\u2029\ufeff]+"
# SentencePiece reads U+2581 and U+FFFD as blanks, but fairseq-preprocess does not split there;
# surrogates are no text
_BLANK_LINE = re.compile(
    BLANKS.replace("[", rf"[{INVISIBLE}{VOWEL_MARKS}\u2581\ud800-\udfff\ufffd", 1).replace("+", "*")
)


def is_blank(line: str) -> bool:
    """Return whether a line has no pieces: white space, control characters, what shows nothing,
    U+FFFD.
    """
    return _BLANK_LINE.fullmatch(line) is not None


def single_line(text: str) -> str:
    """Return text that can be written as a cell or a line: single blanks, and `?` for what UTF-8
    cannot hold.
    """
    return " ".join(text.encode("utf-8", "replace").decode().split())


def read_lines(
    path: str | Path,
    is_sentence: bool = True,
    unreadable: Callable[[InputError], None] | None = None,
) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (`-`: standard input) without line ends; lines are split
    at \\n only.

    A line that holds one sentence, however many words, has at most 1 MiB, any other 128 MiB. An
    error names file, line and value; where `unreadable` takes errors, their lines are left out.
    """
    if is_sentence and MARK_UP.search(str(path)):
        raise InputError(
            f"{path}: by its name not one sentence a line; `lxsr prepare --until clean` takes pairs out of many formats"
        )
    with reading(path), open_binary(path) as stream:
        for number, raw in enumerate(_raw_lines(stream, path, is_sentence, unreadable), start=1):
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if number == 1 and b"\r" in raw[:-1] and not raw.endswith(b"\n"):
                raise InputError(
                    f"{path}: ends lines by \\r alone; expected \\n: convert it (tr '\\r' '\\n')"
                )
            try:
                line = _checked(raw, f"{path}, line {number}")
            except InputError as error:
                if unreadable is None:
                    raise
                unreadable(error)
            else:
                yield line


def peek(lines: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """Return the first line, in a list that is empty where there is none, and all lines."""
    first = list(islice(lines, 1))
    return first, chain(first, lines)


def _raw_lines(
    stream: BinaryIO,
    path: str | Path,
    is_sentence: bool,
    unreadable: Callable[[InputError], None] | None = None,
) -> Iterator[bytes]:
    """Yield lines with their ends; no more of a line is held in memory than its limit."""
    limit = SENTENCE_BYTES if is_sentence else RECORD_BYTES
    for number, raw in enumerate(iter(partial(stream.readline, limit + 1), b""), start=1):
        if len(raw) <= limit:
            yield raw
            continue
        error = InputError(
            f"{path}, line {number}: begins with {raw[:20]!r} and has more than {limit:,} bytes; expected "
            + (
                "one sentence a line: split the text into sentences"
                if is_sentence
                else "shorter lines"
            )
        )
        if unreadable is None:
            raise error
        unreadable(error)
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(limit)


class Lines(Sequence[str]):
    """Gives the lines of an uncompressed UTF-8 file by number.

    Only their offsets are kept in memory, and the file is open while it is read alone, because
    there may be thousands.
    """

    def __init__(self, path: str | Path):
        import numpy as np  # imported here because every verb of the command line imports this module

        with open(path, "rb") as stream:
            lengths = np.fromiter(map(len, _raw_lines(stream, path, False)), dtype=np.int64)
        self._starts = np.concatenate(([0], lengths.cumsum()))
        self._path = path

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number):
        chosen = range(len(self))[number]
        with open(self._path, "rb") as stream:
            rows = [
                self._read(stream, row) for row in ([chosen] if isinstance(chosen, int) else chosen)
            ]
            return rows[0] if isinstance(chosen, int) else rows

    def _read(self, stream: BinaryIO, row: int) -> str:
        start, end = self._starts[row], self._starts[row + 1]
        stream.seek(start)
        return stream.read(end - start).decode("utf-8").rstrip("\n")


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Convert decompression errors inside the block to an `InputError` that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"{path}: not a whole packed file ({error}); fetch or pack it again"
        ) from None
    except Exception as error:
        is_of_bz2 = (
            str(path).lower().endswith(".bz2")
            and isinstance(error, OSError)
            and error.errno is None
        )
        # modules that may not be installed, or take time to import
        if not is_of_bz2 and type(error).__name__ not in ("ZstdError", "BadZipFile"):
            raise
        raise InputError(
            f"{path}: not a whole packed file ({error}); fetch or pack it again"
        ) from None


def _checked(raw: bytes, where: str) -> str:
    try:
        line = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        for magic, program, ending in PACKERS:
            if raw.startswith(magic):
                raise InputError(
                    f"{where}: packed bytes; expected text: pipe it through {program}, or give a file named *{ending}"
                ) from None
        found = raw[error.start : error.start + 4].hex(" ")
        raise InputError(
            f"{where}: bytes {found} at byte {error.start + 1} are not UTF-8; convert the file, for example with iconv"
        ) from None
    if "\0" in line:
        column = line.index("\0") + 1
        raise InputError(
            f"{where}: a NUL character at column {column}; expected text, remove it (tr -d '\\0')"
        )
    return line


def read_parallel(
    source: str | Path, target: str | Path, is_sentence: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the aligned lines of two files, whose numbers of lines must be equal and not 0."""
    left, right = read_lines(source, is_sentence), read_lines(target, is_sentence)
    count = 0
    for line in left:
        other = next(right, None)
        if other is None:
            rest = count + 1 + sum(1 for _ in left)
            raise InputError(_unequal(source, rest, target, count, f"{source}: {line[:60]!r}"))
        count += 1
        yield line, other
    extra = next(right, None)
    if extra is not None:
        rest = count + 1 + sum(1 for _ in right)
        raise InputError(_unequal(source, count, target, rest, f"{target}: {extra[:60]!r}"))
    if not count:
        raise InputError(f"{source}: empty file; expected one sentence a line")


def _unequal(source, source_count: int, target, target_count: int, alone: str) -> str:
    return (
        f"{source} has {source_count:,} lines and {target} has {target_count:,}; expected aligned files of the same "
        f"number of lines; line {min(source_count, target_count) + 1:,} stands alone in {alone}"
    )


def count_file_lines(path: str | Path) -> int:
    """Count the lines of an uncompressed file; the last line may lack its end."""
    count, last = 0, b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(READ_BYTES):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")
