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
# The files that have the version and the address.
FILES = ("CHANGELOG.md", "CITATION.cff", "pyproject.toml", "fairseq_lxsr/__init__.py")
# What an image must be pinned to.
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
    ("name", "old", "new", "fragments"),
    [
        # Another version in the change log, in the citation, or in the package.
        ("CHANGELOG.md", f"## [{VERSION}]", "## [0.0.9]", ("newest release", "'0.0.9'", VERSION)),
        ("CITATION.cff", f"version: {VERSION}", "version: 0.0.9", ("version", "0.0.9", VERSION)),
        ("fairseq_lxsr/__init__.py", f'"{VERSION}"', '"9.1"', ("newest release", "'9.1'")),
        # No heading of a release.
        ("CHANGELOG.md", "## [0.", "## 0.", ("CHANGELOG.md: no release",)),
        # A date in the year 30.. instead of 20...
        ("CITATION.cff", "date-released: 2", "date-released: 3", ("date-released", "'30")),
        # Another address, or one without encryption.
        ("CITATION.cff", "example.org/me", "example.org/you", ("repository-code", "/you")),
        ("pyproject.toml", 'Issues = "https:', 'Issues = "http:', ("urls.Issues", "http:")),
    ],
)
def test_versions_dates_and_addresses_that_differ_are_problems(
    repository, name, old, new, fragments
):
    change(repository / name, old, new)

    problem, *_ = release.document_problems(repository)

    for fragment in fragments:
        assert fragment in problem


@pytest.mark.parametrize("name", ["pyproject.toml", "CITATION.cff"])
def test_an_address_that_is_a_placeholder_is_a_problem(repository, name):
    change(repository / name, "example.org/me", "repository.invalid")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith(name)


def test_a_change_that_belongs_to_no_release_is_a_problem(repository):
    change(repository / "CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- A line.\n")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith("CHANGELOG.md")


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("serve.Dockerfile", "debian:trixie"),
        ("train.Dockerfile", "nvidia/cuda:"),
        ("compose.yaml", "qdrant/qdrant:v"),
    ],
)
def test_an_image_without_a_digest_is_a_problem(repository, name, image):
    change(repository / "containers" / name, DIGEST, "")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith(f"containers/{name}: {image}")


@pytest.mark.parametrize(
    "digits", ["0", 64 * "0", 64 * "x"], ids=["too-short", "zeros", "not-hexadecimal"]
)
def test_an_image_with_an_invalid_digest_is_a_problem(repository, digits):
    change(repository / "containers" / "compose.yaml", DIGEST, f"@sha256:{digits}")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith("containers/compose.yaml: qdrant/qdrant")


def test_an_image_without_a_version_is_a_problem(repository):
    # `=debian`, with the version and the digest in a comment.
    change(repository / "containers" / "serve.Dockerfile", "=debian:", "=debian\n#")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith("containers/serve.Dockerfile: debian")


def test_a_tag_of_the_present_commit_is_no_problem(repository):
    """The workflow that publishes runs at the tag."""
    git(repository, "tag", f"v{VERSION}")

    assert release.final_problems(repository) == []


def test_a_tag_of_another_commit_is_a_problem(repository):
    git(repository, "tag", f"v{VERSION}")
    commit(repository)

    [problem] = release.final_problems(repository)

    assert problem.startswith(f"v{VERSION}: ")


def test_an_uncommitted_file_is_a_problem(repository):
    (repository / "more.txt").touch()

    [problem] = release.final_problems(repository)

    assert problem.startswith("more.txt: ")


