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
def test_a_packed_file_that_unfolds_without_end_is_refused(tmp_path, monkeypatch, ending, line):
    """Many lines, each as it should be."""
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
    path.write_bytes("\ufeffa\n\ufeffb\n".encode())  # a byte order mark is no text
    assert list(read_lines(path)) == ["a", "\ufeffb"]
    assert single_line(" a\t\nb \ud800") == "a b ?"


@pytest.mark.parametrize(
    ("ending", "program"),
    [(".gz", "zcat"), (".xz", "xzcat"), (".zst", "zstdcat"), (".bz2", "bzcat")],
)
def test_packed_bytes_are_read_and_recognised_under_another_name(tmp_path, ending, program):
    packed = tmp_path / f"packed{ending}"
    with atomic_write(packed) as stream:
        stream.write("one\ntwo\n")
    assert list(read_lines(packed)) == ["one", "two"]
    message = rf"plain, line 1: .*\b{program}\b.*{ending}"
    with pytest.raises(InputError, match=message):
        list(read_lines(packed.rename(tmp_path / "plain")))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".BZ2", ".Xz"])
def test_endings_in_capitals_and_files_cut_off(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    with atomic_write(path) as stream:
        stream.writelines(f"{number * 7919 % 10_007}\n" for number in range(5000))
    assert len(list(read_lines(path))) == 5000
    content = path.read_bytes()
    for spoilt in (
        content[:-30],
        content[: len(content) // 2] + b"spoilt" + content[len(content) // 2 + 6 :],
    ):
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match=f"x{ending}"):
            list(read_lines(path))


def test_files_in_an_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE_BYTES", 100_000)
    path = tmp_path / "x.ZIP"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("deep/a.en", "one\ntwo\n")
    assert list(read_lines(path)) == list(read_lines(path / "deep/a.en")) == ["one", "two"]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("b.gz", gzip.compress(b"three\n"))
        packed.writestr("c", b"word\n" * 200_000)
    assert list(read_lines(path / "b.gz")) == ["three"]
    for name in ("", "missing"):
        with pytest.raises(InputError, match=r"x.ZIP.*'b.gz', 'c', 'deep/a.en'.*x.ZIP/MEMBER"):
            list(read_lines(path / name))
    with pytest.raises(InputError, match=r"x\.ZIP: .*\b100\b"):
        for _ in read_lines(path / "c"):
            pass
    content = bytearray(path.read_bytes())
    content[40:44] = b"abcd"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.ZIP"):
        list(read_lines(path / "deep/a.en"))
    path.write_bytes(content[:-40])
    with pytest.raises(InputError, match=r"x\.ZIP"):
        list(read_lines(path / "deep/a.en"))


def test_an_archive_with_any_byte_spoilt_is_read_or_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.en", "one\ntwo\n")
    content = path.read_bytes()
    refused = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            assert list(read_lines(path)) == ["one", "two"], place  # the date, or what nobody reads
        except InputError:
            refused += 1
    assert refused > len(content) / 3


def test_unequal_files_are_counted_to_the_end(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(InputError, match=r"a has 3 lines and .*b has 1"):
        list(read_parallel(tmp_path / "a", tmp_path / "b"))
    with pytest.raises(InputError, match=r"b has 1 lines and .*a has 3"):
        list(read_parallel(tmp_path / "b", tmp_path / "a"))


def test_lines_by_number(tmp_path):
    path = tmp_path / "text"
    path.write_text("one\n\ndeux é\nlast without an end", encoding="utf-8")
    lines = Lines(path)
    assert len(lines) == 4
    assert [lines[number] for number in (3, 0, 2, 1)] == [
        "last without an end",
        "one",
        "deux é",
        "",
    ]
    assert lines[1:3] == ["", "deux é"]
    assert (lines[-1], lines[-2:]) == ("last without an end", ["deux é", "last without an end"])
    with pytest.raises(IndexError):
        lines[4]
    before = len(os.listdir("/proc/self/fd"))
    many = [Lines(path) for _ in range(9)]
    assert [some[0] for some in many] == ["one"] * 9
    assert len(os.listdir("/proc/self/fd")) == before  # of thousands of shards none may stay open


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_a_line_without_an_end_is_not_read(tmp_path, packed, monkeypatch):
    """No more of it is unpacked than a line may have."""
    path, record = tmp_path / f"text{packed}", 2**25
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
    with pytest.raises(InputError, match="line 2: "):
        Lines(tmp_path / "text") if not packed else list(read_lines(path))


def test_a_line_of_just_the_length_is_read(tmp_path):
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


def test_what_is_no_file(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        list(read_lines(tmp_path))
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where standard input is closed
    with pytest.raises(InputError, match=r"^-: "):
        list(read_lines("-"))


@pytest.mark.parametrize(
    "line",
    [
        *(
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
        ),
        *("a", "👍", "."),
    ],
)
def test_a_blank_line_has_no_pieces(packaged, line):
    _, lengths = packaged.tokenizer.encode_flat([line])
    assert is_blank(line) == (lengths[0] == 0)


@pytest.mark.parametrize(
    "name", ["x.tmx", "x.XLF.gz", "x.po", "x.jsonl", "x.json.zst", "x.sgm", "x.pdf"]
)
def test_mark_up_is_not_read_as_sentences(tmp_path, name):
    (tmp_path / name).write_text("<seg>A dog.</seg>\n")
    with pytest.raises(InputError, match=re.escape(name)):
        list(read_lines(tmp_path / name))


def test_ends_of_lines_as_of_old_macs_are_not_one_line(tmp_path):
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
def test_files_of_pairs_are_for_prepare(tmp_path, name):
    with pytest.raises(InputError, match="lxsr prepare"):
        next(read_lines(tmp_path / name))
