"""Folders for sentence-transformers: as exported, trained further, changed and damaged."""

import json
import re
import shutil

import numpy as np
import pytest
import small_model
import toy
from random_model import write_model
from safetensors.numpy import load_file, save_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder import st_checksums
from fairseq_lxsr.encoder.exported_pieces import PIECES_FOLDER
from fairseq_lxsr.encoder.library_tokenizer import LibraryTokenizer
from fairseq_lxsr.encoder.model_folder import TEXT_FILES
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_sentence_transformers
from fairseq_lxsr.files.records import sealed

tokenizers = pytest.importorskip("tokenizers")
TEXTS = toy.lines(30, seed=9)
TEXTS += ["the dog " * 150, "Ünknown ☃☃ piece", "☃", "", "a ☃ b☃☃", "the <mask> of <pad>"]
KINDS = ["bpe", "unigram"]


@pytest.fixture(autouse=True)
def without_comparison(monkeypatch):
    """The comparison by sentence-transformers takes seconds to import it."""
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda _: True)


def export(folder, kind="unigram", dtype="float32"):
    """Export a model; return its encoder and the exported folder."""
    path = write_model(folder / "model", kind, num_layers=0, gated=True)
    encoder = SentenceEncoder.from_pretrained(path, "cpu")
    export_sentence_transformers(encoder, folder / "st", dtype=dtype)
    return encoder, folder / "st"


def train(folder, output):
    """Write what sentence-transformers writes after training.

    All rows change except that of the unknown symbol, which occurs in no text.
    """
    weights = load_file(folder / "model.safetensors")["embeddings"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    steps = np.random.default_rng(1).normal(size=weights.shape).astype(np.float32)
    steps[tokenizer.token_to_id("<unk>") or 3] = 0
    output.mkdir(exist_ok=True)
    if output != folder:
        shutil.copyfile(folder / "modules.json", output / "modules.json")
    save_file({"embedding.weight": weights + steps}, output / "model.safetensors")
    tokenizer.save(str(output / "tokenizer.json"))
    small_model.drop_checksums(output)


def by_library(folder, texts):
    """Compute what sentence-transformers computes: the mean of the rows of a text."""
    (rows,) = load_file(folder / "model.safetensors").values()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    means = np.zeros((len(texts), rows.shape[1]), np.float32)
    for row, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        if encoding.ids:
            means[row] = rows[encoding.ids].mean(axis=0)
    return means


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_gives_exactly_the_vectors_of_its_weights(kind, dtype, tmp_path):
    encoder, folder = export(tmp_path, kind, dtype)
    stored = load_file(folder / "model.safetensors")
    rows = stored["embeddings"].astype(np.float32)
    if "weights" in stored:
        rows *= stored["weights"][:, None]
    rows /= np.float32(rows.shape[1] ** 0.5)
    bag = Bag(encoder.size, {TABLE: rows[: encoder.size.vocab_size]})
    expected = SentenceEncoder(bag, encoder.tokenizer, encoder.config)
    opened = SentenceEncoder.from_pretrained(folder)
    np.testing.assert_array_equal(opened.encode(TEXTS), expected.encode(TEXTS))
    np.testing.assert_array_equal(opened.table, expected.table)
    assert (opened.packed_table is not None) == (dtype == "int8")


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_opens_without_the_tokenizers_library(kind, tmp_path, monkeypatch):
    encoder, folder = export(tmp_path, kind)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda _: True)
    opened = SentenceEncoder.from_pretrained(folder)
    np.testing.assert_allclose(opened.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_trained_in_place_has_the_new_rows_and_its_pieces(kind, tmp_path):
    encoder, folder = export(tmp_path, kind)
    before = encoder.encode(TEXTS)
    train(folder, folder)
    expected = by_library(folder, TEXTS)
    is_known = expected.any(axis=1)
    trained = SentenceEncoder.from_pretrained(folder)
    assert not isinstance(trained.tokenizer, LibraryTokenizer)
    embeddings = trained.encode(TEXTS)
    np.testing.assert_allclose(embeddings[is_known], expected[is_known], atol=1e-5)
    assert np.abs(embeddings - before)[is_known].max(axis=1).min() > 1e-3
    # Pieces outside the dictionary were trained too, so they belong to it now.
    assert trained.size.vocab_size > encoder.size.vocab_size
    trained.save(tmp_path / "saved")
    saved = SentenceEncoder.from_pretrained(tmp_path / "saved", "cpu")
    np.testing.assert_array_equal(saved.encode(TEXTS), embeddings)
    export_sentence_transformers(trained, tmp_path / "exported")
    reopened = SentenceEncoder.from_pretrained(tmp_path / "exported")
    np.testing.assert_allclose(reopened.encode(TEXTS), embeddings, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_saved_elsewhere_is_read_by_the_tokenizers_library(kind, tmp_path, monkeypatch):
    _, folder = export(tmp_path, kind)
    train(folder, tmp_path / "tuned")
    tuned = SentenceEncoder.from_pretrained(tmp_path / "tuned")
    assert isinstance(tuned.tokenizer, LibraryTokenizer)
    expected = by_library(tmp_path / "tuned", TEXTS)
    np.testing.assert_allclose(tuned.encode(TEXTS), expected, atol=1e-5)
    message = rf"{tmp_path}/tuned: .*SentencePiece.*\blxsr\b"
    with pytest.raises(InputError, match=message):
        tuned.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(InputError, match=message):
        export_sentence_transformers(tuned, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()

    shutil.copytree(folder / PIECES_FOLDER, tmp_path / "tuned" / PIECES_FOLDER)
    tuned = SentenceEncoder.from_pretrained(tmp_path / "tuned")
    tuned.save(tmp_path / "saved")
    saved = SentenceEncoder.from_pretrained(tmp_path / "saved", "cpu")
    is_known = expected.any(axis=1)
    np.testing.assert_allclose(saved.encode(TEXTS)[is_known], expected[is_known], atol=1e-5)

    shutil.rmtree(tmp_path / "tuned" / PIECES_FOLDER)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda _: True)
    with pytest.raises(InputError, match=rf"{tmp_path}/tuned.*needs tokenizers.*pip install"):
        SentenceEncoder.from_pretrained(tmp_path / "tuned")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["vocabulary", "normalizer"])
def test_a_changed_tokenizer_is_not_read_by_the_pieces_of_the_export(kind, change, tmp_path):
    _, folder = export(tmp_path, kind)
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    if change == "normalizer":
        step = {"type": "Replace", "pattern": {"String": "dog"}, "content": "cat"}
        description["normalizer"]["normalizers"].append(step)
    elif kind == "bpe":
        description["model"]["merges"].reverse()
    else:
        description["model"]["vocab"][9][1] += 9
    path.write_text(json.dumps(description), encoding="utf-8")
    small_model.drop_checksums(folder)
    opened = SentenceEncoder.from_pretrained(folder)
    assert isinstance(opened.tokenizer, LibraryTokenizer)
    np.testing.assert_allclose(opened.encode(TEXTS), by_library(folder, TEXTS), atol=1e-5)


def test_damaged_pieces_of_a_folder_trained_in_place_are_named(tmp_path):
    _, folder = export(tmp_path)
    train(folder, folder)
    for name in TEXT_FILES:
        path = folder / PIECES_FOLDER / name
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{path}: .*checksum"):
            SentenceEncoder.from_pretrained(folder)
        path.unlink()
        with pytest.raises(InputError, match=f"{path}: no such file"):
            SentenceEncoder.from_pretrained(folder)
        path.write_bytes(content)
    assert SentenceEncoder.from_pretrained(folder).encode("a dog").any()


@pytest.mark.parametrize(
    "edit",
    [
        {"encoder": {}},
        {"encoder": {"vocab_size": 9}},
        {"encoder": {"vocab_size": 10**9, "padding_idx": 1, "embed_dim": 32, "num_heads": 1}},
        {"architecture": "laser"},
        {"unknown_row": 10**9},
        {"unknown_row": -(10**9)},
        {"unknown_row": "3"},
        {"unknown_row": None},
        {"text": {"lowercase": 1}},
        {"text": {"__class__": "x"}},
        {"text": None},
        {"files": {"../../dict.txt": "0"}},
        {"files": []},
    ],
)
def test_a_hostile_description_of_the_pieces_is_refused(edit, tmp_path):
    _, folder = export(tmp_path)
    train(folder, folder)
    path = folder / PIECES_FOLDER / "config.json"
    description = json.loads(path.read_text(encoding="utf-8")) | edit
    del description["crc32"]
    path.write_text(json.dumps(sealed(description)), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(str(folder))):
        SentenceEncoder.from_pretrained(folder)
    path.write_text("[" * 10**5, encoding="utf-8")
    with pytest.raises(InputError, match=f"{path}: not the config"):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "lxsr/../../secret"])
