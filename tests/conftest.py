"""Fixtures and helpers of all tests: running commands, and a small corpus, prepared and trained once."""

import contextlib
import importlib
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import toy
from forks import FAIRSEQ, PRELOADED, start

# No test may ask a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
# Files that version 0.1.0 has written.
COMPATIBILITY = GOLDEN / "compatibility"
TRAIN_OPTIONS = {
    "--user-dir": "fairseq_lxsr",
    "--task": "xling_sent",
    "--arch": "lxsr_tiny",
    "--criterion": "xling_sent_loss",
    "--optimizer": "adam",
    "--lr": "0.005",
    "--batch-size": "32",
    "--lr-scheduler": "inverse_sqrt",
    "--warmup-updates": "20",
    "--seed": "1",
    "--log-format": "simple",
    "--log-interval": "1000",
    # Starting a worker process takes as long as ten updates of a small model.
    "--num-workers": "0",
}


@pytest.fixture(autouse=True)
def subnormal_numbers():
    """Restore subnormal numbers: a training in this process rounds them to zero."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def pytest_make_parametrize_id(val, argname):
    """Name parameters of type bytes by their argument.

    An archive holds the time at which it was written, so two workers would name its tests
    differently.
    """
    return argname if isinstance(val, bytes) else None


# A background job of a shell ignores interrupts, and so do the processes that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

RUN: dict[str, str] = {}


def pytest_configure(config):
    """Remember the name of the run that the workers of pytest share."""
    RUN["name"] = getattr(config, "workerinput", {}).get("testrunuid", "")


@contextlib.contextmanager
def case(name: object):
    """Name the case of a loop if its assertions fail."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise


def forked_commands(preloaded: tuple[str, ...] = PRELOADED) -> Path:
    """Return the folder with `python`, `lxsr` and `fairseq-train` as forks of a process.

    The process has imported the modules of `preloaded`, which is PRELOADED or FAIRSEQ, so that a
    command does not need seconds for it.
    """
    return forking_process() / ("fairseq" if preloaded == FAIRSEQ else "all") / "bin"


@cache
def forking_process() -> Path:
    """Start the process behind the commands, once for all workers, and return its folder."""
    import filelock

    # A short path, as addresses of sockets must be.
    if not RUN["name"]:
        folder = Path(tempfile.mkdtemp(prefix="lxsr-"))
        parent = os.getpid()
    else:
        folder = Path(tempfile.gettempdir(), f"lxsr-{RUN['name'][:16]}")
        folder.mkdir(exist_ok=True)
        parent = os.getppid()
    with filelock.FileLock(folder / "lock"):
        if not (folder / "all").exists():
            start(folder, {"fairseq": FAIRSEQ, "all": PRELOADED}, parent, PYTHONPATH=str(ROOT))
    return folder


def forked_environment(**variables: str) -> dict[str, str]:
    """Return an environment whose PATH begins with the forked commands."""
    path = os.pathsep.join(
        (str(forked_commands()), str(Path(sys.executable).parent), os.environ["PATH"])
    )
    return os.environ | {"PATH": path, "PYTHONFAULTHANDLER": "1"} | variables


def run(
    module: str, *arguments, check: bool = True, cwd: Path = ROOT, preloaded=PRELOADED, **variables
) -> subprocess.CompletedProcess:
    """Run `python -m module arguments`, in the project's root or in `cwd`; `check` expects exit
    status 0.

    The process is a fork of one that has imported torch, fairseq and the package. For tests of what
    importing does, `preloaded` is FAIRSEQ, for a fork of one that lacks the package, or (), for a
    Python of its own.
    """
    command = [interpreter(preloaded), "-m", module, *map(str, arguments)]
    environment = forked_environment(**variables)
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=300
    )
    return checked(done) if check else done


def interpreter(preloaded: tuple[str, ...]) -> str | Path:
    return forked_commands(preloaded) / "python" if preloaded else sys.executable


def lxsr(*arguments, **options) -> subprocess.CompletedProcess:
    return run("fairseq_lxsr.cli.main", *arguments, **options)


def python(code: str, *arguments, preloaded: tuple[str, ...] = (), **options) -> str:
    """Return the output of `python -c code arguments`, in a new Python or in a fork as in `run`."""
    command = [interpreter(preloaded), "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, **{"cwd": ROOT} | options
    )
    return checked(done).stdout


def captured(
    command: list, function: Callable[[], object], folder: Path, explain
) -> subprocess.CompletedProcess:
    """Run a function as a program in this process: return its output, errors and exit status.

    `explain` prints an exception and returns the exit status.
    """
    output = io.StringIO()
    errors = io.StringIO()
    status = 0
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        contextlib.chdir(folder),
    ):
        try:
            function()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception as error:
            status = explain(error)
    return subprocess.CompletedProcess(command, status, output.getvalue(), errors.getvalue())


def print_traceback(error: Exception) -> int:
    traceback.print_exception(error)
    return 1


