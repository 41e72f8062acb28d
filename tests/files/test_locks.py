"""Locks between processes, and locks of threads that survive a fork."""

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import small_model

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import (
    ForksWait,
    ThreadLock,
    lock_environment,
    locked,
    locked_work_folder,
)
from fairseq_lxsr.files.open import PACKAGE

# A program that holds a lock until it is killed.
HOLDER = """
import sys, time
from fairseq_lxsr.files.locks import locked
with locked(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holding_process(path):
    """Start a process that holds the lock; kill it at the end of the block."""
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def take_lock(path, place="x", patience=0.0) -> None:
    """Take a lock and release it."""
    with locked(path, place, patience):
        pass


def test_a_lock_that_another_process_holds_is_refused_and_the_process_named(tmp_path):
    path = tmp_path / "lock"

    with holding_process(path) as holder:
        expected = rf"the folder: .*\(process {holder.pid} on {socket.gethostname()}\)"
        with pytest.raises(InputError, match=expected):
            take_lock(path, "the folder")


def test_a_lock_is_free_after_its_process_was_killed(tmp_path):
    path = tmp_path / "lock"
    with holding_process(path):
        pass
    # The killed process could not remove its file.
    assert path.exists()

    take_lock(path)


def test_a_lock_that_this_process_holds_is_refused(tmp_path):
    path = tmp_path / "lock"

    with locked(path, "x"), pytest.raises(InputError, match=str(os.getpid())):
        take_lock(path)


def test_the_file_of_a_lock_is_made_in_a_new_folder_and_removed_at_the_end(tmp_path):
    path = tmp_path / "new" / "lock"

    with locked(path, "x"):
        assert path.exists()

    assert not path.exists()


def test_a_locked_work_folder_is_refused(tmp_path):
    folder = tmp_path / "work"

    with (
        locked_work_folder(folder),
        pytest.raises(InputError, match=str(folder)),
        locked_work_folder(folder),
    ):
        pass


def test_a_child_process_shares_the_lock_of_its_parent_on_this_work_folder_only(
    tmp_path, monkeypatch
):
    """The parent says in the environment of the child which lock it holds."""
    with locked_work_folder(tmp_path / "work") as descriptors:
        assert len(descriptors) == 1
        # From here on, this process plays the child.
        monkeypatch.setattr(os, "environ", lock_environment(tmp_path / "work"))

        # It takes no lock of its own, so there is no descriptor.
        with locked_work_folder(tmp_path / "work") as descriptors_of_child:
            assert list(descriptors_of_child) == []
        with locked_work_folder(tmp_path / "other") as descriptors_of_other:
            assert len(descriptors_of_other) == 1


def test_a_new_work_folder_that_stays_empty_is_removed_with_its_new_parents(tmp_path):
    with locked_work_folder(tmp_path / "new" / "work"):
        pass

    assert list(tmp_path.iterdir()) == []


def test_a_new_work_folder_with_files_is_kept_without_the_lock(tmp_path):
    folder = tmp_path / "work"

    with locked_work_folder(folder):
        (folder / "file").touch()

    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_process_with_patience_waits_until_the_lock_is_free(tmp_path):
    path = tmp_path / "lock"
    with ThreadPoolExecutor(1) as pool:
        with locked(path, "x"):
            waiting = pool.submit(take_lock, path, patience=60)
            time.sleep(0.1)
            assert not waiting.done()

        # An InputError of the thread would be raised here.
        waiting.result()


def test_a_process_whose_patience_ends_is_refused(tmp_path):
    path = tmp_path / "lock"

    with locked(path, "x"), pytest.raises(InputError):
        take_lock(path, patience=0.05)


def test_a_fork_of_the_holder_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "lock"
    with locked(path, "x"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)

    # The child, which was forked with the lock, still runs.
    try:
        take_lock(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_whose_file_is_removed_before_it_is_locked_is_taken_with_a_new_file(
    tmp_path, monkeypatch
):
    """The holder may end, and remove the file, after another process has opened it."""
    path = tmp_path / "lock"
    flock = fcntl.flock
    calls = []

    def flock_after_removal(descriptor, operation):
        if not calls:
            path.unlink()
        calls.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_removal)
    with locked(path, "x"):
        # The removed file was locked, then the new one.
        assert calls.count(fcntl.LOCK_EX | fcntl.LOCK_NB) == 2
        # Others find the new one, and are refused.
        with pytest.raises(InputError):
            take_lock(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"notes", id="other text"),
        pytest.param(b"process 12 on host\nnotes", id="more text"),
        pytest.param(b"process on host", id="no process number"),
        pytest.param(b"x" * 1_000_000, id="long text"),
    ],
)
def test_a_file_that_is_not_a_lock_is_refused_and_not_changed(tmp_path, content):
    path = tmp_path / "x.lock"
    path.write_bytes(content)

    with pytest.raises(InputError, match=r"x\.lock"):
        take_lock(path)

    assert path.read_bytes() == content


def test_a_link_in_place_of_a_lock_is_refused_and_not_followed(tmp_path):
    (tmp_path / "notes").write_text("notes")
    link = tmp_path / "link.lock"
    link.symlink_to(tmp_path / "notes")

    with pytest.raises(OSError, match="symbolic links"):
        take_lock(link)

    assert link.is_symlink()
    assert (tmp_path / "notes").read_text() == "notes"


# A killed process does not remove its file, and does not write its name into it on a full disk.
@pytest.mark.parametrize("content", ["", "process 12 on some-host.example"], ids=["empty", "named"])
def test_the_lock_file_of_a_killed_process_is_taken_over_and_removed(tmp_path, content):
    path = tmp_path / "lock"
    path.write_text(content)

    with locked(path, "x"):
        assert path.read_text().startswith(f"process {os.getpid()} on ")

    assert not path.exists()


def status_of_fork(action) -> int:
    """Run `action` in a fork; return 0 if it returns, 1 if it raises an exception, such as an
    AssertionError, and minus the number of SIGALRM if it takes longer than ten seconds.
    """
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def held_by_another_thread(lock: ThreadLock):
    """Let another thread hold a lock inside the block."""
    is_held = threading.Event()
    is_over = threading.Event()

    def hold():
        with lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        is_held.wait(60)
        yield
    finally:
        is_over.set()
        thread.join()


def assert_rows(lock: ThreadLock, rows: list, expected: list) -> None:
    """Check the data that a lock protects, inside the lock."""
    with lock:
        assert rows == expected


def test_a_thread_lock_held_during_a_fork_is_free_in_the_child_and_its_data_are_reset_there():
    """The holding thread does not exist in the child, and may have left half a change."""
    rows = [1, 2]
    lock = ThreadLock(rows.clear)

    with held_by_another_thread(lock):
        assert status_of_fork(lambda: assert_rows(lock, rows, expected=[])) == 0

    # The data of the parent are unchanged.
    assert rows == [1, 2]


def test_the_data_of_a_thread_lock_that_nobody_holds_are_kept_in_a_fork():
    rows = [1, 2]
    never_held = ThreadLock(rows.clear)
    released = ThreadLock(rows.clear)
    with held_by_another_thread(released):
        pass

    assert status_of_fork(lambda: assert_rows(never_held, rows, expected=[1, 2])) == 0
    assert status_of_fork(lambda: assert_rows(released, rows, expected=[1, 2])) == 0


def test_a_fork_waits_until_other_threads_have_left_a_protected_block():
    waits = ForksWait()
    is_inside = threading.Event()
    finished_blocks = []

    def stay_inside():
        with waits:
            is_inside.set()
            time.sleep(0.3)
            finished_blocks.append(1)

    def assert_block_is_finished():
        with waits:
            assert finished_blocks == [1]

    thread = threading.Thread(target=stay_inside)
    thread.start()
    is_inside.wait(60)

    status = status_of_fork(assert_block_is_finished)

    # In the child and in the parent, the block has ended, and can be entered again.
    assert status == 0
    assert_block_is_finished()
    thread.join()


def test_a_fork_inside_a_protected_block_goes_on_after_the_longest_wait():
    waits = ForksWait(longest_wait=0.1)

    with waits:
        # The child can enter the block, although its parent has not left it.
        assert status_of_fork(waits.__enter__) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lxsr-static", "laser"])
def test_a_fork_can_encode_while_threads_of_its_parent_encode(model, tmp_path):
    """They share caches of words, copies of the network and the threads of torch."""
    if model == "laser":
        model = small_model.write_folder(tmp_path / "model", "laser")
    code = FORK_WHILE_ENCODING.format(model=str(model))
    environment = os.environ | {"OMP_NUM_THREADS": "2"}

    result = subprocess.run([sys.executable, "-c", code], env=environment, timeout=300)

    assert result.returncode == 0


# Three threads encode different texts again and again, while eight forks, one after the other,
# encode the same texts, each within 20 seconds, and compare the vectors with those of the parent.
FORK_WHILE_ENCODING = """
import os, signal, threading
from fairseq_lxsr import SentenceEncoder

encoder = SentenceEncoder.from_pretrained({model!r})
over = threading.Event()
texts = [f"sentence {{row}} of words {{row * 7}}" for row in range(200)]
expected = encoder.encode(texts[:20])

def work():
    count = 0
    while not over.is_set():
        count += 1
        encoder.encode([f"{{text}} {{count}}" for text in texts])

threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(8):
    over.wait(0.02)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(int(abs(encoder.encode(texts[:20]) - expected).max() > 1e-4))
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_only_the_module_of_locks_uses_the_thread_locks_of_python():
    """These stay locked in a fork forever; ThreadLock and ForksWait do not."""
    plain_lock = re.compile(r"(?<!asyncio\.)\b(Lock|RLock|Condition|Semaphore)\(")
    for path in PACKAGE.rglob("*.py"):
        has_plain_lock = plain_lock.search(path.read_text(encoding="utf-8")) is not None
        assert has_plain_lock == (path == PACKAGE / "files" / "locks.py"), path
