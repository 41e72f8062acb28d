"""The files of containers/ and locks/, without Docker; tools/try_containers.sh builds the images."""

import re
import runpy
import tomllib

import pytest
import yaml
from conftest import ROOT

CONTAINERS = ROOT / "containers"
PINNED = r"^([\w.-]+)==([^\s;]+)"


def instructions(name: str) -> list[tuple[str, str]]:
    """The names and arguments of the instructions of a Dockerfile; continued lines are joined."""
    text = (CONTAINERS / f"{name}.Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    result = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, arguments = line.split(" ", 1)
            result.append((instruction, arguments))
    return result


@pytest.mark.parametrize("name", ["serve", "train"])
def test_images_install_only_packages_with_checksums(name):
    """`pip` takes no unchecked package from an index, and none to build another package."""
    runs = [value for kind, value in instructions(name) if kind == "RUN" and "pip" in value]
    installs = re.findall(r"pip(?: --python \S+)? (?:install|wheel) ([^&]+)", " ".join(runs))
    assert len(installs) >= 3
    for options in installs:
        has_checksums = "--require-hashes" in options
        assert has_checksums or "--no-deps" in options
        assert has_checksums or {"--no-build-isolation", "--no-index"} & set(options.split())
    assert f"-r locks/{name}.txt" in " ".join(installs)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_locks_have_the_versions_of_the_constraints_and_checksums():
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions = {normal(name): version for name, version in re.findall(PINNED, constraints, re.M)}
    for path in sorted((ROOT / "locks").iterdir()):
        text = path.read_text(encoding="utf-8")
        locked = dict(re.findall(PINNED, text, re.M))
        requirements = re.split(r"^(?=\S)", text, flags=re.M)[1:]
        assert len(locked) == len(requirements), path
        for name, version in locked.items():
            # Parts of torch for GPUs, and of an operating system, have no constraint.
            assert versions.get(normal(name), version) == version, path
        for requirement in requirements:
            assert "--hash=sha256:" in requirement, path


def test_locks_have_all_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in ("encode", "serve", "train"):
        text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        locked = {normal(package) for package, _ in re.findall(PINNED, text, re.M)}
        for requirement in project["dependencies"] + extras.get(name, []):
            package = normal(re.match(r"[\w.-]+", requirement)[0])
            assert package in locked or package == "fairseq-lxsr"


def test_the_build_context_has_the_files_of_the_package():
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    names = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py", "fairseq_lxsr", "locks"} <= names
    for name in names:
        assert (ROOT / name).exists()


def test_the_server_does_not_run_as_root_and_has_a_health_check():
    # Of repeated instructions, the last one counts.
    arguments = dict(instructions("serve"))
    assert arguments["USER"] == "lxsr"
    assert "/opt/lxsr/health.py" in arguments["HEALTHCHECK"]
    assert arguments["FROM"] == "${BASE}"


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("python lxsr serve --host 0.0.0.0 --model lxsr-static", 8000),
        ("python lxsr serve --host 0.0.0.0 --model m --port 9000 --index notes", 9000),
        ("python lxsr serve --port=9001", 9001),
        ("/sbin/docker-init -- lxsr serve --port 9002", 9002),
    ],
)
def test_the_health_check_reads_the_port_from_the_command_of_the_server(command, port):
    health = runpy.run_path(str(CONTAINERS / "health.py"))
    assert health["port_of"](command.split()) == port


def test_workflows_run_pinned_actions_without_credentials_and_install_with_checksums():
    steps = []
    for name in ("ci", "nightly", "publish"):
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        for job in yaml.safe_load(text)["jobs"].values():
            steps += job["steps"]
    for step in steps:
        action, _, commit = step.get("uses", "").partition("@")
        assert not action or re.fullmatch("[0-9a-f]{40}", commit), action
        if action == "actions/checkout":
            assert step["with"]["persist-credentials"] is False
        command = step.get("run", "")
        # The job that tests the bounds resolves versions when it runs.
        if "pip install" in command and "--resolution" not in command:
            assert "--require-hashes" in command or "--no-index" in command, command


def test_the_services_listen_only_on_this_machine_and_need_keys():
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")
        assert service["cap_drop"] == ["ALL"]
        [key] = [name for name in service["environment"] if name.endswith("API_KEY")]
        # `:?` makes a missing variable an error.
        assert ":?" in service["environment"][key]
    server = services["lxsr"]
    assert (CONTAINERS / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["environment"]["LXSR_API_KEY"].startswith("${LXSR_API_KEY:?")
    assert server["read_only"]
