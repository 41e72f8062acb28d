"""Opens files inside .zip archives by path: FILE.zip/MEMBER."""

import contextlib
import errno
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fairseq_lxsr.errors import InputError

# Maximum number of member names to list in a message.
MAX_LISTED = 10
# Matches files that desktop systems add to folders and archives. They contain no text.
_SYSTEM_FILE = re.compile(r"(^|.*/)(__MACOSX/.*|\._[^/]*|\.DS_Store|desktop\.ini|Thumbs\.db)")


def archive_of(path: str | Path) -> Path | None:
    """Return the .zip file that a path names or points into, or None."""
    if ".zip" not in str(path).lower():
        return None
    for candidate in (Path(path), *Path(path).parents):
        if candidate.suffix.lower() == ".zip" and candidate.is_file():
            return candidate
    return None


def names_in_archive(archive: str | Path) -> list[str]:
    """Return the sorted names of the files in a .zip archive, without those of desktop systems."""
    # Imported here because every command imports this module.
    import zipfile

    with reporting_damage(archive), zipfile.ZipFile(archive) as packed:
        names = [member.filename for member in packed.infolist() if not member.is_dir()]
    return sorted(name for name in names if not _SYSTEM_FILE.fullmatch(name))


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, without those of desktop systems.

    They are sorted by path.
    """
    return sorted(
        path
        for path in folder.rglob("*")
        if not path.is_dir() and not _SYSTEM_FILE.fullmatch(path.relative_to(folder).as_posix())
    )


def open_member(archive: Path, path: str | Path) -> IO[bytes]:
    """Open FILE.zip/MEMBER, or the only file in FILE.zip.

    Raises:
        InputError: if the archive has no such member, or `path` is the archive itself and it
            contains several files.
    """
    name = Path(path).relative_to(archive).as_posix()
    names = names_in_archive(archive)
    if name == "." and len(names) == 1:
        name = names[0]
    if name not in names:
        listed = ", ".join(map(repr, names[:MAX_LISTED]))
        if len(names) > MAX_LISTED:
            listed += ", ..."
        raise InputError(
            f"{path}: no such file in {archive.name}, which contains {len(names):,} files: "
            f"{listed}; expected {archive}/MEMBER, where MEMBER is one of them"
        )
    # Imported here because every command imports this module.
    import zipfile

    with reporting_damage(archive), zipfile.ZipFile(archive) as packed:
        return packed.open(name)


@contextlib.contextmanager
def reporting_damage(
    archive: str | Path, errors: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Convert errors caused by a damaged archive to `InputError`.

    Args:
        archive: path of the archive.
        errors: types of errors to convert, besides those of `zipfile`.
    """
    # Imported here because every command imports this module.
    import zipfile

    damage: tuple[type[Exception], ...] = (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        LookupError,
        struct.error,
        OSError,
        *errors,
    )
    try:
        yield
    except InputError:
        raise
    except damage as error:
        # Corrupt data raises an OSError without errno, or one for an invalid offset.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise InputError(
            f"{archive}: damaged or incomplete archive ({error}); delete it and download it again"
        ) from None
