"""examples/notebooks: their outputs are stored, and they run."""

import re

import nbformat
import pytest
from conftest import ROOT, load_script

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
# Such as /home/name/, but not a part of an address or of a relative path.
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<-])/(?:[\w.-]+/)+")


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds_of_output(cell) -> set[tuple]:
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
def test_a_notebook_is_valid_and_names_only_its_language(name):
    notebook = read(name)

    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    # No version of Python.
    assert set(notebook.metadata.language_info) == {"name"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_all_cells_of_a_notebook_were_run_in_order_and_have_their_output(name):
    for number, cell in enumerate(code_cells(read(name)), 1):
        assert cell.execution_count == number
        assert cell.outputs, cell.source
        # No times of execution.
        assert cell.metadata == {}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_output_of_a_notebook_has_no_paths_warnings_and_control_characters(name):
    text = output_text(read(name))

    assert not ABSOLUTE_PATH.findall(text)
    assert not re.search("warning|error|traceback", text, re.I)
    assert "\r" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_a_chart(name):
    outputs = set().union(*map(kinds_of_output, code_cells(read(name))))

    assert any("image/svg+xml" in output for output in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_both_readmes_link_a_notebook(name):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    notebooks_readme = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert f"](examples/notebooks/{name})" in readme
    assert f"]({name})" in notebooks_readme


@pytest.mark.smoke
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_with_the_stored_kinds_of_output(tmp_path, name):
    stored = read(name)

    executed = load_script(FOLDER / "execute.py").execute(stored, tmp_path)

    for stored_cell, cell in zip(code_cells(stored), code_cells(executed), strict=True):
        assert kinds_of_output(cell) == kinds_of_output(stored_cell), cell.source


@pytest.mark.parametrize(
    ("output", "stored"),
    [
        # A line that ends as on Windows, and a bar of progress.
        ("a\r\n\rb: 10 %\rb: 100 %\n", "a\nb: 100 %\n"),
        # A line that is erased by blanks.
        ("\rstep 1\rstep 2\r      \rdone\r\n", "done\n"),
    ],
    ids=["progress", "erased"],
)
def test_the_last_state_of_a_line_that_is_overwritten_is_stored(output, stored):
    script = load_script(FOLDER / "execute.py")

    assert script.last_states(output) == stored


# The code that is run after each cell. `_exit_code` is that of the last shell command, if any.
CHECK = load_script(FOLDER / "execute.py").CHECK


def test_a_cell_with_a_shell_command_that_fails_ends_the_run():
    with pytest.raises(AssertionError):
        exec(CHECK, {"_exit_code": 2})


@pytest.mark.parametrize("variables", [{}, {"_exit_code": 0}], ids=["none", "succeeded"])
def test_a_cell_without_a_failed_shell_command_does_not_end_the_run(variables):
    exec(CHECK, variables)
