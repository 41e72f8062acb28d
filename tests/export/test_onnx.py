"""The ONNX folder, run by ONNX Runtime and the library tokenizers without this package."""

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
SENTENCES = toy.lines(60, seed=9)
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X", ""]
WITHOUT_PACKAGE = """
import sys
sys.modules["fairseq_lxsr"] = None
sys.modules["torch"] = None
import numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
session = onnxruntime.InferenceSession(sys.argv[1] + "/onnx/model.onnx")
rows = []
lines = open(sys.argv[3], encoding="utf-8").read().split("\\n")
# Batches of different sizes and lengths.
for start in range(0, len(lines), 7):
    ids = np.array([e.ids for e in tokenizer.encode_batch(lines[start : start + 7])], dtype=np.int64)
    rows.append(session.run(["sentence_embedding"], {"input_ids": ids})[0])
np.save(sys.argv[2], np.concatenate(rows))
"""


def run_without_package(folder, tmp_path) -> np.ndarray:
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    python(WITHOUT_PACKAGE, folder, tmp_path / "out.npy", tmp_path / "text", cwd=tmp_path)
    return np.load(tmp_path / "out.npy")


@pytest.fixture(scope="module")
def exported(toy_model, tmp_path_factory):
    """The exported toy model, and the output of the command; torch takes seconds to trace layers."""
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    return folder, lxsr("export", "onnx", "--model", toy_model, "--output", folder).stdout


@pytest.fixture(scope="module")
def exported_as_int8(toy_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported_as_int8") / "onnx"
    words = ("export", "onnx", "--model", toy_model, "--int8", "--normalize", "--output", folder)
    return folder, lxsr(*words).stdout


@pytest.mark.slow
def test_the_graph_gives_the_same_vectors_without_this_package(toy_model, exported, tmp_path):
    folder, message = exported
    (difference,) = re.findall(r"\d[\d.]*e-\d+", message)
    assert float(difference) < 1e-4
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(run_without_package(folder, tmp_path), expected, atol=1e-5)


SIZES = {
    "bag": {"gated": True, "num_layers": 0},
    "order": {"gated": True, "num_layers": 0, "order_coefficients": 1},
    "layers": {"layer_norm_eps": 1e-12},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "int8"),
    [*itertools.product(("bag", "order"), (False, True)), ("layers", False), ("toy", True)],
)
def test_the_mean_of_the_first_output_is_the_embedding(name, int8, tmp_path, request):
    """fastembed, Spring AI and transformers.js compute it so; the mask is an optional input."""
    import onnxruntime
    from tokenizers import Tokenizer

    if name == "toy":
        folder, _ = request.getfixturevalue("exported_as_int8")
        model = request.getfixturevalue("toy_model")
        encoder = SentenceEncoder.from_pretrained(model, "cpu")
    else:
        model = write_model(tmp_path / "random", **SIZES[name])
        encoder = SentenceEncoder.from_pretrained(model, "cpu")
        folder = tmp_path / "onnx"
        agreement = export_onnx(encoder, folder, normalize=True, int8=int8)
        assert agreement > onnx.LEAST_COSINE if int8 else agreement < 1e-5
    session = onnxruntime.InferenceSession(str(folder / onnx.MODEL_FILE))
    inputs = [("input_ids", "tensor(int64)"), ("attention_mask", "optional(tensor(int64))")]
    assert [(node.name, node.type) for node in session.get_inputs()] == inputs
    assert [len(node.shape) for node in session.get_inputs()] == [2, 2]
    outputs = [node.name for node in session.get_outputs()]
    assert outputs == ["last_hidden_state", "sentence_embedding"]
    encodings = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(SENTENCES[:40])
    ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
    states, embeddings = session.run(None, {"input_ids": ids, "attention_mask": mask})
    mean = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    [unmasked] = session.run(["sentence_embedding"], {"input_ids": ids})
    expected = encoder.encode(SENTENCES[:40], normalize=True)
    least = 0.98 if int8 else 0.99999
    for vectors in (mean, embeddings, unmasked):
        assert (vectors * expected).sum(axis=1).min() > least
    # Masking the last piece is the same as replacing it by padding.
    shorter = np.where(mask.cumsum(axis=1) < mask.sum(axis=1, keepdims=True), mask, 0)
    padded_ids = np.where(shorter > 0, ids, 1)
    masked_inputs = {"input_ids": ids, "attention_mask": shorter}
    [masked] = session.run(["sentence_embedding"], masked_inputs)
    [padded] = session.run(["sentence_embedding"], {"input_ids": padded_ids})
    np.testing.assert_allclose(masked, padded, atol=1e-5)
    assert np.abs(masked - embeddings).max() > 0.01


@pytest.mark.slow
def test_fastembed_gives_the_same_vectors(tmp_path):
    fastembed = pytest.importorskip("fastembed")
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = write_model(tmp_path / "random", **SIZES["bag"])
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    export_onnx(encoder, tmp_path / "onnx")
    fastembed.TextEmbedding.add_custom_model(
        "toy",
        sources=ModelSource(hf="toy"),
        pooling=PoolingType.MEAN,
        normalization=False,
        dim=32,
        model_file=onnx.MODEL_FILE,
    )
    model = fastembed.TextEmbedding("toy", specific_model_path=str(tmp_path / "onnx"))
    np.testing.assert_allclose(list(model.embed(SENTENCES)), encoder.encode(SENTENCES), atol=1e-5)


@pytest.mark.slow
def test_the_graph_reads_empty_and_long_sentences(toy_model, exported):
    folder, _ = exported
    assert not onnx.embed_by_onnx(folder, ["", " "]).any()
    longest = ["the dog " * 1000]
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(longest)
    np.testing.assert_allclose(onnx.embed_by_onnx(folder, longest), expected, atol=1e-5)


@pytest.mark.slow
def test_the_graph_has_the_layer_norm_eps_of_the_model(tmp_path):
    """The value is so large that another one would change the vectors, and stop the export."""
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
    model = write_model(tmp_path / "random", gated=True, num_layers=0)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    # An exported folder is replaced.
    for _ in range(2):
        export_onnx(encoder, tmp_path / "onnx")
    config = '{"model_type": "bert", "transformers.js_config": {}}'
    (tmp_path / "onnx" / "config.json").write_text(config)
    with pytest.raises(InputError, match=r"config\.json"):
        export_onnx(encoder, tmp_path / "onnx")


@pytest.mark.slow
def test_an_int8_graph_gives_close_vectors_of_length_one(toy_model, exported_as_int8, tmp_path):
    folder, message = exported_as_int8
    assert float(re.search(r" ([01]\.\d{4})", message)[1]) >= 0.9
    vectors = run_without_package(folder, tmp_path)
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES, normalize=True)
    assert (vectors * expected).sum(axis=1)[:-1].min() > 0.98
    assert (vectors != expected).any()
    np.testing.assert_allclose(np.linalg.norm(vectors[:-1], axis=1), 1, atol=1e-5)
    # The last sentence is empty.
    assert not vectors[-1].any()


@pytest.mark.slow
def test_a_graph_with_different_vectors_is_not_exported(tmp_path, monkeypatch):
    model = write_model(tmp_path / "random", **SIZES["bag"])
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    embed = onnx.embed_by_onnx
    monkeypatch.setattr(onnx, "embed_by_onnx", lambda *arguments: embed(*arguments) + 0.01)
    with pytest.raises(InputError, match=r"difference 0\.01"):
        export_onnx(encoder, tmp_path / "onnx")
    monkeypatch.setattr(onnx, "embed_by_onnx", lambda *arguments: embed(*arguments)[:, ::-1])
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
