"""The source distribution, and the wheel that is built from it."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, python

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
# A program of a user with six errors, in which mypy prints the types of `reveal_type`.
PROGRAM = """
import numpy as np
from fairseq_lxsr import SentenceEncoder, __version__
from fairseq_lxsr.search import CorpusIndex

encoder = SentenceEncoder.from_pretrained("lxsr-static")
reveal_type(encoder)
reveal_type(encoder.encode(["a dog"]))
version: str = __version__
text: str = encoder.encode(["a dog"])
encoder.no_such_method()
encoder.encode(3)
encoder.encode("a dog", wrong=3)
encoder.encode_query(3)
index = CorpusIndex.load("index")
reveal_type(index.search("a dog"))
reveal_type(index.search(["a dog"], k=3))
"""
# The line of the first of four errors in a row.
FIRST_ERROR = PROGRAM.split("\n").index("encoder.no_such_method()") + 1


def build(function: str, source: Path, output: Path) -> Path:
    """Call a function of the build backend, and return the file that it writes."""
    return output / python(BUILD, function, output, cwd=source).splitlines()[-1]


def tracked_files() -> list[Path]:
    """Files of the repository that exist in this folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The files of the package and of the root of the repository."""
    folder = tmp_path_factory.mktemp("repository")
    for name in tracked_files():
        if name.parts[0] == "fairseq_lxsr" or len(name.parts) == 1:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """A wheel that is built from the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    options = {}
    if hasattr(tarfile, "data_filter"):
        options["filter"] = "data"
    with tarfile.open(build("build_sdist", repository, folder)) as archive:
        archive.extractall(folder / "source", **options)
    [source] = (folder / "source").iterdir()
    return build("build_wheel", source, folder)


@pytest.mark.slow
def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel, repository):
    packed = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name:
                packed[name] = archive.read(name)
            elif name.endswith("/METADATA"):
                metadata = archive.read(name).decode()
    expected = {}
    for path in (repository / "fairseq_lxsr").rglob("*"):
        if path.is_file():
            expected[path.relative_to(repository).as_posix()] = path.read_bytes()
    assert packed == expected
    assert "fairseq_lxsr/py.typed" in packed
    assert "fairseq_lxsr/pretrained/lxsr-static/config.json" in packed
    for version in (11, 12, 13, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{version}\n" in metadata


@pytest.mark.slow
def test_mypy_finds_types_and_errors_in_a_program_that_uses_the_wheel(wheel, tmp_path):
    venv.create(tmp_path / "installed", symlinks=True)
    [site] = (tmp_path / "installed").rglob("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "numpy").symlink_to(Path(np.__file__).parent)
    (tmp_path / "program.py").write_text(PROGRAM)
    python_of_user = tmp_path / "installed" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--python-executable", python_of_user, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    for number in range(FIRST_ERROR, FIRST_ERROR + 4):
        assert any(line.startswith(f"program.py:{number}: ") for line in errors), done.stdout
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    hit = "fairseq_lxsr.search.corpus.Hit"
    assert f'Revealed type is "list[{hit}]"' in done.stdout
    assert f'Revealed type is "list[list[{hit}]]"' in done.stdout
    assert lines[0].endswith('Revealed type is "fairseq_lxsr.encoder.SentenceEncoder"'), done.stdout
    assert 'Revealed type is "numpy.ndarray[' in lines[1], done.stdout
    assert lines[2].startswith("error: Incompatible types in assignment")
    assert lines[3].startswith('error: "SentenceEncoder" has no attribute "no_such_method"')
    assert lines[-1].startswith("6 errors in 1 file"), done.stdout
