"""The blocks of "In other tools", and of the clients of a server, run where their packages are
installed.
"""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest
from conftest import ROOT, wait_until

FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# another test has it
NOT_RUN = re.compile(r"^<!-- not run: tests/.*? -->\n```.*?^```$", re.M | re.S)
OWN = {"fairseq_lxsr", "os", "sqlite3", "numpy", "collections"}


def blocks(page: str) -> list[str]:
    return FENCE.findall(NOT_RUN.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8")))


def packages(block: str) -> list[str]:
    return sorted(
        {name.split(".")[0] for name in re.findall(r"^(?:from|import) (\S+)", block, re.M)} - OWN
    )


def check(block: str, folder) -> None:
    missing = [name for name in packages(block) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{' '.join(missing)} not installed")
    if "sqlite_vec" in block and not hasattr(sqlite3.Connection, "enable_load_extension"):
        if find_spec("pysqlite3") is None:
            pytest.skip("sqlite3 of this Python loads no extension, and pysqlite3 is not installed")
        block = block.replace("import sqlite3\n", "import pysqlite3 as sqlite3\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
    }
    if "psycopg" in block and "DATABASE" not in os.environ:
        pgserver = pytest.importorskip(
            "pgserver", reason="no pgserver, and DATABASE names no PostgreSQL with pgvector"
        )
        place = tempfile.mkdtemp()
        os.chmod(place, 0o755)  # it runs as another user than root
        environment["DATABASE"] = pgserver.get_server(
            f"{place}/postgres", cleanup_mode="delete"
        ).get_uri()
    subprocess.run(
        [sys.executable, "-c", block], cwd=folder, env=environment, check=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("tools.md"), ids=lambda block: "-".join(packages(block)))
def test_a_block_of_the_page(block, tmp_path):
    check(block, tmp_path)


def test_every_block_asserts_what_it_finds():
    assert len(blocks("tools.md")) >= 11
    assert all("assert " in block and packages(block) for block in blocks("tools.md"))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    if any(
        find_spec(name) is None for name in ("uvicorn", "starlette", "orjson", "prometheus_client")
    ):
        pytest.skip("the extra serve is not installed")
    said = tmp_path_factory.mktemp("serve") / "said"
    command = [
        sys.executable,
        "-m",
        "fairseq_lxsr.cli.main",
        "serve",
        "--model",
        "lxsr-static",
        "--port",
        "0",
    ]
    with said.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output)
    try:
        wait_until(lambda: said.read_text().endswith("/v1\n"), process)
        yield said.read_text().split()[-1].removesuffix("/v1")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("serving.md"), ids=lambda block: "-".join(packages(block)))
def test_a_client_of_the_server(block, address, tmp_path):
    assert "http://127.0.0.1:8000" in block
    check(block.replace("http://127.0.0.1:8000", address), tmp_path)
