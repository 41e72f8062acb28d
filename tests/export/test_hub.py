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


def metadata_of(folder):
    """Return the metadata of a card, and its text."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    metadata, text = card.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(metadata), text


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(
        tmp_path_factory.mktemp("hub") / "r", gated=True, num_layers=0, order_coefficients=1
    )


def test_a_folder_for_a_hub_has_metadata_licence_and_code(model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    settings = {"metric": "nn", "queries": 20, "model": encoder.fingerprint}
    append_scores(tmp_path / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 91.25}, settings)])
    (tmp_path / "s.json").write_text(json.dumps({"note": "All.", "sources": [SOURCE]}))
    card = ("--scores", tmp_path / "scores.jsonl", "--sources", tmp_path / "s.json")
    options = (*card, "--drop-order", "--normalize")
    lxsr("export", "hub", "--model", model, "--output", tmp_path / "my-model", *options)
    data, text = metadata_of(tmp_path / "my-model")
    assert data["library_name"] == "sentence-transformers"
    assert (data["license"], data["license_link"]) == ("other", "LICENSE.md")
    assert "a ministry" in (tmp_path / "my-model" / "LICENSE.md").read_text()
    assert {"sentence-transformers", "model2vec"} <= set(data["tags"])
    # Without order coefficients it is another model than the one of the scores.
    assert "model-index" not in data
    assert "P@1 91.2" in text
    assert "word-order coefficients" in text
    assert text.count("```python") == 3
    assert 'StaticModel.from_pretrained("my-model")' in text
    assert "*.safetensors filter=lfs" in (tmp_path / "my-model" / ".gitattributes").read_text()
    opened = SentenceEncoder.from_pretrained(tmp_path / "my-model")
    expected = without_order(encoder).encode(SAMPLE)
    np.testing.assert_allclose(opened.encode(SAMPLE), expected, atol=1e-6)


@pytest.fixture
def scored_model(tmp_path):
    """A model folder with sources and scores."""
    folder = write_model(tmp_path / "scored", gated=True, num_layers=0)
    fingerprint = SentenceEncoder.from_pretrained(folder, "cpu").fingerprint
    settings = {"metric": "nn", "queries": 20, "model": fingerprint}
    append_scores(tmp_path / "scores.jsonl", [Score("xsr", "en->fr", {"P@1": 91.25}, settings)])
    (tmp_path / "s.json").write_text(json.dumps({"note": "All.", "sources": [SOURCE]}))
    options = ("--scores", tmp_path / "scores.jsonl", "--sources", tmp_path / "s.json")
    lxsr("export", "card", "--model", folder, *options)
    return folder


def test_licence_sources_and_scores_come_from_the_folder_of_the_model(scored_model, tmp_path):
    options = ("--model", scored_model, "--output", tmp_path / "tmp_x", "--dtype", "int8")
    done = lxsr("export", "hub", *options, "--name", "my-model")
    assert "without" not in done.stderr
    before, _ = metadata_of(scored_model)
    data, text = metadata_of(tmp_path / "tmp_x")
    assert "\n# my-model\n" in text, "and not the name of the folder"
    assert "tmp_x" not in text
    assert data["license"] == "other"
    assert data["model-index"][0]["name"] == "my-model"
    assert data["model-index"][0]["results"] == before["model-index"][0]["results"]
    for content in ("a ministry", "CC BY 4.0", "P@1 91.2", "## Size and speed"):
        assert text.count(content) == 1


def test_scores_are_not_read_from_the_card(scored_model, tmp_path):
    """A card is text that readers may edit or delete."""
    (scored_model / "README.md").write_text("| xsr en->fr | P@1 99.9 |")
    lxsr("export", "hub", "--model", scored_model, "--output", tmp_path / "hub")
    data, text = metadata_of(tmp_path / "hub")
    assert data["model-index"][0]["results"][0]["metrics"] == [{"type": "P@1", "value": 91.25}]
    assert "| xsr en->fr | P@1 91.2 |" in text
    assert CardContent.read(tmp_path / "hub") == CardContent.read(scored_model)


def test_scores_of_another_model_are_not_used(scored_model, tmp_path):
    replace(CardContent.read(scored_model), model="0123456789ab").write(scored_model)
    fingerprint = SentenceEncoder.from_pretrained(scored_model, "cpu").fingerprint
    done = lxsr("export", "hub", "--model", scored_model, "--output", tmp_path / "hub")
    assert f"{scored_model / 'scores.json'} describes model 0123456789ab" in done.stderr
    assert fingerprint in done.stderr
    assert f"{tmp_path / 'hub' / 'README.md'}: without licence" in done.stderr
    data, text = metadata_of(tmp_path / "hub")
    assert data["license"] == "unknown"
    assert "91.2" not in text


def test_damaged_scores_are_refused_before_anything_is_written(scored_model, tmp_path):
    path = scored_model / "scores.json"
    path.write_text(path.read_text().replace("91.25", "99.25"))
    options = ("--model", scored_model, "--output", tmp_path / "hub")
    refused(lxsr("export", "hub", *options, check=False), path, "crc32", "lxsr export card")
    assert not (tmp_path / "hub").exists()


def test_cards_of_packaged_models_are_written_from_their_scores(tmp_path):
    for name in model_names():
        encoder = SentenceEncoder.from_pretrained(name)
        stored = CardContent.read(encoder.folder)
        assert stored.model == encoder.fingerprint
        shutil.copytree(encoder.folder, tmp_path / name)
        assert write_card(tmp_path / name, encoder) == stored
        cards = []
        for folder in (encoder.folder, tmp_path / name):
            lines = (folder / "README.md").read_text("utf-8").splitlines()
            cards.append([line for line in lines if not line.startswith("| speed on")])
        assert cards[0] == cards[1]


@pytest.mark.slow
def test_the_card_of_the_packaged_model_is_valid_on_a_hub(packaged, tmp_path, monkeypatch):
    """`validate` asks a server; the stand-in applies the rules of the hub's specification."""
    hub = pytest.importorskip("huggingface_hub")
    # The comparison with the library takes seconds, and is tested elsewhere.
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda module: True)
    folder = tmp_path / "my-model"
    export_hub(packaged, folder, dtype="int8", name="org/my-model")
    card = hub.ModelCard.load(folder / "README.md")
    with serving(tmp_path / "cache"):
        card.validate()
        card.data.license_link = "README.md#text"
        with pytest.raises(ValueError, match="license_link"):
            card.validate()
    data = card.data
    assert (data.license, data.model_name) == ("other", "org/my-model")
    assert data.language == packaged.languages
    names = {result.dataset_name.split(" (")[0] for result in data.eval_results}
    assert {"xsr, nn-cosine", "MTEB Tatoeba", "MTEB NTREXBitextMining"} <= names
    assert "tatoeba" in card.text.lower()
    assert "CC BY 4.0" in (folder / "LICENSE.md").read_text("utf-8")
    assert "| source | licence | attribution | pairs |" in card.text


