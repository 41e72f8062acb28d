"""Writes files and folders atomically: they get their final names only once complete."""

import contextlib
import errno
import glob
import io
import os
import re
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
from fairseq_lxsr.files.open import COMPRESSED_SUFFIXES, compressing

# Suffix of the hidden temporary name for a folder that is being replaced.
OLD = ".old"
# Suffix of the hidden temporary name for an unfinished file or folder.
TEMPORARY = ".tmp"
# Number of dots in the part of a hidden name after the folder name, such as HOST.1.ab.old.
TEMPORARY_DOTS = 3
# Error numbers of a rename whose target is a non-empty folder.
FOLDER_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
# Matches the error of NumPy for an array that cannot be written.
NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


def target_of(path: str | Path) -> Path:
    """Return the target of a symbolic link, whether it exists or not; return other paths unchanged.

    The command line calls this for every output, so that links named by the user are followed.
    Users do not choose the names of side files, so links there are replaced.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise InputError(f"{path} is a symbolic link to itself; remove it, or choose another name")
    return target


def check_replaceable(path: Path) -> None:
    """Check that writing to this path would not replace a folder or a device."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a regular file; choose another name")


def check_writable(path: Path) -> None:
    """Check that `atomic_write` will be able to write a file, before a long task starts."""
    with contextlib.suppress(_NothingWrittenError), atomic_write(path):
        raise _NothingWrittenError


def reserve(stream: IO, size: int) -> None:
    """Reserve disk space for an open file.

    Otherwise, a full disk would kill the process while it writes to a memory-mapped file.
    """
    # macOS lacks this function.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, size)
    else:
        stream.truncate(size)


class _NothingWrittenError(Exception):
    """Raised to abort a write without creating a file."""


def refuse_overlap(
    outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]
) -> None:
    """Check that no input would be overwritten; every command calls this before it starts.

    Args:
        outputs: all files and folders that will be written or removed, including side files. None
            means standard output and is skipped; the name `-` is rejected.
        inputs: files and folders to read; a folder includes everything inside it. `-` means
            standard input. None is skipped.

    Raises:
        InputError: if two outputs are the same, or an output and an input are the same, or one of
            them contains the other.
    """
    written = [Path(path) for path in outputs if path is not None]
    sources = [path for path in inputs if path is not None]
    places = [Path(os.path.realpath(output)) for output in written]
    for number, output in enumerate(written):
        if str(output) == "-":
            raise InputError("-: this command cannot write to stdout; specify a file or folder")
        if places[number] in places[:number]:
            raise InputError(
                f"{output}: two options would write to this path; choose another name for one of "
                "them"
            )
        for source in sources:
            _refuse_overwriting(output, source)


def _refuse_overwriting(output: Path, source: str | Path) -> None:
    if str(source) != "-" and _contains_other(output, source):
        if Path(source).is_dir() and not output.is_dir():
            raise InputError(
                f"{output} is inside the folder {source}, which is an input; choose another "
                "folder for the output, or a file as input"
            )
        raise InputError(
            f"{output} would overwrite the input {source}; choose another name for the output"
        )
    # Two names may refer to the same file: hard links, or standard input.
    if _is_same_file(output, source):
        raise InputError(
            f"{output} is the same file as the input {source}; choose another name for the output"
        )


def _contains_other(output: Path, source: str | Path) -> bool:
    """Return whether two paths are the same, or one is a folder that contains the other."""
    output_place = Path(os.path.realpath(output))
    source_place = Path(os.path.realpath(source))
    return output_place.is_relative_to(source_place) or source_place.is_relative_to(output_place)


def _is_same_file(output: Path, source: str | Path) -> bool:
    try:
        return os.path.samestat(os.stat(output), _stat_input(source))
    except OSError:
        # One of the two files does not exist.
        return False


