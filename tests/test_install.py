"""tools/install.py: what it says on a machine that lacks something. The whole installation is tried by CI itself."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stopped(check, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        check()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_this_machine_will_do(install):
    install.check_python()
    install.check_machine()


def test_python_too_old(install, monkeypatch, capsys):
    monkeypatch.setattr(install.sys, "version_info", (3, 9, 18))
    assert "is Python 3.9; fairseq-lxsr needs 3.11 to 3.13: name one, for example PYTHON=" in stopped(
        install.check_python, capsys
    )


def test_no_compiler(install, monkeypatch, capsys):
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    assert "no C++ compiler found" in stopped(install.check_machine, capsys)


def test_no_disk(install, monkeypatch, capsys):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: type("usage", (), {"free": 5 * 10**8}))
    assert "0.5 GB free" in stopped(install.check_machine, capsys)


def test_no_headers(install, monkeypatch, capsys):
    monkeypatch.setattr(install.shutil, "which", lambda name: name)
    monkeypatch.setattr(install.os.path, "exists", lambda path: False)
    assert "Python.h is missing; install the headers" in stopped(install.check_machine, capsys)


def test_failing_step_shows_the_end_of_the_log(install, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(install, "LOG", str(tmp_path / "log"))
    with pytest.raises(SystemExit):
        install.run("a step", [sys.executable, "-c", "import sys; sys.exit('OSError: No space left on device')"])
    err = capsys.readouterr().err
    assert "install: a step failed (the disk is full); the whole log is" in err


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_an_old_python_gets_as_far_as_the_sentence(version):
    """Where the machine has one."""
    candidates = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), Path(f"/usr/bin/python{version}")]
    python = next((path for path in candidates if path.exists()), None)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    done = subprocess.run([python, ROOT / "tools" / "install.py"], capture_output=True, text=True, env=os.environ)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert f"is Python {version}; fairseq-lxsr needs" in done.stderr


def test_every_package_is_pinned(install):
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    wanted = [*install.BUILD, *install.dependencies(), *install.dependencies("dev"), "fairseq-fixed"]
    names = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in wanted}
    assert names <= {name.lower() for name in pinned}


def test_dependencies_are_those_of_pyproject(install):
    assert "torch>=2.6" in install.dependencies()
    assert {"accelerate", "protobuf", "sentence-transformers>=6"} == set(install.dependencies("st"))
    everything = install.dependencies("dev")
    for extra in ("train", "st", "onnx", "prepare", "documents", "zst", "parquet", "mteb", "report", "docs"):
        assert set(install.dependencies(extra)) <= set(everything)
    assert not any("fairseq-lxsr" in requirement for requirement in everything)
