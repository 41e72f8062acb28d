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
# A long text, letters that the model does not know, and an empty text at the end.
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X", ""]
# Arguments: the folder, the output, and a file of sentences.
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


def embed_without_package(folder, tmp_path) -> np.ndarray:
    """Return the embeddings of SENTENCES, computed by ONNX Runtime and tokenizers alone."""
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
    """The toy model exported as int8 with normalized vectors, and the output of the command."""
    folder = tmp_path_factory.mktemp("exported_as_int8") / "onnx"
    words = ("export", "onnx", "--model", toy_model, "--int8", "--normalize", "--output", folder)
    return folder, lxsr(*words).stdout


@pytest.mark.slow
def test_the_command_prints_how_much_the_vectors_differ(exported):
    _, output = exported

    # For example 3.1e-07.
    [difference] = re.findall(r"\d[\d.]*e-\d+", output)
    assert float(difference) < 1e-4


@pytest.mark.slow
def test_the_graph_gives_the_same_vectors_without_this_package(toy_model, exported, tmp_path):
    folder, _ = exported

    embeddings = embed_without_package(folder, tmp_path)

    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


SIZES = {
    "bag": {"gated": True, "num_layers": 0},
    "order": {"gated": True, "num_layers": 0, "order_coefficients": 1},
    "layers": {"layer_norm_eps": 1e-12},
}


class Graph:
    """The encoder of a model, and the inputs and the session of its exported graph.

    Attributes:
        encoder: encoder of the model.
        is_int8: whether the weights of the graph are rounded to int8.
        session: session of ONNX Runtime.
        ids: ids of 40 sentences, padded [40, T].
        mask: 1 for pieces, 0 for padding [40, T].
        expected: normalized embeddings of the sentences by this package [40, D].
    """

    def __init__(self, encoder: SentenceEncoder, folder, is_int8: bool):
        import onnxruntime
        from tokenizers import Tokenizer

        sentences = SENTENCES[:40]
        encodings = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(sentences)
        self.encoder = encoder
        self.is_int8 = is_int8
        self.session = onnxruntime.InferenceSession(str(folder / onnx.MODEL_FILE))
        self.ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        self.mask = np.array([row.attention_mask for row in encodings], dtype=np.int64)
        self.expected = encoder.encode(sentences, normalize=True)

    def embed(self, **inputs) -> np.ndarray:
        [embeddings] = self.session.run(["sentence_embedding"], inputs)
        return embeddings

    def assert_expected(self, embeddings) -> None:
        """Check that embeddings have nearly the directions of those of this package."""
        least_cosine = 0.98 if self.is_int8 else 0.99999
        assert (embeddings * self.expected).sum(axis=1).min() > least_cosine


@pytest.fixture(
    scope="module",
    params=[*itertools.product(SIZES, (False,)), ("bag", True), ("order", True), ("toy", True)],
    ids=lambda param: f"{param[0]}-{'int8' if param[1] else 'float32'}",
)
def graph(request, tmp_path_factory):
    """A graph of each kind of model, with normalized embeddings."""
    name, is_int8 = request.param
    if name == "toy":
        folder, _ = request.getfixturevalue("exported_as_int8")
        model = request.getfixturevalue("toy_model")
        return Graph(SentenceEncoder.from_pretrained(model, "cpu"), folder, is_int8)
    work = tmp_path_factory.mktemp("graph")
    encoder = SentenceEncoder.from_pretrained(write_model(work / "random", **SIZES[name]), "cpu")
    agreement = export_onnx(encoder, work / "onnx", normalize=True, int8=is_int8)
    # The least cosine with the vectors of this package, or the largest difference from them.
    if is_int8:
        assert agreement > onnx.LEAST_COSINE
    else:
        assert agreement < 1e-5
    return Graph(encoder, work / "onnx", is_int8)


@pytest.mark.slow
def test_the_inputs_are_ids_and_an_optional_mask(graph):
    inputs = graph.session.get_inputs()

    assert [(node.name, node.type) for node in inputs] == [
        ("input_ids", "tensor(int64)"),
        ("attention_mask", "optional(tensor(int64))"),
    ]
    # Sentences and pieces.
    assert [len(node.shape) for node in inputs] == [2, 2]


@pytest.mark.slow
def test_the_outputs_are_states_and_embeddings(graph):
    outputs = [node.name for node in graph.session.get_outputs()]

    assert outputs == ["last_hidden_state", "sentence_embedding"]


@pytest.mark.slow
def test_the_mean_of_the_first_output_is_the_embedding(graph):
    """fastembed, Spring AI and transformers.js compute it so."""
    states, embeddings = graph.session.run(
        None, {"input_ids": graph.ids, "attention_mask": graph.mask}
    )

    sums = (states * graph.mask[..., None]).sum(axis=1)
    graph.assert_expected(sums / graph.mask.sum(axis=1, keepdims=True))
    graph.assert_expected(embeddings)


@pytest.mark.slow
def test_without_a_mask_the_padding_is_masked(graph):
    graph.assert_expected(graph.embed(input_ids=graph.ids))


@pytest.mark.slow
def test_masking_the_last_piece_is_the_same_as_replacing_it_by_padding(graph):
    num_pieces = graph.mask.sum(axis=1, keepdims=True)
    is_last = (graph.mask.cumsum(axis=1) == num_pieces) & (graph.mask == 1)
    shorter_mask = np.where(is_last, 0, graph.mask)
    padding = 1
    padded_ids = np.where(shorter_mask == 1, graph.ids, padding)

    masked = graph.embed(input_ids=graph.ids, attention_mask=shorter_mask)
    padded = graph.embed(input_ids=padded_ids)

    np.testing.assert_allclose(masked, padded, atol=1e-5)
    assert np.abs(masked - graph.embed(input_ids=graph.ids)).max() > 0.01


