"""Locks, which the system releases when their process ends."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fairseq_lxsr.errors import InputError

HOLDER = re.compile(rb"(process \d+ on \S+)?")  # content of a lock file; empty after a full disk
RETRY = 0.02  # seconds between two attempts to take a lock


@contextlib.contextmanager
def locked(path: str | Path, of: str | Path, patience: float = 0) -> Iterator[int]:
    """Hold a lock inside the block; the system releases it when the process ends for any reason.

    Args:
        path: the lock file, which names the holder; it is created with its folder, and removed at the end. A file that
            is no lock is neither changed nor removed.
        of: the folder or output that only one process may write, for the message.
        patience: seconds to wait for the end of another holder.

    Returns:
        File descriptor of the lock; a process that inherits it over exec holds the lock too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _take_lock(path, of, patience)
    _held.add(lock)
    try:
        with contextlib.suppress(OSError):  # on a full disk the file does not name the holder
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)  # as HOLDER
        yield lock
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # removed before the release, while no other process can hold it
        _held.discard(lock)
        os.close(lock)


def _take_lock(path: Path, of: str | Path, patience: float) -> int:
    deadline = time.monotonic() + patience
    while True:
        lock = _open_lock(path, of)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace") or "its name is not known"
            os.close(lock)
            if time.monotonic() < deadline:
                time.sleep(RETRY)
                continue
            raise InputError(f"{of}: another run works in it ({holder}); wait for its end, or end it") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                os.close(lock)
                raise
            return lock  # this file system has no locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)  # the previous holder has removed the file in the meantime


def _open_lock(path: Path, of: str | Path) -> int:
    """Open or create a lock file; a link is not followed, because it may lead to any file."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if os.path.lexists(path):
            raise
        raise OSError(error.errno, error.strerror, str(of)) from None  # nobody knows the name of a lock
    with contextlib.suppress(OSError):  # for example a pipe, which is no lock either
        if HOLDER.fullmatch(os.pread(lock, 300, 0)):
            return lock
    os.close(lock)
    raise InputError(f"{path}: would be the lock, and is another file; move it, or choose another name")


_held: set[int] = set()


def _let_go_in_child() -> None:
    """Close locks in a forked child, because a data loading process can outlive its parent by a few seconds."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