def _stat_input(path: str | Path) -> os.stat_result:
    if str(path) != "-":
        return os.stat(path)
    if sys.stdin is None:
        raise FileNotFoundError
    return os.fstat(0)


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO]:
    r"""Write a file atomically: it gets its final name only once complete.

        with atomic_write("scores.tsv.gz") as stream:
            stream.write("a\tb\n")

    If the block fails, nothing is written. The new file inherits the mode of the file that it
    replaces, and its group if permitted; a link is replaced, not followed.

    Args:
        path: output path; the file is compressed if the name ends in .gz, .bz2, .xz or .zst,
            without a timestamp, so that equal text yields equal bytes.
        mode: `w` for UTF-8 text with \n as newline, or `wb` for bytes.
    """
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_files(path)
    name = _temporary_name(path)
    with naming(path):
        handle = create(name, path)
    try:
        with contextlib.ExitStack() as stack:
            stream: IO = stack.enter_context(os.fdopen(handle, "wb"))
            if path.suffix.lower() in COMPRESSED_SUFFIXES:
                stream = stack.enter_context(compressing(path, stream))
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
    """Create a file with the mode and group of the existing file that it will replace, if any.

    An existing file or link at `path` is rejected.

    Returns:
        Descriptor of the new file, open for reading and writing.
    """
    binary = getattr(os, "O_BINARY", 0)
    exists = replaced.is_file() and not replaced.is_symlink()
    descriptor = os.open(
        path, os.O_RDWR | os.O_CREAT | os.O_EXCL | binary, 0o600 if exists else 0o666
    )
    if exists:
        _keep_access(path, replaced)
    return descriptor