@pytest.fixture
def bag_encoder(tmp_path):
    """The encoder of a model without layers."""
    return SentenceEncoder.from_pretrained(write_model(tmp_path / "random", **SIZES["bag"]), "cpu")


@pytest.mark.slow
def test_fastembed_gives_the_same_vectors(bag_encoder, tmp_path):
    fastembed = pytest.importorskip("fastembed")
    from fastembed.common.model_description import ModelSource, PoolingType

    export_onnx(bag_encoder, tmp_path / "onnx")
    fastembed.TextEmbedding.add_custom_model(
        "toy",
        sources=ModelSource(hf="toy"),
        pooling=PoolingType.MEAN,
        normalization=False,
        dim=bag_encoder.output_dim,
        model_file=onnx.MODEL_FILE,
    )
    model = fastembed.TextEmbedding("toy", specific_model_path=str(tmp_path / "onnx"))

    embeddings = list(model.embed(SENTENCES))

    np.testing.assert_allclose(embeddings, bag_encoder.encode(SENTENCES), atol=1e-5)


@pytest.mark.slow
def test_the_graph_gives_zeros_for_empty_sentences(exported):
    folder, _ = exported

    assert not onnx.embed_by_onnx(folder, ["", " "]).any()


@pytest.mark.slow
def test_the_graph_cuts_long_sentences_as_this_package_does(toy_model, exported):
    folder, _ = exported
    longer_than_the_model_reads = ["the dog " * 1000]

    embeddings = onnx.embed_by_onnx(folder, longer_than_the_model_reads)

    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    expected = encoder.encode(longer_than_the_model_reads)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


@pytest.mark.slow
def test_the_graph_has_the_layer_norm_eps_of_the_model(tmp_path):
    """The value is so large that another one would change the vectors, and stop the export."""
    folder = write_model(tmp_path / "random", layer_norm_eps=0.5)

    difference = export_onnx(SentenceEncoder.from_pretrained(folder, "cpu"), tmp_path / "onnx")

    assert difference < 1e-5


# -- folders that exist


def test_the_command_does_not_replace_a_model_folder(toy_model, tmp_path):
    folder = shutil.copytree(toy_model, tmp_path / "model")

    done = lxsr("export", "onnx", "--model", folder, "--output", folder, check=False)

    refused(done, folder)


def test_export_onnx_does_not_replace_a_model_folder(toy_model, tmp_path):
    folder = shutil.copytree(toy_model, tmp_path / "model")

    with pytest.raises(InputError, match=r"model\b.*onnx/model\.onnx"):
        export_onnx(SentenceEncoder.from_pretrained(toy_model, "cpu"), folder)


@pytest.mark.slow
def test_an_exported_folder_is_replaced(bag_encoder, tmp_path):
    graph = tmp_path / "onnx" / onnx.MODEL_FILE
    export_onnx(bag_encoder, tmp_path / "onnx")
    before = graph.read_bytes()

    export_onnx(bag_encoder, tmp_path / "onnx", normalize=True)

    assert graph.read_bytes() != before


@pytest.mark.slow
def test_a_folder_of_another_program_is_not_replaced(bag_encoder, tmp_path):
    export_onnx(bag_encoder, tmp_path / "onnx")
    config_of_another_program = '{"model_type": "bert", "transformers.js_config": {}}'
    (tmp_path / "onnx" / "config.json").write_text(config_of_another_program)

    with pytest.raises(InputError, match=r"config\.json"):
        export_onnx(bag_encoder, tmp_path / "onnx")


# -- int8


@pytest.mark.slow
def test_the_command_prints_the_least_cosine_of_an_int8_graph(exported_as_int8):
    _, output = exported_as_int8

    # For example 0.9987.
    [cosine] = re.findall(r" ([01]\.\d{4})", output)[:1]
    assert 0.9 <= float(cosine) <= 1


@pytest.mark.slow
def test_an_int8_graph_gives_close_vectors_of_length_one(toy_model, exported_as_int8, tmp_path):
    folder, _ = exported_as_int8

    *embeddings, embedding_of_empty_sentence = embed_without_package(folder, tmp_path)

    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    *expected, _ = encoder.encode(SENTENCES, normalize=True)
    cosines = np.multiply(embeddings, expected).sum(axis=1)
    assert cosines.min() > 0.98
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert not embedding_of_empty_sentence.any()
    # The weights are rounded.
    assert np.not_equal(embeddings, expected).any()


# -- exports that fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "int8", "message"),
    [
        pytest.param(
            lambda embeddings: embeddings + 0.01, False, r"difference 0\.01", id="float32"
        ),
        pytest.param(lambda embeddings: embeddings[:, ::-1], True, r"cosine .*int8", id="int8"),
    ],
)
def test_a_graph_with_different_vectors_is_not_exported(
    bag_encoder, tmp_path, monkeypatch, change, int8, message
):
    # The export compares the vectors of this function with its own.
    embed_by_onnx = onnx.embed_by_onnx
    monkeypatch.setattr(onnx, "embed_by_onnx", lambda *words: change(embed_by_onnx(*words)))

    with pytest.raises(InputError, match=message):
        export_onnx(bag_encoder, tmp_path / "onnx", int8=int8)

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
def test_a_missing_library_is_named_with_its_installation(
    export, message, toy_model, tmp_path, monkeypatch
):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    # No module is found.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(InputError, match=message):
        export(encoder, tmp_path / "out")
