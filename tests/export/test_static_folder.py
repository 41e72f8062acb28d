"""The folder of a model without layers, read by sentence-transformers, model2vec and this package."""

import json
import re

import numpy as np
import pytest
import small_model
import toy
from conftest import ROOT, refused
from conftest import lxsr_here as lxsr
from random_model import write_model
from safetensors.numpy import load_file, save_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import to_int4
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_sentence_transformers
from fairseq_lxsr.export.fast_tokenizer import SAMPLE

tokenizers = pytest.importorskip("tokenizers")
# 60 sentences of known words.
TOY_SENTENCES = toy.lines(30, seed=9)
SENTENCES = [
    *TOY_SENTENCES,
    # A long text, marks, letters that no piece has, an empty text, and letters of many scripts.
    "the dog " * 150,
    "كَتَبَ do\u064eg d\u0640og",
    "Ünknown ☃☃ piece",
    "☃",
    "",
    "a ☃ b☃☃",
    "\ue000 dog",
    *SAMPLE,
]
WITHOUT_LAYERS = {"gated": True, "num_layers": 0}
KINDS = ["bpe", "unigram", "unigram of bytes"]


def make_encoder(folder, kind="bpe", **sizes) -> SentenceEncoder:
    """Write a model without layers, and return its encoder."""
    pieces, _, of_bytes = kind.partition(" of ")
    model = write_model(folder, pieces, bool(of_bytes), **WITHOUT_LAYERS | sizes)
    return SentenceEncoder.from_pretrained(model, "cpu")


