"""What several tests share: a small corpus through the real tools, trained once."""

import contextlib
import io
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import toy

ROOT = Path(__file__).parent.parent
TRAIN_OPTIONS = {
    "--user-dir": "fairseq_lxsr",
    "--task": "xling_sent",
    "--arch": "lxsr_tiny",
    "--criterion": "xling_sent_loss",
    "--optimizer": "adam",
    "--lr": "0.005",
    "--lr-scheduler": "inverse_sqrt",
    "--warmup-updates": "20",
    "--batch-size": "32",
    "--log-format": "simple",
    "--log-interval": "1000",
    "--seed": "1",
}


def pytest_make_parametrize_id(val, argname):
    """Bytes are no names: an archive holds the second it was made in, and two workers would not agree on its tests."""
    return argname if isinstance(val, bytes) else None


def run(module: str, *arguments, check: bool = True, cwd: Path = ROOT, **variables) -> subprocess.CompletedProcess:
    """Run `python -m module arguments`, in the project's root or in `cwd`; `check` expects exit status 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"} | variables,
        timeout=300,
    )
    if check and done.returncode:
        raise AssertionError(f"{module} {arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def lxsr(*arguments, **options) -> subprocess.CompletedProcess:
    return run("fairseq_lxsr.cli.main", *arguments, **options)


def lxsr_here(*arguments, check: bool = True) -> subprocess.CompletedProcess:
    """`lxsr` in this process: the same parsing, output and exit status, without the seconds that importing takes."""
    from fairseq_lxsr.cli.main import main

    output, errors, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), contextlib.chdir(ROOT):
        try:
            main(list(map(str, arguments)))
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        except Exception:
            traceback.print_exc()
            status = 1
    if check and status:
        raise AssertionError(f"lxsr {arguments}\n{output.getvalue()[-3000:]}\n{errors.getvalue()[-3000:]}")
    return subprocess.CompletedProcess(["lxsr", *arguments], status, output.getvalue(), errors.getvalue())


def train(data: Path, save_dir: Path, *flags, check: bool = True, module: str = "fairseq_cli.train", **options):
    """fairseq-train on the CPU; options in Python's spelling replace those of TRAIN_OPTIONS."""
    named = TRAIN_OPTIONS | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    words = [word for item in named.items() for word in item]
    return run(module, data, "--cpu", "--save-dir", save_dir, *words, *flags, check=check)


def refused(done: subprocess.CompletedProcess, *fragments: str) -> None:
    """Bad input ended as it must: exit status 2, one line that says everything, no traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    assert "Traceback" not in done.stdout + done.stderr
    message = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(message) == 1, done.stderr[-2000:]
    for fragment in fragments:
        assert str(fragment) in message[0], message[0]


@pytest.fixture(scope="session")
def toy_work(tmp_path_factory) -> Path:
    """A work folder of `lxsr prepare`: corpus, subwords and data-bin of en-fr."""
    work = tmp_path_factory.mktemp("toy")
    toy.write(work / "text", toy.sentences(1200))
    options = ("--valid-size", 100, "--test-size", 200, "--vocab-size", 200)
    lxsr("prepare", "--work", work, "--data", work / "text", *options)
    return work


@pytest.fixture(scope="session")
def toy_checkpoint(toy_work) -> Path:
    """A checkpoint of a few epochs on the toy corpus."""
    train(toy_work / "data-bin", toy_work / "checkpoints", "--no-epoch-checkpoints", max_epoch="6")
    return toy_work / "checkpoints" / "checkpoint_best.pt"


@pytest.fixture(scope="session")
def toy_model(toy_work, toy_checkpoint) -> Path:
    """The model folder of that checkpoint."""
    lxsr("export-model", "--checkpoint", toy_checkpoint, "--output", toy_work / "model")
    return toy_work / "model"
