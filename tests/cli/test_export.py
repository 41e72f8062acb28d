"""`lxsr export FORM`: each form has its own options."""

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
    assert not (tmp_path / "out").exists()
