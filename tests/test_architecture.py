"""Who may import whom, and what works without fairseq."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fairseq_lxsr"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# the house, ground floor first: a room imports from itself and from floors below, not from its own
# floor or above
FLOORS = (
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
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FAIRSEQ_ROOMS = {"training", "tasks"}  # and what stands in them


def room_of(path: Path) -> str:
    """The folder of a module, or the module itself where it stands in the root."""
    inside = path.relative_to(PACKAGE)
    return inside.parent.as_posix() if len(inside.parts) > 1 else inside.stem


def modules_named(path: Path) -> set[str]:
    """Every module, or name in a module, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def file_of(module: str) -> Path | None:
    """The file of a module of ours, or of a name in one; None for other packages."""
    parts = module.split(".")
    if parts[0] != "fairseq_lxsr":
        return None
    for length in range(len(parts), 0, -1):
        stem = PACKAGE.joinpath(*parts[1:length])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def test_nobody_imports_from_a_floor_above():
    for path in SOURCES:
        room = room_of(path)
        for module in modules_named(path):
            imported = file_of(module)
            if room != "__init__" and imported and room_of(imported) not in (room, "__init__"):
                assert FLOOR[room_of(imported)] < FLOOR[room], f"{path} imports {module}"
            if module.split(".")[0] in ("fairseq", "fairseq_cli", "omegaconf", "hydra"):
                assert room.split("/")[0] in FAIRSEQ_ROOMS, f"{path} imports {module}"


def test_files_of_a_room_import_each_other_in_one_direction():
    below = {
        path: {file_of(module) for module in modules_named(path)} - {path, None} for path in SOURCES
    }
    while below:
        free = [path for path, needed in below.items() if not needed & below.keys()]
        assert free, (
            f"these import each other in a circle, or are above one: {sorted(map(str, below))}"
        )
        for path in free:
            del below[path]


def test_nothing_is_written_through_flat():
    """numpy 2.4 keeps for ever what `array.flat[indices] = values` takes; `array.ravel()[indices]`
    does not.
    """
    assert [str(path) for path in SOURCES if ".flat[" in path.read_text(encoding="utf-8")] == []


def test_benchmarks_and_examples_take_the_command_as_users_do():
    for path in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        assert not [
            module
            for module in modules_named(path)
            if module.split(".")[:2] == ["fairseq_lxsr", "cli"]
        ], path


def test_every_room_stands_on_a_floor():
    assert {room_of(path) for path in SOURCES} - {"__init__"} == set(FLOOR)


def test_options_of_the_command_line_end_in_cli():
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and room_of(path) != "cli"
        ]
        kinds = [
            ast.unparse(part.annotation)
            for node in functions
            for part in node.args.args
            if part.annotation
        ]
        assert not [kind for kind in kinds if "Namespace" in kind], path


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


def test_blocking_fairseq_works():
    assert "blocked: fairseq" in without_fairseq("import fairseq").stderr


def test_everything_done_with_a_trained_model_works_without_fairseq(
    toy_work, toy_checkpoint, tmp_path
):
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
