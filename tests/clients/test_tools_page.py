"""The code of docs/tools.md, and of the clients in docs/serving.md, runs if its packages are installed."""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest
from conftest import ROOT, wait_until

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# Blocks that another test runs.
NOT_RUN = re.compile(r"^<!-- not run: tests/.*? -->\n```.*?^```$", re.M | re.S)
ALWAYS_INSTALLED = {"fairseq_lxsr", "os", "sqlite3", "numpy", "collections"}


def blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page that no other test runs."""
    return PYTHON_BLOCK.findall(NOT_RUN.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8")))


def packages(block: str) -> list[str]:
    """Return the packages that a block imports and that may be missing."""
    imports = re.findall(r"^(?:from|import) (\S+)", block, re.M)
    return sorted({name.split(".")[0] for name in imports} - ALWAYS_INSTALLED)


def run_if_installed(block: str, folder) -> None:
    """Run a block in a folder, or skip the test if a package or a database is missing.

    A block fails if its assertions do.
    """
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
        database = tempfile.mkdtemp()
        # PostgreSQL does not run as root, so another user must enter the folder.
        os.chmod(database, 0o755)
        server = pgserver.get_server(f"{database}/postgres", cleanup_mode="delete")
        environment["DATABASE"] = server.get_uri()
    command = [sys.executable, "-c", block]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("tools.md"), ids=lambda block: "-".join(packages(block)))
def test_a_block_of_the_page_runs_and_its_assertions_hold(block, tmp_path):
    run_if_installed(block, tmp_path)


def test_every_block_of_the_page_asserts_its_result_and_imports_a_tool():
    blocks_of_page = blocks("tools.md")

    assert blocks_of_page
    for block in blocks_of_page:
        assert "assert " in block
        assert packages(block)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server with the packaged model."""
    for name in ("uvicorn", "starlette", "orjson", "prometheus_client"):
        if find_spec(name) is None:
            pytest.skip("the extra serve is not installed")
    output = tmp_path_factory.mktemp("serve") / "output"
    serve = ("fairseq_lxsr.cli.main", "serve", "--model", "lxsr-static", "--port", "0")
    with output.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-m", *serve], cwd=ROOT, stdout=stream)
    try:
        wait_until(lambda: output.read_text().endswith("/v1\n"), process)
        yield output.read_text().split()[-1].removesuffix("/v1")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("serving.md"), ids=lambda block: "-".join(packages(block)))
def test_a_client_on_the_page_of_the_server_works_with_a_running_server(block, address, tmp_path):
    address_on_page = "http://127.0.0.1:8000"
    assert address_on_page in block

    run_if_installed(block.replace(address_on_page, address), tmp_path)
