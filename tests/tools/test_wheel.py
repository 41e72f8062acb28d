"""What an index would have: the source distribution, and the wheel that is built from it."""

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
# a program of a user: `revealed` has the types that mypy finds, and five lines are wrong
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
# The line from which on four lines are wrong
FIRST_WRONG = PROGRAM.split("\n").index("encoder.no_such_method()") + 1


def built(what: str, source: Path, output: Path) -> Path:
    return output / python(BUILD, what, output, cwd=source).splitlines()[-1]


def tracked() -> list[Path]:
    """Files of the repository, as they are in this folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel_and_files(tmp_path_factory):
    """Built from the source distribution alone; the files of the package and of the repository's
    root.
    """
    folder = tmp_path_factory.mktemp("built")
    for name in tracked():
        if name.parts[0] == "fairseq_lxsr" or len(name.parts) == 1:
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "copy" / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(built("build_sdist", folder / "copy", folder)) as packed:
        packed.extractall(
            folder / "source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (source,) = (folder / "source").iterdir()
    return built("build_wheel", source, folder), folder / "copy"


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(wheel_and_files):
    """Byte for byte; nothing else is in it but what describes it."""
    wheel, root = wheel_and_files
    with zipfile.ZipFile(wheel) as packed:
        inside = {
            name: packed.read(name) for name in packed.namelist() if ".dist-info/" not in name
        }
        about = packed.read(
            next(name for name in packed.namelist() if name.endswith("/METADATA"))
        ).decode()
    files = [path for path in (root / "fairseq_lxsr").rglob("*") if path.is_file()]
    expected = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    assert inside == expected
    assert {
        "fairseq_lxsr/py.typed",
        "fairseq_lxsr/pretrained/lxsr-static/config.json",
    } <= expected.keys()
    for version in (11, 12, 13, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{version}\n" in about


@pytest.mark.slow
def test_programs_of_users_have_types(wheel_and_files, tmp_path):
    venv.create(tmp_path / "installed", symlinks=True)
    (site,) = (tmp_path / "installed").rglob("site-packages")
    with zipfile.ZipFile(wheel_and_files[0]) as packed:
        packed.extractall(site)
    (site / "numpy").symlink_to(Path(np.__file__).parent)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--python-executable",
        tmp_path / "installed" / "bin" / "python",
    ]
    done = subprocess.run(
        [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    for number in range(FIRST_WRONG, FIRST_WRONG + 4):
        assert any(line.startswith(f"program.py:{number}: ") for line in errors), done.stdout
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    hit = "fairseq_lxsr.search.corpus.Hit"
    for returned in (f"list[{hit}]", f"list[list[{hit}]]"):
        assert f'Revealed type is "{returned}"' in done.stdout
    assert lines[0].endswith('Revealed type is "fairseq_lxsr.encoder.SentenceEncoder"'), done.stdout
    assert 'Revealed type is "numpy.ndarray[' in lines[1], done.stdout
    assert lines[2].startswith("error: Incompatible types in assignment")
    assert lines[3].startswith('error: "SentenceEncoder" has no attribute "no_such_method"')
    assert lines[-1].startswith("6 errors in 1 file"), done.stdout
