"""Reads text files line by line, and reports invalid lines."""

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

# Maximum size of a line with one sentence. Tokenizing takes 80 times as much memory.
SENTENCE_BYTES = 2**20
# Maximum size of other lines, such as documents, or scores with the results of a million queries.
RECORD_BYTES = 2**27
# First bytes, decompression command and suffix of each compressed format.
COMPRESSED_FORMATS = (
    (b"\x1f\x8b", "zcat", ".gz"),
    (b"\xfd7zXZ", "xzcat", ".xz"),
    (b"\x28\xb5\x2f\xfd", "zstdcat", ".zst"),
    (b"BZh", "bzcat", ".bz2"),
    (b"PK\x03\x04", "unzip -p", ".zip"),
)
# Suffixes of files that do not contain one sentence per line, and what to do with them.
OTHER_FORMATS = {
    "tmx|xlf|xliff|mqxliff|sdlxliff|xml|po|mo": "use `lxsr prepare --until clean` to extract "
    "sentence pairs",
    "csv|jsonl|ndjson": "extract the sentences to a text file, or use `lxsr index --columns` or "
    "`lxsr prepare` on this file",
    "html?": "convert it to text (`pandoc -t plain --wrap=none -o FILE.txt`), or use `lxsr index`, "
    "which reads paragraphs",
    "docx|odt|rtf|epub|pptx": "convert it to text (`pandoc -t plain --wrap=none -o FILE.txt`)",
    "doc|ppt": "convert it to text (`libreoffice --headless --convert-to txt:Text`)",
    "xlsx?|ods": "export the column of sentences as a text file",
    "pdf": "convert it to text (`pdftotext`)",
    "json": "write the sentences to a text file, or one object per line to a .jsonl "
    "(`jq -c '.[]'`)",
    "pot|mxliff|sgml?": "extract the sentences to a text file",
}
# Whitespace and control characters, at which fairseq-preprocess would split a word piece.
BLANKS = r"[\s\x00-\x1f\u007f-\u009f\u200b\u2028\u2029\ufeff]+"
# A blank line may also contain invisible characters, vowel marks, surrogates, U+2581 and U+FFFD.
# Only SentencePiece treats the latter two as spaces.
_BLANK_LINE = re.compile(
    BLANKS.replace("[", rf"[{INVISIBLE}{VOWEL_MARKS}\u2581\ud800-\udfff\ufffd", 1).replace("+", "*")
)


def is_blank(line: str) -> bool:
    """Return whether a line contains only whitespace and invisible characters."""
    return _BLANK_LINE.fullmatch(line) is not None


def single_line(text: str) -> str:
    """Convert text to one line: whitespace becomes one space, unencodable characters become `?`."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def count_lines(path: str | Path | None) -> int | None:
    """Return the number of lines in a file, or None if there is no file or it is a stream."""
    if not path or not Path(path).is_file():
        return None
    return count_file_lines(path)


def read_lines(
    path: str | Path,
    is_sentence: bool = True,
    unreadable: Callable[[InputError], None] | None = None,
    is_table: bool = False,
) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text file, without the newline at the end.

    Only \n ends a line.

    Args:
        path: text file, opened with `open_binary`; `-` for standard input.
        is_sentence: whether each line holds one sentence. Such lines are limited to 1 MiB, other
            lines to 128 MiB.
        unreadable: receives errors about single lines, which are then skipped; None raises them.
        is_table: whether the caller splits the lines into columns, so that the file may be a table.

    Raises:
        InputError: if the file or a line is invalid; reports file, line and value.
    """
    if is_sentence and not is_table:
        _refuse_other_format(path)
    with reading(path), open_binary(path) as stream:
        for number, raw in enumerate(_raw_lines(stream, path, is_sentence, unreadable), start=1):
            if number == 1:
                raw = _checked_first_line(raw, path)
            try:
                line = _checked(raw, path, number)
            except InputError as error:
                if unreadable is None:
                    raise
                unreadable(error)
            else:
                yield line


def _refuse_other_format(path: str | Path) -> None:
    """Raise `InputError` if the name of a file does not belong to one sentence per line."""
    for endings, advice in OTHER_FORMATS.items():
        if re.search(rf"\.({endings})(\.(gz|xz|zst|bz2|zip))?$", str(path), re.IGNORECASE):
            raise InputError(
                f"{path}: not one sentence per line, judging by the file name suffix; {advice}"
            )


