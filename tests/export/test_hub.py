"""`lxsr export hub` writes a folder for sentence-transformers and model2vec, with a card for a hub."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from conftest import lxsr_here as lxsr
from conftest import refused
from hub_server import serving
from random_model import write_model
from safetensors.numpy import load_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.locate import model_names
from fairseq_lxsr.evaluation.score import Score, append_scores
from fairseq_lxsr.export import export_hub
from fairseq_lxsr.export.card import write_card
from fairseq_lxsr.export.card_content import CardContent
from fairseq_lxsr.export.fast_tokenizer import SAMPLE
from fairseq_lxsr.export.st_folder import without_order

SOURCE = {
    "name": "acts",
    "about": "laws",
    "url": "https://example.org",
    "licence": "CC BY 4.0",
    "attribution": "a ministry",
    "pairs": {"en-fr": 1},
}


def read_card(folder):
    """Return the metadata of a card, and its text."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    metadata, text = card.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(metadata), text


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder without layers, with order coefficients."""
    return write_model(
        tmp_path_factory.mktemp("hub") / "r", gated=True, num_layers=0, order_coefficients=1
    )


def card_options(folder, fingerprint) -> tuple:
    """Write a score of a model and a source of its text; return the options that name the files."""
    settings = {"metric": "nn", "queries": 20, "model": fingerprint}
    append_scores(folder / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 91.25}, settings)])
    (folder / "s.json").write_text(json.dumps({"note": "All.", "sources": [SOURCE]}))
    return ("--scores", folder / "scores.jsonl", "--sources", folder / "s.json")


# -- a folder without the order coefficients of its model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A folder `my-model` of normalized vectors, exported with a score and a source."""
    work = tmp_path_factory.mktemp("exported")
    fingerprint = SentenceEncoder.from_pretrained(model, "cpu").fingerprint
    options = (*card_options(work, fingerprint), "--drop-order", "--normalize")
    lxsr("export", "hub", "--model", model, "--output", work / "my-model", *options)
    return work / "my-model"


def test_a_folder_for_a_hub_has_the_vectors_of_the_model_without_order(folder, model):
    opened = SentenceEncoder.from_pretrained(folder)

    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    expected = without_order(encoder).encode(SAMPLE)
    np.testing.assert_allclose(opened.encode(SAMPLE), expected, atol=1e-6)


def test_the_metadata_of_a_folder_for_a_hub_name_the_libraries_that_open_it(folder):
    metadata, _ = read_card(folder)

    assert metadata["library_name"] == "sentence-transformers"
    assert {"sentence-transformers", "model2vec"} <= set(metadata["tags"])


def test_a_folder_for_a_hub_has_the_licence_of_its_sources(folder):
    """They have several licences, so the metadata refer to a file."""
    metadata, _ = read_card(folder)

    assert metadata["license"] == "other"
    assert metadata["license_link"] == "LICENSE.md"
    assert "a ministry" in (folder / "LICENSE.md").read_text()


def test_scores_of_the_model_with_order_are_only_in_the_text_of_the_card(folder):
    """Without order coefficients it is another model than the one of the scores."""
    metadata, text = read_card(folder)

    assert "model-index" not in metadata
    assert "P@1 91.2" in text
    assert "word-order coefficients" in text


def test_the_card_of_a_folder_for_a_hub_has_code_for_three_libraries(folder):
    _, text = read_card(folder)

    # This package, sentence-transformers and model2vec.
    assert text.count("```python") == 3
    assert 'StaticModel.from_pretrained("my-model")' in text


def test_weights_of_a_folder_for_a_hub_are_stored_by_git_lfs(folder):
    assert "*.safetensors filter=lfs" in (folder / ".gitattributes").read_text()


# -- licence, sources and scores of the model folder


@pytest.fixture
def scored_model(tmp_path):
    """A model folder with sources and scores, and without order coefficients."""
    folder = write_model(tmp_path / "scored", gated=True, num_layers=0)
    fingerprint = SentenceEncoder.from_pretrained(folder, "cpu").fingerprint
    lxsr("export", "card", "--model", folder, *card_options(tmp_path, fingerprint))
    return folder


def test_licence_sources_and_scores_come_from_the_folder_of_the_model(scored_model, tmp_path):
    options = ("--model", scored_model, "--output", tmp_path / "hub", "--dtype", "int8")

    done = lxsr("export", "hub", *options)

    # Nothing is missing.
    assert "without" not in done.stderr
    metadata, text = read_card(tmp_path / "hub")
    model_metadata, _ = read_card(scored_model)
    assert metadata["license"] == "other"
    assert metadata["model-index"][0]["results"] == model_metadata["model-index"][0]["results"]
    for content in ("a ministry", "CC BY 4.0", "P@1 91.2", "## Size and speed"):
        assert text.count(content) == 1


