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
SENTENCES = toy.lines(30, seed=9)
SENTENCES += [
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


def model_of(folder, kind="bpe", **sizes) -> SentenceEncoder:
    pieces, _, of_bytes = kind.partition(" of ")
    model = write_model(folder, pieces, bool(of_bytes), **WITHOUT_LAYERS | sizes)
    return SentenceEncoder.from_pretrained(model, "cpu")


def by_model2vec(folder, sentences) -> np.ndarray:
    """Return the vectors of model2vec, which skips the unknown piece.

    The library computes them if it is installed, else the code below.
    """
    try:
        from model2vec import StaticModel
    except ImportError:
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
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return means / np.maximum(lengths, 1e-12) if config["normalize"] else means
    return StaticModel.from_pretrained(folder).encode(sentences)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_model2vec_gives_the_same_vectors(kind, normalize, tmp_path):
    """Some letters are in no piece; model2vec alone would leave them out."""
    encoder = model_of(tmp_path / "random", kind)
    export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize)
    expected = encoder.encode(SENTENCES, normalize=normalize)
    np.testing.assert_allclose(by_model2vec(tmp_path / "st", SENTENCES), expected, atol=1e-5)


@pytest.mark.parametrize(("dtype", "share"), [("float16", 0.6), ("int8", 0.4)])
def test_smaller_types_of_weights_give_close_vectors(dtype, share, tmp_path):
    encoder = model_of(tmp_path / "random")
    sizes = {}
    for name in ("float32", dtype):
        folder = tmp_path / name
        options = ("--model", encoder.folder, "--dtype", name, "--output", folder)
        lxsr("export", "sentence-transformers", *options)
        sizes[name] = (folder / "model.safetensors").stat().st_size
    assert sizes[dtype] < share * sizes["float32"]
    opened = SentenceEncoder.from_pretrained(folder)
    embeddings = opened.encode(SENTENCES)
    cosines = opened.similarity_pairwise(embeddings, encoder.encode(SENTENCES))
    assert cosines[embeddings.any(axis=1)].min() > 0.999
    np.testing.assert_allclose(by_model2vec(folder, SENTENCES), embeddings, atol=2e-3)


def test_a_table_of_4_bits_is_exported_exactly_in_8_bits(tmp_path):
    encoder = model_of(tmp_path / "random")
    table = PackedTable(*to_int4(encoder.table))
    packed = SentenceEncoder(
        Bag(encoder.size, {TABLE: table}), encoder.tokenizer, encoder.config, folder=encoder.folder
    )
    export_sentence_transformers(packed, tmp_path / "st", dtype="int8")
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(opened.encode(SENTENCES), packed.encode(SENTENCES), atol=1e-6)


def test_a_model_with_order_coefficients_is_not_exported_in_int8(tmp_path):
    encoder = model_of(tmp_path / "random", order_coefficients=1)
    options = ("--model", encoder.folder, "--output", tmp_path / "st", "--dtype", "int8")
    done = lxsr("export", "sentence-transformers", *options, check=False)
    refused(done, str(encoder.folder), "dtype int8")
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_opens_as_the_same_model(kind, version, tmp_path):
    encoder = model_of(tmp_path / "random", kind, version=version)
    export_sentence_transformers(encoder, tmp_path / "st")
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    assert opened.tokenizer.options == encoder.tokenizer.options
    assert opened.max_seq_length == encoder.max_seq_length
    np.testing.assert_allclose(opened.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)
    opened.save(tmp_path / "model")
    (tmp_path / "text").write_text("a dog\n", encoding="utf-8")
    files = ("--input", tmp_path / "text", "--output", tmp_path / "o.npy")
    done = lxsr("embed", "--model", tmp_path / "model", *files)
    assert SentenceEncoder.from_pretrained(tmp_path / "model").fingerprint in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), encoder.encode(["a dog"]), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_sentence_transformers_saved_after_training_opens(kind, tmp_path):
    """It has only two files, and another name of the table."""
    st = pytest.importorskip("sentence_transformers")
    export_sentence_transformers(model_of(tmp_path / "random", kind), tmp_path / "st", (), True)
    model = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    # The table, and the normalization of vectors.
    assert len(model) == 2
    weights = model[0].embedding.weight
    # All rows but 3, which is that of the unknown piece.
    trained_rows = [*range(3), *range(4, 60)]
    if "bytes" not in kind:
        trained_rows.append(len(weights) - 1)
    noise = np.random.default_rng(1).normal(size=(len(trained_rows), 32))
    weights.data[trained_rows] += weights.data.new_tensor(noise)
    model.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "config.json").exists()
    opened = SentenceEncoder.from_pretrained(tmp_path / "saved")
    expected = model.encode(SENTENCES)
    # Letters without a row are unknown to the tokenizer of the folder.
    is_known = expected.any(axis=1)
    assert is_known[:62].all()
    embeddings = opened.encode(SENTENCES, normalize=True)
    np.testing.assert_allclose(embeddings[is_known], expected[is_known], atol=1e-5)