def test_the_graph_uses_the_tokenizer_of_the_folder(model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    lxsr("export", "hub", "--model", model, "--output", tmp_path / "hub", "--drop-order", "--onnx")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "hub" / "tokenizer.json"))
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    ids = np.array([encoding.ids for encoding in tokenizer.encode_batch(SAMPLE)])
    session = onnxruntime.InferenceSession(str(tmp_path / "hub" / "onnx" / "model.onnx"))
    expected = without_order(SentenceEncoder.from_pretrained(model, "cpu")).encode(SAMPLE)
    [vectors] = session.run(["sentence_embedding"], {"input_ids": ids})
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert (tmp_path / "hub" / "tokenizer_config.json").exists()


def test_an_int8_graph_gives_the_vectors_of_the_int8_table(model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    for dtype in ("float32", "int8"):
        folder = tmp_path / dtype
        export_hub(encoder, folder, drop_order=True, with_onnx=True, dtype=dtype)
    float32_size = (tmp_path / "float32" / "onnx" / "model.onnx").stat().st_size
    int8_size = (tmp_path / "int8" / "onnx" / "model.onnx").stat().st_size
    assert int8_size < 0.5 * float32_size
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    assert config["int8"] is True
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    ids = np.array([encoding.ids for encoding in tokenizer.encode_batch(SAMPLE)])
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    vectors = session.run(["sentence_embedding"], {"input_ids": ids})[0]
    expected = SentenceEncoder.from_pretrained(folder, "cpu").encode(SAMPLE)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_graph_of_a_model_with_order_coefficients_is_refused(model, tmp_path):
    options = ("--model", model, "--output", tmp_path / "hub", "--onnx")
    refused(lxsr("export", "hub", *options, check=False), "onnx")
    assert not (tmp_path / "hub").exists()


def test_the_card_of_a_model_folder_has_no_scores_to_index(model):
    lxsr("export", "card", "--model", model)
    data, text = metadata_of(model)
    assert data["library_name"] == "fairseq-lxsr"
    assert "model-index" not in data
    assert text.count("```python") == 1


def test_spellings_have_the_vectors_of_their_pieces_in_table_and_graph(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    chinese = {"read_as": "漢汉語语", "lines": ["汉语"] * 999, "version": 4}
    folder = write_model(tmp_path / "random", num_layers=0, gated=True, **chinese)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    export_hub(encoder, tmp_path / "hub", with_onnx=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "hub" / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    ids = np.array([[vocabulary[piece]] for piece in ("▁汉语", "▁漢語", "▁漢语", "<unk>")])
    session = onnxruntime.InferenceSession(str(tmp_path / "hub" / "onnx" / "model.onnx"))
    in_graph = session.run(["sentence_embedding"], {"input_ids": ids})[0]
    table = load_file(tmp_path / "hub" / "model.safetensors")
    (rows,) = [values for values in table.values() if values.ndim == 2]
    assert len(rows) == len(vocabulary)
    for vectors in (in_graph, rows[ids[:, 0]]):
        np.testing.assert_array_equal(vectors[1:3], vectors[:2])
        assert (vectors[0] != vectors[3]).any()
