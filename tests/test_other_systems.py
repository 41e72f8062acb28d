"""What works on systems without the parts of Python that only POSIX systems have."""

import subprocess
import sys

from conftest import COMPATIBILITY

WITHOUT_POSIX = """
import os, signal, sys, torch  # torch asks for the name of the system, not for its functions

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix_ipc"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for module, names in {
    os: "fork register_at_fork posix_fallocate geteuid getuid chown sched_getaffinity mkfifo pread killpg "
        "O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_DIRECTORY WIFSIGNALED",
    signal: "SIGPIPE SIGALRM SIGHUP SIGKILL SIGUSR1 SIGCHLD alarm setitimer pthread_sigmask",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""


def without_posix(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", WITHOUT_POSIX + code], capture_output=True, text=True, timeout=120)


def test_taking_them_away_works():
    for code in ("import fcntl", "from signal import SIGPIPE", "import os; os.fork"):
        assert without_posix(code).returncode == 1


def test_models_encode_and_files_are_written_and_read_without_them(tmp_path):
    """By numpy and by torch; an index is made, searched and made again, rows are written, and bad input is a line."""
    text = tmp_path / "text"
    text.write_text("a dog\na house\n")
    code = f"""
from pathlib import Path
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.main import main
assert SentenceEncoder.from_pretrained("lxsr-nine").encode(["a dog"]).shape == (1, 256)
model, text, folder = {str(COMPATIBILITY / "laser.model")!r}, {str(text)!r}, Path({str(tmp_path)!r})
assert SentenceEncoder.from_pretrained(model).encode(["a dog"]).shape[0] == 1
for _ in range(2):
    main(["index", "--model", "lxsr-nine", "--input", text, "--output", str(folder / "index")])
    main(["embed", "--model", "lxsr-nine", "--input", text, "--output", str(folder / "x.npy")])
main(["search", "--index", str(folder / "index"), "a dog", "--output", "-", "--k", "1"])
main(["search", "--index", "none", "a dog"])
"""
    done = without_posix(code)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1].endswith("\t1\ta dog")
    assert done.stderr.splitlines()[-1].startswith("lxsr: error: none: not an index")
