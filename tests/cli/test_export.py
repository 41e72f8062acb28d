"""`lxsr export FORM`: each form has its own options; the older spelling says what to write and does the same."""

import shutil
from pathlib import Path

import pytest
from conftest import lxsr_here, refused

GOLDEN = Path(__file__).parent.parent / "golden" / "compatibility"
FOLDER, MODEL = ("--checkpoint", str(GOLDEN / "best.pt")), ("--model", str(GOLDEN / "best.model"))
OUTPUT = ("--output", "{out}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "FORM"),
        (("vectors",), "invalid choice: 'vectors'"),
        (("folder", *FOLDER), "required: --output"),
        (("folder", *MODEL, *OUTPUT), "required: --checkpoint"),
        (("folder", *FOLDER, *OUTPUT, "--int8"), "unrecognized arguments: --int8"),
        (("folder", *FOLDER, *OUTPUT, "--scores", "x"), "unrecognized arguments: --scores"),
        (("card",), "required: --model"),
        (("card", *MODEL, *OUTPUT), "unrecognized arguments: --output"),
        (("card", *MODEL, "--dtype", "float16"), "unrecognized arguments: --dtype"),
        (("onnx", *FOLDER, *OUTPUT), "required: --model"),
        (("onnx", *MODEL), "required: --output"),
        (("onnx", *MODEL, *OUTPUT, "--ema"), "unrecognized arguments: --ema"),
        (("sentence-transformers", *MODEL, *OUTPUT, "--normalize"), "unrecognized arguments: --normalize"),
    ],
)
def test_each_form_has_its_own_options(tmp_path, arguments, said):
    words = [word.format(out=tmp_path / "out") for word in arguments]
    refused(lxsr_here("export", *words, check=False), said)
    if len(arguments) > 1:
        form, *others = words
        refused(lxsr_here("export-model", "--to", form, *others, check=False), said)
    assert not (tmp_path / "out").exists()


def test_the_older_spelling_does_the_same_and_says_what_to_write(tmp_path):
    options = (*FOLDER, "--data", GOLDEN / "data")
    new = lxsr_here("export", "folder", *options, "--output", tmp_path / "new")
    old = lxsr_here("export-model", *options, "--output", tmp_path / "old")
    assert new.stderr == ""
    said = [line for line in old.stderr.splitlines() if "export-model" in line]
    written = " ".join(map(str, options))
    assert said == [
        f"lxsr: export-model goes with the next release; write: lxsr export folder {written} --output {tmp_path}/old"
    ]
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"model.safetensors", "README.md"} <= names == {path.name for path in (tmp_path / "old").iterdir()}
    for name in names - {"README.md"}:  # it has the speed on this machine
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()


def test_a_card_by_the_older_spelling(tmp_path):
    shutil.copytree(GOLDEN / "best.model", tmp_path / "model")
    done = lxsr_here("export-model", "--model", tmp_path / "model", "--to=card")
    assert f"write: lxsr export card --model {tmp_path}/model" in done.stderr
    assert done.stdout == f"{tmp_path}/model/README.md: written\n"
