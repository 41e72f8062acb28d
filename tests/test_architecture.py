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


def test_a_file_imports_only_from_lower_levels():
    for path in SOURCES:
        part = part_of(path)
        for module in imports_of(path):
            imported = file_of(module)
            if part != "__init__" and imported and part_of(imported) not in (part, "__init__"):
                assert LEVEL_OF[part_of(imported)] < LEVEL_OF[part], f"{path} imports {module}"


def test_only_training_and_tasks_import_fairseq():
    for path in SOURCES:
        for module in imports_of(path):
            if module.split(".")[0] in ("fairseq", "fairseq_cli", "omegaconf", "hydra"):
                folder = part_of(path).split("/")[0]
                assert folder in FAIRSEQ_FOLDERS, f"{path} imports {module}"


def test_files_do_not_import_each_other_in_a_circle():
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


def test_every_folder_and_module_has_a_level():
    assert {part_of(path) for path in SOURCES} - {"__init__"} == set(LEVEL_OF)


def test_only_cli_takes_a_namespace_of_argparse():
    for path in SOURCES:
        if part_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for parameter in node.args.args:
                    if parameter.annotation:
                        annotation = ast.unparse(parameter.annotation)
                        assert "Namespace" not in annotation, f"{path}: {node.name}"


WITHOUT_FAIRSEQ = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "fairseq_cli", "omegaconf", "hydra"):
            raise ImportError(f"blocked: {name}")

sys.meta_path.insert(0, Blocked())
"""


def without_fairseq(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_FAIRSEQ + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
    )


def test_fairseq_can_be_blocked():
    assert "blocked: fairseq" in without_fairseq("import fairseq").stderr


def test_a_trained_model_is_exported_and_used_without_fairseq(toy_work, toy_checkpoint, tmp_path):
    text = toy_work / "corpus" / "en-fr" / "test"
    code = f"""
import fairseq_lxsr
from fairseq_lxsr.cli.main import main
main(["export", "folder", "--checkpoint", {str(toy_checkpoint)!r}, "--output", {str(tmp_path / "model")!r}])
main(["embed", "--model", {str(tmp_path / "model")!r}, "--input", "{text}.en", "--output", {str(tmp_path / "o.npy")!r}])
main(["eval", "xsr", "--model", {str(tmp_path / "model")!r}, "--source", "{text}.en", "--target", "{text}.fr"])
assert fairseq_lxsr.SentenceEncoder.from_pretrained({str(tmp_path / "model")!r}).encode(["a dog"]).shape == (1, 32)
assert not [name for name in sys.modules if name.split(".")[0] == "fairseq"]
print("done")
"""
    done = without_fairseq(code)
    assert done.stdout.endswith("done\n"), done.stderr
    assert (tmp_path / "o.npy").exists()


def test_preparation_works_without_fairseq(toy_work, tmp_path):
    code = f"""
from fairseq_lxsr.cli.main import main
main(["prepare", "--work", {str(tmp_path)!r}, "--data", {str(toy_work / "text")!r}, "--vocab-size", "200",
      "--valid-size", "50", "--test-size", "50"])
"""
    done = without_fairseq(code)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data-bin" / "train.en-fr.en.bin").is_file()