def test_the_card_has_the_name_of_the_option_and_not_of_the_folder(scored_model, tmp_path):
    options = ("--model", scored_model, "--output", tmp_path / "tmp_x")

    lxsr("export", "hub", *options, "--name", "my-model")

    metadata, text = read_card(tmp_path / "tmp_x")
    assert metadata["model-index"][0]["name"] == "my-model"
    assert "\n# my-model\n" in text
    assert "tmp_x" not in text


def test_scores_are_not_read_from_the_card(scored_model, tmp_path):
    """A card is text that readers may edit or delete."""
    (scored_model / "README.md").write_text("| xsr en->fr | P@1 99.9 |")

    lxsr("export", "hub", "--model", scored_model, "--output", tmp_path / "hub")

    metadata, text = read_card(tmp_path / "hub")
    [result] = metadata["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "P@1", "value": 91.25}]
    assert "| xsr en->fr | P@1 91.2 |" in text
    assert CardContent.read(tmp_path / "hub") == CardContent.read(scored_model)


def test_scores_of_another_model_are_reported_and_not_used(scored_model, tmp_path):
    other_fingerprint = "0123456789ab"
    replace(CardContent.read(scored_model), model=other_fingerprint).write(scored_model)
    fingerprint = SentenceEncoder.from_pretrained(scored_model, "cpu").fingerprint

    done = lxsr("export", "hub", "--model", scored_model, "--output", tmp_path / "hub")

    assert f"{scored_model / 'scores.json'} describes model {other_fingerprint}" in done.stderr
    assert fingerprint in done.stderr
    assert f"{tmp_path / 'hub' / 'README.md'}: without licence" in done.stderr
    metadata, text = read_card(tmp_path / "hub")
    assert metadata["license"] == "unknown"
    assert "91.2" not in text


def test_damaged_scores_are_refused_before_anything_is_written(scored_model, tmp_path):
    path = scored_model / "scores.json"
    path.write_text(path.read_text().replace("91.25", "99.25"))
    options = ("--model", scored_model, "--output", tmp_path / "hub")

    done = lxsr("export", "hub", *options, check=False)

    refused(done, path, "crc32", "lxsr export card")
    assert not (tmp_path / "hub").exists()


# -- the packaged models


@pytest.mark.parametrize("name", model_names())
def test_the_scores_of_a_packaged_model_are_its_own(name):
    encoder = SentenceEncoder.from_pretrained(name)

    assert CardContent.read(encoder.folder).model == encoder.fingerprint


def lines_without_speed(folder) -> list[str]:
    """Return the lines of a card but those that depend on the machine."""
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    return [line for line in lines if not line.startswith("| speed on")]


@pytest.mark.parametrize("name", model_names())
def test_the_card_of_a_packaged_model_is_the_one_that_its_scores_give(name, tmp_path):
    encoder = SentenceEncoder.from_pretrained(name)
    shutil.copytree(encoder.folder, tmp_path / name)

    content = write_card(tmp_path / name, encoder)

    assert content == CardContent.read(encoder.folder)
    assert lines_without_speed(tmp_path / name) == lines_without_speed(encoder.folder)


@pytest.fixture(scope="module")
def packaged_for_a_hub(packaged, tmp_path_factory):
    """The folder of the packaged model for a hub, in int8."""
    folder = tmp_path_factory.mktemp("packaged") / "my-model"
    with pytest.MonkeyPatch.context() as patch:
        # The comparison with the library takes seconds, and is tested elsewhere.
        patch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
        export_hub(packaged, folder, dtype="int8", name="org/my-model")
    return folder


@pytest.mark.slow
def test_the_card_of_the_packaged_model_is_valid_on_a_hub(packaged_for_a_hub, tmp_path):
    """`validate` asks a server; the stand-in applies the rules of the hub's specification."""
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(packaged_for_a_hub / "README.md")

    with serving(tmp_path / "cache"):
        card.validate()
        # The stand-in does refuse a card that is not valid.
        card.data.license_link = "README.md#text"
        with pytest.raises(ValueError, match="license_link"):
            card.validate()


@pytest.mark.slow
def test_the_card_of_the_packaged_model_has_name_licence_languages_and_scores(
    packaged_for_a_hub, packaged
):
    hub = pytest.importorskip("huggingface_hub")

    card = hub.ModelCard.load(packaged_for_a_hub / "README.md")

    assert card.data.license == "other"
    assert card.data.model_name == "org/my-model"
    assert card.data.language == packaged.languages
    # Names of data sets may be followed by languages in parentheses.
    names = {result.dataset_name.split(" (")[0] for result in card.data.eval_results}
    assert {"xsr, nn-cosine", "MTEB Tatoeba", "MTEB NTREXBitextMining"} <= names


@pytest.mark.slow
def test_the_folder_of_the_packaged_model_names_the_sources_of_its_text(packaged_for_a_hub):
    _, text = read_card(packaged_for_a_hub)

    assert "| source | licence | attribution | pairs |" in text
    assert "tatoeba" in text.lower()
    assert "CC BY 4.0" in (packaged_for_a_hub / "LICENSE.md").read_text("utf-8")


# -- the graph of ONNX in the folder


def embed_by_graph(folder, texts) -> np.ndarray:
    """Return the embeddings of texts, computed by the tokenizer and the graph of a folder."""
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    ids = np.array([encoding.ids for encoding in tokenizer.encode_batch(texts)])
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    [embeddings] = session.run(["sentence_embedding"], {"input_ids": ids})
    return embeddings


def test_the_graph_uses_the_tokenizer_of_the_folder(model, tmp_path):
    folder = tmp_path / "hub"

    lxsr("export", "hub", "--model", model, "--output", folder, "--drop-order", "--onnx")

    expected = without_order(SentenceEncoder.from_pretrained(model, "cpu")).encode(SAMPLE)
    np.testing.assert_allclose(embed_by_graph(folder, SAMPLE), expected, atol=1e-5)
    # transformers.js needs it.
    assert (folder / "tokenizer_config.json").exists()


def export_with_graph(model, folder, dtype: str):
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    export_hub(encoder, folder, drop_order=True, with_onnx=True, dtype=dtype)
    return folder


def test_an_int8_graph_gives_the_vectors_of_the_int8_table(model, tmp_path):
    folder = export_with_graph(model, tmp_path / "int8", "int8")

    expected = SentenceEncoder.from_pretrained(folder, "cpu").encode(SAMPLE)
    np.testing.assert_allclose(embed_by_graph(folder, SAMPLE), expected, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["int8"] is True


def test_an_int8_graph_is_less_than_half_as_large(model, tmp_path):
    graphs = {}
    for dtype in ("float32", "int8"):
        folder = export_with_graph(model, tmp_path / dtype, dtype)
        graphs[dtype] = folder / "onnx" / "model.onnx"

    assert graphs["int8"].stat().st_size < 0.5 * graphs["float32"].stat().st_size


def test_a_graph_of_a_model_with_order_coefficients_is_refused(model, tmp_path):
    """They can be dropped; see above."""
    options = ("--model", model, "--output", tmp_path / "hub", "--onnx")

    done = lxsr("export", "hub", *options, check=False)

    refused(done, "onnx")
    assert not (tmp_path / "hub").exists()


def test_the_card_of_a_model_folder_without_scores_has_no_index_and_code_for_this_package(model):
    lxsr("export", "card", "--model", model)

    metadata, text = read_card(model)
    assert metadata["library_name"] == "fairseq-lxsr"
    assert "model-index" not in metadata
    assert text.count("```python") == 1


def test_spellings_have_the_vectors_of_their_pieces_in_table_and_graph(tmp_path):
    """The model reads each traditional letter as the simplified one behind it: 漢 as 汉, 語 as 语.

    A library does not, so the folder has a piece with the same vector for each spelling.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    chinese = {"read_as": "漢汉語语", "lines": ["汉语"] * 999, "version": 4}
    model = write_model(tmp_path / "random", num_layers=0, gated=True, **chinese)
    folder = tmp_path / "hub"

    export_hub(SentenceEncoder.from_pretrained(model, "cpu"), folder, with_onnx=True)

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[piece] for piece in ("▁汉语", "▁漢語", "▁漢语", "<unk>")]
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    [in_graph] = session.run(["sentence_embedding"], {"input_ids": np.array(ids)[:, None]})
    tensors = load_file(folder / "model.safetensors").values()
    [table] = [tensor for tensor in tensors if tensor.ndim == 2]
    assert len(table) == len(vocabulary)
    for simplified, traditional, mixed, unknown in (in_graph, table[ids]):
        np.testing.assert_array_equal(traditional, simplified)
        np.testing.assert_array_equal(mixed, simplified)
        assert (simplified != unknown).any()
