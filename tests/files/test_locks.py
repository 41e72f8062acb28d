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

HOLD = """
import sys, time
from fairseq_lxsr.files.locks import locked
with locked(sys.argv[1], "the folder"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_says_who_holds_it_and_ends_with_its_process(tmp_path):
    path = tmp_path / "new" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True
    ) as holder:
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


def test_a_work_folder_is_locked_but_for_child_processes_and_goes_if_it_is_new_and_empty(
    tmp_path, monkeypatch
):
    folder = tmp_path / "new" / "work"
    with locked_work_folder(folder) as descriptors:
        assert len(descriptors) == 1
        with pytest.raises(InputError, match=str(folder)), locked_work_folder(folder):
            pass
        monkeypatch.setattr(os, "environ", lock_environment(folder))
        with locked_work_folder(folder) as shared:
            assert list(shared) == []
        with locked_work_folder(tmp_path / "other") as others:
            assert len(others) == 1
    assert list(tmp_path.iterdir()) == []
    with locked_work_folder(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_a_patient_process_waits_for_the_end_of_the_holder(tmp_path):
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


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between opening the file and taking the lock its holder may have ended, which removes the
    file.
    """
    path, taken = tmp_path / "lock", []
    flock = fcntl.flock

    def remove_first(lock, how):
        if not taken:
            path.unlink()
        taken.append(lock)
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked(path, "x"), pytest.raises(InputError), locked(path, "x"):
        pass
    assert len(taken) >= 3


@pytest.mark.parametrize(
    "content", [b"notes", b"process 12 on host\nnotes", b"process on host", b"x" * 10**6]
)
def test_a_file_that_is_no_lock_is_not_touched(tmp_path, content):
    path, linked = tmp_path / "x.lock", tmp_path / "link.lock"
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
    for left in ("", "process 12 on some-host.example"):
        path.write_text(left)
        with locked(path, "x"):
            assert path.read_text().startswith(f"process {os.getpid()} on ")
        assert not path.exists()


def status_of_fork(action) -> int:
    """Exit status of a fork that runs `action`: 0 when it returns, that of SIGALRM when it takes
    ten seconds.
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


def use(lock: ThreadLock, expected: list, found: list) -> None:
    with lock:
        assert found == expected


def test_a_lock_of_threads_is_free_in_a_fork_and_what_it_protects_is_made_anew():
    entered, over, table = threading.Event(), threading.Event(), [1, 2]
    held, free = ThreadLock(table.clear), ThreadLock(table.clear)

    def hold():
        with held:
            entered.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        entered.wait(60)
        assert status_of_fork(lambda: use(held, [], table)) == 0
        assert table == [1, 2]
    finally:
        over.set()
        thread.join()
    assert status_of_fork(lambda: use(held, [1, 2], table)) == 0  # nobody held it
    assert status_of_fork(lambda: use(free, [1, 2], table)) == 0


def test_a_fork_waits_for_the_end_of_blocks_of_other_threads():
    waits, entered, left = ForksWait(), threading.Event(), []

    def stay():
        with waits:
            entered.set()
            time.sleep(0.3)
            left.append(1)

    def enter_again():
        with waits:
            assert left == [1]

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(60)
    assert status_of_fork(enter_again) == 0
    assert left == [1]
    thread.join()
    enter_again()


def test_a_fork_does_not_wait_for_ever():
    waits = ForksWait(longest_wait=0.1)
    with waits:
        assert status_of_fork(waits.__enter__) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lxsr-static", "laser"])
def test_forks_of_a_process_whose_threads_encode_encode_too(model, tmp_path):
    """Caches of words, copies of the network and the threads of torch are used by both."""
    if model == "laser":
        model = small_model.write_folder(tmp_path / "model", "laser")
    code = FORKS.format(model=str(model))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "2"}, timeout=300
    )
    assert done.returncode == 0


FORKS = """
import os, signal, threading
from fairseq_lxsr import SentenceEncoder

encoder, over = SentenceEncoder.from_pretrained({model!r}), threading.Event()
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


def test_every_lock_of_threads_survives_a_fork():
    plain = re.compile(r"(?<!asyncio\.)\b(Lock|RLock|Condition|Semaphore)\(")
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "locks.py"]
    assert [path.name for path in files if plain.search(path.read_text(encoding="utf-8"))] == []
    assert plain.search((PACKAGE / "files" / "locks.py").read_text(encoding="utf-8"))
