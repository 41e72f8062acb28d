"""The levels of CONTRIBUTING.md: what each module may import, and what works without fairseq."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fairseq_lxsr"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Modules and folders by level: each imports from itself and from the levels before it in this table.
LEVELS = (
    {"characters", "errors", "losses"},
    {"files", "machine"},
    {"options"},
    {"text", "modules", "vectors"},
    {"encoder", "recipes"},
    {"embeddings", "training"},
    {"training/laser", "training/context", "training/lightweight/parts", "search", "preparation"},
    {"training/lightweight/terms", "evaluation", "cluster"},
    {"training/lightweight", "evaluation/protocols"},
    {"tasks", "export"},
    {"context", "report", "serve", "clients"},
    {"cli"},
    {"__main__"},
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS, start=1) for name in names}
# Only these folders and their subfolders import fairseq.
FAIRSEQ_FOLDERS = {"training", "tasks"}
# fairseq, and the packages that only fairseq needs.
FAIRSEQ_PACKAGES = ("fairseq", "fairseq_cli", "omegaconf", "hydra")


def part_of(path: Path) -> str:
    """Return the folder of a file, or the name of the module if it is in the root of the package."""
    relative = path.relative_to(PACKAGE)
    return relative.parent.as_posix() if len(relative.parts) > 1 else relative.stem


def imports_of(path: Path) -> set[str]:
    """Return every module, or name in a module, that a file imports."""
    imports = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {f"{node.module}.{name.name}" for name in node.names}
    return imports


def file_of(module: str) -> Path | None:
    """Return the file of a module of this package, or of a name in one; else None."""
    parts = module.split(".")
    if parts[0] != "fairseq_lxsr":
        return None
    for length in range(len(parts), 0, -1):
        stem = PACKAGE.joinpath(*parts[1:length])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def test_every_folder_and_module_has_a_level():
    parts = {part_of(path) for path in SOURCES}

    # The file __init__.py of the package itself gathers names of all levels.
    assert parts - {"__init__"} == set(LEVEL_OF)


def test_a_file_imports_only_from_its_own_part_and_from_lower_levels():
    for path in SOURCES:
        part = part_of(path)
        if part == "__init__":
            continue
        for module in imports_of(path):
            imported = file_of(module)
            if imported is None:
                # A module of another package.
                continue
            imported_part = part_of(imported)
            if imported_part not in (part, "__init__"):
                assert LEVEL_OF[imported_part] < LEVEL_OF[part], f"{path} imports {module}"


def test_only_training_and_tasks_import_fairseq_and_what_comes_with_it():
    for path in SOURCES:
        for module in imports_of(path):
            package = module.split(".")[0]
            if package in FAIRSEQ_PACKAGES:
                folder = part_of(path).split("/")[0]
                assert folder in FAIRSEQ_FOLDERS, f"{path} imports {module}"


def test_files_do_not_import_each_other_in_a_circle():
    """Files that import none of the remaining files are taken away, until none is left.

    In a circle, every file imports a remaining one.
    """
    remaining = {}
    for path in SOURCES:
        remaining[path] = {file_of(module) for module in imports_of(path)} - {path, None}
    while remaining:
        independent = [
            path for path, imports in remaining.items() if not imports & remaining.keys()
        ]
        assert independent, f"a circle, and files that import it: {sorted(map(str, remaining))}"
        for path in independent:
            del remaining[path]


def test_no_array_is_written_through_flat():
    """numpy 2.4 leaks memory for `array.flat[indices] = values`; use `array.ravel()[indices]`."""
    for path in SOURCES:
        assert ".flat[" not in path.read_text(encoding="utf-8"), path


def test_benchmarks_and_examples_do_not_import_cli():
    """They run `lxsr` as users do."""
    for path in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        for module in imports_of(path):
            assert not f"{module}.".startswith("fairseq_lxsr.cli."), path


def test_only_functions_of_cli_take_a_namespace_of_argparse():
    """A namespace has no declared fields, so the rest of the package takes values with types."""
    for path in SOURCES:
        if part_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for parameter in node.args.args:
                    if parameter.annotation:
                        annotation = ast.unparse(parameter.annotation)
                        assert "Namespace" not in annotation, f"{path}: {node.name}"


# Makes every import of fairseq fail, as on a machine where it is not installed.
BLOCK_FAIRSEQ = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {FAIRSEQ_PACKAGES}:
            raise ImportError(f"blocked: {{name}}")

sys.meta_path.insert(0, Blocked())
"""


def run_without_fairseq(code: str) -> subprocess.CompletedProcess:
    """Run code in a new Python in which fairseq cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK_FAIRSEQ + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
    )


def test_an_import_of_fairseq_fails_if_it_is_blocked():
    """The next two tests rely on it."""
    process = run_without_fairseq("import fairseq")

    assert "ImportError: blocked: fairseq" in process.stderr


def test_a_trained_model_is_exported_and_used_without_fairseq(toy_work, toy_checkpoint, tmp_path):
    text = toy_work / "corpus" / "en-fr" / "test"
    code = f"""
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.main import main

model = {str(tmp_path / "model")!r}
vectors = {str(tmp_path / "vectors.npy")!r}
main(["export", "folder", "--checkpoint", {str(toy_checkpoint)!r}, "--output", model])
main(["embed", "--model", model, "--input", "{text}.en", "--output", vectors])
main(["eval", "xsr", "--model", model, "--source", "{text}.en", "--target", "{text}.fr"])
# The architecture lxsr_tiny makes vectors of 32 numbers.
assert SentenceEncoder.from_pretrained(model).encode(["a dog"]).shape == (1, 32)
assert not [name for name in sys.modules if name.split(".")[0] == "fairseq"]
print("done")
"""

    process = run_without_fairseq(code)

    assert process.stdout.endswith("done\n"), process.stderr
    assert (tmp_path / "vectors.npy").exists()


def test_preparation_works_without_fairseq(toy_work, tmp_path):
    code = f"""
from fairseq_lxsr.cli.main import main
main(["prepare", "--work", {str(tmp_path)!r}, "--data", {str(toy_work / "text")!r}, "--vocab-size", "200",
      "--valid-size", "50", "--test-size", "50"])
"""

    process = run_without_fairseq(code)

    assert process.returncode == 0, process.stderr
    assert (tmp_path / "data-bin" / "train.en-fr.en.bin").is_file()
