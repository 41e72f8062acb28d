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
    pass


@pytest.fixture
def failing(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.files.open.NamedFile", FailingFile)
    (tmp_path / "text").write_text("a\n")
    return tmp_path / "text"


@pytest.mark.parametrize(
    "read",
    [read_file, sha256, lambda path: list(read_lines(path)), lambda path: open_binary(path).read()],
)
def test_a_file_that_cannot_be_read_is_named(failing, read):
    with pytest.raises(OSError, match=str(failing)) as caught:
        read(failing)
    assert caught.value.errno == errno.EIO


def test_a_tokenizer_that_cannot_be_read_is_named(failing):
    onnx = pytest.importorskip("fairseq_lxsr.export.onnx")
    pytest.importorskip("onnxruntime")
    failing.rename(failing.with_name("tokenizer.json"))
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        onnx.embed_by_onnx(failing.parent, ["a"])


def test_other_files_and_errors_are_not_changed(tmp_path):
    (tmp_path / "text").write_bytes(b"a\r\n" * 99_999)
    assert read_file(tmp_path / "text") == b"a\r\n" * 99_999
    assert len(list(read_lines(tmp_path / "text"))) == 99_999
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_a_file_that_cannot_be_flushed_is_named(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "text").write_text("a")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=str(tmp_path / "text")):
        sync(tmp_path / "text")
    with pytest.raises(OSError, match=f"{tmp_path}/new'"), atomic_write(tmp_path / "new"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_an_array_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path}/new'"), atomic_write(tmp_path / "new"):
        # What ndarray.tofile raises.
        raise OSError("200 requested and 0 written")
