"""Archives that mean harm: members that point elsewhere, devices, bombs, and bytes of any kind."""

import gzip
import os
import random
import stat
import tarfile
import tracemalloc
from functools import partial

import pytest
from archives import member, tar_of, zip_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import open as files
from fairseq_lxsr.files.unpack import unpack

TEXT = b"".join(b"line %d of some text\n" % number for number in range(500))
ZEROS = b"\0" * 20_000_000
NOISE = random.Random(1).randbytes(50_000)  # does not pack


@pytest.mark.parametrize(
    "name",
    ["/etc/wanted", "../../wanted", "a/../../../wanted", "C:\\x/wanted", "./wanted", "wanted"],
)
@pytest.mark.parametrize("form", ["zip", "tgz"])
def test_names_that_point_elsewhere_do_not_matter(tmp_path, name, form):
    """Only the last part of a name is looked at, and what it goes by here is our choice."""
    content = zip_of((name, TEXT)) if form == "zip" else tar_of((name, TEXT))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"x.{form}").write_bytes(content)
    unpack(tmp_path / "in" / f"x.{form}", {"wanted": tmp_path / "in" / "out"})
    assert sorted(os.listdir(tmp_path / "in")) == ["out", f"x.{form}"]
    assert (tmp_path / "in" / "out").read_bytes() == TEXT
    assert os.listdir(tmp_path) == ["in"]


TAR_KINDS = {
    "symbolic link": member("wanted", tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": member("wanted", tarfile.LNKTYPE, linkname="../../x"),
    "device": member("wanted", tarfile.CHRTYPE, devmajor=1, devminor=5),
    "block device": member("wanted", tarfile.BLKTYPE, devmajor=8),
    "pipe": member("wanted", tarfile.FIFOTYPE),
    "folder": member("wanted", tarfile.DIRTYPE),
}
ZIP_KINDS = {
    "symbolic link": stat.S_IFLNK,
    "device": stat.S_IFCHR,
    "pipe": stat.S_IFIFO,
    "folder": stat.S_IFDIR,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((f"{kind}.tgz", tar_of((info, b""))) for kind, info in TAR_KINDS.items()),
        *(
            (f"{kind}.zip", zip_of(("wanted", b"/etc/passwd"), kind=number))
            for kind, number in ZIP_KINDS.items()
        ),
        ("folder by its name.zip", zip_of(("wanted/", b""), kind=0)),
    ],
)
def test_what_is_no_file_is_not_unpacked(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"/{name}:? .*\bwanted\b"):
        unpack(tmp_path / name, {"wanted": tmp_path / "out"})
    assert os.listdir(tmp_path) == [name]


def long_header() -> bytes:
    """A member whose name is said to have 20 MB."""
    name = member("long", tarfile.GNUTYPE_LONGNAME)
    return tar_of((name, ZEROS), ("wanted", TEXT), format=tarfile.GNU_FORMAT)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def sparse() -> bytes:
    """A few bytes that are said to be a terabyte."""
    headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(10**12)}
    info = member(
        "wanted", pax_headers=headers | {"GNU.sparse.map": "0,0", "GNU.sparse.name": "wanted"}
    )
    return tar_of((info, b"x"), format=tarfile.PAX_FORMAT)


