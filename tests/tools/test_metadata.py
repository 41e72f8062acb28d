"""Metadata of the package: its addresses, its licence, and the size of an installation."""

import platform
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
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
    "no copyright": "",
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


def metadata_of_wheel(address: str, folder: Path) -> str:
    """Return the metadata of a wheel of this repository if it is published at an address."""
    source = folder / "source"
    for name in (*FILES, *LICENCES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    text = (source / "pyproject.toml").read_text(encoding="utf-8")
    text = text.replace(PROJECT["urls"]["Repository"], address)
    (source / "pyproject.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", BUILD, folder]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    # The last line names the folder of the metadata.
    metadata_folder = folder / done.stdout.splitlines()[-1]
    return (metadata_folder / "METADATA").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_metadata_of_the_wheel_have_the_author_the_licence_and_its_files(tmp_path):
    lines = metadata_of_wheel("https://example.org/lxsr", tmp_path).splitlines()

    assert "Author: The fairseq-lxsr authors" in lines
    assert f"License-Expression: {PROJECT['license']}" in lines
    for name in LICENCES:
        assert f"License-File: {name}" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    # The placeholder before the first publication, and any other address.
    ["https://repository.invalid", "https://example.org/lxsr"],
)
def test_the_links_in_the_metadata_of_the_wheel_lead_to_the_repository(address, tmp_path):
    """README, which they contain, has relative links."""
    metadata = metadata_of_wheel(address, tmp_path)

    assert "pip install fairseq-lxsr" in metadata.splitlines(), "README is missing"
    assert f"Project-URL: Changelog, {address}/blob/main/CHANGELOG.md\n" in metadata
    assert f"]({address}/blob/main/docs/getting-started.md)" in metadata
    assert f"]({address}/raw/main/docs/assets/map.svg)" in metadata


def licences_of_sources(card: str) -> set[str]:
    """Return the licences in the table of sources, which may be several, `A; B (a note)`."""
    table = card.partition("| source | licence |")[2].partition("\n\n")[0]
    _, _, *rows = table.splitlines()
    assert rows
    licences = set()
    for row in rows:
        cell = row.split(" | ")[1]
        without_notes = re.sub(r" \([a-z, ]+\)", "", cell)
        licences.update(name.strip() for name in without_notes.split(";"))
    return licences


def test_the_licence_of_the_package_names_those_of_code_texts_and_sources_of_the_model():
    card = (ROOT / LICENCES[-1]).read_text(encoding="utf-8")
    # The code, the demonstration text, and the alphabets.
    expected = {"MIT", "CC-BY-2.0", "Unicode-3.0"}
    for licence in licences_of_sources(card):
        expected.update(IDENTIFIERS[licence].split())

    assert set(PROJECT["license"].split(" AND ")) == expected


def test_the_card_of_the_model_names_the_licence_of_its_teacher_before_the_table_of_sources():
    card = (ROOT / LICENCES[-1]).read_text(encoding="utf-8")

    assert "Apache License 2.0" in card.partition("| source |")[0]


@pytest.mark.slow
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="numpy has another size"
)
@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/questions.md"])
def test_a_page_names_the_size_of_an_installation_on_disk(page):
    text = (ROOT / page).read_text(encoding="utf-8")

    [size] = re.findall(r"(?:takes seconds and|installs) (\d+) MB", text)

    # Versions of the libraries differ in size.
    assert int(size) == pytest.approx(megabytes_of_installation(), rel=0.07)


@cache
def megabytes_of_installation() -> float:
    """Return the size of the package without extras, and of the libraries that it needs.

    Files of libraries are compiled, as pip does.
    """
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
    # The system counts blocks of 512 bytes.
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file()) / 1e6
