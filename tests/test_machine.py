"""The number of usable threads, and the command that installs a missing extra."""

import importlib.metadata
import os
import shlex
import sys
from pathlib import Path

import pytest

import fairseq_lxsr
from fairseq_lxsr.errors import install_command
from fairseq_lxsr.machine import usable_threads


@pytest.fixture
def four_cores(monkeypatch):
    """A machine on which this process may use four cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("3", 3), ("99", 4), ("0", 1)])
def test_omp_num_threads_limits_the_threads_to_at_most_the_cores_and_at_least_one(
    monkeypatch, limit, threads
):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)

    assert usable_threads() == threads


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("limit", ["4,2", ""], ids=["nested", "empty"])
def test_all_cores_are_used_if_omp_num_threads_is_not_a_number(monkeypatch, limit):
    """OpenMP reads 4,2 as the threads of nested loops."""
    monkeypatch.setenv("OMP_NUM_THREADS", limit)

    assert usable_threads() == 4


@pytest.fixture
def requirements(monkeypatch):
    """Metadata of this package: the extra `all` has another extra, a package and an old package."""
    requirements = [
        "numpy",
        "fairseq-lxsr[torch]; extra == 'all'",
        'shtab>=1; extra == "all"',
        "torch>=2.6; extra == 'torch'",
        'old; python_version < "3.14" and extra == "all"',
        # An extra whose name only begins with "all".
        "x; extra == 'alls'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)


PIP_INSTALL = [sys.executable, "-m", "pip", "install"]


@pytest.mark.usefixtures("requirements")
@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("torch", ["torch>=2.6"]),
        ("all", ["torch>=2.6", "shtab>=1", 'old; python_version < "3.14"']),
    ],
)
def test_the_install_command_names_the_packages_of_an_extra(extra, packages):
    """Every package index has them, but this package is on none."""
    command = install_command(extra)

    assert shlex.split(command) == [*PIP_INSTALL, *packages]


@pytest.mark.usefixtures("requirements")
def test_the_install_command_is_quoted_for_windows(monkeypatch):
    """There, only double quotation marks protect a word, so those inside it become single ones."""
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        command = install_command("all")

    packages = """"torch>=2.6" "shtab>=1" "old; python_version < '3.14'\""""
    assert command.endswith(f"-m pip install {packages}")


def test_the_install_command_names_the_source_folder_if_there_is_no_metadata(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)

    command = install_command("zst")

    source = Path(fairseq_lxsr.__file__).parents[1]
    assert shlex.split(command) == [*PIP_INSTALL, "-e", f"{source}[zst]"]
