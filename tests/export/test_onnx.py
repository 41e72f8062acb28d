"""The ONNX folder, run by ONNX Runtime and the library tokenizers with no code of ours."""

import itertools
import re
import shutil

import numpy as np
import pytest
import toy
from conftest import lxsr_here as lxsr
from conftest import python, refused
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_onnx, export_sentence_transformers, onnx

pytest.importorskip("onnxruntime")
SENTENCES = [side for pair in toy.sentences(60, seed=9) for side in pair]
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X", ""]
WITHOUT_US = """
import sys
sys.modules["fairseq_lxsr"] = None
sys.modules["torch"] = None
import numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
session = onnxruntime.InferenceSession(sys.argv[1] + "/onnx/model.onnx")
rows = []
lines = open(sys.argv[3], encoding="utf-8").read().split("\\n")
for start in range(0, len(lines), 7):  # batches of different sizes and lengths
    ids = np.array([e.ids for e in tokenizer.encode_batch(lines[start : start + 7])], dtype=np.int64)
    rows.append(session.run(["sentence_embedding"], {"input_ids": ids})[0])
np.save(sys.argv[2], np.concatenate(rows))
"""


def run_without_us(folder, tmp_path) -> np.ndarray:
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    python(WITHOUT_US, folder, tmp_path / "out.npy", tmp_path / "text", cwd=tmp_path)
    return np.load(tmp_path / "out.npy")


@pytest.fixture(scope="module")
def exported(toy_model, tmp_path_factory):
    """The toy model's folder and what the command said; torch takes seconds to trace layers."""
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    return folder, lxsr("export", "onnx", "--model", toy_model, "--output", folder).stdout