def _keep_access(path: Path, replaced: Path) -> None:
    """Copy the mode and group of the file or folder that is about to be replaced.

    If the group cannot be set, group access is removed, because the group would be a different one.
    """
    before = replaced.stat()
    # The owner always keeps access, because the file is still being written.
    mode = stat.S_IMODE(before.st_mode) | stat.S_IRUSR | stat.S_IWUSR
    if path.stat().st_gid != before.st_gid:
        try:
            os.chown(path, -1, before.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    # Setting the mode would update the change time, which an index uses to recognize its files.
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


def sync(path: Path) -> None:
    """Flush a file, or a folder and its contents, to disk before it is renamed."""
    for inside in sorted(path.iterdir()) if path.is_dir() else ():
        sync(inside)
    sync_one(path)


def sync_one(path: Path) -> None:
    """Flush a file, or only the names in a folder, to disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_folder(
    path: str | Path, *markers: str, sign: str = "", patience: float = 0
) -> Iterator[Path]:
    """Write a folder atomically: it replaces `path` only once complete.

        with atomic_folder("work/model", "config.json") as work:
            (work / "config.json").write_text(...)

    No other process can write the folder in the meantime. Links are followed. The new folder and
    its files inherit the modes of the folder and files that they replace.

    Args:
        path: output folder.
        markers: files that an existing folder must contain to be replaced.
        sign: text that the first marker file must contain, because other programs may also write
            files with that name.
        patience: seconds to wait if another process is writing the folder.

    Yields:
        Temporary folder to write into.

    Raises:
        InputError: if `path` must not be replaced, or another process is writing it.
    """
    path = _writable_path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError(
            f"{path} is or contains the working directory and cannot be replaced; choose "
            "another name"
        )
    with locked(_lock_file(path), path, patience):
        restore_folder(path)
        _check_markers(path, markers, sign)
        _remove_stale_files(path)
        work = _temporary_name(path)
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


@contextlib.contextmanager
def editing_folder(path: str | Path, patience: float = 0) -> Iterator[Path]:
    """Prevent other processes from replacing or editing a folder inside the block.

    Args:
        path: a folder written by `atomic_folder`. A link is followed.
        patience: seconds to wait if another process writes the folder.

    Yields:
        The path of the folder, restored if a replacement was interrupted.

    Raises:
        InputError: if another process writes the folder.
    """
    path = _writable_path(path)
    with locked(_lock_file(path), path, patience):
        restore_folder(path)
        yield path


def _writable_path(path: str | Path) -> Path:
    """Return the path of a folder that will be replaced or edited, without links."""
    path = target_of(path)
    return path.resolve() if ".." in path.parts else path


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _check_markers(path: Path, markers: Sequence[str], sign: str) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        missing = [name for name in markers if not (path / name).is_file()]
        if missing:
            raise InputError(
                f"{path} exists and does not contain {missing[0]}, so it is not replaced; "
                "choose another name"
            )
        if sign and sign not in (path / markers[0]).read_text(encoding="utf-8", errors="replace"):
            raise InputError(
                f"{path} exists and was not created by this command: no {sign} in {markers[0]}, "
                "so it is not replaced; choose another name, or remove it"
            )


def _replace_folder(work: Path, path: Path) -> None:
    """Rename a finished folder to `path`, replacing an existing folder.

    Meanwhile, the old folder has a name that `restore_folder` recognizes.
    """
    old = work.with_suffix(OLD)
    while work.exists():
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(work, path)
        except OSError as error:
            # If the old folder is gone, a reader has just restored it, so try again.
            if error.errno not in FOLDER_EXISTS or old.exists():
                raise
    _remove_old(old, work)
    # A process on another machine may have left an old folder too, for example in a container that
    # was killed. `restore_folder` would bring it back once the new folder is removed.
    for hidden in _hidden_folders(path):
        if _is_obsolete(hidden, path):
            _remove_old(hidden, work)


def _remove_old(old: Path, work: Path) -> None:
    """Remove an old folder, if it exists.

    It is renamed to `work` first, so that it is not restored if its removal is interrupted.
    """
    if old.exists():
        os.replace(old, work)
        shutil.rmtree(work)


def _is_obsolete(hidden: Path, path: Path) -> bool:
    """Return whether a hidden folder is a replaced version of `path`, which exists.

    The folder `.index.de.host.1.ab.old` may come from `index` on the host `de.host`, or from
    `index.de` on the host `host`. While an unfinished folder exists, `index.de` may be missing, and
    its old folder may be the only copy.
    """
    name = hidden.name.removeprefix(f".{path.name}.")
    is_unambiguous = name.count(".") == TEMPORARY_DOTS
    return is_unambiguous or not hidden.with_suffix(TEMPORARY).exists()


def _hidden_folders(path: Path) -> list[Path]:
    """Return this user's old folders that were left by interrupted calls of `atomic_folder`."""
    hidden = sorted(path.parent.glob(f".{glob.escape(path.name)}.*{OLD}"))
    return [folder for folder in hidden if _is_own(folder) and folder.is_dir()]


def no_follow(path: str, flags: int) -> int:
    """Open a file without following links or blocking on a pipe; for `open(..., opener=...)`."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def remove_planted(path: Path) -> None:
    """Remove anything that another user may have planted at the path of an unfinished file.

    This can be a link, a device, a file with several hard links, or, in a shared folder, another
    user's file.
    """
    if os.path.lexists(path) and not (_is_own(path) and stat.S_ISREG(path.lstat().st_mode)):
        path.unlink()


def _is_own(path: Path) -> bool:
    """Return whether a path is not a link, and belongs to this user or to the folder's owner.

    A regular file must have no second hard link.
    """
    status = path.lstat()
    is_hard_link = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    if stat.S_ISLNK(status.st_mode) or is_hard_link:
        return False
    # Windows has no user ids.
    user = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
    return status.st_uid in (user, path.parent.stat().st_uid)


def restore_folder(path: str | Path) -> None:
    """Restore the old folder if `atomic_folder` was interrupted while replacing it.

    A process that was killed between two renames leaves the folder under a hidden name. Every
    reader calls this function first.
    """
    path = Path(path)
    if os.path.lexists(path):
        return
    # The hidden folder is missing if another reader has already restored it.
    with contextlib.suppress(FileNotFoundError):
        folders = _hidden_folders(path)
        try:
            if folders:
                os.replace(folders[-1], path)
        except OSError as error:
            # The folder exists if the writer has already renamed the new folder.
            if error.errno not in FOLDER_EXISTS:
                raise


def _temporary_name(path: Path) -> Path:
    """Return a temporary name for `path` that includes host name and process id."""
    return path.with_name(
        f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY}"
    )


def _remove_stale_files(path: Path) -> None:
    """Remove temporary files for `path` left behind by killed processes on this machine."""
    prefix = f".{path.name}.{socket.gethostname()}."
    for stale in path.parent.glob(f"{glob.escape(prefix)}*"):
        process = stale.name.removeprefix(prefix).partition(".")[0]
        if stale.suffix in (TEMPORARY, OLD) and process.isdecimal() and not _is_alive(int(process)):
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    # On Windows, `os.kill` cannot test for a process: signal 0 sends Ctrl-C.
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # The process belongs to another user.
        return True
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in file system errors, which otherwise name a temporary file or none.

    For example, the error for a full disk names no file.
    """
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: BaseException, path: Path) -> BaseException:
    if NUMPY_SHORT_WRITE.fullmatch(str(error)):
        # NumPy does not report the cause; usually the disk is full.
        return OSError(errno.ENOSPC, f"cannot be written ({error})", str(path))
    if not (isinstance(error, OSError) and error.errno):
        return error
    is_temporary = any(
        part.startswith(f".{path.name}.") for part in Path(str(error.filename)).parts
    )
    if error.filename and not is_temporary:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))
