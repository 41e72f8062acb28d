"""What an index shows of the package: links work where the address of the repository is given."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

BUILD = "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "fairseq_lxsr/__init__.py")
LICENCES = ("fairseq_lxsr/preparation/demo.en-fr.txt", "fairseq_lxsr/pretrained/lxsr-static/README.md")


@pytest.mark.parametrize("address", ["", "https://example.org/lxsr/"])
def test_metadata(address, tmp_path, monkeypatch):
    for name in (*FILES, *LICENCES):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    monkeypatch.setenv("REPO_URL", address)
    command = [sys.executable, "-c", BUILD, tmp_path]
    done = subprocess.run(command, cwd=tmp_path / "source", capture_output=True, text=True, timeout=300)
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
    assert ("Project-URL: Changelog, https://example.org/lxsr/blob/main/CHANGELOG.md" in about) == bool(address)