def test_checksums_cannot_name_files_outside_the_folder(name, tmp_path):
    _, folder = export(tmp_path)
    (tmp_path / "secret").write_text("secret")
    path = folder / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8"))
    modules[0]["files"][name] = "0" * 64
    del modules[0][st_checksums.SEAL]
    modules[0][st_checksums.SEAL] = st_checksums._checksum(modules)
    path.write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(InputError, match=f"{path}: .*{re.escape(repr(name))}"):
        SentenceEncoder.from_pretrained(folder)


@pytest.mark.parametrize("damage", ["not JSON", "charsmap", "other symbols", "gap"])
def test_a_damaged_tokenizer_ends_in_one_message(damage, tmp_path, capfd):
    _, folder = export(tmp_path)
    shutil.rmtree(folder / PIECES_FOLDER)
    path = folder / "tokenizer.json"
    content = path.read_text(encoding="utf-8")
    description = json.loads(content)
    if damage == "charsmap":
        step = {"type": "Precompiled", "precompiled_charsmap": "////"}
        description["normalizer"]["normalizers"].append(step)
    elif damage == "other symbols":
        description["model"]["vocab"][1][0] = "[PAD]"
    elif damage == "gap":
        description["model"]["vocab"].pop()
    content = json.dumps(description) if damage != "not JSON" else content[:-9]
    path.write_text(content, encoding="utf-8")
    small_model.drop_checksums(folder)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        SentenceEncoder.from_pretrained(folder)
    assert not capfd.readouterr().err