def test_a_repository_with_a_problem_is_not_built(repository):
    change(repository / "CITATION.cff", f"version: {VERSION}", "version: 0.0.9")
    (repository / "tools").mkdir()
    shutil.copyfile(ROOT / "tools" / "release.py", repository / "tools" / "release.py")

    command = [sys.executable, repository / "tools" / "release.py"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr.startswith("release: CITATION.cff: version")
    assert not (repository / "dist").exists()


def project_metadata() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_part_of_a_wheel_that_differs_from_the_project_is_a_problem(tmp_path):
    """A wheel with six problems: two in the metadata, one file, three in the description."""
    project = project_metadata()
    metadata = [
        f"Version: {VERSION}",
        "License-Expression: MIT",
        f"Requires-Python: {project['requires-python']}",
        *(f"Project-URL: {name}, {link}" for name, link in project["urls"].items()),
        "License-File: LICENSE",
    ]
    # A relative link; a picture whose address is a page, and one that is right.
    description = [
        "[a](docs/index.md)",
        "![b](https://example.org/me/blob/main/b.svg) ![c](https://example.org/me/raw/main/c.svg)",
    ]
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        text = "\n".join([*metadata, "", *description, ""])
        archive.writestr("a-0.1.0.dist-info/METADATA", text)
        archive.writestr("tests/__init__.py", "")

    problems = release.wheel_problems(ROOT, wheel)

    expected = [
        "Expression is MIT",
        "LICENSE is missing",
        "tests/__init__.py",
        "(docs/index.md)",
        "![b](https://example.org/me/blob/main/b.svg) is a page",
        "README.md does not name 'pip install fairseq-lxsr'",
    ]
    for fragment in expected:
        assert any(fragment in problem for problem in problems), fragment
    assert len(problems) == len(expected)


def jobs_of(workflow) -> dict[str, dict]:
    """The jobs of a workflow by name."""
    path = GITHUB / "workflows" / f"{workflow}.yml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def commands_of(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_nightly_workflow_runs_all_of_ci():
    linux = jobs_of("nightly")["linux"]

    assert commands_of(linux) == ["bash .ci/run"]


def test_ci_makes_the_package():
    assert "make package" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_nightly_workflow_runs_every_python_version_of_the_project():
    jobs = jobs_of("nightly")
    classifiers = "\n".join(project_metadata()["classifiers"])
    versions_of_project = re.findall(r":: (3\.\d+)$", classifiers, re.M)

    for_training = jobs["linux"]["strategy"]["matrix"]["python"]
    for_encoding = jobs["encode"]["strategy"]["matrix"]["python"]

    assert sorted({*for_training, *for_encoding}) == versions_of_project


def test_the_nightly_workflow_trains_with_the_versions_of_python_that_can_be_installed():
    install = load_script(ROOT / "tools" / "install.py")

    versions = jobs_of("nightly")["linux"]["strategy"]["matrix"]["python"]

    assert versions[0] == install.dotted(install.OLDEST)
    assert versions[-1] == install.dotted(install.NEWEST)


def test_a_change_is_checked_by_lint_and_the_fast_tests():
    assert commands_of(jobs_of("ci")["test"]) == ["make lint test"]


def test_a_change_is_tested_with_the_lowest_and_the_highest_versions_of_libraries():
    bounds = jobs_of("ci")["bounds"]

    combinations = set()
    for row in bounds["strategy"]["matrix"]["include"]:
        combinations.add((row["python"], row["resolution"]))

    # The oldest Python, the newest one for training, and the newest one for encoding.
    assert {("3.11", "lowest"), ("3.13", "lowest"), ("3.14", "highest")} <= combinations
    assert commands_of(bounds)[-1].endswith("tools/try_wheel.py")


def test_every_requirement_has_a_lower_bound():
    """Except those of developers, whose versions are in constraints.txt."""
    project = project_metadata()
    extras = project["optional-dependencies"]
    requirements = list(project["dependencies"])
    for extra in extras.keys() - {"benchmarks", "dev", "docs"}:
        requirements += extras[extra]

    for requirement in requirements:
        # An extra may name other extras of this package.
        assert ">=" in requirement or requirement.startswith(project["name"])


def test_nothing_is_published_before_all_problems_of_a_release_are_checked():
    jobs = jobs_of("publish")

    assert "python tools/release.py --final" in commands_of(jobs["package"])
    for name in jobs.keys() - {"package"}:
        assert jobs[name]["needs"] == "package"


def test_the_job_that_publishes_has_no_password():
    """PyPI trusts the identity of the job."""
    assert jobs_of("publish")["pypi"]["permissions"] == {"id-token": "write"}


def test_files_for_the_host_are_valid_yaml():
    paths = sorted(GITHUB.rglob("*.yml"))

    assert paths
    for path in paths:
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


def test_the_citation_and_its_references_have_the_fields_that_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year"} <= reference.keys()


def test_hooks_before_a_commit_use_the_tools_of_the_installation():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))

    for hook in hooks["repos"][0]["hooks"]:
        assert hook["entry"].startswith(".venv/bin/")
        assert hook["language"] == "system"
