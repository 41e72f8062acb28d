"""tools/install.py on machines that lack something, and installations without extras."""

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
# The packages that `pip install fairseq-lxsr` installs.
SMALL = ("numpy", "sentencepiece", "safetensors", "tqdm", "filelock")


@pytest.fixture
def install():
    return load_script(ROOT / "tools" / "install.py")


def error_of(check, capsys) -> str:
    """The single line with which a check ends the program."""
    with pytest.raises(SystemExit) as stop:
        check()
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def machine(install, monkeypatch):
    """An installation on a machine with 50 GB of free disk."""
    usage = SimpleNamespace(free=50 * 10**9)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: usage)
    install.usage = usage
    return install


def test_a_python_that_is_too_old_is_refused(machine, monkeypatch, capsys):
    machine.check_python()
    monkeypatch.setattr(machine.sys, "version_info", (3, 9, 18))
    message = error_of(machine.check_python, capsys)
    for fragment in (sys.executable, "3.9", "3.11", "3.13", "PYTHON="):
        assert fragment in message


def test_neither_compiler_nor_headers_are_needed(machine, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.os.path, "exists", lambda path: not path.endswith("Python.h"))
    machine.check_machine("all")


def test_a_disk_with_too_little_room_for_a_set_is_refused(machine, monkeypatch, capsys):
    machine.check_machine("all")
    monkeypatch.setattr(machine.usage, "free", 3 * 10**9)
    machine.check_machine("demo")
    assert "3.0 GB free" in error_of(lambda: machine.check_machine("all"), capsys)


@pytest.mark.parametrize(
    ("installed", "expected"), [("", []), ("demo", ["demo"]), ("all", ["demo", "all"])]
)
def test_the_stamp_tells_which_sets_are_installed(
    install, monkeypatch, tmp_path, installed, expected
):
    """The set `all` contains the set `demo`."""
    stamp = tmp_path / "installed"
    monkeypatch.setattr(install, "STAMP", str(stamp))
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    if installed:
        stamp.write_text(f"{install.fingerprint()} {installed}")
    assert [name for name in install.SETS if install.installed(name)] == expected
    stamp.write_text(f"0123456789abcdef {installed}")
    assert [name for name in install.SETS if install.installed(name)] == []


def test_each_set_has_extras_with_dependencies(install):
    for extras, *_ in install.SETS.values():
        assert install.dependencies(*extras)


