"""Errors of a failing disk name the file, which the system call does not."""

import errno
import io
import os

import pytest

from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.open import NamedFile, open_binary, read_file, sha256
from fairseq_lxsr.files.write import atomic_write, sync


class FailingDisk(io.FileIO):
    """A file that opens, but whose content cannot be read."""

    def readinto(self, buffer):
        raise OSError(errno.EIO, "Input/output error")

    def readall(self):
        raise OSError(errno.EIO, "Input/output error")


class FailingFile(NamedFile, FailingDisk):
    """The class with which the package reads files, on a failing disk."""


@pytest.fixture
def unreadable_file(tmp_path, monkeypatch):
    """A file whose content the package cannot read, because the disk fails."""
    monkeypatch.setattr("fairseq_lxsr.files.open.NamedFile", FailingFile)
    (tmp_path / "text").write_text("a\n")
    return tmp_path / "text"


@pytest.fixture
def unflushable_disk(monkeypatch):
    """A disk on which no file can be flushed."""

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize(
    "read",
    [read_file, sha256, lambda path: list(read_lines(path)), lambda path: open_binary(path).read()],
    ids=["read_file", "sha256", "read_lines", "open_binary"],
)
def test_the_error_of_a_failing_disk_names_the_file_that_cannot_be_read(unreadable_file, read):
    with pytest.raises(OSError, match=str(unreadable_file)) as caught:
        read(unreadable_file)

    assert caught.value.errno == errno.EIO


def test_the_error_of_a_failing_disk_names_the_tokenizer_of_an_onnx_model(unreadable_file):
    onnx = pytest.importorskip("fairseq_lxsr.export.onnx")
    pytest.importorskip("onnxruntime")
    folder = unreadable_file.parent
    unreadable_file.rename(folder / "tokenizer.json")

    with pytest.raises(OSError, match=r"tokenizer\.json"):
        onnx.embed_by_onnx(folder, ["a"])


def test_a_file_larger_than_the_buffers_is_read_whole(tmp_path):
    """The class that names failing files reads like the one of Python."""
    count = 100_000
    (tmp_path / "text").write_bytes(b"a\r\n" * count)

    assert read_file(tmp_path / "text") == b"a\r\n" * count
    assert list(read_lines(tmp_path / "text")) == ["a"] * count


def test_reading_a_folder_as_a_file_raises_the_error_of_python(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


@pytest.mark.usefixtures("unflushable_disk")
def test_the_error_of_a_failing_disk_names_the_file_that_cannot_be_flushed(tmp_path):
    (tmp_path / "text").write_text("a")

    with pytest.raises(OSError, match=str(tmp_path / "text")):
        sync(tmp_path / "text")


@pytest.mark.usefixtures("unflushable_disk")
def test_a_new_file_that_cannot_be_flushed_is_named_and_removed(tmp_path):
    # The final name, not the temporary one.
    with pytest.raises(OSError, match=f"'{tmp_path}/new'"), atomic_write(tmp_path / "new"):
        pass

    assert list(tmp_path.iterdir()) == []


def test_the_error_of_numpy_for_an_array_that_cannot_be_written_names_the_file(tmp_path):
    with pytest.raises(OSError, match=f"'{tmp_path}/new'"), atomic_write(tmp_path / "new"):
        # What ndarray.tofile raises if the disk is full.
        raise OSError("200 requested and 0 written")
