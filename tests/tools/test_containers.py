"""The files of containers/ and locks/, without Docker; tools/try_containers.sh builds the images."""

import re
import runpy
import tomllib

import pytest
import yaml
from conftest import ROOT

CONTAINERS = ROOT / "containers"
LOCKS = sorted((ROOT / "locks").iterdir())
# A package and its version at the beginning of a line.
PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)", re.M)
WORKFLOWS = ("ci", "nightly", "publish")


def instructions(name: str) -> list[tuple[str, str]]:
    """The names and arguments of the instructions of a Dockerfile; continued lines are joined."""
    text = (CONTAINERS / f"{name}.Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    result = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, arguments = line.split(" ", 1)
            result.append((instruction, arguments))
    return result


def pip_options(name: str) -> list[set[str]]:
    """The words after `pip install` and `pip wheel`, for each such command of a Dockerfile."""
    shell = " && ".join(arguments for kind, arguments in instructions(name) if kind == "RUN")
    commands = re.findall(r"pip(?: --python \S+)? (?:install|wheel) ([^&]+)", shell)
    assert commands, name
    return [set(command.split()) for command in commands]


@pytest.mark.parametrize("name", ["serve", "train"])
def test_images_install_only_packages_with_checksums(name):
    """`pip` takes no unchecked package from an index, and none to build another package."""
    for options in pip_options(name):
        if "--require-hashes" not in options:
            # Packages of this folder: their requirements are installed before.
            assert "--no-deps" in options
            assert "--no-build-isolation" in options or "--no-index" in options


@pytest.mark.parametrize("name", ["serve", "train"])
def test_an_image_installs_the_packages_of_its_lock(name):
    installed_files = set().union(*pip_options(name))

    assert f"locks/{name}.txt" in installed_files


def normal(name):
    """Return the name of a package as indexes compare it: Foo_Bar is foo-bar."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_versions(text: str) -> dict[str, str]:
    """Return the versions of the packages of a lock or of the constraints."""
    return {normal(name): version for name, version in PINNED.findall(text)}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_the_versions_of_the_constraints(lock):
    constraints = pinned_versions((ROOT / "constraints.txt").read_text(encoding="utf-8"))

    for name, version in pinned_versions(lock.read_text(encoding="utf-8")).items():
        # Parts of torch for GPUs, and of an operating system, have no constraint.
        if name in constraints:
            assert version == constraints[name], name


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_requirement_of_a_lock_has_a_version_and_a_checksum(lock):
    # A requirement begins at the margin; its checksums follow in indented lines.
    _, *requirements = re.split(r"^(?=\S)", lock.read_text(encoding="utf-8"), flags=re.M)

    for requirement in requirements:
        assert PINNED.match(requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


@pytest.mark.parametrize("extra", ["encode", "serve", "train"])
def test_a_lock_has_all_requirements_of_the_package_and_of_its_extra(extra):
    """The lock `encode` has those of the package without extras."""
    text = (ROOT / "locks" / f"{extra}.txt").read_text(encoding="utf-8")
    requirements = project()["dependencies"] + project()["optional-dependencies"].get(extra, [])
    packages = {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}

    # An extra may name other extras of the package itself.
    assert packages - {"fairseq-lxsr"} <= pinned_versions(text).keys()


def test_the_build_context_has_the_files_of_the_package():
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    # Everything is ignored except the names after `!`.
    included = {pattern[1:] for pattern in patterns if pattern.startswith("!")}

    needed = {"README.md", "LICENSE", "pyproject.toml", "setup.py", "fairseq_lxsr", "locks"}
    assert needed <= included
    for name in included:
        assert (ROOT / name).exists(), name


def last_arguments_of_server() -> dict[str, str]:
    """Return the arguments by instruction; of repeated instructions, the last one counts."""
    return dict(instructions("serve"))


def test_the_server_does_not_run_as_root():
    assert last_arguments_of_server()["USER"] == "lxsr"


def test_the_server_has_a_health_check():
    assert "/opt/lxsr/health.py" in last_arguments_of_server()["HEALTHCHECK"]


def test_the_image_of_the_server_is_built_on_the_base_and_not_on_the_image_that_builds_wheels():
    assert last_arguments_of_server()["FROM"] == "${BASE}"


@pytest.mark.parametrize(
    ("command", "port"),
    [
        # The default of `lxsr serve`.
        ("python lxsr serve --host 0.0.0.0 --model lxsr-static", 8000),
        ("python lxsr serve --host 0.0.0.0 --model m --port 9000 --index notes", 9000),
        ("python lxsr serve --port=9001", 9001),
        # `docker run --init` starts another process first.
        ("/sbin/docker-init -- lxsr serve --port 9002", 9002),
    ],
)
def test_the_health_check_reads_the_port_from_the_command_of_the_server(command, port):
    health = runpy.run_path(str(CONTAINERS / "health.py"))

    assert health["port_of"](command.split()) == port


def steps_of_workflows() -> list[dict]:
    steps = []
    for name in WORKFLOWS:
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        for job in yaml.safe_load(text)["jobs"].values():
            steps += job["steps"]
    return steps


def test_workflows_name_the_commit_of_every_action():
    """A tag could be moved to other code."""
    actions = [step["uses"] for step in steps_of_workflows() if "uses" in step]

    for action in actions:
        assert re.fullmatch("[0-9a-f]{40}", action.partition("@")[2]), action


def test_workflows_check_out_without_storing_credentials():
    for step in steps_of_workflows():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_workflows_install_only_packages_with_checksums_or_from_files():
    for step in steps_of_workflows():
        command = step.get("run", "")
        # The job that tests the bounds resolves versions when it runs.
        if "pip install" in command and "--resolution" not in command:
            assert "--require-hashes" in command or "--no-index" in command, command


COMPOSE = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_listens_only_on_this_machine(name):
    for port in SERVICES[name]["ports"]:
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_capabilities_of_root(name):
    assert SERVICES[name]["cap_drop"] == ["ALL"]


@pytest.mark.parametrize(
    ("name", "key", "variable"),
    [
        ("lxsr", "LXSR_API_KEY", "LXSR_API_KEY"),
        ("qdrant", "QDRANT__SERVICE__API_KEY", "QDRANT_API_KEY"),
    ],
)
def test_a_service_does_not_start_without_a_key(name, key, variable):
    # `:?` makes a missing variable an error.
    assert SERVICES[name]["environment"][key].startswith(f"${{{variable}:?")


def test_every_service_needs_a_key():
    for service in SERVICES.values():
        assert any(name.endswith("API_KEY") for name in service["environment"])


def test_the_server_cannot_write_to_its_image():
    assert SERVICES["lxsr"]["read_only"]


def test_the_server_is_built_from_a_dockerfile_that_exists():
    build = SERVICES["lxsr"]["build"]

    assert (CONTAINERS / build["context"] / build["dockerfile"]).is_file()
