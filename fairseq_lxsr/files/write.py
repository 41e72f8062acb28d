"""Writes files and folders that have their names only when they are complete, and replace nothing that is read."""

import contextlib
import errno
import glob
import io
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import PACKED, packing

OLD = ".old"  # suffix of the hidden name of a folder that is being replaced


def check_replaceable(path: Path) -> None:
    """Check that a file of this name would not replace a folder or a device."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is not a file, so it is not replaced; choose another name")


def check_writable(path: Path) -> None:
    """Check that `atomic_write` can write a file, before work that takes long."""
    with contextlib.suppress(_NothingWrittenError), atomic_write(path):
        raise _NothingWrittenError


def reserve(stream: IO, size: int) -> None:
    """Give an open file its size in bytes, because writing to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(stream.fileno(), 0, size)
    else:
        stream.truncate(size)


class _NothingWrittenError(Exception):
    """Ends a write before the file has its name."""


def refuse_overlap(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Check that no input is overwritten; every verb calls this before it starts.

    Outputs are what will be written or removed, with side files; an input that is a folder stands for all its content,
    and `-` for standard input. None entries are ignored.
    """
    written = [Path(path) for path in outputs if path is not None]
    read = [path for path in inputs if path is not None]
    for number, output in enumerate(written):
        place = Path(os.path.realpath(output))
        if place in [Path(os.path.realpath(other)) for other in written[:number]]:
            raise InputError(f"{output}: would be written by two options; choose another name for one of them")
        for other in read:
            source = Path(os.path.realpath(other))
            if str(other) != "-" and (place.is_relative_to(source) or source.is_relative_to(place)):
                raise InputError(f"{output}: would be written over {other}, which is read; choose another name")
            if _is_same_file(output, other):  # also a hard link, or standard input
                raise InputError(f"{output}: is the same file as {other}, which is read; choose another name")


def _is_same_file(output: Path, other: str | Path) -> bool:
    try:
        return os.path.samestat(os.stat(output), _stat_input(other))
    except OSError:  # one of them does not exist
        return False


def _stat_input(path: str | Path) -> os.stat_result:
    if str(path) != "-":
        return os.stat(path)
    if sys.stdin is None:
        raise FileNotFoundError
    return os.fstat(0)


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Write a file that appears under its name only when it is complete; it is removed where the block fails.

    Text is UTF-8 with \\n; a name ending in .gz, .xz or .zst is compressed, without a time stamp, so that the same
    text gives the same bytes.
    """
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path)
    with naming(path):
        handle, name = tempfile.mkstemp(prefix=_own_prefix(path), suffix=".tmp", dir=path.parent)
    try:
        with contextlib.ExitStack() as stack:
            stream: IO = stack.enter_context(os.fdopen(handle, "wb"))
            if path.suffix in PACKED:
                stream = stack.enter_context(packing(path, stream))
            if "b" not in mode:
                stream = stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))
            yield stream
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise _named(error, path) from None


@contextlib.contextmanager
def atomic_folder(path: str | Path, *markers: str, sign: str = "") -> Iterator[Path]:
    """Write a folder that replaces `path` only when it is complete.

    An existing folder that lacks one of the files `markers` is not replaced, nor one without the text `sign` in the
    first of them, whose name alone may be that of other programs too.
    """
    path = Path(path).resolve() if Path(path).is_symlink() or ".." in Path(path).parts else Path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError(f"{path}: is the current folder or holds it, so it is not replaced; choose another name")
    restore_folder(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        missing = [name for name in markers if not (path / name).is_file()]
        if missing:
            raise InputError(f"{path}: exists and has no {missing[0]}, so it is not replaced; choose another name")
        if sign and sign not in (path / markers[0]).read_text(encoding="utf-8", errors="replace"):
            raise InputError(
                f"{path}: exists, and its {markers[0]} is not of this command, which has {sign}, so it is not "
                "replaced; choose another name, or remove it"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path)
    with naming(path):
        work = Path(tempfile.mkdtemp(prefix=_own_prefix(path), suffix=".tmp", dir=path.parent))
    try:
        yield work
        work.chmod(0o777 & ~_umask())
        _replace_folder(work, path)
    except BaseException as error:
        restore_folder(path)
        shutil.rmtree(work, ignore_errors=True)
        raise _named(error, path) from None


def _replace_folder(work: Path, path: Path) -> None:
    """Rename a complete folder to `path`; meanwhile the old folder lies where `restore_folder` finds it."""
    old = work.with_suffix(OLD)
    while work.exists():
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(work, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or old.exists():
                raise  # otherwise a reader has just restored the old folder, so try again
    if old.exists():
        os.replace(old, work)  # so that the old folder is not restored where its removal is interrupted
        shutil.rmtree(work)


def no_follow(path: str, flags: int) -> int:
    """Open a file as `open(..., opener=no_follow)`: not through a link, and without waiting for a pipe's other end."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def remove_planted(path: Path) -> None:
    """Remove what no run of this user left at the path of an unfinished file, before it is opened or resumed from.

    That is a link, a device, a file with two names, and in a shared folder a file of another user.
    """
    if os.path.lexists(path) and not (_is_own(path) and stat.S_ISREG(path.lstat().st_mode)):
        path.unlink()


def _is_own(path: Path) -> bool:
    """Return whether this user or the owner of the folder made a file or folder, which has no other name."""
    about = path.lstat()
    is_linked = stat.S_ISLNK(about.st_mode) or (stat.S_ISREG(about.st_mode) and about.st_nlink > 1)
    return not is_linked and about.st_uid in (os.geteuid(), path.parent.stat().st_uid)


def restore_folder(path: str | Path) -> None:
    """Restore a folder of `atomic_folder` whose replacement was interrupted; every reader calls this first.

    A process that was killed between two renames has left the folder under its hidden name.
    """
    path = Path(path)
    left = [] if os.path.lexists(path) else sorted(path.parent.glob(f".{glob.escape(path.name)}.*{OLD}"))
    if left := [folder for folder in left if _is_own(folder) and folder.is_dir()]:
        os.replace(left[-1], path)


def _own_prefix(path: Path) -> str:
    """Return the prefix for temporary files of `path`: host and process id."""
    return f".{path.name}.{socket.gethostname()}.{os.getpid()}."


def _remove_left_behind(path: Path) -> None:
    """Remove temporary files for `path` of processes of this machine that were killed."""
    start = f".{path.name}.{socket.gethostname()}."
    for left in path.parent.glob(f"{glob.escape(start)}*"):
        process = left.name.removeprefix(start).partition(".")[0]
        if left.suffix in (".tmp", OLD) and process.isdecimal() and not _is_alive(int(process)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the path in errors of the file system that name nothing (as of a full disk) or a temporary file of it."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: BaseException, path: Path) -> BaseException:
    if not (isinstance(error, OSError) and error.errno):
        return error
    is_temporary = any(part.startswith(f".{path.name}.") for part in Path(str(error.filename)).parts)
    if error.filename and not is_temporary:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
