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
# A long text, letters that the model does not know, an empty text, and symbols written out.
TEXTS += ["the dog " * 150, "Ünknown ☃☃ piece", "☃", "", "a ☃ b☃☃", "the <mask> of <pad>"]
KINDS = ["bpe", "unigram"]


@pytest.fixture(autouse=True)
def without_comparison(monkeypatch):
    """The comparison by sentence-transformers takes seconds to import it."""
    monkeypatch.setattr("fairseq_lxsr.export.st_folder.is_missing", lambda _: True)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Model folders without layers, by the kind of their SentencePiece model."""
    folders = {}
    for kind in KINDS:
        path = tmp_path_factory.mktemp(kind) / "model"
        folders[kind] = write_model(path, kind, num_layers=0, gated=True)
    return folders


@pytest.fixture
def export(models):
    """Return a function that exports a model to the subfolder `st` of a folder."""

    def export(folder, kind="unigram", dtype="float32"):
        """Return the encoder of the model and the exported folder."""
        encoder = SentenceEncoder.from_pretrained(models[kind], "cpu")
        export_sentence_transformers(encoder, folder / "st", dtype=dtype)
        return encoder, folder / "st"

    return export


def save_as_trained(folder, output):
    """Write what sentence-transformers saves in `output` after training the model of `folder`.

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


def vectors_by_library(folder, texts):
    """Compute what sentence-transformers computes: the mean of the rows of a text."""
    (rows,) = load_file(folder / "model.safetensors").values()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    means = np.zeros((len(texts), rows.shape[1]), np.float32)
    for row, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        if encoding.ids:
            means[row] = rows[encoding.ids].mean(axis=0)
    return means


# -- as exported


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_gives_exactly_the_vectors_of_its_weights(export, kind, dtype, tmp_path):
    encoder, folder = export(tmp_path, kind, dtype)
    stored = load_file(folder / "model.safetensors")
    rows = stored["embeddings"].astype(np.float32)
    # Rows of int8 have a scale each.
    if "weights" in stored:
        rows *= stored["weights"][:, None]
    # Here a bag scales its vectors by the root of their width, in sentence-transformers it does not.
    rows /= np.float32(rows.shape[1] ** 0.5)
    # Rows behind the vocabulary belong to pieces outside the dictionary.
    bag = Bag(encoder.size, {TABLE: rows[: encoder.size.vocab_size]})
    expected = SentenceEncoder(bag, encoder.tokenizer, encoder.config)

    opened = SentenceEncoder.from_pretrained(folder)

    np.testing.assert_array_equal(opened.encode(TEXTS), expected.encode(TEXTS))
    np.testing.assert_array_equal(opened.table, expected.table)


@pytest.mark.parametrize(("dtype", "is_packed"), [("float32", False), ("int8", True)])
def test_only_a_table_of_int8_stays_packed(export, dtype, is_packed, tmp_path):
    _, folder = export(tmp_path, dtype=dtype)

    opened = SentenceEncoder.from_pretrained(folder)

    assert (opened.packed_table is not None) == is_packed


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_opens_without_the_tokenizers_library(export, kind, tmp_path, monkeypatch):
    encoder, folder = export(tmp_path, kind)
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda _: True)

    opened = SentenceEncoder.from_pretrained(folder)

    np.testing.assert_allclose(opened.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)


# -- trained further by sentence-transformers, and saved in the same folder


@pytest.fixture(params=KINDS)
def trained_in_place(export, request, tmp_path):
    """The encoder of an export, and the exported folder after it was trained further."""
    encoder, folder = export(tmp_path, request.param)
    save_as_trained(folder, folder)
    return encoder, folder


def test_a_folder_trained_in_place_has_the_new_rows(trained_in_place):
    encoder, folder = trained_in_place
    expected = vectors_by_library(folder, TEXTS)
    is_known = expected.any(axis=1)

    embeddings = SentenceEncoder.from_pretrained(folder).encode(TEXTS)

    np.testing.assert_allclose(embeddings[is_known], expected[is_known], atol=1e-5)
    changes = np.abs(embeddings - encoder.encode(TEXTS)).max(axis=1)
    assert changes[is_known].min() > 1e-3


def test_a_folder_trained_in_place_is_read_by_its_sentencepiece_model(trained_in_place):
    _, folder = trained_in_place

    assert not isinstance(SentenceEncoder.from_pretrained(folder).tokenizer, LibraryTokenizer)


def test_training_adds_the_pieces_outside_the_dictionary_to_it(trained_in_place):
    """Their rows were trained too."""
    encoder, folder = trained_in_place

    trained = SentenceEncoder.from_pretrained(folder)

    assert trained.size.vocab_size > encoder.size.vocab_size


