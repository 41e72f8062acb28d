"""Executes the notebooks of this folder, and keeps their outputs.

python examples/notebooks/execute.py            all notebooks
python examples/notebooks/execute.py NAME...    some of them
"""

import copy
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent
# Paths are printed relative to the repository.
ROOT = FOLDER.parents[1]
# Seconds for one cell, on a busy machine.
TIMEOUT = 600
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
# Fails after a cell whose last `!` command failed, for which IPython raises no error.
CHECK = "assert not globals().get('_exit_code'), _exit_code"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook, and return it with the new outputs.

    Args:
        notebook: a notebook, which does not change.
        folder: working folder, where the notebook writes its files.

    Returns:
        The notebook, without times and versions of this machine.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell or one of its commands fails.
    """
    executed = copy.deepcopy(notebook)
    executed.cells = []
    for cell in notebook.cells:
        executed.cells.append(copy.deepcopy(cell))
        if cell.cell_type == "code":
            executed.cells.append(nbformat.v4.new_code_cell(CHECK))
    environment = os.environ | {
        # The commands of the environment that runs this script.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # IPython writes its history there.
        "IPYTHONDIR": str(folder / ".ipython"),
    }
    # The kernel warns if its connection is not encrypted.
    config = Config({"KernelManager": {"transport_encryption": "required"}})
    client = NotebookClient(
        executed,
        config=config,
        timeout=TIMEOUT,
        kernel_name=KERNEL["name"],
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    executed.cells = [cell for cell in executed.cells if cell.source != CHECK]
    number = 0
    for cell in executed.cells:
        if cell.cell_type == "code":
            number += 1
            clean(cell, number)
    executed.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return executed


def clean(cell: nbformat.NotebookNode, number: int) -> None:
    """Number a cell, and remove from it what only this run had.

    These are metadata, all states of a progress bar except the last, and the repository's path.
    """
    cell.metadata = {}
    cell.execution_count = number
    for output in cell.outputs:
        if "execution_count" in output:
            output.execution_count = number
        if output.output_type == "stream":
            output.text = last_states(output.text).replace(f"{ROOT}/", "")


def last_states(text: str) -> str:
    """Return a text as a notebook shows it: a carriage return starts its line again."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        states = line.rstrip("\r").split("\r")
        lines.append(states[-1].rstrip())
    return "\n".join(lines)


def main() -> None:
    paths = [FOLDER / name for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(nbformat.read(path, as_version=4), Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()