def normalized(rows: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; rows of zeros stay zeros."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def vectors_by_model2vec(folder, sentences) -> np.ndarray:
    """Return the vectors of model2vec, or if it is not installed, of the same computation."""
    try:
        from model2vec import StaticModel
    except ImportError:
        return vectors_as_of_model2vec(folder, sentences)
    return StaticModel.from_pretrained(folder).encode(sentences)


def vectors_as_of_model2vec(folder, sentences) -> np.ndarray:
    """Compute the mean of the rows of a sentence, without those of the unknown piece."""
    weights = load_file(folder / "model.safetensors")
    rows = weights["embeddings"]
    if "weights" in weights:
        rows = rows * weights["weights"][:, None]
    config = json.loads((folder / "config.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(config["max_length"])
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:
        unknown = model["unk_id"]
    else:
        unknown = tokenizer.token_to_id(model["unk_token"])
    means = np.zeros((len(sentences), rows.shape[1]), np.float32)
    for row, encoding in enumerate(tokenizer.encode_batch(sentences, add_special_tokens=False)):
        ids = [id_ for id_ in encoding.ids if id_ != unknown]
        if ids:
            means[row] = rows[ids].mean(axis=0)
    return normalized(means) if config["normalize"] else means


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_model2vec_gives_the_same_vectors(kind, normalize, tmp_path):
    """Some letters are in no piece; model2vec alone would leave them out."""
    encoder = make_encoder(tmp_path / "random", kind)

    export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize)

    expected = encoder.encode(SENTENCES, normalize=normalize)
    np.testing.assert_allclose(
        vectors_by_model2vec(tmp_path / "st", SENTENCES), expected, atol=1e-5
    )


# -- types of weights


def export_as(encoder, folder, dtype: str):
    options = ("--model", encoder.folder, "--dtype", dtype, "--output", folder)
    lxsr("export", "sentence-transformers", *options)
    return folder


@pytest.mark.parametrize(("dtype", "share"), [("float16", 0.6), ("int8", 0.4)])
def test_smaller_types_of_weights_make_smaller_files(dtype, share, tmp_path):
    """Half or a quarter of float32, and the scales of rows and the names of tensors."""
    encoder = make_encoder(tmp_path / "random")

    smaller = export_as(encoder, tmp_path / dtype, dtype) / "model.safetensors"
    float32 = export_as(encoder, tmp_path / "float32", "float32") / "model.safetensors"

    assert smaller.stat().st_size < share * float32.stat().st_size


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_types_of_weights_give_vectors_close_to_those_of_the_model(dtype, tmp_path):
    encoder = make_encoder(tmp_path / "random")
    folder = export_as(encoder, tmp_path / "st", dtype)

    opened = SentenceEncoder.from_pretrained(folder)

    embeddings = opened.encode(SENTENCES)
    cosines = opened.similarity_pairwise(embeddings, encoder.encode(SENTENCES))
    # Texts without a known piece are zeros, which have no cosine.
    has_pieces = embeddings.any(axis=1)
    # Rounding to int8 moves a weight by less than half a percent of the largest one of its row.
    assert cosines[has_pieces].min() > 0.999


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_model2vec_gives_the_same_vectors_of_smaller_types_of_weights(dtype, tmp_path):
    folder = export_as(make_encoder(tmp_path / "random"), tmp_path / "st", dtype)

    vectors = vectors_by_model2vec(folder, SENTENCES)

    # Values are around one, and model2vec may compute with float16, of about three digits.
    embeddings = SentenceEncoder.from_pretrained(folder).encode(SENTENCES)
    np.testing.assert_allclose(vectors, embeddings, atol=2e-3)


def test_a_table_of_4_bits_is_exported_exactly_in_8_bits(tmp_path):
    encoder = make_encoder(tmp_path / "random")
    bag = Bag(encoder.size, {TABLE: PackedTable(*to_int4(encoder.table))})
    packed = SentenceEncoder(bag, encoder.tokenizer, encoder.config, folder=encoder.folder)

    export_sentence_transformers(packed, tmp_path / "st", dtype="int8")

    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(opened.encode(SENTENCES), packed.encode(SENTENCES), atol=1e-6)


def test_a_model_with_order_coefficients_is_not_exported_in_int8(tmp_path):
    encoder = make_encoder(tmp_path / "random", order_coefficients=1)
    options = ("--model", encoder.folder, "--output", tmp_path / "st", "--dtype", "int8")

    done = lxsr("export", "sentence-transformers", *options, check=False)

    refused(done, str(encoder.folder), "dtype int8")
    assert not (tmp_path / "st").exists()


# -- reading the folder with this package


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_opens_as_the_same_model(kind, version, tmp_path):
    """`version` is that of the normalization of text; 4 folds letters."""
    encoder = make_encoder(tmp_path / "random", kind, version=version)
    export_sentence_transformers(encoder, tmp_path / "st")

    opened = SentenceEncoder.from_pretrained(tmp_path / "st")

    assert opened.tokenizer.options == encoder.tokenizer.options
    assert opened.max_seq_length == encoder.max_seq_length
    np.testing.assert_allclose(opened.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_opened_folder_can_be_saved_and_embedded_with_as_a_model_folder(kind, tmp_path):
    encoder = make_encoder(tmp_path / "random", kind)
    export_sentence_transformers(encoder, tmp_path / "st")
    (tmp_path / "text").write_text("a dog\n", encoding="utf-8")

    SentenceEncoder.from_pretrained(tmp_path / "st").save(tmp_path / "model")
    files = ("--input", tmp_path / "text", "--output", tmp_path / "o.npy")
    done = lxsr("embed", "--model", tmp_path / "model", *files)

    assert SentenceEncoder.from_pretrained(tmp_path / "model").fingerprint in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), encoder.encode(["a dog"]), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_sentence_transformers_saved_after_training_opens(kind, tmp_path):
    """It has only two files, and another name of the table."""
    st = pytest.importorskip("sentence_transformers")
    encoder = make_encoder(tmp_path / "random", kind)
    export_sentence_transformers(encoder, tmp_path / "st", (), normalize=True)
    model = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    table, _normalization = model
    weights = table.embedding.weight
    # Training changes rows of pieces that occur: here the first ones and, without bytes, the last.
    # Row 3 is that of the unknown piece, which does not occur.
    trained_rows = [*range(3), *range(4, 60)]
    if "bytes" not in kind:
        trained_rows.append(len(weights) - 1)
    noise = np.random.default_rng(1).normal(size=(len(trained_rows), weights.shape[1]))
    weights.data[trained_rows] += weights.data.new_tensor(noise)
    model.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "config.json").exists()

    opened = SentenceEncoder.from_pretrained(tmp_path / "saved")

    expected = model.encode(SENTENCES)
    # Letters without a row are unknown to the tokenizer of the folder.
    is_known = expected.any(axis=1)
    assert is_known[: len(TOY_SENTENCES)].all()
    embeddings = opened.encode(SENTENCES, normalize=True)
    np.testing.assert_allclose(embeddings[is_known], expected[is_known], atol=1e-5)


def test_a_folder_without_modules_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text("[]")

    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.fixture
def folder_without_checksums(tmp_path):
    """An exported folder as sentence-transformers would save it."""
    export_sentence_transformers(make_encoder(tmp_path / "random"), tmp_path / "st")
    small_model.drop_checksums(tmp_path / "st")
    return tmp_path / "st"


def test_a_table_with_a_row_less_than_the_tokenizer_has_pieces_is_refused(
    folder_without_checksums,
):
    path = folder_without_checksums / "model.safetensors"
    rows = load_file(path)["embeddings"]
    save_file({"embeddings": rows[:-1]}, path)

    with pytest.raises(InputError, match=rf"\b{len(rows) - 1} .*\b{len(rows)} pieces"):
        SentenceEncoder.from_pretrained(folder_without_checksums)


def test_a_tokenizer_of_another_kind_is_refused(folder_without_checksums):
    (folder_without_checksums / "tokenizer.json").write_text(
        '{"model": {"type": "WordPiece"}, "normalizer": null}'
    )

    with pytest.raises(InputError, match=re.escape(str(folder_without_checksums))):
        SentenceEncoder.from_pretrained(folder_without_checksums)


# -- models with order coefficients


def test_a_model_with_order_coefficients_needs_a_module_of_this_package(tmp_path):
    encoder = make_encoder(tmp_path / "random", order_coefficients=2)

    options = ("--model", encoder.folder, "--output", tmp_path / "st")
    lxsr("export", "sentence-transformers", *options)

    assert "SentenceModule" in (tmp_path / "st" / "modules.json").read_text()


def test_drop_order_exports_the_mean_of_the_rows_which_needs_no_module(tmp_path):
    encoder = make_encoder(tmp_path / "random", order_coefficients=2)
    ids, lengths = encoder.split(SENTENCES)
    ids_of_sentences = np.split(ids, lengths.cumsum()[:-1])
    means = np.zeros((len(SENTENCES), encoder.output_dim))
    for row, sentence_ids in enumerate(ids_of_sentences):
        if len(sentence_ids):
            means[row] = encoder.table[sentence_ids].mean(axis=0)

    options = ("--model", encoder.folder, "--output", tmp_path / "st")
    lxsr("export", "sentence-transformers", *options, "--drop-order", "--normalize")

    vectors = vectors_by_model2vec(tmp_path / "st", SENTENCES)
    np.testing.assert_allclose(vectors, normalized(means), atol=1e-5)
    modules = (tmp_path / "st" / "modules.json").read_text()
    # The package is named only as the program that wrote the folder.
    assert "fairseq" not in re.sub(r'"exported_by.*', "", modules)


def test_drop_order_is_refused_for_a_model_with_layers(tmp_path):
    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1, order_coefficients=1)
    options = ("--model", tmp_path / "model", "--output", tmp_path / "st", "--drop-order")

    done = lxsr("export", "sentence-transformers", *options, check=False)

    refused(done, "drop_order")


