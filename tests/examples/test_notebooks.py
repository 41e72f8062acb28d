"""examples/notebooks: their outputs are stored, and they run."""

import re

import nbformat
import pytest
from conftest import ROOT, load_script

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<-])/(?:[\w.-]+/)+")


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell) -> set[tuple]:
    """Return what a cell shows: streams by name, data by type."""
    outputs = set()
    for output in cell.outputs:
        types = sorted(output.get("data", ()))
        outputs.add((output.output_type, output.get("name"), *types))
    return outputs


def output_text(notebook) -> str:
    """Return all text in the outputs of a notebook."""
    texts = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            texts += [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    return "\n".join(texts)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stored_without_traces_of_a_machine(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    for number, cell in enumerate(code_cells(notebook), 1):
        assert cell.execution_count == number
        assert cell.metadata == {}
        assert cell.outputs, cell.source
    text = output_text(notebook)
    assert not ABSOLUTE_PATH.findall(text)
    assert not re.search("warning|error|traceback", text, re.I)
    assert not {"\r", "\x1b"} & set(text)
    outputs = set().union(*map(kinds, code_cells(notebook)))
    assert any("image/svg+xml" in output for output in outputs)


def test_both_readmes_link_all_notebooks():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    notebooks_readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 2
    for name in NOTEBOOKS:
        assert f"](examples/notebooks/{name})" in readme
        assert f"]({name})" in notebooks_readme


@pytest.mark.smoke
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_with_the_stored_kinds_of_output(tmp_path, name):
    stored = read(name)
    executed = load_script(FOLDER / "execute.py").execute(stored, tmp_path)
    for stored_cell, cell in zip(code_cells(stored), code_cells(executed), strict=True):
        assert kinds(cell) == kinds(stored_cell), cell.source


def test_of_a_line_that_is_overwritten_the_last_state_is_stored():
    last_states = load_script(FOLDER / "execute.py").last_states
    assert last_states("a\r\n\rb: 10 %\rb: 100 %\n") == "a\nb: 100 %\n"
    assert last_states("\rstep 1\rstep 2\r      \rdone\r\n") == "done\n"


def test_a_command_that_fails_ends_the_run():
    check = load_script(FOLDER / "execute.py").CHECK
    exec(check, {})
    exec(check, {"_exit_code": 0})
    with pytest.raises(AssertionError):
        exec(check, {"_exit_code": 2})
