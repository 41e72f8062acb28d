"""Lines of plain, compressed and damaged text files."""

import gzip
import os
import random
import re
import sys
import tracemalloc
import zipfile
from functools import partial
from pathlib import Path

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import lines
from fairseq_lxsr.files import open as files
from fairseq_lxsr.files.lines import (
    RECORD_BYTES,
    SENTENCE_BYTES,
    Lines,
    is_blank,
    read_lines,
    read_parallel,
    single_line,
)
from fairseq_lxsr.files.write import atomic_write


@pytest.fixture
def small_free_size(monkeypatch):
    """Let 100 kB instead of 64 MB be decompressed from a file of any size."""
    monkeypatch.setattr(files, "FREE_BYTES", 100_000)


@pytest.mark.usefixtures("small_free_size")
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".bz2", ".GZ"])
@pytest.mark.parametrize("line", [b"\n", b"short\n"], ids=["empty", "short"])
def test_a_compressed_file_of_more_than_100_times_its_size_is_refused(tmp_path, suffix, line):
    path = tmp_path / f"x{suffix}"
    # 200 kB or more, in less than 1 kB.
    with atomic_write(path, "wb") as stream:
        stream.write(line * 200_000)
    compressed_size = path.stat().st_size

    with pytest.raises(InputError, match=rf"x{suffix}: .*\b100\b.*\b{compressed_size:,} bytes"):
        list(read_lines(path))


def test_line_feeds_end_lines_and_other_separators_of_unicode_do_not(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\u2028still one\r\ntwo\x0bstill two\nthree".encode())

    assert list(read_lines(path)) == ["one\u2028still one", "two\x0bstill two", "three"]


def test_a_byte_order_mark_is_removed_at_the_start_of_a_file_only(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\n\ufeffb\n".encode())

    assert list(read_lines(tmp_path / "text")) == ["a", "\ufeffb"]


def test_single_line_joins_words_by_one_space_and_replaces_characters_that_utf8_lacks():
    surrogate = "\ud800"

    assert single_line(f" a\t\nb {surrogate}") == "a b ?"


# The suffix of each compression, and the program that decompresses it.
COMPRESSIONS = [(".gz", "zcat"), (".xz", "xzcat"), (".zst", "zstdcat"), (".bz2", "bzcat")]


@pytest.mark.parametrize(("suffix", "program"), COMPRESSIONS)
def test_a_compressed_file_is_decompressed(tmp_path, suffix, program):
    path = tmp_path / f"packed{suffix}"
    with atomic_write(path) as stream:
        stream.write("one\ntwo\n")

    assert list(read_lines(path)) == ["one", "two"]


@pytest.mark.parametrize(("suffix", "program"), COMPRESSIONS)
def test_the_error_for_a_compressed_file_without_its_suffix_names_program_and_suffix(
    tmp_path, suffix, program
):
    packed = tmp_path / f"packed{suffix}"
    with atomic_write(packed) as stream:
        stream.write("one\ntwo\n")
    path = packed.rename(tmp_path / "plain")

    with pytest.raises(InputError, match=rf"plain, line 1: .*\b{program}\b.*{suffix}"):
        list(read_lines(path))


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".BZ2", ".Xz"])
def test_a_damaged_compressed_file_is_refused_by_its_name(tmp_path, suffix, damage):
    path = tmp_path / f"x{suffix}"
    numbers = random.Random(1).sample(range(10_000), 5000)
    with atomic_write(path) as stream:
        stream.writelines(f"{number}\n" for number in numbers)
    assert len(list(read_lines(path))) == 5000

    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if damage == "cut off":
        del content[middle:]
    else:
        content[middle : middle + len(b"spoilt")] = b"spoilt"
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"x{suffix}"):
        list(read_lines(path))


