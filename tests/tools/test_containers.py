"""containers/: what they promise, without a Docker; tools/try_containers.sh builds and asks them."""

import re
import tomllib

import pytest
import yaml
from conftest import ROOT

CONTAINERS = ROOT / "containers"


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, continued lines joined."""
    text = (CONTAINERS / f"{name}.Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


@pytest.mark.parametrize("name", ["serve", "train"])
def test_the_extras_exist_and_versions_are_those_that_were_tried(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = extras["project"]["optional-dependencies"]
    (install,) = [value for kind, value in instructions(name) if ".[" in value]
    assert set(re.search(r"\.\[([\w,]+)\]", install)[1].split(",")) <= extras.keys()
    assert "-c constraints.txt" in install


def test_the_context_has_what_a_build_of_the_package_reads():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py", "fairseq_lxsr"} <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_server_is_not_root_and_is_asked_for_its_health():
    last = dict(instructions("serve"))
    assert last["USER"] == "lxsr"
    assert "/health" in last["HEALTHCHECK"]
    assert last["FROM"] == "debian:trixie-slim"


def test_the_services_are_open_to_this_machine_alone():
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    server = services["lxsr"]
    assert (CONTAINERS / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["environment"]["LXSR_API_KEY"].startswith("${LXSR_API_KEY:?")
    assert server["read_only"]
