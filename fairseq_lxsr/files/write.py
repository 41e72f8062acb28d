"""Writes files and folders that have their names only when they are complete, and replace nothing
that is read.
"""

import contextlib
import errno
import glob
import io
import os
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.open import COMPRESSED_SUFFIXES, packing

OLD = ".old"  # suffix of the hidden name of a folder that is being replaced
# errors of a rename to a folder with something in it
FOLDER_IS_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def target_of(path: str | Path) -> Path:
    """Return the place that a link leads to, there or not, which is written where a user names a
    link as output.

    The command line calls it for every output. Side files have names that nobody chose, so links
    there are replaced.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise InputError(f"{path}: a link that leads to itself; remove it, or choose another name")
    return target


def check_replaceable(path: Path) -> None:
    """Check that a file of this name would not replace a folder or a device."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path}: exists and is not a file, so it is not replaced; choose another name"
        )


def check_writable(path: Path) -> None:
    """Check that `atomic_write` can write a file, before work that takes long."""
    with contextlib.suppress(_NothingWrittenError), atomic_write(path):
        raise _NothingWrittenError


def reserve(stream: IO, size: int) -> None:
    """Give an open file its size in bytes, because writing to a mapped file on a full disk would
    kill the process.
    """
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(stream.fileno(), 0, size)
    else:
        stream.truncate(size)


class _NothingWrittenError(Exception):
    """Ends a write before the file has its name."""


def refuse_overlap(
    outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]
) -> None:
    """Check that no input is overwritten; every verb calls this before it starts.

    Outputs are what will be written or removed, with side files; an input that is a folder stands
    for all its content, and `-` for standard input. None entries are ignored: a table that goes to
    standard output, where another output named `-` is refused.
    """
    written = [Path(path) for path in outputs if path is not None]
    read = [path for path in inputs if path is not None]
    for number, output in enumerate(written):
        if str(output) == "-":
            raise InputError(
                "-: no output of this command goes to stdout; expected the name of a file or folder"
            )
        place = Path(os.path.realpath(output))
        if place in [Path(os.path.realpath(other)) for other in written[:number]]:
            raise InputError(
                f"{output}: would be written by two options; choose another name for one of them"
            )
        for other in read:
            source = Path(os.path.realpath(other))
            if str(other) != "-" and (place.is_relative_to(source) or source.is_relative_to(place)):
                raise InputError(
                    f"{output}: would be written over {other}, which is read; choose another name"
                )
            if _is_same_file(output, other):  # also a hard link, or standard input
                raise InputError(
                    f"{output}: is the same file as {other}, which is read; choose another name"
                )


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
    """Write a file that appears under its name only when it is complete; it is removed where the
    block fails.

    A file that is replaced passes its mode on, and its group where that is allowed; a link is
    replaced itself. Text is UTF-8 with \\n; a name ending in .gz, .bz2, .xz or .zst is compressed,
    without a time stamp, so that the same text gives the same bytes.
    """
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path)
    name = _own_name(path)
    with naming(path):
        handle = create(name, path)
    try:
        with contextlib.ExitStack() as stack:
            stream: IO = stack.enter_context(os.fdopen(handle, "wb"))
            if path.suffix.lower() in COMPRESSED_SUFFIXES:
                stream = stack.enter_context(packing(path, stream))
            if "b" not in mode:
                stream = stack.enter_context(
                    io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
                )
            yield stream
        sync(name)
        os.replace(name, path)
    except BaseException as error:
        name.unlink(missing_ok=True)
        raise _named(error, path) from None


def create(path: Path, replaced: Path) -> int:
    """Create a file that will replace another, or nothing, and return its descriptor; it has the
    access of the other.

    What is there already is refused, and so is a link.
    """
    binary, exists = getattr(os, "O_BINARY", 0), replaced.is_file() and not replaced.is_symlink()
    descriptor = os.open(
        path, os.O_RDWR | os.O_CREAT | os.O_EXCL | binary, 0o600 if exists else 0o666
    )
    if exists:
        _keep_access(path, replaced)
    return descriptor


