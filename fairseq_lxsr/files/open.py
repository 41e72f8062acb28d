"""Opens plain and compressed files, and detects whether a file has changed."""

import bz2
import contextlib
import gzip
import hashlib
import importlib
import io
import lzma
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.files.archives import archive_of, open_member

# The value of fairseq-train --user-dir. fairseq adds the parent folder to the import path and
# imports the folder by name, which yields the same package as `import fairseq_lxsr`. The path is
# absolute, so it does not depend on the working directory.
PACKAGE = Path(__file__).parent.parent.absolute()
# Maximum ratio of decompressed to compressed size. For text, the ratio is below 20.
MAX_RATIO = 100
# Decompressed size that is always allowed, because small repetitive files have a high ratio.
FREE_BYTES = 2**26
# Buffer size for decompression, in bytes.
DECOMPRESSION_BUFFER = 2**17
# Number of bytes to read per call.
READ_BYTES = 2**20
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
# Maximum number of attempts to read a folder that is being replaced, or that is missing, and number
# of seconds between attempts.
REPLACED_TRIES = 100
MISSING_TRIES = 3
REPLACED_SECONDS = 0.01

T = TypeVar("T")


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file for reading; decompress it if its name ends in .gz, .bz2, .xz or .zst.

    Args:
        path: a file; `-` for standard input; FILE.zip/MEMBER for a file in an archive; or FILE.zip
            for the only file in an archive.

    Raises:
        InputError: if the file is missing or a folder, or the archive has no such member. Later
            reads raise it if the data decompress to an implausible size.
    """
    if str(path) == "-":
        return _standard_input()
    archive = archive_of(path)
    if archive is None:
        _check_is_file(path)
    is_compressed = Path(path).suffix.lower() in COMPRESSED_SUFFIXES
    if archive is None and not is_compressed:
        return io.BufferedReader(NamedFile(path))
    budget = Budget(archive or path, FREE_BYTES)
    stream: Any = path
    if archive is not None:
        stream = Metered(open_member(archive, path), budget)
    if is_compressed:
        decompress = _decompressor(path)
        stream = Metered(decompress(stream, "rb"), budget)
    return io.BufferedReader(stream, DECOMPRESSION_BUFFER)


class NamedFile(io.FileIO):
    """A file for reading that adds its name to errors.

    Read errors of a failing disk do not include the file name.
    """

    def readinto(self, buffer: Any) -> int | None:
        with self._naming():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._naming():
            return super().readall()

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("-: standard input is closed; redirect or pipe text into it")
    if sys.stdin.closed or sys.stdin.buffer.closed:
        raise InputError(
            "-: standard input has already been read; use a file, because the text is read twice"
        )
    return sys.stdin.buffer


def _check_is_file(path: str | Path) -> None:
    if not Path(path).exists():
        raise InputError(f"{path}: no such file; check the name")
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; specify a file")


def _decompressor(path: str | Path) -> Any:
    """Return the `open` function for the compression format of a file."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    suffix = Path(path).suffix.lower()
    return openers[suffix] if suffix in openers else _zstd(path).open


class Budget:
    """Limits the total number of bytes that all readers of a file may decompress.

    Otherwise a small file could fill the memory or the disk. Pipes have no limit, because their
    compressed size is unknown.

    Args:
        path: path of the compressed file.
        free: number of bytes allowed before the ratio is checked.
    """

    def __init__(self, path: str | Path, free: int):
        status = os.stat(path)
        self.path = path
        self.size = status.st_size
        self.left = sys.maxsize
        if stat.S_ISREG(status.st_mode):
            self.left = free + MAX_RATIO * self.size

    def spend(self, count: int) -> None:
        """Add `count` decompressed bytes; raise `InputError` if the limit is exceeded."""
        self.left -= count
        if self.left < 0:
            raise InputError(
                f"{self.path}: decompresses to more than {MAX_RATIO} times its size "
                f"({self.size:,} bytes), which is implausible for text"
            )


class Metered(io.RawIOBase):
    """A file object that wraps a decompressing stream, and counts the bytes in a `Budget`."""

    def __init__(self, stream: Any, budget: Budget):
        self.stream = stream
        self.budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        block = self.stream.read(len(buffer))
        self.budget.spend(len(block))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self.stream.close()
        super().close()


def compressing(path: Path, stream: IO) -> IO:
    """Return a stream that compresses into `stream`, in the format of `path`'s suffix."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return _zstd(path).ZstdFile(stream, "wb")
    if suffix == ".xz":
        return lzma.LZMAFile(stream, "wb")
    if suffix == ".bz2":
        return bz2.BZ2File(stream, "wb")
    # Without a timestamp, equal text always compresses to equal bytes.
    return gzip.GzipFile("", "wb", 6, stream, mtime=0)  # type: ignore[return-value]


def _zstd(path: str | Path):
    """Return Python's Zstandard module (Python 3.14 and later) or its backport package."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise InputError(
        f"{path}: requires backports.zstd, which is not installed: {install_command('zst')}"
    )


def open_file(path: str | Path) -> BinaryIO:
    """Open a file in a folder that this package wrote.

    Pipes and devices are rejected, because opening a pipe would wait for another program.
    """

    def open_regular(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        # `open` itself raises an error for a folder.
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            return descriptor
        os.close(descriptor)
        raise InputError(f"{path} is a pipe or device, not a regular file; remove it")

    return io.BufferedReader(NamedFile(path, opener=open_regular))


def read_file(path: str | Path) -> bytes:
    """Return the content of a file in a folder that this package wrote, see `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def read_unreplaced(marker: Path, read: Callable[[], T]) -> T:
    """Call `read` on a folder that another process may replace in the meantime.

    If `read` fails because the folder was replaced, it is called again.

    Args:
        marker: a file that every version of the folder contains and each replacement creates anew.
        read: reads the folder; if the folder is unchanged, its `InputError` or `OSError` is raised.
    """
    missing_count = 0
    for _ in range(REPLACED_TRIES):
        before = file_identity(marker)
        if before is None:
            # The folder does not exist, perhaps only until another process has renamed the new one.
            missing_count += 1
        try:
            return read()
        except (InputError, OSError):
            is_settled = before is not None or missing_count == MISSING_TRIES
            if is_settled and file_identity(marker) == before:
                raise
            time.sleep(REPLACED_SECONDS)
    return read()


def file_identity(path: Path) -> tuple[int, ...] | None:
    """Return device, inode and change time, which identify a file even if its name is reused.

    None if the file is missing.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def sha256(file: str | Path | BinaryIO) -> str:
    """Return the SHA-256 checksum of a path or open file, as hexadecimal digits."""
    if isinstance(file, str | Path):
        with open_file(file) as stream:
            return sha256(stream)
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


def stamp(file: str | Path | BinaryIO) -> list[int]:
    """Return a file's size in bytes and its change time (ctime) in nanoseconds.

    The time is when content or attributes last changed. If the stamp equals the one stored with
    the file's hash, the file has not changed since then; a copy of the file has a different time.
    """
    status = os.stat(file if isinstance(file, str | Path) else file.fileno())
    return [status.st_size, status.st_ctime_ns]
