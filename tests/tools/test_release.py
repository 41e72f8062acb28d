"""tools/release.py: the problems that it names; and the files for a host of repositories."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from conftest import ROOT, load_script

release = load_script(ROOT / "tools" / "release.py")
FILES = ("CHANGELOG.md", "CITATION.cff", "pyproject.toml", "fairseq_lxsr/__init__.py")
DIGEST = f"@sha256:{'0123456789abcdef' * 4}"
GITHUB = ROOT / ".github"
# The tests hold for any version and address.
VERSION = release.package_version(ROOT)
ADDRESS = release.project(ROOT)["urls"]["Repository"]


@pytest.fixture
def repository(tmp_path):
    """A repository that may be released, with the files that have versions and addresses."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "CITATION.cff"):
        change(tmp_path / name, ADDRESS, "https://example.org/me")
    (tmp_path / "containers").mkdir()
    for path in (ROOT / "containers").iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = release.IMAGE.sub(lambda match: match[0].partition("@")[0] + DIGEST, text)
            (tmp_path / "containers" / path.name).write_text(text, encoding="utf-8")
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = re.compile(r"(?<=## \[Unreleased\]\n).*?(?=^## )", re.M | re.S)
    (tmp_path / "CHANGELOG.md").write_text(unreleased.sub("\n", text, 1), encoding="utf-8")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder, *arguments):
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", folder, *author, *arguments], check=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a")


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_versions_and_addresses_of_this_repository_agree():
    assert release.document_problems(ROOT) == []


def test_a_repository_without_problems_may_be_released(repository):
    assert release.document_problems(repository) == []
    assert release.final_problems(repository) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "parts"),
    [
        ("CHANGELOG.md", f"## [{VERSION}]", "## [0.0.9]", ("newest release", "'0.0.9'", VERSION)),
        ("CHANGELOG.md", "## [0.", "## 0.", ("CHANGELOG.md: no release",)),
        ("CITATION.cff", f"version: {VERSION}", "version: 0.0.9", ("version", "0.0.9", VERSION)),
        ("CITATION.cff", "date-released: 2", "date-released: 3", ("date-released", "'30")),
        ("CITATION.cff", "example.org/me", "example.org/you", ("repository-code", "/you")),
        ("pyproject.toml", 'Issues = "https:', 'Issues = "http:', ("urls.Issues", "http:")),
        ("fairseq_lxsr/__init__.py", f'"{VERSION}"', '"9.1"', ("newest release", "'9.1'")),
    ],
)
def test_versions_dates_and_addresses_that_differ_are_problems(repository, name, old, new, parts):
    change(repository / name, old, new)
    problem = release.document_problems(repository)[0]
    for part in parts:
        assert part in problem


@pytest.mark.parametrize(
    ("name", "old", "new", "place"),
    [
        ("pyproject.toml", "example.org/me", "repository.invalid", "pyproject.toml"),
        ("CITATION.cff", "example.org/me", "repository.invalid", "CITATION.cff"),
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- A line.\n", "CHANGELOG.md"),
        ("containers/serve.Dockerfile", DIGEST, "", "containers/serve.Dockerfile: debian:trixie"),
        ("containers/train.Dockerfile", DIGEST, "", "containers/train.Dockerfile: nvidia/cuda:"),
        ("containers/compose.yaml", DIGEST, "", "containers/compose.yaml: qdrant/qdrant:v"),
        ("containers/compose.yaml", DIGEST, "@sha256:0", "containers/compose.yaml: qdrant/qdrant"),
        ("containers/compose.yaml", DIGEST, "@sha256:" + 64 * "0", "containers/compose.yaml: qdra"),
        ("containers/compose.yaml", DIGEST, "@sha256:" + 64 * "x", "containers/compose.yaml: qdra"),
        (
            "containers/serve.Dockerfile",
            "=debian:",
            "=debian\n#",
            "containers/serve.Dockerfile: deb",
        ),
    ],
)
def test_unfilled_addresses_unreleased_changes_and_images_without_digest_are_problems(
    repository, name, old, new, place
):
    change(repository / name, old, new)
    commit(repository)
    [problem] = release.final_problems(repository)
    assert problem.startswith(place)


