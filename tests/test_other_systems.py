"""The package works without the parts of Python that only POSIX systems have."""

import subprocess
import sys

import pytest
import small_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr.cli import train

WITHOUT_POSIX = """
import multiprocessing.popen_fork, multiprocessing.resource_tracker, os, signal, sys, types, warnings
# torch tests the name of the system, not its functions, so it is imported before they are removed.
import torch

# Without a named encoding, files are read and written in that of the system: on Windows not UTF-8.
warnings.filterwarnings("error", category=EncodingWarning, module="fairseq_lxsr")

# The processes of Python need these signals here, but not on Windows.
all_signals = types.SimpleNamespace(**vars(signal))
multiprocessing.popen_fork.signal = multiprocessing.resource_tracker.signal = all_signals

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


def run_without_posix(code: str) -> subprocess.CompletedProcess:
    """Run code in a new Python that lacks what Windows lacks."""
    command = [sys.executable, "-X", "warn_default_encoding", "-c", WITHOUT_POSIX + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_removed_parts_of_posix_and_reading_without_an_encoding_raise_errors():
    """The tests below rely on it."""
    expected = {
        "import fcntl": "ModuleNotFoundError",
        "from signal import SIGPIPE": "ImportError",
        "os.fork": "AttributeError",
        # In a module of this package, whose name begins with fairseq_lxsr.
        "open(os.devnull)": "EncodingWarning",
    }
    code = f"""
for statement in {list(expected)}:
    try:
        exec(statement, {{"__name__": "fairseq_lxsr.x", "os": os}})
    except Exception as error:
        print(type(error).__name__)
"""

    process = run_without_posix(code)

    assert process.stdout.split() == list(expected.values()), process.stderr


@pytest.fixture(scope="module")
def posix_free_run(tmp_path_factory):
    """A folder, and the process without POSIX that ran the commands of the next two tests in it.

    One process runs all of them, because its imports take seconds. The last command searches an
    index that does not exist, and is refused.
    """
    folder = tmp_path_factory.mktemp("other")
    toy.write(folder / "text", toy.sentences(200))
    (folder / "dogs").write_text("a dog\na house\n")
    # The commands use a small model, because loading the model of the package takes a second.
    small_model.write_folder(folder / "model", num_layers=0, gated=True)
    code = f"""
from pathlib import Path
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.main import main
folder = Path({str(folder)!r})
text = {str(folder / "text")!r}
dogs = {str(folder / "dogs")!r}
model = ["--model", str(folder / "model")]
sides = [*model, "--source", text + ".en", "--target", text + ".fr"]
held_out = ["--valid-size", "20", "--test-size", "20", "--vocab-size", "200"]
if __name__ == "__main__":
    main(["prepare", "--work", str(folder / "work"), "--data", text, *held_out])
    main(["mine", *sides, "--output", str(folder / "mined.tsv")])
    main(["score", *sides, "--output", str(folder / "scored.tsv")])
    main(["eval", "xsr", *sides, "--output", str(folder / "scores.jsonl")])
    main(["export", "web", *model, "--input", text + ".en", "--output", str(folder / "web")])
    assert SentenceEncoder.from_pretrained("lxsr-static").encode(["a dog"]).shape == (1, 256)
    laser = {str(small_model.write_folder(folder / "laser", "laser"))!r}
    assert SentenceEncoder.from_pretrained(laser).encode(["a dog"]).shape[0] == 1
    # Twice: the second time, the outputs are replaced.
    for _ in range(2):
        main(["index", *model, "--input", dogs, "--output", str(folder / "index")])
        main(["embed", *model, "--input", dogs, "--output", str(folder / "x.npy")])
    main(["search", "--index", str(folder / "index"), "a dog", "--output", "-", "--k", "1"])
    main(["search", "--index", "none", "a dog"])
"""
    return folder, run_without_posix(code)


@pytest.mark.slow
def test_without_posix_every_command_writes_its_output(posix_free_run):
    folder, process = posix_free_run

    # If one of the commands or encoders failed, the refused command at the end would not be reached.
    assert process.stderr.splitlines()[-1].startswith("lxsr: error: none: ")
    outputs = ("work", "mined.tsv", "scored.tsv", "scores.jsonl", "web", "index", "x.npy")
    for name in outputs:
        assert (folder / name).exists(), name


@pytest.mark.slow
def test_without_posix_search_finds_the_sentence(posix_free_run):
    _, process = posix_free_run

    # The end of the row: number of the line, the line, and the text that is shown.
    assert process.stdout.splitlines()[-1].endswith("\t1\ta dog\ta dog")


@pytest.mark.slow
def test_without_posix_bad_input_is_refused_in_one_line(posix_free_run):
    _, process = posix_free_run

    assert process.returncode == 2, process.stderr
    assert process.stderr.splitlines()[-1].startswith("lxsr: error: none: ")


@pytest.fixture
def too_new_python(monkeypatch):
    """Declare that fairseq cannot be imported by the version of Python that runs the tests."""
    monkeypatch.setattr(train, "TOO_NEW", sys.version_info[:2])


@pytest.mark.usefixtures("too_new_python")
def test_training_on_a_too_new_python_is_refused_and_names_the_newest_version_that_works(toy_work):
    result = lxsr_here("train", toy_work / "data-bin", "--recipe", "best", check=False)

    refused(result, sys.executable, "Python 3.11 to 3.13")


@pytest.mark.usefixtures("too_new_python")
def test_the_command_of_a_training_is_printed_on_a_too_new_python_too(toy_work):
    result = lxsr_here("train", toy_work / "data-bin", "--recipe", "best", "--print")

    assert result.stdout.startswith("fairseq-train ")
