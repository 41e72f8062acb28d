"""Opens files inside .zip archives, by paths as of folders: FILE.zip/MEMBER."""

import contextlib
import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fairseq_lxsr.errors import InputError

LISTED = 10  # names of an archive in a message


def archive_of(path: str | Path) -> Path | None:
    """Return the .zip that a path is, or is inside of; None for any other."""
    if ".zip" not in str(path).lower():
        return None
    parts = (Path(path), *Path(path).parents)
    return next((part for part in parts if part.suffix.lower() == ".zip" and part.is_file()), None)


def names_in_archive(archive: str | Path) -> list[str]:
    """Return the names of the files in a .zip, in order."""
    with _opening(archive) as packed:
        return sorted(member.filename for member in packed.infolist() if not member.is_dir())


def open_member(archive: Path, path: str | Path) -> IO[bytes]:
    """Open FILE.zip/MEMBER, or the only file of FILE.zip; raises InputError where there are
    several.
    """
    name = Path(path).relative_to(archive).as_posix()
    names = names_in_archive(archive)
    if name == "." and len(names) == 1:
        name = names[0]
    if name not in names:
        listed = ", ".join(map(repr, names[:LISTED])) + ", ..." * (len(names) > LISTED)
        raise InputError(
            f"{path}: {archive.name} has {len(names):,} files, {listed}; name one: {archive}/MEMBER"
        )
    with _opening(archive) as packed:
        return packed.open(name)


@contextlib.contextmanager
def _opening(archive: str | Path) -> Iterator[Any]:
    import zipfile  # here because every verb imports this module

    try:
        with zipfile.ZipFile(archive) as packed:
            yield packed
    except InputError:
        raise
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        LookupError,
        struct.error,
        OSError,
    ) as error:
        # corrupt bytes give an error without errno, or ask for a place that no file has
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise InputError(
            f"{archive}: not a whole archive ({error}); remove it and fetch it again"
        ) from None
