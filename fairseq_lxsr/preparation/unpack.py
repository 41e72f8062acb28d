"""Named files out of .zip and .tgz archives; nothing else of an archive is trusted."""

import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm import tqdm

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files import Budget, Metered, atomic_write

FREE = 1 << 20  # bytes before the ratio counts: short files may be all alike
BLOCK = 1 << 20
HEADER = 1 << 20  # bytes of a long name or of other attributes of a member of a .tgz, which tarfile keeps in memory
SPOILT = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError),
)
# what tarfile reads into memory before the member that it is about
DESCRIBING = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


def unpack(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Unpack files to names of our own choosing; each appears when it is complete.

    Args:
        wanted: where the file of each name goes; folders inside the archive do not matter.

    Raises:
        InputError: where one is missing, the archive is spoilt, or unfolds to more than any text would.
    """
    missing = dict(wanted)
    with _removed_unless_whole(wanted.values()), _opening(archive) as members:
        for name, open_member in members:
            output = missing.pop(PurePosixPath(name).name, None)
            if output is not None:
                _copy(open_member(), output)
    if missing:
        raise InputError(f"{archive}: no {', '.join(missing)} in it; expected the text of the language pair")


@contextmanager
def _removed_unless_whole(outputs: Iterable[Path]) -> Iterator[None]:
    """Sums at the end of an archive may tell that what was unpacked is wrong."""
    try:
        yield
    except BaseException:
        for output in outputs:
            output.unlink(missing_ok=True)
        raise


class _Member(tarfile.TarInfo):
    """A member whose name and attributes are not read where they are too long to be any."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in DESCRIBING and member.size > HEADER:
            raise tarfile.ReadError(f"a member with {member.size:,} bytes of name or attributes")
        return member


def _copy(stream: IO[bytes], output: Path) -> None:
    with atomic_write(output, "wb") as target, tqdm(desc=output.name, unit="B", unit_scale=True, disable=None) as bar:
        while block := stream.read(BLOCK):
            target.write(block)
            bar.update(len(block))


@contextmanager
def _opening(archive: Path) -> Iterator[Iterator[tuple[str, Callable[[], Any]]]]:
    """The regular files of an archive, in their order, each with what opens it; gzip checks its sums at the end."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                yield _files_of_zip(packed, Budget(archive, FREE))
        else:
            with (
                gzip.open(archive) as stream,
                Metered(stream, Budget(archive, FREE)) as metered,
                tarfile.open(mode="r|", fileobj=metered, tarinfo=_Member) as tar,
            ):
                yield _files_of_tar(tar)
                while metered.read(BLOCK):
                    pass
    except InputError:
        raise
    except SPOILT as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; that of spoilt bytes has no number
            raise
        raise InputError(
            f"{archive}: not a whole archive ({shown(str(error))}); remove it and fetch it again"
        ) from None


def _files_of_zip(packed: zipfile.ZipFile, budget: Budget) -> Iterator[tuple[str, Callable[[], Any]]]:
    for member in packed.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)  # of Unix: links and devices are no text
        if not member.is_dir() and kind in (0, stat.S_IFREG):
            yield member.filename, partial(_open_metered, packed, member, budget)


def _open_metered(packed: zipfile.ZipFile, member: zipfile.ZipInfo, budget: Budget) -> Metered:
    return Metered(packed.open(member), budget)


def _files_of_tar(tar: tarfile.TarFile) -> Iterator[tuple[str, Callable[[], Any]]]:
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all, and an archive may have millions of empty ones
        if member.isreg() and not member.issparse():
            yield member.name, partial(tar.extractfile, member)
