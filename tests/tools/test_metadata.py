"""What an index shows of the package: links work where the address of the repository is given."""

import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT

BUILD = "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "fairseq_lxsr/__init__.py")
LICENCES = (
    "fairseq_lxsr/preparation/demo.en-fr.txt",
    "fairseq_lxsr/pretrained/lxsr-static/README.md",
)


@pytest.mark.parametrize("address", ["", "https://example.org/lxsr/"])
def test_metadata(address, tmp_path, monkeypatch):
    for name in (*FILES, *LICENCES):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    monkeypatch.setenv("REPO_URL", address)
    command = [sys.executable, "-c", BUILD, tmp_path]
    done = subprocess.run(
        command, cwd=tmp_path / "source", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    about = (tmp_path / done.stdout.splitlines()[-1] / "METADATA").read_text(encoding="utf-8")
    for line in (
        "License-Expression: MIT",
        "Author: The fairseq-lxsr authors",
        *(f"License-File: {n}" for n in LICENCES),
    ):
        assert f"\n{line}\n" in about
    where = "https://example.org/lxsr/blob/main/" if address else ""
    assert f"]({where}docs/getting-started.md)" in about
    assert (
        "Project-URL: Changelog, https://example.org/lxsr/blob/main/CHANGELOG.md" in about
    ) == bool(address)


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="numpy has another size"
)
def test_the_size_of_the_installation_that_the_pages_name():
    """On disk, compiled as pip does: the libraries that are no extra, and this package."""
    names = [
        re.split(r"[^\w-]", one)[0]
        for one in metadata.requires("fairseq-lxsr") or ()
        if "extra ==" not in one
    ]
    files = [
        Path(one.locate_file(path))
        for one in map(metadata.distribution, names)
        for path in one.files or ()
    ]
    files += [
        path for path in (ROOT / "fairseq_lxsr").rglob("*") if "__pycache__" not in path.parts
    ]
    megabytes = sum(path.stat().st_blocks * 512 for path in files if path.is_file()) / 1e6
    for page in ("README.md", "docs/getting-started.md", "docs/questions.md"):
        named = re.findall(
            r"(?:takes seconds and|installs) (\d+) MB", (ROOT / page).read_text(encoding="utf-8")
        )
        assert [int(number) for number in named] == pytest.approx([megabytes], rel=0.07), page
