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
from conftest import ROOT, case, contents, load_script, lxsr_here, python

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cli.train import FAIRSEQ, INSTALL
from fairseq_lxsr.errors import install_command
from fairseq_lxsr.export import st_folder

FORMS = ("web", "sentence-transformers", "onnx")
# The packages that `pip install fairseq-lxsr` installs.
BASE_PACKAGES = ("numpy", "sentencepiece", "safetensors", "tqdm", "filelock")


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


def test_a_supported_python_is_accepted(machine):
    machine.check_python()


def test_a_python_that_is_too_old_is_refused_with_the_supported_versions(
    machine, monkeypatch, capsys
):
    monkeypatch.setattr(machine.sys, "version_info", (3, 9, 18))

    message = error_of(machine.check_python, capsys)

    assert sys.executable in message
    assert "3.9" in message
    # The oldest and the newest version, and the variable of make that chooses one.
    assert "3.11" in message
    assert "3.13" in message
    assert "PYTHON=" in message


def test_a_machine_needs_neither_a_compiler_nor_the_headers_of_python(machine, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.os.path, "exists", lambda path: not path.endswith("Python.h"))

    machine.check_machine("all")


def test_a_disk_with_too_little_room_for_a_set_is_refused(machine, monkeypatch, capsys):
    """The set `demo` needs less than 3 GB, the set `all` more."""
    monkeypatch.setattr(machine.usage, "free", 3 * 10**9)

    machine.check_machine("demo")
    message = error_of(lambda: machine.check_machine("all"), capsys)

    assert "3.0 GB free" in message


@pytest.fixture
def stamp(install, monkeypatch, tmp_path):
    """The file that names the installed set."""
    path = tmp_path / "installed"
    monkeypatch.setattr(install, "STAMP", str(path))
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    return path


def installed_sets(install) -> list[str]:
    return [name for name in install.SETS if install.installed(name)]


def test_without_a_stamp_no_set_is_installed(install, stamp):
    assert installed_sets(install) == []


@pytest.mark.parametrize(
    ("stamped", "expected"),
    # The set `all` contains the set `demo`.
    [("demo", ["demo"]), ("all", ["demo", "all"])],
)
def test_the_stamp_names_the_installed_set(install, stamp, stamped, expected):
    stamp.write_text(f"{install.fingerprint()} {stamped}")

    assert installed_sets(install) == expected


def test_a_stamp_of_other_requirements_counts_as_no_installation(install, stamp):
    other_fingerprint = "0123456789abcdef"
    stamp.write_text(f"{other_fingerprint} all")

    assert installed_sets(install) == []


def test_each_set_has_extras_with_dependencies(install):
    for extras, *_ in install.SETS.values():
        assert install.dependencies(*extras), extras


def test_a_failing_step_shows_the_end_of_its_log_and_where_it_is(
    install, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(install, "LOG", str(tmp_path / "log"))
    command = [sys.executable, "-c", "import sys; sys.exit('OSError: No space left on device')"]

    with pytest.raises(SystemExit):
        install.run("a step", command)

    err = capsys.readouterr().err
    assert "OSError: No space left on device" in err
    assert str(tmp_path / "log") in err.splitlines()[-1]


def find_python(version: str) -> Path | None:
    """Return a Python of this machine, or None if it has none of that version."""
    candidates = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        Path(f"/usr/bin/python{version}"),
    ]
    return next((path for path in candidates if path.exists()), None)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_an_old_python_can_read_the_script_and_names_its_own_version_as_too_old(version):
    python = find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")

    done = subprocess.run(
        [python, ROOT / "tools" / "install.py"], capture_output=True, text=True, env=os.environ
    )

    assert "Traceback" not in done.stderr
    # It may find a newer Python by itself.
    assert done.returncode == 0 or (done.returncode == 2 and version in done.stderr)