def test_invalid_folders_of_sentence_transformers_are_refused(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        SentenceEncoder.from_pretrained(tmp_path)
    encoder = model_of(tmp_path / "random")
    export_sentence_transformers(encoder, tmp_path / "st")
    small_model.drop_checksums(tmp_path / "st")
    rows = load_file(tmp_path / "st" / "model.safetensors")["embeddings"]
    save_file({"embeddings": rows[:-1]}, tmp_path / "st" / "model.safetensors")
    with pytest.raises(InputError, match=r"\b82 .*\b83 pieces"):
        SentenceEncoder.from_pretrained(tmp_path / "st")
    (tmp_path / "st" / "tokenizer.json").write_text(
        '{"model": {"type": "WordPiece"}, "normalizer": null}'
    )
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "st"))):
        SentenceEncoder.from_pretrained(tmp_path / "st")


def test_drop_order_exports_the_mean_of_the_rows(tmp_path):
    """The folder then needs no module of this package."""
    encoder = model_of(tmp_path / "random", order_coefficients=2)
    options = ("--model", tmp_path / "random" / "model", "--output", tmp_path / "st")
    lxsr("export", "sentence-transformers", *options)
    assert "SentenceModule" in (tmp_path / "st" / "modules.json").read_text()
    lxsr("export", "sentence-transformers", *options, "--drop-order", "--normalize")
    modules = (tmp_path / "st" / "modules.json").read_text()
    assert "fairseq" not in re.sub(r'"exported_by.*', "", modules)
    ids, lengths = encoder.split(SENTENCES)
    means = np.zeros((len(SENTENCES), 32))
    for number, rows in enumerate(np.split(encoder.table[ids], lengths.cumsum()[:-1])):
        if len(rows):
            means[number] = rows.mean(axis=0)
    expected = means / np.maximum(1e-9, np.linalg.norm(means, axis=1, keepdims=True))
    np.testing.assert_allclose(by_model2vec(tmp_path / "st", SENTENCES), expected, atol=1e-5)


def test_drop_order_is_refused_for_a_model_with_layers(tmp_path):
    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1, order_coefficients=1)
    options = ("--model", tmp_path / "model", "--output", tmp_path / "st", "--drop-order")
    refused(lxsr("export", "sentence-transformers", *options, check=False), "drop_order")


def test_the_normalization_rule_of_a_model_is_exported(tmp_path):
    """Unlike NFKC, the rule leaves half-width kana and their marks apart, and composes ü and ǖ."""
    rules = {
        "ｶ": "カ",
        "ﾞ": "\u3099",
        "カ\u3099": "ガ",
        "u\u0308": "ü",
        "u\u0308\u0304": "ǖ",
        "i\u0328": "į",
        "臺": "台",
    }

    def codes(text):
        return " ".join(f"{ord(letter):X}" for letter in text)

    lines = [f"{codes(source)}\t{codes(target)}" for source, target in rules.items()]
    rule = tmp_path / "rule.tsv"
    rule.write_text("\n".join(lines), encoding="ascii")
    folder = write_model(tmp_path / "m", byte_fallback=True, rule=rule, **WITHOUT_LAYERS)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    texts = [
        "ｶﾞ カ\u3099 ｶ\u3099 ﾞ",
        "u\u0308\u0304 u\u0308 u\u0304\u0308",
        "i\u0328\u0307 a\u0323\u0302",
        "臺灣",
        *rules,
    ]
    export_sentence_transformers(encoder, tmp_path / "st", texts)
    expected = encoder.encode(texts)
    np.testing.assert_allclose(by_model2vec(tmp_path / "st", texts), expected, atol=1e-5)
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(opened.encode(texts), expected, atol=1e-6)


def test_the_code_of_the_page_trains_an_exported_model(tmp_path, monkeypatch):
    """Two pairs change a small model with random weights."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("datasets")
    (block,) = re.findall(
        r"^```python\n(import shutil\n\nfrom datasets .*?)^```$",
        (ROOT / "docs" / "tools.md").read_text(),
        re.M | re.S,
    )
    encoder = model_of(tmp_path / "random")
    export_sentence_transformers(encoder, tmp_path / "exported" / "static")
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    trained = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert np.abs(trained.encode(["It rains."]) - encoder.encode(["It rains."])).max() > 1e-3
