"""Who may import whom, and what works without fairseq."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# rooms of fairseq_lxsr: what of ours each may import; leaves are for all
LEAVES = {"atomic", "choices", "configs", "data_folder", "errors", "fetch", "files", "languages", "lines", "locks"}
LEAVES |= {"optional", "ranges", "stored", "threads"}
MAY_IMPORT = {
    "atomic": set(),
    "choices": set(),
    "configs": set(),
    "data_folder": set(),
    "errors": set(),
    "optional": set(),
    "fetch": set(),
    "files": set(),
    "languages": set(),
    "lines": set(),
    "locks": set(),
    "ranges": set(),
    "segmentations": set(),
    "stored": set(),
    "threads": set(),
    "losses": set(),
    "modules": set(),
    "retrieval": set(),
    "text": {"words"},
    "text_folder": {"text"},
    "words": {"sentencepiece_file", "word_table"},
    "word_table": set(),
    "sentencepiece_file": set(),
    "datasets": {"segmentations"},
    "terms": {"datasets", "losses", "modules"},
    "models": {"modules", "terms"},
    "criterions": {"losses"},
    "optim": set(),
    "model_files": {"modules", "text"},
    "model_folder": {"model_files", "modules", "text"},
    "bag": {"model_files", "modules", "text"},
    "network_copies": {"bag", "modules"},
    "pretrained": {"model_files"},
    "encoder": {"bag", "model_files", "model_folder", "modules", "network_copies", "pretrained", "text"},
    "checkpoint": set(),
    "checkpoint_export": {
        "checkpoint",
        "model_files",
        "model_folder",
        "modules",
        "segmentations",
        "text",
        "text_folder",
    },
    "context": {"checkpoint", "checkpoint_export", "encoder", "model_files", "pretrained", "retrieval"},
    "export": {
        "bag",
        "encoder",
        "model_files",
        "model_folder",
        "modules",
        "pretrained",
        "sentencepiece_file",
        "text",
        "words",
    },
    "embeddings": {"encoder", "retrieval"},
    "evaluation": {"embeddings", "retrieval"},
    "search": {"embeddings", "retrieval"},
    "cluster": {"embeddings", "retrieval", "search"},
    "report": {"evaluation", "retrieval", "text", "words"},
    "tasks": {
        "checkpoint",
        "criterions",
        "datasets",
        "modules",
        "optim",
        "segmentations",
        "terms",
        "text",
        "text_folder",
        "words",
    },
    "cli": {
        "checkpoint_export",
        "cluster",
        "context",
        "encoder",
        "embeddings",
        "evaluation",
        "export",
        "model_files",
        "preparation",
        "pretrained",
        "recipes",
        "report",
        "retrieval",
        "search",
        "text",
    },
    "preparation": {"text"},
    "recipes": set(),
}
FAIRSEQ = {"datasets", "terms", "models", "criterions", "optim", "tasks"}


def room_of(module: str) -> str | None:
    """The room that a module of ours belongs to, None for the package itself and for others."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fairseq_lxsr" and len(parts) > 1 else None


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module in ("fairseq_lxsr", "fairseq_lxsr.cli")
            found |= {f"{node.module}.{name.name}" for name in node.names} if whole else {node.module}
    return found


SOURCES = sorted((ROOT / "fairseq_lxsr").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_house(path):
    room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if room == "__init__":
        return
    for module in imports(path):
        imported = room_of(module)
        if imported and imported not in ("__version__", room):
            assert imported in MAY_IMPORT[room] | LEAVES, f"{room} imports {module}"
        if module.split(".")[0] in ("fairseq", "fairseq_cli", "omegaconf", "hydra"):
            assert room in FAIRSEQ, f"{room} imports {module}"


def test_nothing_is_written_through_flat():
    """numpy 2.4 keeps for ever what `array.flat[indices] = values` takes; `array.ravel()[indices]` does not."""
    assert [str(path) for path in SOURCES if ".flat[" in path.read_text(encoding="utf-8")] == []


def test_benchmarks_and_examples_take_the_command_as_users_do():
    for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        assert not any(room_of(module) == "cli" for module in imports(path)), path


def test_every_room_has_a_rule():
    rooms = {room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in SOURCES}
    assert rooms - {"__init__", None} == set(MAY_IMPORT)


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


def test_everything_done_with_a_trained_model_works_without_fairseq(toy_work, toy_checkpoint, tmp_path):
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


MANY_PARAMETERS = {"encode"}  # SentenceEncoder.encode has the options of sentence-transformers


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_take_at_most_eight_parameters_and_fit_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            assert len(set(names) - {"self", "cls"}) <= 8 or node.name in MANY_PARAMETERS, node.name
            assert node.end_lineno - node.lineno < 70, node.name