def commands_of_demo(**variables) -> str:
    """Return what `make demo` would run."""
    done = subprocess.run(
        ["make", "-n", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    return done.stdout


def test_the_demo_has_variables_for_text_languages_and_updates():
    commands = commands_of_demo(DATA="own", TGT="de", UPDATES="3")

    assert "lxsr run own --lang-pair en-de  --recipe best --max-update 3" in commands


def test_the_demo_has_the_number_of_updates_of_the_recipe_by_default():
    assert "--max-update" not in commands_of_demo()


def package_name(requirement):
    """Return the name in a requirement such as `Foo_Bar>=1`, here foo-bar."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_every_package_has_a_version_in_the_constraints(install):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {package_name(line) for line in lines if "==" in line}

    requirements = [*install.BUILD, *install.dependencies(), *install.dependencies("dev")]
    # It is installed by itself.
    requirements.append("fairseq-fixed")

    for requirement in requirements:
        assert package_name(requirement) in pinned


def test_dependencies_without_an_extra_are_those_of_the_package(install):
    packages = {package_name(requirement) for requirement in install.dependencies()}

    assert packages == set(BASE_PACKAGES)


def test_dependencies_of_an_extra_have_their_lower_bounds(install):
    """Those of the extra `torch`, which the extra `st` names, are among them."""
    expected = {"accelerate>=1", "sentence-transformers>=6", "torch>=2.6"}

    assert set(install.dependencies("st")) == expected


@pytest.mark.parametrize(
    "extra",
    [
        "torch",
        "faiss",
        "train",
        "st",
        "onnx",
        "prepare",
        "documents",
        "zst",
        "parquet",
        "mteb",
        "ray",
        "report",
        "docs",
    ],
)
def test_developers_have_the_dependencies_of_an_extra(install, extra):
    assert set(install.dependencies(extra)) <= set(install.dependencies("dev"))


def test_extras_that_name_other_extras_are_resolved_to_their_dependencies(install):
    """The extra `dev` names most of the others."""
    for requirement in install.dependencies("dev"):
        assert "fairseq-lxsr" not in requirement


def test_package_data_has_all_files_of_the_package_that_are_no_modules():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package_data = tomllib.loads(text)["tool"]["setuptools"]["package-data"]
    packed = set()
    for package, patterns in package_data.items():
        for pattern in patterns:
            packed.update(ROOT.joinpath(*package.split(".")).glob(pattern))

    listed = subprocess.run(
        ["git", "ls-files", "fairseq_lxsr"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines() if not name.endswith(".py")]

    assert ROOT / "fairseq_lxsr" / "recipes" / "best.yaml" in paths
    # A deleted file is listed until its deletion is committed.
    assert {path for path in paths if path.exists()} <= packed


# Modules of the extras, and those that exports to ONNX and their tests need.
EXTRAS = {"torch", "faiss", "fairseq", "yaml", "sentence_transformers", "transformers"}
ONNX_LIBRARIES = {"onnx", "onnxruntime", "tokenizers", "google"}
# `refused` runs a command that must be refused, and prints its error.
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
def model_without_layers(tmp_path_factory):
    """A model folder without layers; text.en and text.fr beside it are text for it."""
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": 1}
    folder = random_model.write_model(tmp_path_factory.mktemp("bag") / "m", **sizes)
    toy.write(folder.parent / "text", toy.sentences(60, seed=4))
    return folder


def commands_for_model(model, output) -> list[list[str]]:
    """Return the commands that embed, search, mine and evaluate, and write the card."""
    english = f"{model.parent}/text.en"
    french = f"{model.parent}/text.fr"
    of_model = ["--model", str(model)]
    bitext = [*of_model, "--source", english, "--target", french]
    index = str(output / "index")
    return [
        ["embed", *of_model, "--input", english, "--output", str(output / "en.npy")],
        ["index", *of_model, "--input", french, "--output", index],
        ["search", "--index", index, "--k", "1", "a dog"],
        ["mine", *bitext, "--output", str(output / "pairs.tsv")],
        ["eval", "xsr", *bitext],
        ["export", "card", *of_model],
    ]


def test_commands_for_a_model_without_layers_run_without_extras(model_without_layers, tmp_path):
    code = (
        f"for words in {commands_for_model(model_without_layers, tmp_path)!r}:\n    main(words)\n"
    )
    code += "assert not {'torch', 'faiss'} & {name.split('.')[0] for name in sys.modules}"

    output = without_extras(code)

    # A score with its signature.
    assert any("xsr|metric" in line for line in output)
    lines = (model_without_layers.parent / "text.en").read_text().splitlines()
    expected = SentenceEncoder.from_pretrained(model_without_layers).encode(lines)
    np.testing.assert_array_equal(np.load(tmp_path / "en.npy"), expected)


def test_a_packaged_model_without_layers_is_found_by_its_name_without_extras(
    model_without_layers,
):
    packaged_models = str(model_without_layers.parent)
    code = f"""
import fairseq_lxsr.encoder.locate
fairseq_lxsr.encoder.locate.MODELS = Path({packaged_models!r})
encoder = fairseq_lxsr.SentenceEncoder.from_pretrained({model_without_layers.name!r})
print(type(encoder).__name__)
"""

    assert without_extras(code) == ["SentenceEncoder"]


def export_command(form, model, output, *options) -> list[str]:
    """Return the arguments of `lxsr export FORM`, whose output is the folder OUTPUT/FORM."""
    words = ["export", form, "--model", str(model), "--output", f"{output}/{form}", *options]
    if form == "web":
        words += ["--input", f"{model.parent}/text.en"]
    return words


@pytest.mark.parametrize("has_order", [False, True])
def test_files_exported_without_extras_are_those_exported_with_them(
    has_order, model_without_layers, tmp_path, monkeypatch
):
    """tests/export compares the vectors of the files, with the libraries."""
    # Order of words and the options of ONNX have code of their own.
    model = model_without_layers
    onnx_options = ("--normalize", "--int8")
    if not has_order:
        model = random_model.write_model(tmp_path / "mean", gated=True, num_layers=0)
        shutil.copy(model_without_layers.parent / "text.en", model.parent)
        onnx_options = ()

    folder = tmp_path / "without"
    web = export_command("web", model, folder)
    sentence_transformers = export_command("sentence-transformers", model, folder)
    onnx = export_command("onnx", model, folder, *onnx_options)
    output = without_extras(f"main({web!r})\nmain({sentence_transformers!r})\n")
    # This format needs the libraries of ONNX, but not torch.
    without_extras(f"main({onnx!r})\n", EXTRAS)

    folder = tmp_path / "with"
    # The library sentence-transformers would only compare the vectors of the finished folder.
    monkeypatch.setattr(st_folder, "is_missing", lambda name: True)
    lxsr_here(*export_command("web", model, folder))
    lxsr_here(*export_command("sentence-transformers", model, folder))
    lxsr_here(*export_command("onnx", model, folder, *onnx_options))

    assert any("sentence-transformers" in line for line in output)
    for form in FORMS:
        files = contents(tmp_path / "without" / form)
        assert files, form
        assert files == contents(tmp_path / "with" / form)


def test_the_error_of_a_missing_extra_has_the_command_to_install_it(model_without_layers, tmp_path):
    layers = random_model.write_model(tmp_path / "layers")
    model = ["--model", str(model_without_layers)]
    model_with_layers = ["--model", str(layers)]
    text = ["--input", f"{model_without_layers.parent}/text.en"]
    vectors = ["--output", str(tmp_path / "o.npy")]
    index = ["--output", str(tmp_path / "index")]
    # Missing torch must be found before the file turns out to be no checkpoint.
    no_checkpoint = str(model_without_layers / "config.json")
    checkpoint = ["--checkpoint", no_checkpoint, "--output", str(tmp_path / "model")]
    web = ["export", "web", *model_with_layers, "--output", f"{tmp_path}/web", *text]
    onnx_options = ("--normalize", "--int8")
    commands = [
        ("torch", ["embed", *model, *text, *vectors, "--dtype", "bfloat16"]),
        ("torch", ["embed", *model, *text, *vectors, "--device", "cuda"]),
        ("torch", ["embed", *model_with_layers, *text, *vectors]),
        ("torch", ["export", "folder", *checkpoint]),
        ("torch", web),
        ("torch", export_command("sentence-transformers", layers, tmp_path)),
        ("torch", export_command("onnx", layers, tmp_path, *onnx_options)),
        ("onnx", export_command("onnx", model_without_layers, tmp_path, *onnx_options)),
        ("faiss", ["index", *model, *text, *index, "--kind", "int8"]),
    ]

    # All in one process, which takes a second to start.
    errors = without_extras("".join(f"refused(*{words!r})\n" for _, words in commands))

    for error, (extra, words) in zip(errors, commands, strict=True):
        with case(" ".join(words)):
            assert error.startswith("lxsr: error: ")
            assert extra in error
            assert error.endswith(install_command(extra))


def modules_after(code: str) -> set[str]:
    """Return the names of the modules without a dot that code imports in a new Python."""
    print_modules = "import sys\nprint(*(name for name in sys.modules if '.' not in name))"
    return set(python(f"{code}\n{print_modules}").split())


def test_importing_the_package_does_not_import_numpy():
    assert "numpy" not in modules_after("import fairseq_lxsr")


def test_importing_the_encoder_imports_the_base_packages_and_no_library_of_an_extra():
    modules = modules_after("import fairseq_lxsr\nfairseq_lxsr.SentenceEncoder")

    # filelock is imported when a file is locked.
    assert set(BASE_PACKAGES) - {"filelock"} <= modules
    assert not {"torch", "faiss", "yaml", "sklearn"} & modules


def test_fairseq_is_pinned_to_a_version_and_two_checksums():
    """Those of its source and of the wheel."""
    lines = FAIRSEQ.read_text().splitlines()

    [line] = [line for line in lines if not line.startswith("#")]
    requirement, *checksums = line.split()

    assert re.fullmatch(r"fairseq-fixed==[\d.]+", requirement)
    assert requirement in (ROOT / "constraints.txt").read_text().splitlines()
    assert len(checksums) == 2
    for checksum in checksums:
        assert re.fullmatch("--hash=sha256:[0-9a-f]{64}", checksum)


def test_the_command_to_install_fairseq_reads_the_pinned_version_and_builds_no_extensions():
    """READTHEDOCS=1 makes fairseq's setup.py leave out its extension modules."""
    assert INSTALL.startswith(f"READTHEDOCS=1 {sys.executable} -m pip install ")
    assert INSTALL.endswith(f" -r {FAIRSEQ}")