def _keep_access(path: Path, replaced: Path) -> None:
    """Give a file or folder the mode of the one that it will replace; no other group may read it
    than before.
    """
    before = replaced.stat()
    mode = stat.S_IMODE(before.st_mode) | stat.S_IRUSR | stat.S_IWUSR  # we are not finished with it
    if path.stat().st_gid != before.st_gid:
        try:
            os.chown(path, -1, before.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    path.chmod(mode)


def sync(path: Path) -> None:
    """Write what the system still holds of a file, or of a folder and all in it, to the disk before
    it is renamed.
    """
    for inside in sorted(path.iterdir()) if path.is_dir() else ():
        sync(inside)
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_folder(path: str | Path, *markers: str, sign: str = "") -> Iterator[Path]:
    """Write a folder that replaces `path` only when it is complete, while no other process writes
    it.

    A link is followed; the folder that is replaced, and files in it, pass their modes on to those
    of the same names. An existing folder that lacks one of the files `markers` is not replaced, nor
    one without the text `sign` in the first of them, whose name alone may be that of other programs
    too.
    """
    path = target_of(path)
    path = path.resolve() if ".." in path.parts else path
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError(
            f"{path}: is the current folder or holds it, so it is not replaced; choose another name"
        )
    with locked(path.with_name(f".{path.name}.lock"), path):
        restore_folder(path)
        _check_markers(path, markers, sign)
        _remove_left_behind(path)
        work = _own_name(path)
        with naming(path):
            work.mkdir(0o700 if path.exists() else 0o777)
        try:
            yield work
            for new in [*work.rglob("*"), work]:
                if (path / new.relative_to(work)).exists():
                    _keep_access(new, path / new.relative_to(work))
            sync(work)
            _replace_folder(work, path)
        except BaseException as error:
            restore_folder(path)
            shutil.rmtree(work, ignore_errors=True)
            raise _named(error, path) from None


def _check_markers(path: Path, markers: Sequence[str], sign: str) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        missing = [name for name in markers if not (path / name).is_file()]
        if missing:
            raise InputError(
                f"{path}: exists and has no {missing[0]}, so it is not replaced; choose another name"
            )
        if sign and sign not in (path / markers[0]).read_text(encoding="utf-8", errors="replace"):
            raise InputError(
                f"{path}: exists, and its {markers[0]} is not of this command, which has {sign}, so it is not "
                "replaced; choose another name, or remove it"
            )


def _replace_folder(work: Path, path: Path) -> None:
    """Rename a complete folder to `path`; meanwhile the old folder lies where `restore_folder`
    finds it.
    """
    old = work.with_suffix(OLD)
    while work.exists():
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(work, path)
        except OSError as error:
            if error.errno not in FOLDER_IS_THERE or old.exists():
                raise  # otherwise a reader has just restored the old folder, so try again
    if old.exists():
        # so that the old folder is not restored where its removal is interrupted
        os.replace(old, work)
        shutil.rmtree(work)


def no_follow(path: str, flags: int) -> int:
    """Open a file as `open(..., opener=no_follow)`: not through a link, and without waiting for a
    pipe's other end.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def remove_planted(path: Path) -> None:
    """Remove what no run of this user left at the path of an unfinished file, before it is opened
    or resumed from.

    That is a link, a device, a file with two names, and in a shared folder a file of another user.
    """
    if os.path.lexists(path) and not (_is_own(path) and stat.S_ISREG(path.lstat().st_mode)):
        path.unlink()


def _is_own(path: Path) -> bool:
    """Return whether this user or the owner of the folder made a file or folder, which has no other
    name.
    """
    about = path.lstat()
    is_linked = stat.S_ISLNK(about.st_mode) or (stat.S_ISREG(about.st_mode) and about.st_nlink > 1)
    owner = os.geteuid() if hasattr(os, "geteuid") else about.st_uid  # not on Windows
    return not is_linked and about.st_uid in (owner, path.parent.stat().st_uid)


def restore_folder(path: str | Path) -> None:
    """Restore a folder of `atomic_folder` whose replacement was interrupted; every reader calls
    this first.

    A process that was killed between two renames has left the folder under its hidden name.
    """
    path = Path(path)
    left = (
        []
        if os.path.lexists(path)
        else sorted(path.parent.glob(f".{glob.escape(path.name)}.*{OLD}"))
    )
    with contextlib.suppress(FileNotFoundError):  # another reader was faster
        left = [folder for folder in left if _is_own(folder) and folder.is_dir()]
        try:
            if left:
                os.replace(left[-1], path)
        except OSError as error:
            if error.errno not in FOLDER_IS_THERE:  # the writer was faster
                raise


def _own_name(path: Path) -> Path:
    """Return a temporary name for `path`, with host and process id."""
    return path.with_name(
        f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    )


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
    if os.name == "nt":  # where this signal would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the path in errors of the file system that name nothing (as of a full disk) or a
    temporary file of it.
    """
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: BaseException, path: Path) -> BaseException:
    if not (isinstance(error, OSError) and error.errno):
        return error
    is_temporary = any(
        part.startswith(f".{path.name}.") for part in Path(str(error.filename)).parts
    )
    if error.filename and not is_temporary:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))