def _checked_first_line(raw: bytes, path: str | Path) -> bytes:
    r"""Return the first line of a file without a byte order mark; reject \r as the line ending."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if b"\r" in raw[:-1] and not raw.endswith(b"\n"):
        raise InputError(
            f"{path}: lines end in \\r instead of \\n; convert the file (tr '\\r' '\\n')"
        )
    return raw


def peek(lines: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """Return a list with the first line, if any, and an iterator over all lines."""
    first = list(islice(lines, 1))
    return first, chain(first, lines)


def _raw_lines(
    stream: BinaryIO,
    path: str | Path,
    is_sentence: bool,
    unreadable: Callable[[InputError], None] | None = None,
) -> Iterator[bytes]:
    """Yield lines including their newline. Overlong lines raise an error, or are skipped.

    They are skipped if `unreadable` is given, which receives the error.
    """
    limit = SENTENCE_BYTES if is_sentence else RECORD_BYTES
    for number, raw in enumerate(iter(partial(stream.readline, limit + 1), b""), start=1):
        if len(raw) <= limit:
            yield raw
            continue
        expected = "shorter lines"
        if is_sentence:
            expected = "one sentence per line: split the text into sentences"
        error = InputError(
            f"{path}, line {number}: the line that starts with {raw[:20]!r} is longer than "
            f"{limit:,} bytes; expected {expected}"
        )
        if unreadable is None:
            raise error
        unreadable(error)
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(limit)


class Lines(Sequence[str]):
    """Random access to the lines of an uncompressed UTF-8 file.

        lines = Lines("corpus.en")
        lines[1000], lines[-2:]

    Only line offsets are kept in memory. The file is open only while lines are read, because a
    process may use thousands of these objects.
    """

    def __init__(self, path: str | Path):
        # Imported here because every command imports this module.
        import numpy as np

        with open(path, "rb") as stream:
            lengths = np.fromiter(map(len, _raw_lines(stream, path, False)), dtype=np.int64)
        self._starts = np.concatenate(([0], lengths.cumsum()))
        self._path = path

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number):
        chosen = range(len(self))[number]
        with open(self._path, "rb") as stream:
            if isinstance(chosen, int):
                return self._read(stream, chosen)
            return [self._read(stream, row) for row in chosen]

    def _read(self, stream: BinaryIO, row: int) -> str:
        start = self._starts[row]
        end = self._starts[row + 1]
        stream.seek(start)
        return stream.read(end - start).decode("utf-8").rstrip("\n")


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Convert decompression errors inside the block to `InputError`s that name the file.

    Errors of a failing disk name the file too.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno and not error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from None
        if not _is_decompression_error(error, path):
            raise
        raise InputError(
            f"{path}: damaged or incomplete compressed file ({error}); download or compress it "
            "again"
        ) from None


def _is_decompression_error(error: Exception, path: str | Path) -> bool:
    if isinstance(error, EOFError | gzip.BadGzipFile | zlib.error | lzma.LZMAError):
        return True
    # Compare names, because these modules may be missing or slow to import.
    if type(error).__name__ in ("ZstdError", "BadZipFile"):
        return True
    # bz2 raises an OSError without errno.
    is_bz2 = str(path).lower().endswith(".bz2")
    return is_bz2 and isinstance(error, OSError) and error.errno is None


def _checked(raw: bytes, path: str | Path, number: int) -> str:
    """Decode and check a line; its file and number identify it in messages."""
    try:
        line = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        description = _describe_undecodable(raw, error)
        raise InputError(f"{path}, line {number}: {description}") from None
    if "\0" in line:
        column = line.index("\0") + 1
        raise InputError(
            f"{path}, line {number}: NUL character at column {column}; expected text: remove the "
            "character (tr -d '\\0')"
        )
    return line


def _describe_undecodable(raw: bytes, error: UnicodeDecodeError) -> str:
    """Explain why a line is not valid UTF-8, and how to fix it."""
    for magic, command, suffix in COMPRESSED_FORMATS:
        if raw.startswith(magic):
            return (
                f"compressed data; pipe it through {command}, or use a file name that "
                f"ends in {suffix}"
            )
    invalid = raw[error.start : error.start + 4].hex(" ")
    return (
        f"bytes {invalid} at byte {error.start + 1} are not UTF-8; "
        "convert the file, for example with iconv"
    )


def read_parallel(
    source: str | Path, target: str | Path, is_sentence: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield pairs of aligned lines from two files.

    Args:
        source: text file, read with `read_lines`.
        target: text file with the same number of lines.
        is_sentence: whether each line holds one sentence.

    Raises:
        InputError: if the files are empty or differ in length, or if `read_lines` rejects a line.
    """
    source_lines = read_lines(source, is_sentence)
    target_lines = read_lines(target, is_sentence)
    count = 0
    for source_line in source_lines:
        target_line = next(target_lines, None)
        if target_line is None:
            total = count + 1 + sum(1 for _ in source_lines)
            unpaired = f"{source}: {source_line[:60]!r}"
            raise InputError(_unequal(source, total, target, count, unpaired))
        count += 1
        yield source_line, target_line
    target_line = next(target_lines, None)
    if target_line is not None:
        total = count + 1 + sum(1 for _ in target_lines)
        unpaired = f"{target}: {target_line[:60]!r}"
        raise InputError(_unequal(source, count, target, total, unpaired))
    if not count:
        raise InputError(f"{source}: empty file; expected one sentence per line")


def _unequal(
    source: str | Path, source_count: int, target: str | Path, target_count: int, unpaired: str
) -> str:
    first_unpaired = min(source_count, target_count) + 1
    return (
        f"{source} has {source_count:,} lines and {target} has {target_count:,}; expected aligned "
        f"files with the same number of lines: line {first_unpaired:,} has no counterpart, "
        f"{unpaired}"
    )


def count_file_lines(path: str | Path) -> int:
    """Count the lines of a file. The last line may lack a newline."""
    count = 0
    last_byte = b"\n"
    with reading(path), open_binary(path) as stream:
        while block := stream.read(READ_BYTES):
            count += block.count(b"\n")
            last_byte = block[-1:]
    return count + (last_byte != b"\n")
