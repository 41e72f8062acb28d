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

HOLDER = """
import sys, time
from fairseq_lxsr.files.locks import locked
with locked(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_of_a_lock_is_named_and_its_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "new" / "lock"
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        expected = rf"the folder: .*\(process {holder.pid} on {socket.gethostname()}\)"
        with pytest.raises(InputError, match=expected), locked(path, "the folder"):
            pass
        holder.kill()
    with (
        locked(path, "the folder"),
        pytest.raises(InputError, match=str(os.getpid())),
        locked(path, "the folder"),
    ):
        pass
    assert not path.exists()


def test_a_work_folder_is_locked_except_for_child_processes(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    with locked_work_folder(folder) as descriptors:
        assert len(descriptors) == 1
        with pytest.raises(InputError, match=str(folder)), locked_work_folder(folder):
            pass
        monkeypatch.setattr(os, "environ", lock_environment(folder))
        with locked_work_folder(folder) as descriptors_of_child:
            assert list(descriptors_of_child) == []
        with locked_work_folder(tmp_path / "other") as descriptors_of_other:
            assert len(descriptors_of_other) == 1


def test_a_new_work_folder_is_removed_if_it_stays_empty(tmp_path):
    with locked_work_folder(tmp_path / "new" / "work"):
        pass
    assert list(tmp_path.iterdir()) == []
    with locked_work_folder(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_a_process_with_patience_waits_for_the_lock(tmp_path):
    def take():
        with locked(tmp_path / "lock", "x", patience=60):
            return "taken"

    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "lock", "x"):
            waiting = pool.submit(take)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result() == "taken"
    with (
        locked(tmp_path / "lock", "x"),
        pytest.raises(InputError),
        locked(tmp_path / "lock", "x", patience=0.05),
    ):
        pass


def test_a_forked_process_does_not_hold_the_lock(tmp_path):
    with locked(tmp_path / "lock", "x"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path / "lock", "x"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_whose_file_has_been_removed_is_taken_again(tmp_path, monkeypatch):
    """The holder may end, and remove the file, after another process has opened it."""
    path = tmp_path / "lock"
    calls = []
    flock = fcntl.flock

    def remove_first(descriptor, operation):
        if not calls:
            path.unlink()
        calls.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked(path, "x"), pytest.raises(InputError), locked(path, "x"):
        pass
    assert len(calls) >= 3


@pytest.mark.parametrize(
    "content", [b"notes", b"process 12 on host\nnotes", b"process on host", b"x" * 10**6]
)
def test_a_file_that_is_not_a_lock_is_not_changed(tmp_path, content):
    path = tmp_path / "x.lock"
    linked = tmp_path / "link.lock"
    path.write_bytes(content)
    linked.symlink_to(path)
    with (
        pytest.raises(InputError, match=r"x\.lock"),
        locked(path, "x"),
    ):
        pass
    with pytest.raises(OSError, match="symbolic links"), locked(linked, "x"):
        pass
    assert path.read_bytes() == content
    assert linked.is_symlink()


def test_a_lock_of_a_killed_process_is_taken(tmp_path):
    path = tmp_path / "lock"
    for content in ("", "process 12 on some-host.example"):
        path.write_text(content)
        with locked(path, "x"):
            assert path.read_text().startswith(f"process {os.getpid()} on ")
        assert not path.exists()


def status_of_fork(action) -> int:
    """Exit status of a fork that runs `action`: 0 if it returns, that of SIGALRM after ten seconds."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def assert_rows(lock: ThreadLock, rows: list, expected: list) -> None:
    with lock:
        assert rows == expected


def test_a_held_lock_of_threads_is_free_in_a_fork_and_its_data_reset():
    rows = [1, 2]
    held = ThreadLock(rows.clear)
    free = ThreadLock(rows.clear)
    is_held = threading.Event()
    is_over = threading.Event()

    def hold():
        with held:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        is_held.wait(60)
        assert status_of_fork(lambda: assert_rows(held, rows, [])) == 0
        assert rows == [1, 2]
    finally:
        is_over.set()
        thread.join()
    # Data of a lock that nobody holds are kept.
    assert status_of_fork(lambda: assert_rows(held, rows, [1, 2])) == 0
    assert status_of_fork(lambda: assert_rows(free, rows, [1, 2])) == 0


def test_a_fork_waits_for_the_end_of_blocks_of_other_threads():
    waits = ForksWait()
    is_inside = threading.Event()
    finished_blocks = []

    def stay():
        with waits:
            is_inside.set()
            time.sleep(0.3)
            finished_blocks.append(1)

    def enter():
        with waits:
            assert finished_blocks == [1]

    thread = threading.Thread(target=stay)
    thread.start()
    is_inside.wait(60)
    assert status_of_fork(enter) == 0
    assert finished_blocks == [1]
    thread.join()
    enter()


def test_a_fork_waits_for_a_limited_time():
    waits = ForksWait(longest_wait=0.1)
    with waits:
        assert status_of_fork(waits.__enter__) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lxsr-static", "laser"])
def test_a_fork_can_encode_while_threads_of_its_parent_encode(model, tmp_path):
    """They share caches of words, copies of the network and the threads of torch."""
    if model == "laser":
        model = small_model.write_folder(tmp_path / "model", "laser")
    code = FORKS.format(model=str(model))
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, timeout=300)
    assert result.returncode == 0


FORKS = """
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


def test_the_package_uses_only_locks_that_survive_a_fork():
    plain_lock = re.compile(r"(?<!asyncio\.)\b(Lock|RLock|Condition|Semaphore)\(")
    for path in PACKAGE.rglob("*.py"):
        has_plain_lock = plain_lock.search(path.read_text(encoding="utf-8")) is not None
        assert has_plain_lock == (path == PACKAGE / "files" / "locks.py"), path
