"""Opens files, packed or not, and files of a folder together; tells whether a file is the same as
before.
"""

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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.files.archives import archive_of, open_member

# value of fairseq-train --user-dir: fairseq imports the folder by its name from the parent folder,
# and so gets the package that `import fairseq_lxsr` finds, once; the path is absolute so that it
# works from any current folder
PACKAGE = Path(__file__).parent.parent.absolute()
MAX_RATIO = 100  # largest ratio of decompressed to compressed bytes; text has less than 20
# decompressed bytes that any file may have, because the ratio of small repetitive files is high
FREE_BYTES = 2**26
UNPACKED_AT_ONCE = 2**17  # bytes
READ_BYTES = 2**20  # bytes of a file that are read at once
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
# reads of a folder that is replaced all the time, and of one that is not there, and the wait before
# each
REPLACED_TRIES, MISSING_TRIES, REPLACED_SECONDS = 100, 3, 0.01

T = TypeVar("T")


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file for reading, `-` for standard input; `.gz`, `.bz2`, `.xz` and `.zst` are
    decompressed.

    FILE.zip/MEMBER is a file in an archive, FILE.zip alone one that holds a single file.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError(
                "-: standard input is closed; expected text from a file or another program"
            )
        if sys.stdin.closed or sys.stdin.buffer.closed:
            raise InputError(
                "-: standard input was read already; expected a file where text is read twice"
            )
        return sys.stdin.buffer
    suffix = Path(path).suffix.lower()
    archive = archive_of(path)
    if not archive and not Path(path).exists():
        raise InputError(f"{path}: no such file; check the name")
    if not archive and Path(path).is_dir():
        raise InputError(f"{path}: is a folder; expected a file")
    if not archive and suffix not in COMPRESSED_SUFFIXES:
        return open(path, "rb")
    budget = Budget(archive or path, FREE_BYTES)
    stream: Any = Metered(open_member(archive, path), budget) if archive else path
    if suffix in COMPRESSED_SUFFIXES:
        unpack: Any = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}.get(suffix) or _zstd(
            path
        ).open
        stream = Metered(unpack(stream, "rb"), budget)
    return io.BufferedReader(stream, UNPACKED_AT_ONCE)


class Budget:
    """Limits the decompressed bytes of a compressed file over all its readers; a pipe has no limit.

    `free` is the number of bytes that are allowed before the ratio is checked.
    """

    def __init__(self, path: str | Path, free: int):
        about = os.stat(path)
        self.path, self.size = path, about.st_size
        self.left = free + MAX_RATIO * self.size if stat.S_ISREG(about.st_mode) else sys.maxsize

    def spend(self, count: int) -> None:
        """Take `count` bytes from the budget."""
        self.left -= count
        if self.left < 0:
            raise InputError(
                f"{self.path}: unpacks to more than {MAX_RATIO} times {self.size:,} bytes; expected text"
            )


class Metered(io.RawIOBase):
    """A file that is decompressed while it is read, within its budget."""

    def __init__(self, stream: Any, budget: Budget):
        self.stream, self.budget = stream, budget

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


def packing(path: Path, stream: IO) -> IO:
    """Return a stream that compresses as the ending of the name says."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return _zstd(path).ZstdFile(stream, "wb")
    if suffix in (".xz", ".bz2"):
        return (lzma.LZMAFile if suffix == ".xz" else bz2.BZ2File)(stream, "wb")
    return gzip.GzipFile("", "wb", 6, stream, mtime=0)  # type: ignore[return-value]


def _zstd(path: str | Path):
    """Return Python's own module (3.14 and later), or the package that backports it."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise InputError(
        f"{path}: needs backports.zstd, which is not installed: {install_command('zst')}"
    )


def open_file(path: str | Path) -> BinaryIO:
    """Open a file whose name is ours; what is in its way, for example a pipe, is refused, and not
    waited for.
    """

    def checked(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        # `open` refuses a folder
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            return descriptor
        os.close(descriptor)
        raise InputError(f"{path}: is a pipe or device; expected a file, remove it")

    return open(path, "rb", opener=checked)


def read_unreplaced(marker: Path, read: Callable[[], T]) -> T:
    """Return what `read` makes of a folder; where it fails because the folder was replaced
    meanwhile, it reads again.

    `marker` is a file that every such folder has, another one after each replacement.
    """
    missing = 0
    for _ in range(REPLACED_TRIES):
        before = _identity(marker)
        missing += before is None  # between two renames, or for ever
        try:
            return read()
        except (InputError, OSError):
            if _identity(marker) == before and (before or missing == MISSING_TRIES):
                raise
            time.sleep(REPLACED_SECONDS)
    return read()


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_ctime_ns


def sha256(file: str | Path | BinaryIO) -> str:
    """Return the SHA-256 of a file, or of an open one, as hexadecimal digits."""
    digest = hashlib.sha256()
    with (
        open_file(file) if isinstance(file, str | Path) else contextlib.nullcontext(file) as stream
    ):
        stream.seek(0)
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def stamp(file: str | Path | BinaryIO) -> list[int]:
    """Return the size of a file and the time of its last change (of content or attributes), in
    nanoseconds.

    A file with the stamp that was stored when it was hashed is the same file, unchanged: a copy has
    another time.
    """
    about = os.stat(file if isinstance(file, str | Path) else file.fileno())
    return [about.st_size, about.st_ctime_ns]
