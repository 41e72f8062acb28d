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
# The statements with an error, beside a call with a parameter that does not exist.
ERRORS = {
    'text: str = encoder.encode(["a dog"])': "Incompatible types in assignment",
    "encoder.no_such_method()": '"SentenceEncoder" has no attribute "no_such_method"',
    "encoder.encode(3)": "",
    'encoder.encode("a dog", wrong=3)': "",
    "encoder.encode_query(3)": "",
}
HIT = "fairseq_lxsr.search.corpus.Hit"
# The arguments of `reveal_type` and the beginning of the type.
TYPES = {
    "reveal_type(encoder)": '"fairseq_lxsr.encoder.SentenceEncoder"',
    'reveal_type(encoder.encode(["a dog"]))': '"numpy.ndarray[',
    'reveal_type(index.search("a dog"))': f'"list[{HIT}]"',
    'reveal_type(index.search(["a dog"], k=3))': f'"list[list[{HIT}]]"',
}


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

    expected = {}
    for path in (repository / "fairseq_lxsr").rglob("*"):
        if path.is_file():
            expected[path.relative_to(repository).as_posix()] = path.read_bytes()
    assert packed == expected
    # Files that are no modules, with which git and setuptools might agree to leave out all.
    assert "fairseq_lxsr/py.typed" in packed
    assert "fairseq_lxsr/pretrained/lxsr-static/config.json" in packed


@pytest.mark.slow
def test_the_metadata_of_the_wheel_name_the_versions_of_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()

    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Classifier: Programming Language :: Python :: {version}" in lines


@pytest.fixture(scope="module")
def report_of_mypy(wheel, tmp_path_factory):
    """What mypy prints about the program of a user in whose Python the wheel is installed."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "installed", symlinks=True)
    [site] = (folder / "installed").rglob("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "numpy").symlink_to(Path(np.__file__).parent)
    (folder / "program.py").write_text(PROGRAM)
    python_of_user = folder / "installed" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--python-executable", python_of_user, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout


def place(statement: str) -> str:
    """Return how mypy begins what it says about a statement of the program."""
    return f"program.py:{PROGRAM.splitlines().index(statement) + 1}: "


@pytest.mark.slow
@pytest.mark.parametrize(("statement", "type_name"), TYPES.items())
def test_mypy_knows_the_types_of_the_installed_package(report_of_mypy, statement, type_name):
    assert f"{place(statement)}note: Revealed type is {type_name}" in report_of_mypy


@pytest.mark.slow
@pytest.mark.parametrize(("statement", "message"), ERRORS.items())
def test_mypy_finds_an_error_in_a_use_of_the_installed_package(report_of_mypy, statement, message):
    assert f"{place(statement)}error: {message}" in report_of_mypy


@pytest.mark.slow
def test_mypy_finds_no_errors_in_right_uses_of_the_installed_package(report_of_mypy):
    # One for each wrong statement, and a second one for `encode("a dog", wrong=3)`.
    assert report_of_mypy.splitlines()[-1].startswith("Found 6 errors in 1 file")