def write_zip(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


@pytest.fixture
def archive(tmp_path) -> Path:
    """A ZIP file with a text, a compressed text, and a text of 1 MB that compresses to 1 kB."""
    members = {
        "deep/a.en": "one\ntwo\n",
        "b.gz": gzip.compress(b"three\n"),
        "c": "word\n" * 200_000,
    }
    return write_zip(tmp_path / "x.ZIP", members)


def test_a_zip_with_a_single_file_is_read_as_that_file(tmp_path):
    path = write_zip(tmp_path / "x.ZIP", {"deep/a.en": "one\ntwo\n"})

    assert list(read_lines(path)) == ["one", "two"]


def test_a_file_in_a_zip_is_read_by_its_path_and_decompressed(archive):
    assert list(read_lines(archive / "deep/a.en")) == ["one", "two"]
    assert list(read_lines(archive / "b.gz")) == ["three"]


@pytest.mark.parametrize("name", ["", "missing"], ids=["no member named", "missing"])
def test_the_error_for_a_zip_with_several_files_lists_them_and_says_how_to_name_one(archive, name):
    message = r"x\.ZIP.*'b\.gz', 'c', 'deep/a\.en'.*x\.ZIP/MEMBER"

    with pytest.raises(InputError, match=message):
        list(read_lines(archive / name))


@pytest.mark.usefixtures("small_free_size")
def test_a_file_in_a_zip_of_more_than_100_times_the_size_of_the_zip_is_refused(archive):
    with pytest.raises(InputError, match=r"x\.ZIP: .*\b100\b"):
        list(read_lines(archive / "c"))


@pytest.mark.parametrize("damage", ["text overwritten", "end cut off"])
def test_a_damaged_zip_is_refused_by_its_name(archive, damage):
    content = bytearray(archive.read_bytes())
    if damage == "text overwritten":
        # The compressed text of deep/a.en comes directly after its name, which is first in the ZIP.
        start = content.index(b"deep/a.en") + len(b"deep/a.en")
        content[start : start + 4] = b"abcd"
    else:
        # The table of the files, which is at the end, is incomplete.
        del content[-40:]
    archive.write_bytes(content)

    with pytest.raises(InputError, match=r"x\.ZIP"):
        list(read_lines(archive / "deep/a.en"))


def test_a_zip_with_any_byte_damaged_is_read_correctly_or_refused(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"a.en": "one\ntwo\n"})
    content = path.read_bytes()
    num_refused = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            # Some bytes, such as those of the date, are not read.
            assert list(read_lines(path)) == ["one", "two"], position
        except InputError:
            num_refused += 1

    # More than a third of the bytes matter.
    assert num_refused > len(content) / 3


def test_files_of_different_lengths_are_refused_with_their_numbers_of_lines(tmp_path):
    (tmp_path / "long").write_text("1\n2\n3\n")
    (tmp_path / "short").write_text("1\n")

    with pytest.raises(InputError, match=r"long has 3 lines and .*short has 1"):
        list(read_parallel(tmp_path / "long", tmp_path / "short"))
    with pytest.raises(InputError, match=r"short has 1 lines and .*long has 3"):
        list(read_parallel(tmp_path / "short", tmp_path / "long"))


def test_the_lines_of_a_file_are_read_by_number_as_the_items_of_a_list(tmp_path):
    path = tmp_path / "text"
    expected = ["one", "", "deux é", "last without a line feed"]
    path.write_text("\n".join(expected), encoding="utf-8")

    lines = Lines(path)

    assert len(lines) == 4
    # In another order than in the file.
    for number in (3, 0, 2, 1, -1):
        assert lines[number] == expected[number]
    assert lines[1:3] == expected[1:3]
    assert lines[-2:] == expected[-2:]
    with pytest.raises(IndexError):
        lines[4]


def test_lines_that_were_read_by_number_keep_no_file_open(tmp_path):
    """An index may have thousands of shards."""
    (tmp_path / "text").write_text("one\n")
    num_open_files = len(os.listdir("/proc/self/fd"))

    texts = [Lines(tmp_path / "text") for _ in range(9)]
    first_lines = [text[0] for text in texts]

    assert first_lines == ["one"] * 9
    assert len(os.listdir("/proc/self/fd")) == num_open_files


# A smaller limit than that of the package, to save time.
SMALL_RECORD_BYTES = RECORD_BYTES // 16


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_an_endless_line_is_refused_with_the_limit_and_without_being_read_whole(
    tmp_path, suffix, monkeypatch
):
    monkeypatch.setattr(lines, "RECORD_BYTES", SMALL_RECORD_BYTES)
    path = tmp_path / f"text{suffix}"
    with atomic_write(path) as stream:
        stream.write("one\n")
        for _ in range(4):
            stream.write("a" * SMALL_RECORD_BYTES)

    readers = [
        (read_lines, SENTENCE_BYTES),
        (lambda path: read_parallel(path, path), SENTENCE_BYTES),
        (partial(read_lines, is_sentence=False), SMALL_RECORD_BYTES),
    ]
    if not suffix:
        # Lines cannot be read by number from a compressed file.
        readers.append((Lines, SMALL_RECORD_BYTES))
    for read, limit in readers:
        tracemalloc.start()
        with pytest.raises(InputError, match=rf"text.*, line 2: .*b'aaaaa.*\b{limit:,} bytes"):
            list(read(path))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # As many bytes as are allowed, a copy of them, and buffers. The whole line has four times
        # as many, and would be copied too.
        assert peak < 4 * SMALL_RECORD_BYTES