def test_a_folder_trained_in_place_can_be_saved_as_a_model_folder(trained_in_place, tmp_path):
    _, folder = trained_in_place
    trained = SentenceEncoder.from_pretrained(folder)

    trained.save(tmp_path / "saved")

    saved = SentenceEncoder.from_pretrained(tmp_path / "saved", "cpu")
    np.testing.assert_array_equal(saved.encode(TEXTS), trained.encode(TEXTS))


def test_a_folder_trained_in_place_can_be_exported_again(trained_in_place, tmp_path):
    _, folder = trained_in_place
    trained = SentenceEncoder.from_pretrained(folder)

    export_sentence_transformers(trained, tmp_path / "exported")

    reopened = SentenceEncoder.from_pretrained(tmp_path / "exported")
    np.testing.assert_allclose(reopened.encode(TEXTS), trained.encode(TEXTS), atol=1e-6)


# -- trained further, and saved in another folder, which lacks the pieces of the export


@pytest.fixture(params=KINDS)
def trained_elsewhere(export, request, tmp_path):
    """An exported folder, and one in which sentence-transformers saved it after training."""
    _, folder = export(tmp_path, request.param)
    save_as_trained(folder, tmp_path / "tuned")
    return folder, tmp_path / "tuned"


def test_a_folder_saved_elsewhere_is_read_by_the_tokenizers_library(trained_elsewhere):
    _, tuned_folder = trained_elsewhere

    tuned = SentenceEncoder.from_pretrained(tuned_folder)

    assert isinstance(tuned.tokenizer, LibraryTokenizer)
    expected = vectors_by_library(tuned_folder, TEXTS)
    np.testing.assert_allclose(tuned.encode(TEXTS), expected, atol=1e-5)


def test_a_folder_saved_elsewhere_is_refused_without_the_tokenizers_library(
    trained_elsewhere, monkeypatch
):
    _, tuned_folder = trained_elsewhere
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda _: True)

    with pytest.raises(InputError, match=rf"{tuned_folder}.*needs tokenizers.*pip install"):
        SentenceEncoder.from_pretrained(tuned_folder)


@pytest.mark.parametrize(
    "write", [SentenceEncoder.save, export_sentence_transformers], ids=["save", "export"]
)
def test_a_folder_saved_elsewhere_is_not_written_without_its_sentencepiece_model(
    trained_elsewhere, tmp_path, write
):
    """The message says which folder to copy into it."""
    _, tuned_folder = trained_elsewhere
    tuned = SentenceEncoder.from_pretrained(tuned_folder)

    with pytest.raises(InputError, match=rf"{tuned_folder}: .*SentencePiece.*\blxsr\b"):
        write(tuned, tmp_path / "output")

    assert not (tmp_path / "output").exists()


def test_a_folder_saved_elsewhere_can_be_saved_with_a_copy_of_the_pieces(
    trained_elsewhere, tmp_path
):
    folder, tuned_folder = trained_elsewhere
    expected = vectors_by_library(tuned_folder, TEXTS)
    is_known = expected.any(axis=1)
    shutil.copytree(folder / PIECES_FOLDER, tuned_folder / PIECES_FOLDER)

    SentenceEncoder.from_pretrained(tuned_folder).save(tmp_path / "saved")

    saved = SentenceEncoder.from_pretrained(tmp_path / "saved", "cpu").encode(TEXTS)
    np.testing.assert_allclose(saved[is_known], expected[is_known], atol=1e-5)


# -- changed and damaged


def append_replacement(description, kind):
    """Let the normalizer read dog as cat."""
    step = {"type": "Replace", "pattern": {"String": "dog"}, "content": "cat"}
    description["normalizer"]["normalizers"].append(step)


def change_division(description, kind):
    """Let the model divide words into other pieces."""
    if kind == "bpe":
        description["model"]["merges"].reverse()
    else:
        vocabulary = description["model"]["vocab"]
        piece, log_probability = vocabulary[9]
        vocabulary[9] = [piece, log_probability + 9]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [append_replacement, change_division])
def test_a_changed_tokenizer_is_not_read_by_the_pieces_of_the_export(
    export, kind, change, tmp_path
):
    _, folder = export(tmp_path, kind)
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    change(description, kind)
    path.write_text(json.dumps(description), encoding="utf-8")
    small_model.drop_checksums(folder)

    opened = SentenceEncoder.from_pretrained(folder)

    assert isinstance(opened.tokenizer, LibraryTokenizer)
    np.testing.assert_allclose(opened.encode(TEXTS), vectors_by_library(folder, TEXTS), atol=1e-5)


@pytest.fixture
def trained_folder(export, tmp_path):
    """A folder that was trained further in place, so that modules.json has no checksums."""
    _, folder = export(tmp_path)
    save_as_trained(folder, folder)
    return folder


