import gzip
import os
import re
import sys
import tracemalloc
import zipfile
from functools import partial

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import lines
from fairseq_lxsr.files import open as files
from fairseq_lxsr.files.lines import (
    SENTENCE_BYTES,
    Lines,
    is_blank,
    read_lines,
    read_parallel,
    single_line,
)
from fairseq_lxsr.files.write import atomic_write


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst", ".bz2", ".GZ"])
@pytest.mark.parametrize("line", [b"\n", b"short\n"])
def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch, ending, line):
    """It has many valid lines."""
    monkeypatch.setattr(files, "FREE_BYTES", 100_000)
    path = tmp_path / f"x{ending}"
    with atomic_write(path, "wb") as stream:
        stream.write(line * 200_000)
    with pytest.raises(InputError, match=rf"x{ending}: .*\b{path.stat().st_size:,}\b"):
        for _ in read_lines(path):
            pass


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\u2028still one\r\ntwo\x0bstill two\nthree".encode())
    assert list(read_lines(path)) == ["one\u2028still one", "two\x0bstill two", "three"]


def test_a_byte_order_mark_at_the_start_is_removed(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(tmp_path / "text")) == ["a", "\ufeffb"]


def test_single_line_replaces_ends_of_lines_and_invalid_characters():
    assert single_line(" a\t\nb \ud800") == "a b ?"


@pytest.mark.parametrize(
    ("ending", "program"),
    [(".gz", "zcat"), (".xz", "xzcat"), (".zst", "zstdcat"), (".bz2", "bzcat")],
)
def test_compressed_files_are_read_and_named_if_the_ending_is_missing(tmp_path, ending, program):
    packed = tmp_path / f"packed{ending}"
    with atomic_write(packed) as stream:
        stream.write("one\ntwo\n")
    assert list(read_lines(packed)) == ["one", "two"]
    message = rf"plain, line 1: .*\b{program}\b.*{ending}"
    with pytest.raises(InputError, match=message):
        list(read_lines(packed.rename(tmp_path / "plain")))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".BZ2", ".Xz"])
