"""Locks between processes, which the system releases when they end, and locks between threads,
which survive a fork.
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

HOLDER = re.compile(rb"(process \d+ on \S+)?")  # content of a lock file; empty after a full disk
RETRY_SECONDS = 0.02
FORK_SECONDS = 10
# errors of a file system that has none
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class ThreadLock:
    """A lock between threads that is free in the child of a fork, whichever thread held it in the
    parent.

        lock = ThreadLock(table.clear)
        with lock:
            table.update(...)

    The thread that held it is not in the child, so what the lock protects may be half changed
    there: `forget` is called in the child to make it anew. Without a fork, it is a
    `threading.Lock`.
    """

    def __init__(self, forget: Callable[[], None] = lambda: None):
        self._lock, self._held, self._forget = threading.Lock(), False, forget
        _THREAD_LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._lock.release()

    def free_in_child(self) -> None:
        """Free the lock, in a child that has no other thread yet."""
        # always: `locked()` is not true yet of a lock that has just been taken
        self._lock = threading.Lock()
        if self._held:
            self._held = False
            self._forget()


class ForksWait:
    """Lets a fork wait for the end of blocks that run in other threads, at most `FORK_SECONDS`.

    It is for code of libraries that have locks of their own, which the child would find taken for
    ever. Any number of threads may be inside; one that comes while a fork waits, waits too.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._renew
            )

    def _renew(self) -> None:
        self._changed, self._inside, self._is_closed = threading.Condition(), 0, False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside = max(0, self._inside - 1)  # a fork inside the block has renewed it
            self._changed.notify_all()

    def _close(self) -> None:
        self._changed.acquire()
        self._is_closed = True
        self._changed.wait_for(lambda: not self._inside, FORK_SECONDS)

    def _open(self) -> None:
        self._is_closed = False
        self._changed.notify_all()
        self._changed.release()


_THREAD_LOCKS: "weakref.WeakSet[ThreadLock]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_THREAD_LOCKS):
        lock.free_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def locked(path: str | Path, of: str | Path, patience: float = 0) -> Iterator[list[int]]:
    """Hold a lock inside the block; the system releases it when the process ends for any reason.

    The lock file names the holder; it is created with its folder, and removed at the end. A file
    that is no lock is neither changed nor removed. `of` is the folder or output that only one
    process may write, for the message; `patience` are seconds to wait for the end of another
    holder. A process that inherits the file descriptors over exec holds the lock too.
    """
    # every verb of the command line imports this module
    from filelock import FileLock, SoftFileLock, Timeout

    path, descriptors = Path(path), list[int]()
    path.parent.mkdir(parents=True, exist_ok=True)
    _refuse_other_file(path)
    native: dict[str, Any] = {"fallback_to_soft": False, "on_acquired": descriptors.append}
    if issubclass(FileLock, SoftFileLock):  # neither Windows nor a system with fcntl
        native = {}
    # a second attempt, where its holder has just removed the file
    lock = FileLock(
        path, timeout=max(patience, RETRY_SECONDS), poll_interval=RETRY_SECONDS, **native
    )
    try:
        lock.acquire()
    except Timeout:
        holder = _content(path).decode(errors="replace") or "its name is not known"
        raise InputError(
            f"{of}: another run works in it ({holder}); wait for its end, or end it"
        ) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            # nobody knows the name of a lock, unless it is another file
            raise (
                error if os.path.lexists(path) else OSError(error.errno, error.strerror, str(of))
            ) from None
    try:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # on a full disk the file does not name the holder
                os.ftruncate(descriptor, 0)
                # as HOLDER
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield descriptors
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # removed before the release, while no other process can hold it
        lock.release()


def _content(path: Path) -> bytes:
    """Read the beginning of a lock file; a link is not followed, because it may lead to any
    file.
    """
    with contextlib.suppress(OSError):  # for example because there is none yet
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
        # once, because its holder may remove the file at any time
        kind = stat.S_IFMT(path.lstat().st_mode)
    except OSError:  # no file; any other reason is met again
        return
    if kind not in (stat.S_IFREG, stat.S_IFLNK) or not HOLDER.fullmatch(_content(path)):
        raise InputError(
            f"{path}: would be the lock, and is another file; move it, or choose another name"
        )
