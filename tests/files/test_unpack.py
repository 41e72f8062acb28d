"""Archives with paths and links to other folders, decompression bombs, and damage."""

import os
import random
import tarfile

import pytest
from archives import member, tar_of, zip_of

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.unpack import unpack

TEXT = b"".join(b"line %d of some text\n" % number for number in range(500))
# Does not compress.
NOISE = random.Random(1).randbytes(50_000)
PACKERS = {"zip": zip_of, "tgz": tar_of}


@pytest.mark.parametrize("form", PACKERS)
@pytest.mark.parametrize("name", ["/etc/wanted", "a/../../../wanted", "wanted"])
def test_no_file_is_written_outside_the_output_folder(tmp_path, name, form):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"x.{form}").write_bytes(PACKERS[form]((name, TEXT)))
    unpack(folder / f"x.{form}", {"wanted": folder / "out"})
    assert (folder / "out").read_bytes() == TEXT
    assert sorted(os.listdir(folder)) == ["out", f"x.{form}"]
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_not_extracted(tmp_path, kind):
    link = member("wanted", kind, linkname="/etc/passwd")
    (tmp_path / "x.tgz").write_bytes(tar_of((link, b"")))
    with pytest.raises(InputError, match=r"x\.tgz: no wanted in this archive"):
        unpack(tmp_path / "x.tgz", {"wanted": tmp_path / "out"})
    assert os.listdir(tmp_path) == ["x.tgz"]


@pytest.mark.parametrize("form", PACKERS)
def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch, form):
    monkeypatch.setattr("fairseq_lxsr.files.unpack.FREE_BYTES", 1000)
    halves = (("a", b"\0" * 1_000_000), ("b", b"\0" * 1_000_000))
    (tmp_path / f"x.{form}").write_bytes(PACKERS[form](*halves))
    with pytest.raises(InputError, match=rf"x\.{form}: .*\b100 times"):
        unpack(tmp_path / f"x.{form}", {"a": tmp_path / "a", "b": tmp_path / "b"})
    assert os.listdir(tmp_path) == [f"x.{form}"]


def flip_bit(content: bytes, position: int) -> bytes:
    damaged = bytearray(content)
    damaged[position] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.zip", zip_of(("wanted", NOISE))[:-30]),
        ("cut.tgz", tar_of(("wanted", NOISE))[:-20_000]),
        ("flipped.zip", flip_bit(zip_of(("wanted", NOISE)), 20_000)),
        ("flipped.tgz", flip_bit(tar_of(("wanted", NOISE)), 20_000)),
        ("page.zip", b"<html>"),
        ("page.tgz", b"<html>"),
    ],
)
def test_a_damaged_archive_is_refused_and_no_file_is_left(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"/{name}: damaged") as caught:
        unpack(tmp_path / name, {"wanted": tmp_path / "out"})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == [name]


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "x.tgz").write_bytes(tar_of(("a", TEXT), ("b", TEXT)))
    (tmp_path / "a").write_text("ours")
    unpack(tmp_path / "x.tgz", {"a": tmp_path / "a", "b": tmp_path / "b"})
    assert (tmp_path / "a").read_text() == "ours"
    assert (tmp_path / "b").read_bytes() == TEXT
