"""Build the source distribution and the wheel into dist/, and check them as an index would.

python tools/release.py                what `make package` runs
python tools/release.py --final        before an upload: refuse what `final_problems` names
python tools/release.py --documents    check versions, dates and addresses only; build nothing

Nothing is uploaded, and no network is needed.
"""

import argparse
import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# The host in the addresses of pyproject.toml and CITATION.cff until a release fills them in. No
# host can have a name that ends in .invalid.
PLACEHOLDER = "repository.invalid"
RELEASE = re.compile(r"^## \[(?P<version>\d[^\]]*)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.M)
UNRELEASED = re.compile(r"^## \[Unreleased\]\n(?P<entries>.*?)^## ", re.M | re.S)
# An image of a container, and its digest if there is one. A repeated digit stands for a digest.
IMAGE = re.compile(
    r"^ *(?:(?:ARG BASE=|FROM )(?P<base>[\w./:-]+)|image: (?P<service>[\w./-]*[/:][\w./:-]+))"
    r"(?P<digest>@sha256:(?!(.)\4{63})[0-9a-f]{64}\b)?",
    re.M,
)
# A link to a file of the repository, which an index cannot follow.
RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)[^)]*\)")
# A picture whose address is a page about the picture, which an index cannot show.
PICTURE_PAGE = re.compile(r"!\[[^\]]*\]\([^)]*/blob/[^)]*\)")
# Files that git tracks but the source distribution does not contain.
LEFT_OUT = (".github/", ".gitignore")
# Maximum file size on PyPI, in MB.
LARGEST = 100


class ReleaseError(Exception):
    """The release has problems; the message has one line for each."""


# --- Documents


def read(root: Path, name: str) -> str:
    """Return the text of a file of the repository."""
    return (root / name).read_text(encoding="utf-8")


def project(root: Path) -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads(read(root, "pyproject.toml"))["project"]


def package_version(root: Path) -> str:
    """Return the version of the package, without importing it."""
    match = re.search(r'^__version__ = "(.+)"$', read(root, "fairseq_lxsr/__init__.py"), re.M)
    if not match:
        raise ReleaseError('fairseq_lxsr/__init__.py: no line __version__ = "..."; expected one')
    return match[1]


def citation_field(root: Path, name: str) -> str:
    """Return the value of a one-line field in CITATION.cff, or an empty string."""
    match = re.search(rf'^{name}: "?([^"\n]*)"?$', read(root, "CITATION.cff"), re.M)
    return match[1] if match else ""


def document_problems(root: Path) -> list[str]:
    """Return inconsistencies between files in the version, its date and the address."""
    version = package_version(root)
    newest = RELEASE.search(read(root, "CHANGELOG.md"))
    if newest is None:
        return ["CHANGELOG.md: no release; expected a line such as ## [0.1.0] - 2026-11-27"]
    address = project(root)["urls"]["Repository"]
    problems = []
    for place, value, expected, source in (
        ("CHANGELOG.md: newest release", newest["version"], version, "__version__"),
        ("CITATION.cff: version", citation_field(root, "version"), version, "__version__"),
        (
            "CITATION.cff: date-released",
            citation_field(root, "date-released"),
            newest["date"],
            "CHANGELOG.md",
        ),
        (
            "CITATION.cff: repository-code",
            citation_field(root, "repository-code"),
            address,
            "pyproject.toml",
        ),
    ):
        if value != expected:
            problems.append(f"{place} is {value!r}; expected {expected!r}, as in {source}")
    for name, link in project(root)["urls"].items():
        if not link.startswith(address):
            problems.append(f"pyproject.toml: urls.{name} is {link}; expected a page of {address}")
    return problems


def final_problems(root: Path) -> list[str]:
    """Return what is allowed in development, but not in a release.

    These are addresses that are still placeholders, images without a digest, changes without a
    release, uncommitted files, and an existing tag of another commit.
    """
    problems = []
    for name in ("pyproject.toml", "CITATION.cff"):
        if PLACEHOLDER in re.sub("(?m)^ *#.*$", "", read(root, name)):
            problems.append(
                f"{name}: {PLACEHOLDER} is no address; expected that of the repository: "
                f"sed -i 's#https://{PLACEHOLDER}#https://HOST/OWNER#' {name}"
            )
    for path in sorted((root / "containers").iterdir()):
        for match in IMAGE.finditer(path.read_text(encoding="utf-8")):
            image = match["base"] or match["service"]
            if not match["digest"]:
                problems.append(
                    f"containers/{path.name}: {image} has no digest; expected {image}@sha256:HEX, "
                    f"as `docker buildx imagetools inspect {image}` prints it"
                )
    unreleased = UNRELEASED.search(read(root, "CHANGELOG.md"))
    if unreleased and unreleased["entries"].strip():
        problems.append(
            "CHANGELOG.md: Unreleased has entries; expected none: move them under the new version"
        )
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        problems.append(f"{changed[0][3:]}: not committed; expected no changes: commit first")
    tag = f"v{package_version(root)}"
    # The workflow that publishes runs at the tag itself.
    if git(root, "tag", "--list", tag) and tag not in git(root, "tag", "--points-at").split():
        problems.append(
            f"{tag}: this tag exists for another commit; expected a new version: raise __version__"
        )
    return problems


# --- Packages


def git(root: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tracked_files(root: Path) -> list[str]:
    """Return the existing files that git tracks, except files that only git needs."""
    names = git(root, "ls-files", "-z").split("\0")
    return [
        name for name in names if name and not name.startswith(LEFT_OUT) and (root / name).is_file()
    ]


def copy_tracked(root: Path, output: Path) -> None:
    """Copy the tracked files, so that the build does not see files of earlier builds."""
    for name in tracked_files(root):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, output / name)


