"""Extracts named files from untrusted .zip and .tgz archives."""

import errno
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.open import READ_BYTES, Budget, Metered
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.write import atomic_write

# Extracted size that is always allowed, because small repetitive files have a high ratio.
ARCHIVE_FREE_BYTES = 1 << 20
# Maximum header size of a .tgz member, such as a long name, which tarfile reads into memory.
MAX_HEADER_BYTES = 1 << 20
# Maximum number of names to list in a message.
MAX_LISTED = 3
UNPACKING_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)
# Types of extended headers that tarfile reads into memory.
HEADER_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)

Member = tuple[str, Callable[[], Any]]


def unpack(
    archive: Path, outputs: Mapping[str, Path], free_bytes: int = ARCHIVE_FREE_BYTES
) -> None:
    """Extract files from a .zip or .tgz archive, except for files that already exist.

        unpack(Path("corpus.zip"), {"Toy.en-fr.en": Path("toy.en")})

    Files get their final names only after the whole archive has been read, because checksums at
    its end may reveal damage.

    Args:
        archive: path of the archive; the suffix determines the format.
        outputs: maps file names to output paths; folders inside the archive are ignored.
        free_bytes: extracted bytes allowed before the compression ratio is checked.

    Raises:
        InputError: if the archive is damaged, extracts to an implausible size, or lacks one of the
            files.
    """
    missing = {name: output for name, output in outputs.items() if not output.is_file()}
    with ExitStack() as streams:
        with _opening(archive, free_bytes) as members:
            for name, open_member in members:
                output = missing.pop(PurePosixPath(name).name, None)
                if output is not None:
                    source = open_member()
                    target = streams.enter_context(atomic_write(output, "wb"))
                    _copy(source, target, output.name)
        if missing:
            names = ", ".join([*missing][:MAX_LISTED])
            if len(missing) > MAX_LISTED:
                names += ", ..."
            raise InputError(
                f"{archive}: no {names} in this archive; check that it is the right one"
            )


class _Member(tarfile.TarInfo):
    """A tar member that rejects implausibly long names and attributes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADER_TYPES and member.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a member's name or attributes take {member.size:,} bytes")
        return member


def _copy(stream: IO[bytes], target: IO[bytes], name: str) -> None:
    with Progress(desc=name, unit="B", unit_scale=True, disable=None) as bar:
        while block := stream.read(READ_BYTES):
            target.write(block)
            bar.update(len(block))


@contextmanager
def _opening(archive: Path, free_bytes: int) -> Iterator[Iterator[Member]]:
    """Yield an iterator over the regular files of an archive, each with a function to open it."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                yield _files_of_zip(packed, Budget(archive, free_bytes))
        else:
            with (
                gzip.open(archive) as stream,
                Metered(stream, Budget(archive, free_bytes)) as metered,
                tarfile.open(mode="r|", fileobj=metered, tarinfo=_Member) as tar,
            ):
                yield _files_of_tar(tar)
                # gzip verifies its checksum at the end of the stream.
                while metered.read(READ_BYTES):
                    pass
    except InputError:
        raise
    except UNPACKING_ERRORS as error:
        # Corrupt data raises an OSError without errno, or one for an invalid offset.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise InputError(
            f"{archive}: damaged or incomplete archive ({shown(str(error))}); download it again"
        ) from None


def _files_of_zip(packed: zipfile.ZipFile, budget: Budget) -> Iterator[Member]:
    def open_member(member: zipfile.ZipInfo) -> Metered:
        return Metered(packed.open(member), budget)

    for member in packed.infolist():
        # Unix file type, 0 if created on another system; links and devices are skipped.
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not member.is_dir() and kind in (0, stat.S_IFREG):
            yield member.filename, partial(open_member, member)


def _files_of_tar(tar: tarfile.TarFile) -> Iterator[Member]:
    while (member := tar.next()) is not None:
        # An archive may have millions of empty members, which tarfile would keep in memory.
        tar.members.clear()  # type: ignore[attr-defined]
        if member.isreg() and not member.issparse():
            yield member.name, partial(tar.extractfile, member)