@pytest.mark.parametrize("name", TEXT_FILES)
def test_pieces_with_a_changed_bit_are_named(trained_folder, name):
    path = trained_folder / PIECES_FOLDER / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"{path}: .*checksum"):
        SentenceEncoder.from_pretrained(trained_folder)


@pytest.mark.parametrize("name", TEXT_FILES)
def test_missing_pieces_are_named(trained_folder, name):
    path = trained_folder / PIECES_FOLDER / name
    path.unlink()

    with pytest.raises(InputError, match=f"{path}: no such file"):
        SentenceEncoder.from_pretrained(trained_folder)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"encoder": {}}, id="no sizes"),
        pytest.param({"encoder": {"vocab_size": 9}}, id="other vocabulary"),
        pytest.param(
            {"encoder": {"vocab_size": 10**9, "padding_idx": 1, "embed_dim": 32, "num_heads": 1}},
            id="huge vocabulary",
        ),
        pytest.param({"architecture": "laser"}, id="other network"),
        pytest.param({"unknown_row": 10**9}, id="row behind the end"),
        pytest.param({"unknown_row": -(10**9)}, id="row before the beginning"),
        pytest.param({"unknown_row": "3"}, id="row is text"),
        pytest.param({"unknown_row": None}, id="no row"),
        pytest.param({"text": {"lowercase": 1}}, id="number for a truth value"),
        pytest.param({"text": {"__class__": "x"}}, id="unknown text option"),
        pytest.param({"text": None}, id="no text options"),
        pytest.param({"files": {"../../dict.txt": "0"}}, id="file outside the folder"),
        pytest.param({"files": []}, id="list of files"),
    ],
)
def test_a_hostile_description_of_the_pieces_is_refused(edit, trained_folder):
    path = trained_folder / PIECES_FOLDER / "config.json"
    description = json.loads(path.read_text(encoding="utf-8")) | edit
    # With a valid checksum.
    del description["crc32"]
    path.write_text(json.dumps(sealed(description)), encoding="utf-8")

    with pytest.raises(InputError, match=re.escape(str(trained_folder))):
        SentenceEncoder.from_pretrained(trained_folder)


def test_a_deeply_nested_description_of_the_pieces_is_refused(trained_folder):
    path = trained_folder / PIECES_FOLDER / "config.json"
    path.write_text("[" * 10**5, encoding="utf-8")

    with pytest.raises(InputError, match=f"{path}: not the config"):
        SentenceEncoder.from_pretrained(trained_folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "lxsr/../../secret"])
def test_checksums_cannot_name_files_outside_the_folder(export, name, tmp_path):
    _, folder = export(tmp_path)
    (tmp_path / "secret").write_text("secret")
    path = folder / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8"))
    modules[0]["files"][name] = "0" * 64
    # With a valid checksum of the file itself.
    del modules[0][st_checksums.SEAL]
    modules[0][st_checksums.SEAL] = st_checksums._checksum(modules)
    path.write_text(json.dumps(modules), encoding="utf-8")

    with pytest.raises(InputError, match=f"{path}: .*{re.escape(repr(name))}"):
        SentenceEncoder.from_pretrained(folder)


def add_invalid_character_map(description):
    step = {"type": "Precompiled", "precompiled_charsmap": "////"}
    description["normalizer"]["normalizers"].append(step)


def rename_a_symbol(description):
    description["model"]["vocab"][1][0] = "[PAD]"


def remove_the_last_piece(description):
    """The table has a row for it."""
    description["model"]["vocab"].pop()


def write_changed_tokenizer(folder, content: str) -> None:
    """Replace the tokenizer of an export, which nothing but the library can read any more."""
    shutil.rmtree(folder / PIECES_FOLDER)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    small_model.drop_checksums(folder)


@pytest.mark.parametrize(
    "damage", [add_invalid_character_map, rename_a_symbol, remove_the_last_piece]
)
def test_an_invalid_tokenizer_is_refused_in_one_message(export, damage, tmp_path, capfd):
    """The library would print a panic of its own to standard error."""
    _, folder = export(tmp_path)
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    damage(description)
    write_changed_tokenizer(folder, json.dumps(description))

    with pytest.raises(InputError, match=re.escape(str(folder))):
        SentenceEncoder.from_pretrained(folder)

    assert not capfd.readouterr().err


def test_a_cut_tokenizer_is_refused_in_one_message(export, tmp_path, capfd):
    _, folder = export(tmp_path)
    content = (folder / "tokenizer.json").read_text(encoding="utf-8")
    write_changed_tokenizer(folder, content[:-9])

    with pytest.raises(InputError, match=re.escape(str(folder))):
        SentenceEncoder.from_pretrained(folder)

    assert not capfd.readouterr().err