def test_a_line_as_long_as_the_limit_is_read_and_a_longer_one_refused(tmp_path):
    path = tmp_path / "text"
    # The limit includes the line feed.
    path.write_bytes(b"a" * (SENTENCE_BYTES - 1) + b"\n")
    assert [len(line) for line in read_lines(path)] == [SENTENCE_BYTES - 1]

    path.write_bytes(b"a" * SENTENCE_BYTES + b"\n")
    with pytest.raises(InputError, match=rf"text, line 1: .*{SENTENCE_BYTES:,}"):
        list(read_lines(path))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("w " * 20_000 + "w", id="letters"),
        pytest.param("\u0434\u0430 " * 200_000 + "end", id="words"),
        pytest.param("\u3000 x  " * 30_000 + "end", id="spaces"),
    ],
)
def test_a_line_of_any_number_of_words_is_read(tmp_path, line):
    path = tmp_path / "text"
    path.write_text(f"one\n{line}\nlast\n", encoding="utf-8")

    assert list(read_lines(path)) == ["one", line, "last"]
    assert list(read_parallel(path, path)) == [("one", "one"), (line, line), ("last", "last")]


def test_a_folder_is_refused_as_a_text(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        list(read_lines(tmp_path))


def test_a_closed_standard_input_is_refused(monkeypatch):
    # This is what Python does if standard input is closed.
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(InputError, match=r"^-: standard input is closed"):
        list(read_lines("-"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", True),
        (" ", True),
        # Invisible: zero-width space, marks of direction, a joiner, soft hyphen, blank letters.
        ("\u200b", True),
        ("\u200e", True),
        ("\u200f \u061c", True),
        ("\u200c", True),
        ("\u00ad", True),
        ("\u2800", True),
        ("\u3164", True),
        # SentencePiece reads its sign for a space, surrogates and U+FFFD as spaces.
        ("▁", True),
        (chr(0xD800), True),
        ("\ufffd", True),
        # Anything that a reader sees.
        ("a", False),
        ("👍", False),
        (".", False),
    ],
    ids=ascii,
)
def test_a_line_is_blank_if_the_tokenizer_makes_no_pieces_of_it(packaged, line, expected):
    _, num_pieces = packaged.tokenizer.encode_flat([line])

    assert (num_pieces[0] == 0) == expected
    assert is_blank(line) == expected


@pytest.mark.parametrize("name", ["x.json.zst", "x.sgm", "x.pdf"])
def test_a_file_whose_name_is_not_that_of_a_plain_text_is_refused(tmp_path, name):
    (tmp_path / name).write_text("<seg>A dog.</seg>\n")

    with pytest.raises(InputError, match=re.escape(name)):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("name", ["x.tmx", "x.po", "x.XLF", "x.XLF.gz", "x.jsonl.gz", "x.ndjson"])
def test_the_error_for_a_file_of_sentence_pairs_names_the_command_that_reads_it(tmp_path, name):
    (tmp_path / name).write_text("<seg>A dog.</seg>\n")

    with pytest.raises(InputError, match=rf"{re.escape(name)}: .*lxsr prepare"):
        list(read_lines(tmp_path / name))


def test_a_text_whose_lines_end_in_carriage_returns_is_refused(tmp_path):
    """Before Mac OS X, lines ended so."""
    (tmp_path / "x").write_bytes(b"A dog.\rA cat.\r")

    with pytest.raises(InputError, match=r"x: .*\\r.*\\n"):
        list(read_lines(tmp_path / "x"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"a\r", ["a"], id="at the end"),
        pytest.param(b"a\rb\n", ["a\rb"], id="in the first line"),
        pytest.param(b"a\r\nb\rc", ["a", "b\rc"], id="in a later line"),
    ],
)
def test_a_single_carriage_return_does_not_end_a_line(tmp_path, content, expected):
    (tmp_path / "x").write_bytes(content)

    assert list(read_lines(tmp_path / "x")) == expected