def checked(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert not done.returncode, f"{done.args}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def lxsr_here(*arguments, check: bool = True, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run `lxsr` in this process: the same parsing, output and exit status, without imports."""
    from fairseq_lxsr.cli.main import main

    done = captured(
        ["lxsr", *arguments], lambda: main(list(map(str, arguments))), folder, print_traceback
    )
    return checked(done) if check else done


def export(
    checkpoint: Path, output: Path, *options, check: bool = True
) -> subprocess.CompletedProcess:
    """`lxsr export folder` in this process."""
    return lxsr_here(
        "export", "folder", "--checkpoint", checkpoint, "--output", output, *options, check=check
    )


def main_here(
    module: ModuleType, *arguments, check: bool = True, folder: Path = ROOT
) -> subprocess.CompletedProcess:
    """The main function of a script in this process."""
    command = [Path(module.__file__).name, *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        done = captured(command, module.main, folder, print_traceback)
    return checked(done) if check else done


def train(
    data: Path,
    save_dir: Path,
    *flags,
    check: bool = True,
    module: str = "fairseq_cli.train",
    **options,
):
    """fairseq-train on the CPU; options in Python's spelling replace those of TRAIN_OPTIONS, None
    leaves one out.
    """
    return run(module, *train_words(data, save_dir, *flags, **options), check=check)


def train_words(data: Path, save_dir: Path, *flags, **options) -> list[str]:
    values = dict(TRAIN_OPTIONS)
    for name, value in options.items():
        values[f"--{name.replace('_', '-')}"] = value
    words = [data, "--cpu", "--save-dir", save_dir]
    for name, value in values.items():
        if value is not None:
            words += [name, value]
    return list(map(str, (*words, *flags)))


def train_here(data: Path, save_dir: Path, *flags, **options) -> subprocess.CompletedProcess:
    """As `train` without check, in this process; for runs that are refused, or end without
    validation.
    """
    import fairseq_cli.train

    command = ["fairseq-train", *train_words(data, save_dir, *flags, **options)]

    def begin():
        with logging_to(sys.stdout):
            try:
                fairseq_cli.train.cli_main()
            finally:
                # The end of a process would do this.
                importlib.import_module("fairseq_lxsr.training.task").release_save_dir()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        return captured(command, begin, ROOT, report)


def validations(done: subprocess.CompletedProcess, name: str = "accuracy") -> list[float]:
    """Return a score of every validation that fairseq-train printed."""
    scores = re.findall(rf"valid on 'valid' subset .*?\| {name} ([0-9.]+)", done.stdout)
    return [float(score) for score in scores]


def weights(save_dir: Path, name: str = "checkpoint_last.pt") -> dict:
    """The parameters of a checkpoint."""
    from fairseq_lxsr.encoder.checkpoint import read_checkpoint

    return read_checkpoint(save_dir / name)["model"]


def assert_same_weights(save_dir: Path, expected_dir: Path) -> None:
    """Check that the last checkpoints of two runs have exactly the same parameters."""
    parameters = weights(save_dir)
    expected = weights(expected_dir)
    assert parameters.keys() == expected.keys()
    for name, value in parameters.items():
        assert value.equal(expected[name]), name


def report(error: Exception) -> int:
    """Print an error as the hook of the plugin does; return the exit status."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "excepthook", lambda *_: traceback.print_exception(error))
            importlib.import_module("fairseq_lxsr.training.fairseq_patches").report_in_one_line()
            sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as stop:
        return stop.code
    return 1


@contextlib.contextmanager
def logging_to(stream):
    root = logging.getLogger()
    handler = logging.StreamHandler(stream)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def refused(done: subprocess.CompletedProcess, *fragments: str) -> None:
    """Check that a command refused its input: exit status 2, one error line, no traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    assert "Traceback" not in done.stdout + done.stderr
    message = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(message) == 1, done.stderr[-2000:]
    for fragment in fragments:
        assert str(fragment) in message[0], message[0]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder, by their relative paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def wait_until(
    happened: Callable[[], object], process: subprocess.Popen, seconds: float = 60
) -> None:
    """Wait until `happened` is true; fail if the process ends or the time is over before."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, f"ended with {process.returncode} before"
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def load_script(path: Path) -> ModuleType:
    """Import a file outside the package, an example or a tool, with its folder in `sys.path`."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def python_is_a_fork():
    """Make `sys.executable`, and `python` in PATH, forks of a process that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(forked_commands() / "python"))
        for name, value in forked_environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def browser():
    """Chromium, without requests of its own."""
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not program:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=[*flags, *quiet])
        yield browser
        browser.close()


def made_once(work: Path, name: str, make: Callable[[], object]) -> Path:
    """Call `make` in the first worker of pytest that asks for it; return the folder to all."""
    import filelock

    mark = work.with_name(f"{work.name}.{name}")
    lock = work.with_name(f"{work.name}.{name}.lock")
    with filelock.FileLock(lock):
        if not mark.exists():
            make()
            mark.touch()
    return work


@pytest.fixture(scope="session")
def packaged():
    """The encoder of the packaged model, which takes a second to read; no test changes it."""
    from fairseq_lxsr import SentenceEncoder

    return SentenceEncoder.from_pretrained("lxsr-static", "cpu")


@pytest.fixture(scope="session")
def toy_work(tmp_path_factory) -> Path:
    """A work folder of `lxsr prepare`: corpus, subwords and data-bin of en-fr; never changed."""
    base = tmp_path_factory.getbasetemp()
    work = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toy"

    def make():
        toy.write(work / "text", toy.sentences(1200))
        options = ("--valid-size", 100, "--test-size", 200, "--vocab-size", 200)
        lxsr("prepare", "--work", work, "--data", work / "text", *options)

    return made_once(work, "prepared", make)


@pytest.fixture(scope="session")
def toy_checkpoint(toy_work) -> Path:
    """A checkpoint of a few epochs on the toy corpus."""
    save = toy_work / "checkpoints"

    def make():
        train(toy_work / "data-bin", save, "--no-epoch-checkpoints", max_epoch="6")

    made_once(toy_work, "trained", make)
    return save / "checkpoint_best.pt"


@pytest.fixture(scope="session")
def toy_model(toy_work, toy_checkpoint) -> Path:
    """The model folder of that checkpoint."""
    output = toy_work / "model"

    def make():
        lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", output)

    made_once(toy_work, "exported", make)
    return output