def build(kind: str, source: Path, output: Path, seconds: str) -> Path:
    """Build an `sdist` or a `wheel` with the installed packages, and return its path.

    Args:
        kind: `sdist` or `wheel`.
        source: folder with pyproject.toml.
        output: folder of the built file.
        seconds: time stamp of the files in a wheel, in seconds since 1970, which makes the build
            reproducible.
    """
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}"]
    result = subprocess.run(
        [*command, "--outdir", str(output), str(source)],
        capture_output=True,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": seconds},
    )
    if result.returncode:
        raise ReleaseError(f"{kind}: cannot be built:\n{(result.stdout + result.stderr)[-2000:]}")
    (built,) = output.iterdir()
    return built


def build_all(root: Path, folder: Path) -> tuple[Path, Path, Path]:
    """Build both packages from copies of the tracked files.

    Returns:
        The source distribution, the wheel of the repository, and the wheel of the source
        distribution.
    """
    seconds = git(root, "log", "-1", "--format=%ct").strip()
    copy_tracked(root, folder / "tree")
    # A separate copy, because the first build leaves files behind.
    copy_tracked(root, folder / "tree2")
    sdist = build("sdist", folder / "tree", folder / "sdist", seconds)
    wheel = build("wheel", folder / "tree2", folder / "wheel", seconds)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return sdist, wheel, build("wheel", source, folder / "wheel2", seconds)


def sdist_problems(root: Path, sdist: Path) -> list[str]:
    """Return the tracked files that the source distribution lacks."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(set(tracked_files(root)) - packed)
    if missing:
        return [
            f"{sdist.name}: {len(missing)} tracked files are missing, such as {missing[0]}; "
            "expected all: add them to MANIFEST.in"
        ]
    return []


def wheel_problems(root: Path, wheel: Path) -> list[str]:
    """Return what an index would show incorrectly, and files that do not belong to the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(information).decode("utf-8")
    metadata = email.parser.Parser().parsestr(text)
    folder = information.rpartition("/")[0]
    problems = _metadata_problems(root, metadata) + _file_problems(metadata, names, folder)
    return [f"{wheel.name}: {problem}" for problem in problems]


def _metadata_problems(root: Path, metadata: Message) -> list[str]:
    """Return what an index would show incorrectly."""
    about = project(root)
    problems = []
    for field, expected in (
        ("Version", package_version(root)),
        ("License-Expression", about["license"]),
        ("Requires-Python", about["requires-python"]),
    ):
        if metadata[field] != expected:
            problems.append(f"{field} is {metadata[field]}; expected {expected}")
    links = [f"{name}, {link}" for name, link in about["urls"].items()]
    if metadata.get_all("Project-URL") != links:
        problems.append("Project-URL differs; expected those of pyproject.toml")
    text = str(metadata.get_payload())
    relative = RELATIVE_LINK.search(text)
    if relative:
        problems.append(f"{relative[0]} leads nowhere; expected a complete address")
    page = PICTURE_PAGE.search(text)
    if page:
        problems.append(f"{page[0]} is a page, not a picture; expected its address under /raw/")
    command = f"pip install {about['name']}"
    if command not in text:
        problems.append(f"README.md does not name {command!r}; expected it: see setup.py")
    return problems


def _file_problems(metadata: Message, names: list[str], folder: str) -> list[str]:
    """Return licence files that are missing, and files that do not belong to the package."""
    problems = []
    for name in metadata.get_all("License-File") or []:
        if f"{folder}/licenses/{name}" not in names:
            problems.append(f"{name} is missing; expected it in {folder}/licenses")
    for name in names:
        if not name.startswith(("fairseq_lxsr/", f"{folder}/")):
            problems.append(f"{name} is not a file of the package; expected none")
    return problems


def package_problems(root: Path, sdist: Path, wheel: Path, rebuilt: Path) -> list[str]:
    """Return all problems of the packages."""
    problems = sdist_problems(root, sdist) + wheel_problems(root, wheel)
    if wheel.read_bytes() != rebuilt.read_bytes():
        problems.append(
            f"{wheel.name}: built from {sdist.name} it differs; expected the same: see MANIFEST.in"
        )
    for path in (sdist, wheel):
        if path.stat().st_size > LARGEST * 1e6:
            problems.append(f"{path.name}: too large; expected at most {LARGEST} MB")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        problems.append(f"twine check: {result.stdout.strip()}")
    return problems


def check(problems: list[str]) -> None:
    """Raise ReleaseError if there are problems."""
    if problems:
        raise ReleaseError("\n".join(problems))


def release(root: Path, output: Path, final: bool, documents_only: bool) -> None:
    """Check the documents, build the packages, check them and move them to a folder.

    Raises:
        ReleaseError: if there are problems; the folder is then unchanged.
    """
    problems = document_problems(root)
    if final:
        problems += final_problems(root)
    check(problems)
    if documents_only:
        return
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel, rebuilt = build_all(root, Path(folder))
        check(package_problems(root, sdist, wheel, rebuilt))
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        for path in (sdist, wheel):
            shutil.copyfile(path, output / path.name)
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--final", action="store_true", help="check what a release needs, too")
    parser.add_argument("--documents", action="store_true", help="build nothing")
    args = parser.parse_args()
    try:
        release(ROOT, ROOT / "dist", args.final, args.documents)
    except ReleaseError as error:
        for line in str(error).splitlines():
            print(f"release: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