def long_attributes() -> bytes:
    return tar_of(
        (member("wanted", pax_headers={"comment": "x" * 20_000_000}), TEXT),
        format=tarfile.PAX_FORMAT,
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wanted.zip", lambda: zip_of(("wanted", ZEROS)), r"\b100\b"),
        ("wanted.tgz", lambda: tar_of(("wanted", ZEROS)), r"\b100\b"),
        (
            "before.tgz",
            lambda: tar_of(("other", ZEROS), ("wanted", TEXT)),
            r"\b100\b",
        ),
        (
            "after.tgz",
            lambda: tar_of(("wanted", TEXT), ("other", ZEROS)),
            r"\b100\b",
        ),
        ("empty.tgz", lambda: tar_of(*[("x", b"")] * 8000), r"\b100\b"),
        ("long.tgz", long_header, "archive"),
        ("long.tgz", long_attributes, "archive"),
        ("sparse.tgz", sparse(), r"\bwanted\b"),
        ("other.zip", zip_of(("other.txt", b"x")), r"\bwanted\b"),
        ("cut.zip", zip_of(("wanted", b"x" * 1000))[:-30], "archive"),
        ("cut.tgz", tar_of(("wanted", NOISE))[:-20_000], "archive"),
        ("flipped.tgz", flipped(tar_of(("wanted", NOISE)), 20_000), "archive"),
        ("page.zip", b"<html>", "archive"),
        ("page.tgz", b"<html>", "archive"),
    ],
)
def test_bombs_and_archives_that_are_not_whole(tmp_path, name, content, message):
    # what is large is packed here, not where each worker of pytest collects the tests
    (tmp_path / name).write_bytes(content() if callable(content) else content)
    tracemalloc.start()
    with pytest.raises(InputError, match=rf"/{name}:? .*{message}"):
        unpack(tmp_path / name, {"wanted": tmp_path / "out"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert os.listdir(tmp_path) == [name]
    assert peak < 12_000_000


def test_a_bomb_of_many_members_is_counted_together(tmp_path, monkeypatch):
    (tmp_path / "x.zip").write_bytes(zip_of(("a", b"\0" * 100_000), ("b", b"\0" * 100_000)))
    ratio = 200_000 / (tmp_path / "x.zip").stat().st_size
    limit = int(ratio * 0.75)
    monkeypatch.setattr(files, "MAX_RATIO", limit)
    with pytest.raises(InputError, match=rf"x\.zip: .*\b{limit}\b"):
        unpack(tmp_path / "x.zip", {"a": tmp_path / "a", "b": tmp_path / "b"}, free_bytes=0)


@pytest.mark.parametrize("left", [None, -200])
def test_files_that_were_there_are_kept_and_all_others_come_at_once(tmp_path, left):
    content = tar_of(("a", TEXT), ("b", TEXT), ("c", os.urandom(2000)))
    (tmp_path / "x.tgz").write_bytes(content[:left])
    (tmp_path / "a").write_text("ours")
    unpacking = partial(unpack, tmp_path / "x.tgz", {name: tmp_path / name for name in "abc"})
    if left:
        with pytest.raises(InputError, match=r"/x\.tgz:? .*archive"):
            unpacking()
    else:
        unpacking()
    assert sorted(os.listdir(tmp_path)) == (["a", "x.tgz"] if left else ["a", "b", "c", "x.tgz"])
    assert (tmp_path / "a").read_text() == "ours"


def test_members_that_are_not_wanted_are_not_looked_at(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of(("other", ZEROS), ("wanted", TEXT)))
    unpack(tmp_path / "x.zip", {"wanted": tmp_path / "out"})
    assert (tmp_path / "out").read_bytes() == TEXT


SEEDS = {
    "zip": zip_of(("a", TEXT), ("wanted", TEXT)),
    "tgz": tar_of(
        (member("a" * 120), TEXT), (member("wanted", pax_headers={"comment": "x"}), TEXT)
    ),
}


@pytest.mark.parametrize("form", SEEDS)
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_spoilt_bytes_end_in_one_line(form, data, tmp_path_factory):
    content = bytearray(SEEDS[form])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    unpacked_or_refused(bytes(content), form, tmp_path_factory)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_spoilt_members_end_in_one_line(data, tmp_path_factory):
    """Inside the gzip layer, which would notice by its sum what is changed outside."""
    content = bytearray(gzip.decompress(SEEDS["tgz"])[:6000])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 5999))] = data.draw(st.integers(0, 255))
    for start in range(0, 6000 - 511, 512):  # the sum of every header as it must be
        if content[start + 257 : start + 262] == b"ustar":
            total = (
                sum(content[start : start + 148]) + 8 * 32 + sum(content[start + 156 : start + 512])
            )
            content[start + 148 : start + 156] = b"%06o\0 " % total
    unpacked_or_refused(gzip.compress(bytes(content), 1), "tgz", tmp_path_factory)


def unpacked_or_refused(content: bytes, form: str, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("spoilt")
    (folder / f"x.{form}").write_bytes(content)
    message = ""
    try:
        unpack(folder / f"x.{form}", {"wanted": folder / "out"})
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert (folder / "out").exists() == (not message)
