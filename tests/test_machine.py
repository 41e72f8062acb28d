"""The number of usable threads, and the command that installs a missing extra."""

import importlib.metadata
import shlex
import sys
from pathlib import Path

import pytest

import fairseq_lxsr
from fairseq_lxsr.errors import install_command
from fairseq_lxsr.machine import usable_threads


@pytest.mark.parametrize(("value", "most"), [("1", 1), ("0", 1), ("4,2", 99), ("", 99)])
def test_threads_are_limited_by_omp_num_threads(monkeypatch, value, most):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert 1 <= usable_threads() <= most


def test_a_missing_extra_is_installed_by_the_names_of_its_packages(monkeypatch):
    """Every package index has them, but this package is on none."""
    requirements = [
        "numpy",
        "fairseq-lxsr[torch]; extra == 'all'",
        'shtab>=1; extra == "all"',
        "torch>=2.6; extra == 'torch'",
        'old; python_version < "3.14" and extra == "all"',
        "x; extra == 'alls'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "torch>=2.6",
        "shtab>=1",
        'old; python_version < "3.14"',
    ]
    assert shlex.split(install_command("all")) == words
    assert shlex.split(install_command("torch"))[4:] == ["torch>=2.6"]
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        windows = install_command("all")
    assert windows.endswith(
        """-m pip install "torch>=2.6" "shtab>=1" "old; python_version < '3.14'\""""
    )


def test_a_package_without_metadata_is_installed_from_its_folder(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert shlex.split(install_command("zst"))[4:] == [
        "-e",
        f"{Path(fairseq_lxsr.__file__).parents[1]}[zst]",
    ]
