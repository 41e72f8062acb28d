"""Metadata of the package: its addresses, its licence, and the size of an installation."""

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
# SPDX identifiers of the licences that the card of the model names. They are empty for licences
# that the wheel need not name: CC0 requires nothing, and the MPL covers files, which the model does
# not contain.
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
def test_the_metadata_of_the_wheel_have_licences_and_addresses_of_the_repository(host, tmp_path):
    source = tmp_path / "source"
    for name in (*FILES, *LICENCES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    address = f"https://{host}"
    text = (source / "pyproject.toml").read_text(encoding="utf-8")
    text = text.replace(PROJECT["urls"]["Repository"], address)
    (source / "pyproject.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", BUILD, tmp_path]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    metadata_file = tmp_path / done.stdout.splitlines()[-1] / "METADATA"
    content = metadata_file.read_text(encoding="utf-8")
    for line in (
        f"License-Expression: {PROJECT['license']}",
        "Author: The fairseq-lxsr authors",
        *(f"License-File: {name}" for name in LICENCES),
        f"Project-URL: Changelog, {address}/blob/main/CHANGELOG.md",
        "pip install fairseq-lxsr",
    ):
        assert f"\n{line}\n" in content
    assert f"]({address}/blob/main/docs/getting-started.md)" in content
    assert f"]({address}/raw/main/docs/assets/map.svg)" in content


def test_the_licence_of_the_package_names_those_of_code_texts_and_sources_of_the_model():
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
def test_the_pages_name_the_size_of_an_installation_on_disk():
    """Without extras; files of libraries are compiled, as pip does."""
    # A library has a requirement for each range of Python versions.
    libraries = set()
    for requirement in metadata.requires("fairseq-lxsr") or ():
        if "extra ==" not in requirement:
            libraries.add(re.split(r"[^\w-]", requirement)[0])
    files = []
    for library in libraries:
        distribution = metadata.distribution(library)
        files += [Path(distribution.locate_file(path)) for path in distribution.files or ()]
    for path in (ROOT / "fairseq_lxsr").rglob("*"):
        if "__pycache__" not in path.parts:
            files.append(path)
    megabytes = sum(path.stat().st_blocks * 512 for path in files if path.is_file()) / 1e6
    for page in ("README.md", "docs/getting-started.md", "docs/questions.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        [size] = re.findall(r"(?:takes seconds and|installs) (\d+) MB", text)
        assert int(size) == pytest.approx(megabytes, rel=0.07), page
