"""tools/install.py on a machine that lacks something; CI tries the complete installation."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import random_model
import toy
from conftest import ROOT, contents, load_script, lxsr_here, python

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.train import FAIRSEQ, INSTALL
from fairseq_lxsr.errors import install_command
from fairseq_lxsr.export import st_folder

FORMS = ("web", "sentence-transformers", "onnx")
# all that `pip install fairseq-lxsr` brings
SMALL = ("numpy", "sentencepiece", "safetensors", "tqdm", "filelock")


@pytest.fixture
def install():
    return load_script(ROOT / "tools" / "install.py")


def stopped(check, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        check()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def machine(install, monkeypatch):
    """An installation on a machine with room, whatever this one has."""
    usage = SimpleNamespace(free=50 * 10**9)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: usage)
    install.usage = usage
    return install


def test_this_machine_will_do_but_not_with_a_python_too_old(machine, monkeypatch, capsys):
    machine.check_python()
    machine.check_machine("all")
    monkeypatch.setattr(machine.sys, "version_info", (3, 9, 18))
    message = stopped(machine.check_python, capsys)
    assert sys.executable in message
    assert all(version in message for version in ("3.9", "3.11", "3.13", "PYTHON="))


def test_neither_compiler_nor_headers_are_needed(machine, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.os.path, "exists", lambda path: not path.endswith("Python.h"))
    machine.check_machine("all")


def test_a_full_disk(machine, monkeypatch, capsys):
    monkeypatch.setattr(machine.usage, "free", 3 * 10**9)
    machine.check_machine("demo")
    assert "3.0 GB free" in stopped(lambda: machine.check_machine("all"), capsys)


@pytest.mark.parametrize(
    ("stamped", "expected"), [("", ()), ("demo", ("demo",)), ("all", ("demo", "all"))]
)
def test_everything_has_what_the_demo_needs(install, monkeypatch, tmp_path, stamped, expected):
    monkeypatch.setattr(install, "STAMP", str(tmp_path / "installed"))
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    if stamped:
        Path(install.STAMP).write_text(f"{install.fingerprint()} {stamped}")
    assert tuple(filter(install.installed, install.SETS)) == expected
    Path(install.STAMP).write_text(f"0123456789abcdef {stamped}")
    assert not any(map(install.installed, install.SETS))


def test_each_set_is_of_extras(install):
    for extras, *_ in install.SETS.values():
        assert install.dependencies(*extras)


def test_failing_step_shows_the_end_of_the_log(install, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(install, "LOG", str(tmp_path / "log"))
    with pytest.raises(SystemExit):
        install.run(
            "a step",
            [sys.executable, "-c", "import sys; sys.exit('OSError: No space left on device')"],
        )
    err = capsys.readouterr().err
    assert "OSError: No space left on device" in err
    assert str(tmp_path / "log") in err.splitlines()[-1]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_an_old_python_gets_as_far_as_the_sentence(version):
    """Where the machine has one."""
    candidates = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        Path(f"/usr/bin/python{version}"),
    ]
    python = next((path for path in candidates if path.exists()), None)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    done = subprocess.run(
        [python, ROOT / "tools" / "install.py"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert version in done.stderr


def test_the_demo_can_be_shorter_and_of_other_text():
    def commands(**variables):
        return subprocess.run(
            ["make", "-n", "demo"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | variables,
        ).stdout

    assert "--max-update" not in commands()
    assert "lxsr run own --lang-pair en-de  --recipe best --max-update 3" in commands(
        DATA="own", TGT="de", UPDATES="3"
    )


def test_every_package_is_pinned(install):
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    requirements = [
        *install.BUILD,
        *install.dependencies(),
        *install.dependencies("dev"),
        "fairseq-fixed",
    ]
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}
    assert {name.lower().replace("_", "-") for name in names} <= {
        name.lower().replace("_", "-") for name in pinned
    }


def test_dependencies_are_those_of_pyproject(install):
    assert {re.match(r"[\w.-]+", name)[0] for name in install.dependencies()} == set(SMALL)
    assert {"accelerate>=1", "sentence-transformers>=6", "torch>=2.6"} == set(
        install.dependencies("st")
    )
    everything = install.dependencies("dev")
    extras = "torch faiss train st onnx prepare documents zst parquet mteb ray report docs"
    for extra in extras.split():
        assert set(install.dependencies(extra)) <= set(everything)
    assert not any("fairseq-lxsr" in requirement for requirement in everything)


def test_the_package_has_all_its_files():
    """The wheel has the modules and what package-data names."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    packed = set()
    for package, patterns in setuptools["package-data"].items():
        packed.update(
            path
            for pattern in patterns
            for path in ROOT.joinpath(*package.split(".")).glob(pattern)
        )
    listed = subprocess.run(
        ["git", "ls-files", "fairseq_lxsr"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {ROOT / name for name in listed.stdout.splitlines() if not name.endswith(".py")}
    assert {path for path in files if path.exists()} <= packed
    assert ROOT / "fairseq_lxsr" / "recipes" / "best.yaml" in files


EXTRAS = {"torch", "faiss", "fairseq", "yaml", "sentence_transformers", "transformers"}
OF_ONNX = {"onnx", "onnxruntime", "tokenizers", "google"}
WITHOUT_EXTRAS = """
import contextlib, importlib.abc, io, sys

BLOCKED = {blocked}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Blocked())
from pathlib import Path

import numpy as np
import fairseq_lxsr
from fairseq_lxsr.cli.main import main

def refused(*words):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as stop:
            assert stop.code == 2, said.getvalue()
    print(said.getvalue(), end="")
"""


def without_extras(code: str, blocked: set[str] = EXTRAS | OF_ONNX) -> list[str]:
    return python(WITHOUT_EXTRAS.replace("{blocked}", repr(blocked)) + code).splitlines()


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """A model folder without layers, and text for it."""
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": 1}
    folder = random_model.write_model(tmp_path_factory.mktemp("bag") / "m", **sizes)
    toy.write(folder.parent / "text", toy.sentences(60, seed=4))
    return folder


def test_a_model_without_layers_needs_five_packages(bag, tmp_path):
    text, index, vectors = bag.parent / "text", tmp_path / "index", tmp_path / "en.npy"
    expected = SentenceEncoder.from_pretrained(bag).encode(
        Path(f"{text}.en").read_text().splitlines()
    )
    sides = ["--source", f"{text}.en", "--target", f"{text}.fr", "--model", str(bag)]
    code = f"""
main(["embed", "--model", {str(bag)!r}, "--input", "{text}.en", "--output", {str(vectors)!r}])
main(["index", "--model", {str(bag)!r}, "--input", "{text}.fr", "--output", {str(index)!r}])
main(["search", "--index", {str(index)!r}, "--k", "1", "a dog"])
main(["mine", *{sides!r}, "--output", {str(tmp_path / "pairs.tsv")!r}])
main(["eval", "xsr", *{sides!r}])
main(["export", "card", "--model", {str(bag)!r}])
fairseq_lxsr.encoder.locate.MODELS = Path({str(bag.parent)!r})
fairseq_lxsr.SentenceEncoder.from_pretrained({bag.name!r})
assert not {{"torch", "faiss"}} & {{name.split(".")[0] for name in sys.modules}}
"""
    assert any("xsr|metric" in line for line in without_extras(code))
    np.testing.assert_array_equal(np.load(vectors), expected)


def exports(model, order: int, output) -> dict[str, list[list[str]]]:
    """Commands that export a model without layers: those that need nothing else, and those of the
    extra onnx.
    """
    words = [
        ["export", form, "--model", str(model), "--output", f"{output}/{form}"] for form in FORMS
    ]
    words[0] += ["--input", f"{model.parent}/text.en"]
    return {
        "": words[:2],
        "onnx": [words[2]] if not order else [[*words[2], "--normalize", "--int8"]],
    }


@pytest.mark.parametrize("order", [0, 1])
def test_exports_without_torch_are_those_with_it(order, bag, tmp_path, monkeypatch):
    """All files have the same bytes; that the vectors are ours is for tests/export, where the
    libraries are.
    """
    model = bag
    if not order:
        model = random_model.write_model(tmp_path / "mean", gated=True, num_layers=0)
        shutil.copy(bag.parent / "text.en", model.parent)
    for extra, commands in exports(model, order, tmp_path / "without").items():
        code = "".join(f"main({words!r})\n" for words in commands)
        output = without_extras(code, EXTRAS | (set() if extra else OF_ONNX))
        assert extra or any("sentence-transformers" in line for line in output)
    monkeypatch.setattr(st_folder, "is_missing", lambda name: True)
    for commands in exports(model, order, tmp_path / "with").values():
        for words in commands:
            lxsr_here(*words)
    for form in FORMS:
        assert contents(tmp_path / "without" / form) == contents(tmp_path / "with" / form) != {}


def test_a_missing_extra_ends_in_one_line(bag, tmp_path):
    layers = random_model.write_model(tmp_path / "layers")
    exported = [words for forms in exports(bag, 1, tmp_path).values() for words in forms]
    embed = [
        "embed",
        "--model",
        str(bag),
        "--input",
        f"{bag.parent}/text.en",
        "--output",
        str(tmp_path / "o.npy"),
    ]
    commands = {
        "torch": [
            [*embed, "--dtype", "bfloat16"],
            [*embed, "--device", "cuda"],
            ["embed", "--model", str(layers), *embed[3:]],
            [
                "export",
                "folder",
                "--checkpoint",
                str(bag / "config.json"),
                "--output",
                str(tmp_path / "model"),
            ],
            *[[*words[:3], str(layers), *words[4:]] for words in exported],
        ],
        "onnx": [exported[2]],
        "faiss": [["index", *embed[1:-1], str(tmp_path / "index"), "--kind", "int8"]],
    }
    code = ""
    extras = []
    for extra, lines_of_words in commands.items():
        for words in lines_of_words:
            code += f"refused(*{words!r})\n"
            extras.append(extra)
    output = without_extras(code)
    assert len(output) == len(extras), output
    for line, extra in zip(output, extras, strict=True):
        assert line.startswith("lxsr: error: ")
        assert extra in line
        assert line.endswith(install_command(extra))


def test_what_is_imported_before_anything_is_done():
    """`import fairseq_lxsr` takes no time, and the encoder only what encodes."""
    listed = "print(*(name for name in sys.modules if '.' not in name))"
    code = f"import sys\nimport fairseq_lxsr\n{listed}\nfairseq_lxsr.SentenceEncoder\n{listed}"
    package, encoder = (set(line.split()) for line in python(code).splitlines())
    assert "numpy" not in package
    assert set(SMALL) - {"filelock"} <= encoder
    assert not {"torch", "faiss", "yaml", "sklearn"} & encoder


def test_fairseq_is_pinned_by_its_checksums():
    """Those of the source and of the wheel."""
    (line,) = [line for line in FAIRSEQ.read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"fairseq-fixed==[\d.]+( --hash=sha256:[0-9a-f]{64}){2}", line)
    assert line.split()[0] in (ROOT / "constraints.txt").read_text().splitlines()
    # With READTHEDOCS, fairseq builds no extension modules.
    assert INSTALL.startswith(f"READTHEDOCS=1 {sys.executable} -m pip install ")
    assert INSTALL.endswith(f" -r {FAIRSEQ}")
