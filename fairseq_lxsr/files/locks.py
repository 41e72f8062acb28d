"""Interprocess locks, and thread locks that are safe to use across a fork.

The operating system releases an interprocess lock when its process ends.
"""

import contextlib
import errno
import os
import re
import socket
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError

# Matches the content of a lock file, which is empty if the disk was full.
HOLDER = re.compile(rb"(process \d+ on \S+)?")
RETRY_SECONDS = 0.02
# Maximum number of seconds that a fork waits for `ForksWait` blocks.
FORK_SECONDS = 10
# Name of the lock file in a work folder.
WORK_LOCK = "lock"
# Environment variable with the path of the lock file that the parent process holds.
LOCKED_BY_PARENT = "FAIRSEQ_LXSR_LOCKED"
# Error numbers of file systems that do not support locks.
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class ThreadLock:
    """A thread lock that is always released in a forked child, whichever thread held it.

        lock = ThreadLock(table.clear)
        with lock:
            table.update(...)

    The thread that held the lock does not exist in the child, so the protected data may be left
    half-changed there. Without a fork, this is a plain `threading.Lock`.

    Args:
        forget: resets the protected data; called in the child if the lock was held.
    """

    def __init__(self, forget: Callable[[], None] = lambda: None):
        self._lock = threading.Lock()
        self._held = False
        self._forget = forget
        _THREAD_LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._lock.release()

    def free_in_child(self) -> None:
        """Release the lock in a forked child, before it starts other threads."""
        # Always create a new lock: `_held` is not yet set if the lock was only just acquired.
        self._lock = threading.Lock()
        if self._held:
            self._held = False
            self._forget()


class ForksWait:
    """Makes a fork wait until other threads have left the protected blocks.

        waits = ForksWait()
        with waits:
            call_a_library_with_locks()

    Use it for libraries with internal locks, which would otherwise stay locked forever in the
    child. Any number of threads may be inside a block; a thread that enters one while a fork waits
    has to wait too.

    Args:
        longest_wait: seconds after which the fork proceeds anyway.
    """

    def __init__(self, longest_wait: float = FORK_SECONDS) -> None:
        self._longest_wait = longest_wait
        self._reset()
        # Windows does not support fork.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._reset
            )

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            # If the fork happened inside the block, the child's count is already 0.
            self._inside = max(0, self._inside - 1)
            self._changed.notify_all()

    def _close(self) -> None:
        self._changed.acquire()
        self._is_closed = True
        self._changed.wait_for(lambda: not self._inside, self._longest_wait)

    def _open(self) -> None:
        self._is_closed = False
        self._changed.notify_all()
        self._changed.release()


_THREAD_LOCKS: "weakref.WeakSet[ThreadLock]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_THREAD_LOCKS):
        lock.free_in_child()


# Windows does not support fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def locked(path: str | Path, place: str | Path, patience: float = 0) -> Iterator[list[int]]:
    """Hold an interprocess lock inside the block.

    The operating system releases the lock when the process ends for any reason. The lock file
    names the holder; it is created, with its folder if needed, and removed at the end.

    Args:
        path: lock file. A file with other content is neither changed nor removed.
        place: folder or output that only one process may write, for messages.
        patience: seconds to wait if another process holds the lock.

    Yields:
        File descriptors of the lock. A process that inherits them through exec also holds the lock.

    Raises:
        InputError: if another process holds the lock, or `path` is an unrelated file.
    """
    # Imported here, because every command imports this module, and few need a lock.
    from filelock import FileLock, SoftFileLock

    path = Path(path)
    descriptors: list[int] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    _refuse_other_file(path)
    native: dict[str, Any] = {"fallback_to_soft": False, "on_acquired": descriptors.append}
    # filelock has no native locks on this system, which is neither Windows nor has fcntl.
    if issubclass(FileLock, SoftFileLock):
        native = {}
    # Wait long enough for a second attempt, in case the holder has just removed the file.
    timeout = max(patience, RETRY_SECONDS)
    lock = FileLock(path, timeout=timeout, poll_interval=RETRY_SECONDS, **native)
    _acquire(lock, path, place)
    try:
        for descriptor in descriptors:
            _write_holder(descriptor)
        yield descriptors
    finally:
        # Remove the file before releasing the lock, while no other process can hold the lock.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


@contextlib.contextmanager
def locked_work_folder(folder: Path) -> Iterator[list[int]]:
    """Hold the lock of a work folder inside the block. Every command with stages uses this lock.

        with locked_work_folder(Path("work")) as lock:
            subprocess.run(command, pass_fds=lock, env=lock_environment(folder))

    The folder is created if necessary. If it is new and still empty at the end, because the options
    were rejected, it is removed again.

    Args:
        folder: work folder with all stages.

    Yields:
        File descriptors of the lock, for child processes; none if the parent process holds the
        lock.

    Raises:
        InputError: if another process holds the lock.
    """
    path = Path(os.path.realpath(folder)) / WORK_LOCK
    if os.environ.get(LOCKED_BY_PARENT) == str(path):
        yield []
        return
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with locked(path, folder) as descriptors:
            # Windows cannot pass file descriptors to a child process.
            if os.name == "nt":
                descriptors = []
            yield descriptors
    finally:
        # A folder with files cannot be removed.
        with contextlib.suppress(OSError):
            for place in new_folders:
                place.rmdir()


def lock_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a child process that shares the lock of a work folder."""
    path = Path(os.path.realpath(folder)) / WORK_LOCK
    return os.environ | {LOCKED_BY_PARENT: str(path)}


def _acquire(lock: Any, path: Path, place: str | Path) -> None:
    """Acquire a lock; do nothing if the file system does not support locks."""
    from filelock import Timeout

    try:
        lock.acquire()
    except Timeout:
        holder = _content(path).decode(errors="replace") or "its name is unknown"
        raise InputError(
            f"{place}: in use by another run ({holder}); wait for it to end, or stop it"
        ) from None
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return
        if os.path.lexists(path):
            raise
        # Users do not know about the lock file, so the error names the locked file or folder
        # instead.
        raise OSError(error.errno, error.strerror, str(place)) from None


def _write_holder(descriptor: int) -> None:
    """Write this process's id and host to a lock file, in the format of `HOLDER`."""
    # If the disk is full, the file stays empty.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _content(path: Path) -> bytes:
    """Read the start of a lock file; a missing file counts as empty.

    Links are not followed, because they may lead to any file.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
        try:
            return os.read(descriptor, 300)
        finally:
            os.close(descriptor)
    return b""


def _refuse_other_file(path: Path) -> None:
    try:
        # Call lstat only once, because the holder may remove the file at any time.
        kind = stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        # The file does not exist. Any other error will recur when the file is opened.
        return
    if kind not in (stat.S_IFREG, stat.S_IFLNK) or not HOLDER.fullmatch(_content(path)):
        raise InputError(
            f"{path}: this path is needed for a lock file, but another file exists there; move it, "
            "or choose another output path"
        )
