"""Archives with paths and links to other folders, decompression bombs, and damage."""

import os
import random
import tarfile

import pytest
from archives import member, tar_of, zip_of

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.unpack import unpack

TEXT = b"".join(b"line %d of some text\n" % number for number in range(500))
# Does not compress, so that its position in an archive is known.
NOISE = random.Random(1).randbytes(50_000)
MIDDLE_OF_NOISE = 25_000
PACKERS = {"zip": zip_of, "tgz": tar_of}


@pytest.mark.parametrize("form", PACKERS)
@pytest.mark.parametrize(
    "name_in_archive",
    ["/etc/member", "a/../../../member", "member"],
    ids=["absolute", "above", "plain"],
)
def test_a_file_is_written_to_its_output_path_only_whatever_its_path_in_the_archive(
    tmp_path, name_in_archive, form
):
    folder = tmp_path / "folder"
    folder.mkdir()
    archive = folder / f"x.{form}"
    archive.write_bytes(PACKERS[form]((name_in_archive, TEXT)))

    unpack(archive, {"member": folder / "output"})

    assert (folder / "output").read_bytes() == TEXT
    assert sorted(os.listdir(folder)) == ["output", archive.name]
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE], ids=["link", "hard link", "device"]
)
def test_a_link_or_device_in_an_archive_counts_as_missing_and_is_not_extracted(tmp_path, kind):
    archive = tmp_path / "x.tgz"
    link = member("member", kind, linkname="/etc/passwd")
    archive.write_bytes(tar_of((link, b"")))

    with pytest.raises(InputError, match=r"x\.tgz: no member in this archive"):
        unpack(archive, {"member": tmp_path / "output"})

    assert os.listdir(tmp_path) == ["x.tgz"]


@pytest.mark.parametrize("form", PACKERS)
def test_an_archive_of_more_than_100_times_its_size_is_refused_and_no_file_is_left(
    tmp_path, monkeypatch, form
):
    # Without this, 64 MB may be extracted from an archive of any size.
    monkeypatch.setattr("fairseq_lxsr.files.unpack.FREE_BYTES", 1000)
    archive = tmp_path / f"x.{form}"
    zeros = b"\0" * 1_000_000
    archive.write_bytes(PACKERS[form](("a", zeros), ("b", zeros)))
    assert archive.stat().st_size < 2 * len(zeros) / 100

    with pytest.raises(InputError, match=rf"x\.{form}: .*\b100 times"):
        unpack(archive, {"a": tmp_path / "a", "b": tmp_path / "b"})

    assert os.listdir(tmp_path) == [archive.name]


def flip_bit(content: bytes, position: int) -> bytes:
    damaged = bytearray(content)
    damaged[position] ^= 1
    return bytes(damaged)


ZIP = zip_of(("member", NOISE))
TGZ = tar_of(("member", NOISE))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # The table of the members of a ZIP is at its end.
        ("cut.zip", ZIP[:-30]),
        ("cut.tgz", TGZ[:MIDDLE_OF_NOISE]),
        ("flipped.zip", flip_bit(ZIP, MIDDLE_OF_NOISE)),
        ("flipped.tgz", flip_bit(TGZ, MIDDLE_OF_NOISE)),
        # What a server may send instead of an archive.
        ("page.zip", b"<html>"),
        ("page.tgz", b"<html>"),
    ],
)
def test_a_damaged_archive_is_refused_in_one_line_and_no_file_is_left(tmp_path, name, content):
    archive = tmp_path / name
    archive.write_bytes(content)

    with pytest.raises(InputError, match=rf"/{name}: damaged") as caught:
        unpack(archive, {"member": tmp_path / "output"})

    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == [name]


def test_existing_outputs_are_kept_and_missing_ones_extracted(tmp_path):
    (tmp_path / "x.tgz").write_bytes(tar_of(("a", TEXT), ("b", TEXT)))
    (tmp_path / "a").write_text("ours")

    unpack(tmp_path / "x.tgz", {"a": tmp_path / "a", "b": tmp_path / "b"})

    assert (tmp_path / "a").read_text() == "ours"
    assert (tmp_path / "b").read_bytes() == TEXT