def test_a_failing_step_shows_the_end_of_its_log(install, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(install, "LOG", str(tmp_path / "log"))
    command = [sys.executable, "-c", "import sys; sys.exit('OSError: No space left on device')"]
    with pytest.raises(SystemExit):
        install.run("a step", command)
    err = capsys.readouterr().err
    assert "OSError: No space left on device" in err
    assert str(tmp_path / "log") in err.splitlines()[-1]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_an_old_python_prints_which_versions_are_supported(version):
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


def test_the_demo_has_variables_for_text_languages_and_updates():
    def commands(**variables):
        done = subprocess.run(
            ["make", "-n", "demo"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | variables,
        )
        return done.stdout

    assert "--max-update" not in commands()
    expected = "lxsr run own --lang-pair en-de  --recipe best --max-update 3"
    assert expected in commands(DATA="own", TGT="de", UPDATES="3")


def package_name(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_every_package_has_a_version_in_the_constraints(install):
    pinned = set()
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if "==" in line:
            pinned.add(package_name(line))
    requirements = [*install.BUILD, *install.dependencies(), *install.dependencies("dev")]
    requirements.append("fairseq-fixed")
    for requirement in requirements:
        assert package_name(requirement) in pinned


def test_dependencies_are_those_of_pyproject(install):
    assert {package_name(requirement) for requirement in install.dependencies()} == set(SMALL)
    expected = {"accelerate>=1", "sentence-transformers>=6", "torch>=2.6"}
    assert set(install.dependencies("st")) == expected
    for_developers = install.dependencies("dev")
    extras = "torch faiss train st onnx prepare documents zst parquet mteb ray report docs"
    for extra in extras.split():
        assert set(install.dependencies(extra)) <= set(for_developers)
    for requirement in for_developers:
        assert "fairseq-lxsr" not in requirement


def test_package_data_has_all_files_of_the_repository_that_are_no_modules():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package_data = tomllib.loads(text)["tool"]["setuptools"]["package-data"]
    packed = set()
    for package, patterns in package_data.items():
        for pattern in patterns:
            packed.update(ROOT.joinpath(*package.split(".")).glob(pattern))
    listed = subprocess.run(
        ["git", "ls-files", "fairseq_lxsr"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {ROOT / name for name in listed.stdout.splitlines() if not name.endswith(".py")}
    assert ROOT / "fairseq_lxsr" / "recipes" / "best.yaml" in files
    for path in files:
        assert path in packed or not path.exists(), path


EXTRAS = {"torch", "faiss", "fairseq", "yaml", "sentence_transformers", "transformers"}
ONNX_LIBRARIES = {"onnx", "onnxruntime", "tokenizers", "google"}
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
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            main(words)
        except SystemExit as stop:
            assert stop.code == 2, errors.getvalue()
    print(errors.getvalue(), end="")
"""


def without_extras(code: str, blocked: set[str] = EXTRAS | ONNX_LIBRARIES) -> list[str]:
    """The lines that code prints in a Python where blocked packages cannot be imported."""
    return python(WITHOUT_EXTRAS.replace("{blocked}", repr(blocked)) + code).splitlines()


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """A model folder without layers, and text for it."""
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": 1}
    folder = random_model.write_model(tmp_path_factory.mktemp("bag") / "m", **sizes)
    toy.write(folder.parent / "text", toy.sentences(60, seed=4))
    return folder


def test_commands_for_a_model_without_layers_run_without_extras(bag, tmp_path):
    text = bag.parent / "text"
    index = tmp_path / "index"
    vectors = tmp_path / "en.npy"
    lines = Path(f"{text}.en").read_text().splitlines()
    expected = SentenceEncoder.from_pretrained(bag).encode(lines)
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


def export_command(form, model, output, *options) -> list[str]:
    words = ["export", form, "--model", str(model), "--output", f"{output}/{form}", *options]
    if form == "web":
        words += ["--input", f"{model.parent}/text.en"]
    return words


@pytest.mark.parametrize("has_order", [False, True])
def test_files_exported_without_extras_are_those_exported_with_them(
    has_order, bag, tmp_path, monkeypatch
):
    """tests/export compares the vectors of the files, with the libraries."""
    model = bag
    onnx_options = ("--normalize", "--int8")
    if not has_order:
        model = random_model.write_model(tmp_path / "mean", gated=True, num_layers=0)
        shutil.copy(bag.parent / "text.en", model.parent)
        onnx_options = ()
    folder = tmp_path / "without"
    web = export_command("web", model, folder)
    sentence_transformers = export_command("sentence-transformers", model, folder)
    output = without_extras(f"main({web!r})\nmain({sentence_transformers!r})\n")
    assert any("sentence-transformers" in line for line in output)
    # This format needs the libraries of ONNX, but not torch.
    onnx = export_command("onnx", model, folder, *onnx_options)
    without_extras(f"main({onnx!r})\n", EXTRAS)

    monkeypatch.setattr(st_folder, "is_missing", lambda name: True)
    folder = tmp_path / "with"
    lxsr_here(*export_command("web", model, folder))
    lxsr_here(*export_command("sentence-transformers", model, folder))
    lxsr_here(*export_command("onnx", model, folder, *onnx_options))
    for form in FORMS:
        files = contents(tmp_path / "without" / form)
        assert files
        assert files == contents(tmp_path / "with" / form)


def test_the_error_of_a_missing_extra_has_the_command_to_install_it(bag, tmp_path):
    layers = random_model.write_model(tmp_path / "layers")
    model = ["--model", str(bag)]
    model_with_layers = ["--model", str(layers)]
    text = ["--input", f"{bag.parent}/text.en"]
    vectors = ["--output", str(tmp_path / "o.npy")]
    index = ["--output", str(tmp_path / "index")]
    checkpoint = ["--checkpoint", str(bag / "config.json"), "--output", str(tmp_path / "model")]
    web = ["export", "web", *model_with_layers, "--output", f"{tmp_path}/web", *text]
    commands = [
        ("torch", ["embed", *model, *text, *vectors, "--dtype", "bfloat16"]),
        ("torch", ["embed", *model, *text, *vectors, "--device", "cuda"]),
        ("torch", ["embed", *model_with_layers, *text, *vectors]),
        ("torch", ["export", "folder", *checkpoint]),
        ("torch", web),
        ("torch", export_command("sentence-transformers", layers, tmp_path)),
        ("torch", export_command("onnx", layers, tmp_path, "--normalize", "--int8")),
        ("onnx", export_command("onnx", bag, tmp_path, "--normalize", "--int8")),
        ("faiss", ["index", *model, *text, *index, "--kind", "int8"]),
    ]
    code = "".join(f"refused(*{words!r})\n" for _, words in commands)
    lines = without_extras(code)
    assert len(lines) == len(commands), lines
    for line, (extra, _) in zip(lines, commands, strict=True):
        assert line.startswith("lxsr: error: ")
        assert extra in line
        assert line.endswith(install_command(extra))


def test_importing_the_package_and_the_encoder_imports_no_other_libraries():
    print_modules = "print(*(name for name in sys.modules if '.' not in name))"
    code = f"import sys\nimport fairseq_lxsr\n{print_modules}\n"
    code += f"fairseq_lxsr.SentenceEncoder\n{print_modules}"
    modules_of_package, modules_of_encoder = python(code).splitlines()
    assert "numpy" not in modules_of_package.split()
    assert set(SMALL) - {"filelock"} <= set(modules_of_encoder.split())
    assert not {"torch", "faiss", "yaml", "sklearn"} & set(modules_of_encoder.split())


def test_fairseq_is_pinned_by_the_checksums_of_source_and_wheel():
    lines = FAIRSEQ.read_text().splitlines()
    [line] = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch(r"fairseq-fixed==[\d.]+( --hash=sha256:[0-9a-f]{64}){2}", line)
    assert line.split()[0] in (ROOT / "constraints.txt").read_text().splitlines()
    # With READTHEDOCS, fairseq builds no extension modules.
    assert INSTALL.startswith(f"READTHEDOCS=1 {sys.executable} -m pip install ")
    assert INSTALL.endswith(f" -r {FAIRSEQ}")
