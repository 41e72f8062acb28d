"""The folder of a model without layers, as sentence-transformers and model2vec read it, and read
back after a save.
"""

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
SENTENCES = [side for pair in toy.sentences(30, seed=9) for side in pair]
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
    return SentenceEncoder.from_pretrained(
        write_model(folder, pieces, bool(of_bytes), **WITHOUT_LAYERS | sizes), "cpu"
    )


def by_model2vec(folder, sentences) -> np.ndarray:
    """What model2vec computes: without the unknown piece; by the library itself where it is
    installed.
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
        unknown = (
            model["unk_id"] if "unk_id" in model else tokenizer.token_to_id(model["unk_token"])
        )
        means = np.zeros((len(sentences), rows.shape[1]), np.float32)
        for row, encoding in enumerate(tokenizer.encode_batch(sentences, add_special_tokens=False)):
            if ids := [number for number in encoding.ids if number != unknown]:
                means[row] = rows[ids].mean(axis=0)
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return means / np.maximum(lengths, 1e-12) if config["normalize"] else means
    return StaticModel.from_pretrained(folder).encode(sentences)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_model2vec_gives_our_vectors(kind, normalize, tmp_path):
    """Also of text with letters that no piece has, which it would leave out."""
    encoder = model_of(tmp_path / "random", kind)
    export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize)
    expected = encoder.encode(SENTENCES, normalize=normalize)
    np.testing.assert_allclose(by_model2vec(tmp_path / "st", SENTENCES), expected, atol=1e-5)


@pytest.mark.parametrize(("dtype", "share"), [("float16", 0.6), ("int8", 0.4)])
def test_other_types_of_weights(dtype, share, tmp_path):
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


def test_codes_of_4_bits_are_exact_in_8(tmp_path):
    encoder = model_of(tmp_path / "random")
    table = PackedTable(*to_int4(encoder.table))
    packed = SentenceEncoder(
        Bag(encoder.size, {TABLE: table}), encoder.tokenizer, encoder.config, folder=encoder.folder
    )
    export_sentence_transformers(packed, tmp_path / "st", dtype="int8")
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(opened.encode(SENTENCES), packed.encode(SENTENCES), atol=1e-6)


def test_models_with_order_need_float32(tmp_path):
    encoder = model_of(tmp_path / "random", order_coefficients=1)
    options = ("--model", encoder.folder, "--output", tmp_path / "st", "--dtype", "int8")
    done = lxsr("export", "sentence-transformers", *options, check=False)
    refused(done, str(encoder.folder), "dtype int8")
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_opens_here_as_it_was(kind, version, tmp_path):
    encoder = model_of(tmp_path / "random", kind, version=version)
    export_sentence_transformers(encoder, tmp_path / "st")
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    assert opened.tokenizer.options == encoder.tokenizer.options
    assert opened.max_seq_length == encoder.max_seq_length
    np.testing.assert_allclose(opened.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)
    opened.save(tmp_path / "model")
    done = lxsr(
        "embed",
        "--model",
        tmp_path / "model",
        "--input",
        _lines(tmp_path),
        "--output",
        tmp_path / "o.npy",
    )
    assert SentenceEncoder.from_pretrained(tmp_path / "model").fingerprint in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), encoder.encode(["a dog"]), atol=1e-6)


def _lines(folder):
    (folder / "text").write_text("a dog\n", encoding="utf-8")
    return folder / "text"


@pytest.mark.parametrize("kind", KINDS)
def test_it_opens_after_sentence_transformers_has_saved_other_weights(kind, tmp_path):
    """As after training: only its own two files are left, under another name of the table."""
    st = pytest.importorskip("sentence_transformers")
    export_sentence_transformers(model_of(tmp_path / "random", kind), tmp_path / "st", (), True)
    model = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert len(model) == 2  # and the length of vectors
    weights = model[0].embedding.weight
    # not the unknown piece
    own = [*range(3), *range(4, 60), *([len(weights) - 1] if "bytes" not in kind else [])]
    noise = np.random.default_rng(1).normal(size=(len(own), 32))
    weights.data[own] += weights.data.new_tensor(noise)
    model.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "config.json").exists()
    opened = SentenceEncoder.from_pretrained(tmp_path / "saved")
    found = model.encode(SENTENCES)
    known = found.any(axis=1)  # letters that had no row are unknown to its tokenizer for ever
    assert known[:62].all()
    np.testing.assert_allclose(
        opened.encode(SENTENCES, normalize=True)[known], found[known], atol=1e-5
    )


def test_other_folders_of_sentence_transformers_are_refused(tmp_path):
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


def test_order_can_be_dropped(tmp_path):
    """The folder is then one of those libraries, of the mean of the rows."""
    encoder = model_of(tmp_path / "random", order_coefficients=2)
    options = ("--model", tmp_path / "random" / "model", "--output", tmp_path / "st")
    lxsr("export", "sentence-transformers", *options)
    assert "SentenceModule" in (tmp_path / "st" / "modules.json").read_text()
    lxsr("export", "sentence-transformers", *options, "--drop-order", "--normalize")
    assert "fairseq" not in re.sub(
        r'"exported_by.*', "", (tmp_path / "st" / "modules.json").read_text()
    )
    ids, lengths = encoder.split(SENTENCES)
    means = [
        rows.mean(axis=0) if len(rows) else np.zeros(32)
        for rows in _split(encoder.table[ids], lengths)
    ]
    expected = np.array(means) / np.maximum(1e-9, np.linalg.norm(means, axis=1, keepdims=True))
    np.testing.assert_allclose(by_model2vec(tmp_path / "st", SENTENCES), expected, atol=1e-5)


def _split(rows, lengths):
    return np.split(rows, lengths.cumsum()[:-1])


def test_order_is_not_dropped_where_layers_would_go_on_without(tmp_path):
    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1, order_coefficients=1)
    options = ("--model", tmp_path / "model", "--output", tmp_path / "st", "--drop-order")
    refused(lxsr("export", "sentence-transformers", *options, check=False), "drop_order")


def test_a_rule_of_its_own_is_exported(tmp_path):
    """One that composes other letters than NFKC does: half-width kana and their marks stay apart, ü
    and ǖ do not.
    """
    rules = {
        "ｶ": "カ",
        "ﾞ": "\u3099",
        "カ\u3099": "ガ",
        "u\u0308": "ü",
        "u\u0308\u0304": "ǖ",
        "i\u0328": "į",
        "臺": "台",
    }
    lines = (
        "\t".join(" ".join(f"{ord(letter):X}" for letter in side) for side in pair)
        for pair in rules.items()
    )
    (tmp_path / "rule.tsv").write_text("\n".join(lines), encoding="ascii")
    folder = write_model(
        tmp_path / "m", byte_fallback=True, rule=tmp_path / "rule.tsv", **WITHOUT_LAYERS
    )
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    texts = [
        "ｶﾞ カ\u3099 ｶ\u3099 ﾞ",
        "u\u0308\u0304 u\u0308 u\u0304\u0308",
        "i\u0328\u0307 a\u0323\u0302",
        "臺灣",
        *rules,
    ]
    export_sentence_transformers(encoder, tmp_path / "st", texts)
    np.testing.assert_allclose(
        by_model2vec(tmp_path / "st", texts), encoder.encode(texts), atol=1e-5
    )
    opened = SentenceEncoder.from_pretrained(tmp_path / "st")
    np.testing.assert_allclose(opened.encode(texts), encoder.encode(texts), atol=1e-6)


def test_the_trainer_of_sentence_transformers_as_the_page_has_it(tmp_path, monkeypatch):
    """With a small model of random weights, whose two pairs come near each other."""
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