def test_uncommitted_files_and_a_tag_of_another_commit_are_problems(repository):
    # The workflow that publishes runs at the tag.
    git(repository, "tag", f"v{VERSION}")
    assert release.final_problems(repository) == []
    commit(repository)
    (repository / "more.txt").touch()
    uncommitted, tag = release.final_problems(repository)
    assert uncommitted.startswith("more.txt: ")
    assert tag.startswith(f"v{VERSION}: ")


def test_a_repository_with_a_problem_is_not_built(repository):
    change(repository / "CITATION.cff", f"version: {VERSION}", "version: 0.0.9")
    (repository / "tools").mkdir()
    shutil.copyfile(ROOT / "tools" / "release.py", repository / "tools" / "release.py")
    command = [sys.executable, repository / "tools" / "release.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("release: CITATION.cff: version")
    assert not (repository / "dist").exists()


def test_a_wheel_with_wrong_metadata_has_problems(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        f"Version: {VERSION}",
        "License-Expression: MIT",
        f"Requires-Python: {project['requires-python']}",
        *(f"Project-URL: {name}, {link}" for name, link in project["urls"].items()),
        "License-File: LICENSE",
        "",
        "[a](docs/index.md)",
        "![b](https://example.org/me/blob/main/b.svg) ![c](https://example.org/me/raw/main/c.svg)",
        "",
    ]
    metadata = "\n".join(lines)
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a-0.1.0.dist-info/METADATA", metadata)
        archive.writestr("tests/__init__.py", "")
    problems = "\n".join(release.wheel_problems(ROOT, path))
    for part in ("Expression is MIT", "LICENSE is missing", "tests/__init__.py", "(docs/index.md)"):
        assert part in problems
    assert "![b](https://example.org/me/blob/main/b.svg) is a page" in problems
    assert "README.md does not name 'pip install fairseq-lxsr'" in problems
    assert len(problems.splitlines()) == 6


def jobs_of(workflow):
    """The jobs of a workflow, and the commands of each."""
    path = GITHUB / "workflows" / f"{workflow}.yml"
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = {}
    for name, job in jobs.items():
        commands[name] = [step["run"] for step in job["steps"] if "run" in step]
    return jobs, commands


def test_the_nightly_workflow_runs_all_of_ci_with_every_python_version():
    jobs, commands = jobs_of("nightly")
    assert commands["linux"] == ["bash .ci/run"]
    versions_for_training = jobs["linux"]["strategy"]["matrix"]["python"]
    versions_for_encoding = jobs["encode"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.M)
    assert sorted({*versions_for_training, *versions_for_encoding}) == versions
    install = load_script(ROOT / "tools" / "install.py")
    assert versions_for_training[0] == install.dotted(install.OLDEST)
    assert versions_for_training[-1] == install.dotted(install.NEWEST)
    assert "make package" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_a_change_is_tested_with_the_lowest_and_the_highest_versions_of_libraries():
    jobs, commands = jobs_of("ci")
    assert commands["test"] == ["make lint test"]
    rows = jobs["bounds"]["strategy"]["matrix"]["include"]
    combinations = {(row["python"], row["resolution"]) for row in rows}
    assert {("3.11", "lowest"), ("3.13", "lowest"), ("3.14", "highest")} <= combinations
    assert commands["bounds"][-1].endswith("tools/try_wheel.py")


def test_every_requirement_has_a_lower_bound():
    """Except those of developers, whose versions are in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = list(project["dependencies"])
    for extra in extras.keys() - {"benchmarks", "dev", "docs"}:
        requirements += extras[extra]
    for requirement in requirements:
        # An extra may name other extras of this package.
        assert ">=" in requirement or requirement.startswith(project["name"])


def test_nothing_is_published_before_the_address_is_filled_in():
    jobs, commands = jobs_of("publish")
    assert "python tools/release.py --final" in commands["package"]
    for name in jobs.keys() - {"package"}:
        assert jobs[name]["needs"] == "package"
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}, "no password"


def test_files_for_the_host_are_valid_yaml():
    paths = sorted(GITHUB.rglob("*.yml"))
    assert paths
    for path in paths:
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


def test_the_citation_has_the_fields_of_a_reference():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    assert len(citation["references"]) == 5
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year"} <= reference.keys()


def test_hooks_before_a_commit_use_the_tools_of_the_installation():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for hook in hooks["repos"][0]["hooks"]:
        assert hook["entry"].startswith(".venv/bin/")
        assert hook["language"] == "system"
