"""What an index shows of the package: its addresses, its licence, and the size of an installation."""

import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT

BUILD = "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
FILES = ("README.md", "pyproject.toml", "setup.py", "fairseq_lxsr/__init__.py")
LICENCES = (
    "LICENSE",
    "fairseq_lxsr/preparation/alphabets.txt",
    "fairseq_lxsr/preparation/demo.en-fr.txt",
    "fairseq_lxsr/pretrained/lxsr-static/README.md",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Licences of the card, and their SPDX identifiers; empty where the wheel is not bound: CC0 asks for
# nothing, and the MPL covers files, of which the model has none.
IDENTIFIERS = {
    "Apache 2.0": "Apache-2.0",
    "BSD 3-Clause": "BSD-3-Clause",
    "CC BY": "CC-BY-3.0 CC-BY-4.0",
    "CC BY 2.0": "CC-BY-2.0",
    "CC BY 3.0": "CC-BY-3.0",
    "CC BY 4.0": "CC-BY-4.0",
    "CC0": "",
    "CC0 1.0": "",
    "ISC": "ISC",
    "MIT": "MIT",
    "MPL 1.1": "",
    "MPL 2.0": "",
    "ODC-BY 1.0": "ODC-By-1.0",
    "Open Government Licence - Canada": "OGL-Canada-2.0",
    "PSF License 2, translations CC0": "PSF-2.0",
    "Unicode License (DFS 2016)": "Unicode-DFS-2016",
    "WordNet License": "LicenseRef-WordNet-3.0",
}


@pytest.mark.slow
@pytest.mark.parametrize("host", ["repository.invalid", "example.org/lxsr"])
def test_metadata(host, tmp_path):
    for name in (*FILES, *LICENCES):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    settings = tmp_path / "source" / "pyproject.toml"
    address = f"https://{host}"
    text = settings.read_text(encoding="utf-8").replace(PROJECT["urls"]["Repository"], address)
    settings.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", BUILD, tmp_path]
    done = subprocess.run(
        command, cwd=tmp_path / "source", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    about = (tmp_path / done.stdout.splitlines()[-1] / "METADATA").read_text(encoding="utf-8")
    for line in (
        f"License-Expression: {PROJECT['license']}",
        "Author: The fairseq-lxsr authors",
        *(f"License-File: {name}" for name in LICENCES),
        f"Project-URL: Changelog, {address}/blob/main/CHANGELOG.md",
    ):
        assert f"\n{line}\n" in about
    assert f"]({address}/blob/main/docs/getting-started.md)" in about
    assert f"]({address}/raw/main/docs/assets/map.svg)" in about
    assert "\npip install fairseq-lxsr\n" in about


def test_the_licence_is_that_of_everything_in_the_wheel():
    """Of the code, of the texts in the package, and of each source of the packaged model."""
    card = (ROOT / LICENCES[-1]).read_text(encoding="utf-8")
    table = card.partition("| source | licence |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) > 30
    licences = {"MIT", "CC-BY-2.0", "Unicode-3.0"}
    for row in rows:
        for name in re.sub(r" \([a-z, ]+\)", "", row[1]).split(";"):
            licences.update(IDENTIFIERS[name.strip()].split())
    assert "Apache License 2.0" in card.partition("| source |")[0]
    assert set(PROJECT["license"].split(" AND ")) == licences


@pytest.mark.slow
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="numpy has another size"
)
def test_the_size_of_the_installation_that_the_pages_name():
    """On disk, compiled as pip does: the libraries that are no extra, and this package."""
    # A library has a requirement for each range of Python versions.
    names = {
        re.split(r"[^\w-]", one)[0]
        for one in metadata.requires("fairseq-lxsr") or ()
        if "extra ==" not in one
    }
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