@pytest.fixture(scope="module")
def exported_as_int8(toy_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported_as_int8") / "onnx"
    words = ("export", "onnx", "--model", toy_model, "--int8", "--normalize", "--output", folder)
    return folder, lxsr(*words).stdout


@pytest.mark.slow
def test_the_same_vectors_without_our_code(toy_model, exported, tmp_path):
    folder, said = exported
    (difference,) = re.findall(r"\d[\d.]*e-\d+", said)
    assert float(difference) < 1e-4
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(run_without_us(folder, tmp_path), expected, atol=1e-5)


SIZES = {
    "bag": {"gated": True, "num_layers": 0},
    "order": {"gated": True, "num_layers": 0, "order_coefficients": 1},
}
SIZES |= {"layers": {"layer_norm_eps": 1e-12}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "int8"),
    [*itertools.product(("bag", "order"), (False, True)), ("layers", False), ("toy", True)],
)
def test_programs_that_take_the_mean_of_the_first_output(name, int8, tmp_path, request):
    """As fastembed, Spring AI and transformers.js do; the mask is an input of two dimensions that
    may be left out.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    if name == "toy":
        model, (folder, _) = map(request.getfixturevalue, ("toy_model", "exported_as_int8"))
        encoder = SentenceEncoder.from_pretrained(model, "cpu")
    else:
        encoder = SentenceEncoder.from_pretrained(
            write_model(tmp_path / "random", **SIZES[name]), "cpu"
        )
        folder = tmp_path / "onnx"
        agreement = export_onnx(encoder, folder, normalize=True, int8=int8)
        assert agreement > onnx.LEAST_COSINE if int8 else agreement < 1e-5
    session = onnxruntime.InferenceSession(str(folder / onnx.MODEL_FILE))
    inputs = [("input_ids", "tensor(int64)"), ("attention_mask", "optional(tensor(int64))")]
    assert [(node.name, node.type) for node in session.get_inputs()] == inputs
    assert [len(node.shape) for node in session.get_inputs()] == [2, 2]
    assert [node.name for node in session.get_outputs()] == [
        "last_hidden_state",
        "sentence_embedding",
    ]
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(SENTENCES[:40])
    ids, mask = (
        np.array([getattr(e, part) for e in encoded], dtype=np.int64)
        for part in ("ids", "attention_mask")
    )
    states, embeddings = session.run(None, {"input_ids": ids, "attention_mask": mask})
    mean = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    least = 0.98 if int8 else 0.99999
    for found in (mean, embeddings, session.run(["sentence_embedding"], {"input_ids": ids})[0]):
        assert (found * encoder.encode(SENTENCES[:40], normalize=True)).sum(axis=1).min() > least
    # a piece that is masked is not read
    shorter = np.where(mask.cumsum(axis=1) < mask.sum(axis=1, keepdims=True), mask, 0)
    cut = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": shorter})[0]
    without = session.run(["sentence_embedding"], {"input_ids": np.where(shorter > 0, ids, 1)})[0]
    np.testing.assert_allclose(cut, without, atol=1e-5)
    assert np.abs(cut - embeddings).max() > 0.01


@pytest.mark.slow
def test_fastembed(tmp_path):
    fastembed = pytest.importorskip("fastembed")
    from fastembed.common.model_description import ModelSource, PoolingType

    encoder = SentenceEncoder.from_pretrained(
        write_model(tmp_path / "random", **SIZES["bag"]), "cpu"
    )
    export_onnx(encoder, tmp_path / "onnx")
    how = {
        "pooling": PoolingType.MEAN,
        "normalization": False,
        "dim": 32,
        "model_file": onnx.MODEL_FILE,
    }
    fastembed.TextEmbedding.add_custom_model("ours", sources=ModelSource(hf="ours"), **how)
    model = fastembed.TextEmbedding("ours", specific_model_path=str(tmp_path / "onnx"))
    np.testing.assert_allclose(list(model.embed(SENTENCES)), encoder.encode(SENTENCES), atol=1e-5)


@pytest.mark.slow
def test_nothing_but_empty_sentences_and_the_longest(toy_model, exported):
    folder, _ = exported
    assert not onnx.embed_by_onnx(folder, ["", " "]).any()
    longest = ["the dog " * 1000]
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(longest)
    np.testing.assert_allclose(onnx.embed_by_onnx(folder, longest), expected, atol=1e-5)


@pytest.mark.slow
def test_epsilon_of_the_model(tmp_path):
    """So large that it matters; a folder whose vectors differ is not written."""
    folder = write_model(tmp_path / "random", layer_norm_eps=0.5)
    assert export_onnx(SentenceEncoder.from_pretrained(folder, "cpu"), tmp_path / "onnx") < 1e-5


def test_a_model_folder_is_not_replaced(toy_model, tmp_path):
    folder = shutil.copytree(toy_model, tmp_path / "model")
    done = lxsr("export", "onnx", "--model", folder, "--output", folder, check=False)
    refused(done, folder)
    with pytest.raises(InputError, match=r"model\b.*onnx/model\.onnx"):
        export_onnx(SentenceEncoder.from_pretrained(toy_model, "cpu"), folder)


@pytest.mark.slow
def test_a_folder_of_another_program_is_not_replaced(tmp_path):
    encoder = SentenceEncoder.from_pretrained(
        write_model(tmp_path / "random", gated=True, num_layers=0), "cpu"
    )
    for _ in range(2):  # our own is
        export_onnx(encoder, tmp_path / "onnx")
    (tmp_path / "onnx" / "config.json").write_text(
        '{"model_type": "bert", "transformers.js_config": {}}'
    )
    with pytest.raises(InputError, match=r"config\.json"):
        export_onnx(encoder, tmp_path / "onnx")


@pytest.mark.slow
def test_int8_and_normalised(toy_model, exported_as_int8, tmp_path):
    folder, said = exported_as_int8
    assert float(re.search(r" ([01]\.\d{4})", said)[1]) >= 0.9
    found = run_without_us(folder, tmp_path)
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES, normalize=True)
    assert (found * expected).sum(axis=1)[:-1].min() > 0.98
    assert (found != expected).any()
    np.testing.assert_allclose(np.linalg.norm(found[:-1], axis=1), 1, atol=1e-5)
    assert not found[-1].any()  # the empty one


@pytest.mark.slow
def test_vectors_that_differ_are_not_exported(tmp_path, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(
        write_model(tmp_path / "random", **SIZES["bag"]), "cpu"
    )
    real = onnx.embed_by_onnx
    monkeypatch.setattr(onnx, "embed_by_onnx", lambda *arguments: real(*arguments) + 0.01)
    with pytest.raises(InputError, match=r"difference 0\.01"):
        export_onnx(encoder, tmp_path / "onnx")
    monkeypatch.setattr(onnx, "embed_by_onnx", lambda *arguments: real(*arguments)[:, ::-1])
    with pytest.raises(InputError, match=r"cosine .*int8"):
        export_onnx(encoder, tmp_path / "onnx", int8=True)
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize(
    ("export", "message"),
    [
        (export_onnx, r"\bonnx\b.* install .*\bonnxscript"),
        (
            export_sentence_transformers,
            r"\bsentence_transformers\b.* install .*sentence-transformers",
        ),
    ],
)
def test_a_missing_library_is_named(export, message, toy_model, tmp_path, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=message):
        export(encoder, tmp_path / "out")