def test_damaged_compressed_files_are_refused_in_any_spelling_of_the_ending(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    with atomic_write(path) as stream:
        stream.writelines(f"{number * 7919 % 10_007}\n" for number in range(5000))
    assert len(list(read_lines(path))) == 5000
    content = path.read_bytes()
    middle = len(content) // 2
    overwritten = content[:middle] + b"spoilt" + content[middle + 6 :]
    for damaged in (content[:-30], overwritten):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"x{ending}"):
            list(read_lines(path))


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A ZIP file with three files, one of which is a decompression bomb."""
    monkeypatch.setattr(files, "FREE_BYTES", 100_000)
    path = tmp_path / "x.ZIP"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("deep/a.en", "one\ntwo\n")
        packed.writestr("b.gz", gzip.compress(b"three\n"))
        packed.writestr("c", b"word\n" * 200_000)
    return path


def test_a_zip_with_a_single_file_is_read_as_that_file(tmp_path):
    path = tmp_path / "x.ZIP"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("deep/a.en", "one\ntwo\n")
    assert list(read_lines(path)) == ["one", "two"]


def test_a_file_in_a_zip_is_read_by_its_path(archive):
    assert list(read_lines(archive / "deep/a.en")) == ["one", "two"]
    assert list(read_lines(archive / "b.gz")) == ["three"]
    for name in ("", "missing"):
        with pytest.raises(InputError, match=r"x.ZIP.*'b.gz', 'c', 'deep/a.en'.*x.ZIP/MEMBER"):
            list(read_lines(archive / name))


def test_a_decompression_bomb_in_a_zip_is_refused(archive):
    with pytest.raises(InputError, match=r"x\.ZIP: .*\b100\b"):
        for _ in read_lines(archive / "c"):
            pass


def test_a_damaged_zip_is_refused(archive):
    content = archive.read_bytes()
    # The compressed text of deep/a.en.
    other_text = content[:40] + b"abcd" + content[44:]
    without_end = content[:-40]
    for damaged in (other_text, without_end):
        archive.write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.ZIP"):
            list(read_lines(archive / "deep/a.en"))


def test_a_zip_with_any_byte_damaged_is_read_correctly_or_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.en", "one\ntwo\n")
    content = path.read_bytes()
    refusals = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            # Some bytes, such as those of the date, are not read.
            assert list(read_lines(path)) == ["one", "two"], position
        except InputError:
            refusals += 1
    assert refusals > len(content) / 3


def test_files_of_different_lengths_are_refused_with_their_numbers_of_lines(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(InputError, match=r"a has 3 lines and .*b has 1"):
        list(read_parallel(tmp_path / "a", tmp_path / "b"))
    with pytest.raises(InputError, match=r"b has 1 lines and .*a has 3"):
        list(read_parallel(tmp_path / "b", tmp_path / "a"))


def test_lines_are_read_by_number(tmp_path):
    path = tmp_path / "text"
    path.write_text("one\n\ndeux é\nlast without an end", encoding="utf-8")
    lines = Lines(path)
    assert len(lines) == 4
    assert lines[3] == "last without an end"
    assert lines[0] == "one"
    assert lines[2] == "deux é"
    assert lines[1] == ""
    assert lines[1:3] == ["", "deux é"]
    assert lines[-1] == "last without an end"
    assert lines[-2:] == ["deux é", "last without an end"]
    with pytest.raises(IndexError):
        lines[4]


def test_lines_keep_no_file_open(tmp_path):
    """An index may have thousands of shards."""
    (tmp_path / "text").write_text("one\n")
    open_files = len(os.listdir("/proc/self/fd"))
    texts = [Lines(tmp_path / "text") for _ in range(9)]
    assert [text[0] for text in texts] == ["one"] * 9
    assert len(os.listdir("/proc/self/fd")) == open_files


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_an_endless_line_is_refused_without_being_read_whole(tmp_path, packed, monkeypatch):
    path = tmp_path / f"text{packed}"
    record = 2**25
    monkeypatch.setattr(lines, "RECORD_BYTES", record)
    with atomic_write(path) as stream:
        stream.write("one\n")
        for _ in range(4):
            stream.write("a" * 10**7)
    for read in (
        read_lines,
        partial(read_lines, is_sentence=False),
        lambda path: read_parallel(path, path),
    ):
        tracemalloc.start()
        with pytest.raises(InputError, match=r"text.*, line 2: .*b'aaaaa.*(1,048,576|33,554,432)"):
            list(read(path))
        assert tracemalloc.get_traced_memory()[1] < 2.5 * record
        tracemalloc.stop()
    if not packed:
        with pytest.raises(InputError, match="line 2: "):
            Lines(path)


def test_the_longest_allowed_line_is_read_and_a_longer_one_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"a" * (SENTENCE_BYTES - 1) + b"\n")
    assert [len(line) for line in read_lines(tmp_path / "text")] == [SENTENCE_BYTES - 1]
    (tmp_path / "text").write_bytes(b"a" * SENTENCE_BYTES + b"\n")
    with pytest.raises(InputError, match=r"text, line 1: .*1,048,576"):
        list(read_lines(tmp_path / "text"))


@pytest.mark.parametrize(
    "words", [["w"] * 20_000, ["\u0434\u0430"] * 200_000, ["\u3000", "x "] * 30_000]
)
def test_a_line_of_any_number_of_words_is_read(tmp_path, words):
    (tmp_path / "text").write_text(f"one\n{' '.join(words)}\nlast\n", encoding="utf-8")
    assert list(read_lines(tmp_path / "text")) == ["one", " ".join(words), "last"]
    assert sum(1 for _ in read_parallel(tmp_path / "text", tmp_path / "text")) == 3


def test_a_folder_and_a_closed_standard_input_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        list(read_lines(tmp_path))
    # This is what Python does if standard input is closed.
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match=r"^-: "):
        list(read_lines("-"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        "\u200b",
        "\u200e",
        "\u200f \u061c",
        "\u200c",
        "▁",
        chr(0xD800),
        "\ufffd",
        "\u00ad",
        "\u2800",
        "\u3164",
        "a",
        "👍",
        ".",
    ],
)
def test_a_line_is_blank_if_it_has_no_pieces(packaged, line):
    _, lengths = packaged.tokenizer.encode_flat([line])
    assert is_blank(line) == (lengths[0] == 0)


@pytest.mark.parametrize(
    "name", ["x.tmx", "x.XLF.gz", "x.po", "x.jsonl", "x.json.zst", "x.sgm", "x.pdf"]
)
def test_mark_up_is_not_read_as_sentences(tmp_path, name):
    (tmp_path / name).write_text("<seg>A dog.</seg>\n")
    with pytest.raises(InputError, match=re.escape(name)):
        list(read_lines(tmp_path / name))


def test_a_text_with_only_carriage_returns_as_ends_of_lines_is_refused(tmp_path):
    for content, expected in (
        (b"a\r", ["a"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\nb\rc", ["a", "b\rc"]),
    ):
        (tmp_path / "x").write_bytes(content)
        assert list(read_lines(tmp_path / "x")) == expected
    (tmp_path / "x").write_bytes(b"A dog.\rA cat.\r")
    with pytest.raises(InputError, match=r"x: .*\\r.*\\n"):
        list(read_lines(tmp_path / "x"))


@pytest.mark.parametrize("name", ["a.tmx", "a.po", "a.jsonl.gz", "a.ndjson", "a.XLF"])
def test_the_error_for_a_file_of_pairs_names_lxsr_prepare(tmp_path, name):
    with pytest.raises(InputError, match="lxsr prepare"):
        next(read_lines(tmp_path / name))