# -- normalization rules, and training


def code_points(text: str) -> str:
    """Return the letters as in a normalization rule of SentencePiece."""
    return " ".join(f"{ord(letter):X}" for letter in text)


def test_the_normalization_rule_of_a_model_is_exported(tmp_path):
    """Unlike NFKC, the rule leaves half-width kana and their marks apart, and composes ü and ǖ."""
    replacements = {
        "ｶ": "カ",
        "ﾞ": "\u3099",
        "カ\u3099": "ガ",
        "u\u0308": "ü",
        "u\u0308\u0304": "ǖ",
        "i\u0328": "į",
        "臺": "台",
    }
    lines = [f"{code_points(old)}\t{code_points(new)}" for old, new in replacements.items()]
    rule = tmp_path / "rule.tsv"
    rule.write_text("\n".join(lines), encoding="ascii")
    folder = write_model(tmp_path / "m", byte_fallback=True, rule=rule, **WITHOUT_LAYERS)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    # Letters of the rule alone, after each other, with marks in either order, and with other marks.
    texts = [
        *replacements,
        "ｶﾞ カ\u3099 ｶ\u3099 ﾞ",
        "u\u0308\u0304 u\u0308 u\u0304\u0308",
        "i\u0328\u0307 a\u0323\u0302",
        "臺灣",
    ]

    export_sentence_transformers(encoder, tmp_path / "st", texts)

    expected = encoder.encode(texts)
    vectors = vectors_by_model2vec(tmp_path / "st", texts)
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(opened.encode(texts), expected, atol=1e-6)


def test_the_code_of_docs_tools_trains_an_exported_model(tmp_path, monkeypatch):
    """The block trains `exported/static` on two pairs, and saves `model`."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("datasets")
    page = (ROOT / "docs" / "tools.md").read_text()
    [block] = re.findall(
        r"^```python\n(import shutil\n\nfrom datasets .*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    encoder = make_encoder(tmp_path / "random")
    export_sentence_transformers(encoder, tmp_path / "exported" / "static")
    monkeypatch.chdir(tmp_path)

    exec(block, {})

    trained = SentenceEncoder.from_pretrained(tmp_path / "model")
    change = trained.encode("It rains.") - encoder.encode("It rains.")
    assert np.abs(change).max() > 1e-3
