"""containers/: what they promise, without a Docker; tools/try_containers.sh builds and asks them."""

import re
import runpy
import tomllib

import pytest
import yaml
from conftest import ROOT

CONTAINERS = ROOT / "containers"
PINNED = r"^([\w.-]+)==([^\s;]+)"


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, continued lines joined."""
    text = (CONTAINERS / f"{name}.Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


@pytest.mark.parametrize("name", ["serve", "train"])
def test_the_extras_exist_and_versions_are_those_that_were_tried(name):
    """pip gets nothing without a checksum, from a package index or from the build of a package."""
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


@pytest.mark.parametrize("path", sorted((ROOT / "locks").iterdir()), ids=lambda path: path.stem)
def test_locks_have_the_versions_that_were_tried(path):
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    tried = {normal(name): version for name, version in re.findall(PINNED, constraints, re.M)}
    text = path.read_text(encoding="utf-8")
    locked = dict(re.findall(PINNED, text, re.M))
    assert len(locked) == len(re.findall(r"^\S", text, re.M))
    for name, version in locked.items():
        # Parts of torch for GPUs, and of an operating system, have no constraint.
        assert tried.get(normal(name), version) == version
    requirements = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert all("--hash=sha256:" in requirement for requirement in requirements)


def test_locks_have_all_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in ("encode", "serve", "train"):
        text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        locked = {normal(package) for package, _ in re.findall(PINNED, text, re.M)}
        required = project["dependencies"] + extras.get(name, [])
        names = {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in required}
        assert names - {"fairseq-lxsr"} <= locked


def test_the_context_has_what_a_build_of_the_package_reads():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py", "fairseq_lxsr", "locks"} <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_server_is_not_root_and_is_asked_for_its_health():
    last = dict(instructions("serve"))
    assert last["USER"] == "lxsr"
    assert "/opt/lxsr/health.py" in last["HEALTHCHECK"]
    assert last["FROM"] == "${BASE}"


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("python lxsr serve --host 0.0.0.0 --model lxsr-static", 8000),
        ("python lxsr serve --host 0.0.0.0 --model m --port 9000 --index notes", 9000),
        ("python lxsr serve --port=9001", 9001),
        ("/sbin/docker-init -- lxsr serve --port 9002", 9002),
    ],
)
def test_the_check_of_health_reads_the_port_of_the_server(command, port):
    health = runpy.run_path(str(CONTAINERS / "health.py"))
    assert health["port_of"](command.split()) == port


def test_the_workflow_runs_pinned_actions_without_a_token():
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
        # The job that tries the bounds installs versions that are found when it runs.
        if "pip install" in command and "--resolution" not in command:
            assert "--require-hashes" in command or "--no-index" in command, command


def test_the_services_are_open_to_this_machine_alone():
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
        (key,) = [name for name in service["environment"] if name.endswith("API_KEY")]
        assert ":?" in service["environment"][key]
    server = services["lxsr"]
    assert (CONTAINERS / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["environment"]["LXSR_API_KEY"].startswith("${LXSR_API_KEY:?")
    assert server["read_only"]
