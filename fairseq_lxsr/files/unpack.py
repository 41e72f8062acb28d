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

# bytes before the ratio is checked, because the ratio of short repetitive files is high
ARCHIVE_FREE_BYTES = 1 << 20
# largest long name or other attributes of a .tgz member, which tarfile keeps in memory
MAX_HEADER_BYTES = 1 << 20
UNPACKING_ERRORS = (
    *(
        zipfile.BadZipFile,
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        lzma.LZMAError,
        struct.error,
    ),
    *(OSError, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError),
)
# types of headers that tarfile reads into memory before their member
HEADER_TYPES = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


def unpack(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Extract files of a .zip or .tgz, by their names without folders, to paths that are given,
    except those there.

    They appear when the whole archive is read, because checksums at its end may show that they are
    wrong.
    """
    missing = {name: output for name, output in wanted.items() if not output.is_file()}
    with ExitStack() as outputs:
        with _opening(archive) as members:
            for name, open_member in members:
                output = missing.pop(PurePosixPath(name).name, None)
                if output is not None:
                    _copy(
                        open_member(),
                        outputs.enter_context(atomic_write(output, "wb")),
                        output.name,
                    )
        if missing:
            names = ", ".join([*missing][:3]) + ", ..." * (len(missing) > 3)
            raise InputError(f"{archive}: no {names} in it; check what it is an archive of")


class _Member(tarfile.TarInfo):
    """A member that refuses implausibly long names and attributes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADER_TYPES and member.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a member with {member.size:,} bytes of name or attributes")
        return member


def _copy(stream: IO[bytes], target: IO[bytes], name: str) -> None:
    with Progress(desc=name, unit="B", unit_scale=True, disable=None) as bar:
        while block := stream.read(READ_BYTES):
            target.write(block)
            bar.update(len(block))


@contextmanager
def _opening(archive: Path) -> Iterator[Iterator[tuple[str, Callable[[], Any]]]]:
    """Yield the regular files of an archive, each with a function that opens it; check gzip's
    checksum at the end.
    """
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                yield _files_of_zip(packed, Budget(archive, ARCHIVE_FREE_BYTES))
        else:
            with (
                gzip.open(archive) as stream,
                Metered(stream, Budget(archive, ARCHIVE_FREE_BYTES)) as metered,
                tarfile.open(mode="r|", fileobj=metered, tarinfo=_Member) as tar,
            ):
                yield _files_of_tar(tar)
                while metered.read(READ_BYTES):
                    pass
    except InputError:
        raise
    except UNPACKING_ERRORS as error:
        # corrupt bytes give an error without errno, or ask for a place that no file has
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise InputError(
            f"{archive}: not a whole archive ({shown(str(error))}); fetch it again"
        ) from None


def _files_of_zip(
    packed: zipfile.ZipFile, budget: Budget
) -> Iterator[tuple[str, Callable[[], Any]]]:
    for member in packed.infolist():
        # Unix file type: links and devices are not text
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not member.is_dir() and kind in (0, stat.S_IFREG):
            yield member.filename, partial(lambda one: Metered(packed.open(one), budget), member)


def _files_of_tar(tar: tarfile.TarFile) -> Iterator[tuple[str, Callable[[], Any]]]:
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # an archive may have millions of empty members
        if member.isreg() and not member.issparse():
            yield member.name, partial(tar.extractfile, member)
