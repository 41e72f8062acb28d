"""The pipelines of transformers.js give the embeddings of `SentenceEncoder` from the ONNX folder.

The library is in the folder into which .ci/run installs it. Without it, or without Node.js, only the
computation of its pipelines is tested.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from random_model import write_model
from sklearn.linear_model import LogisticRegression

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import extended_symbols
from fairseq_lxsr.export import export_onnx
from fairseq_lxsr.export import onnx as onnx_folder
from fairseq_lxsr.export.fast_tokenizer import (
    SAMPLE,
    rows_of_symbols,
    with_spellings,
)
from fairseq_lxsr.text.folding import write_folded_rules

onnxruntime = pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")
LIBRARY = Path(
    os.environ.get("TRANSFORMERS_JS") or Path.home() / ".cache" / "fairseq-lxsr" / "transformers.js"
)
READ_AS = "漢汉語语們们發发現现髮发"
CHINESE = ["汉语", "我们发现了汉语", "语言", "一头发的人们"] * 500
TRADITIONAL = ["漢語", "我們發現了漢語", "頭髮, 一個 DOG", "語", "漢语 汉語", "東"]
# Letters that folding rules replace, some without a piece.
FOLDED = "Ёлка — ёлка, “Straße” „œuvre‟ ٣٤ ΆΈ ά\u0301 \u2018\u0131\u2019 ﺔ کتاب יִ क़ ş ș Ș"
STATIC = {"num_layers": 0, "gated": True, "version": 4}
SIZES = {
    # The architecture lxsr_best.
    "best": {"num_layers": 0, "gated": True, "order_coefficients": 1},
    "gated": {"num_layers": 2, "gated": True, "order_coefficients": 2},
    "plain": {"num_layers": 1, "pieces": "unigram"},
    "chinese": STATIC | {"read_as": READ_AS, "lines": CHINESE},
    "chinese unigram": STATIC | {"read_as": READ_AS, "lines": CHINESE, "pieces": "unigram"},
    "folded": STATIC | {"lines": [FOLDED.lower()] * 9},
}
SENTENCES = [
    "One red dog sees the cat.",
    "Un chien rouge voit le chat.",
    "the dog " * 100,
    "Ünknown ☃ piece",
    *SAMPLE,
    *TRADITIONAL,
    FOLDED,
]
PIPELINE = """
const { createRequire } = require("node:module");
const { pipeline, env } = createRequire(process.argv[1] + "/")("@huggingface/transformers");
env.allowRemoteModels = false;
(async () => {
  const { sentences, folders } = JSON.parse(require("node:fs").readFileSync(0));
  const embeddings = {};
  for (const [name, folder] of Object.entries(folders)) {
    const embed = await pipeline("feature-extraction", folder);
    const all = await embed(sentences, { pooling: "mean" });
    const one = await embed(sentences[0], { pooling: "mean", normalize: true });
    embeddings[name] = [all.tolist(), one.tolist()];
  }
  console.log(JSON.stringify(embeddings));
})();
"""
# From docs/tools.md.
RUNTIME = """
const ort = require("node:module").createRequire(process.argv[1] + "/")("onnxruntime-node");
(async () => {
  const { ids, model } = JSON.parse(require("node:fs").readFileSync(0));
  const session = await ort.InferenceSession.create(model);
  const shape = [1, ids.length];
  const ones = new BigInt64Array(ids.length).fill(1n);
  const { sentence_embedding } = await session.run({
    input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
    attention_mask: new ort.Tensor("int64", ones, shape),
  });
  console.log(JSON.stringify([...sentence_embedding.data]));
})();
"""
# From docs/tools.md, with all classes of each sentence.
CLASSIFIER = """
const { createRequire } = require("node:module");
const { pipeline, env } = createRequire(process.argv[1] + "/")("@huggingface/transformers");
env.allowRemoteModels = false;
(async () => {
  const { sentences, folder } = JSON.parse(require("node:fs").readFileSync(0));
  const classify = await pipeline("text-classification", folder);
  const embed = await pipeline("feature-extraction", folder);
  const embeddings = await embed(sentences[0], { pooling: "mean" });
  const classes = [await classify(sentences, { top_k: null }), await classify(sentences)];
  console.log(JSON.stringify([...classes, embeddings.tolist()]));
})();
"""


def load_model(name: str, work: Path) -> SentenceEncoder:
    """Load one of `SIZES`; the rules of a folded model take seconds."""
    sizes = SIZES[name]
    if name == "folded":
        sizes = sizes | {"rule": write_folded_rules(work)}
    return SentenceEncoder.from_pretrained(write_model(work / name, **sizes), "cpu")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("chinese", marks=pytest.mark.slow),
        "chinese unigram",
        pytest.param("folded", marks=pytest.mark.slow),
    ],
)
def test_letters_are_replaced_without_compiled_rules(name, tmp_path):
    """transformers.js replaces compiled rules by the normal form NFKC."""
    encoder = load_model(name, tmp_path)
    symbols = extended_symbols(encoder.tokenizer, encoder.size.vocab_size)
    symbols = with_spellings(encoder.tokenizer, symbols)
    rows = rows_of_symbols(encoder.tokenizer, symbols, encoder.size.vocab_size)
    onnx_folder.write_tokenizer(encoder, symbols, tmp_path)
    content = json.loads((tmp_path / onnx_folder.TOKENIZER_FILE).read_text(encoding="utf-8"))
    sentences = [*TRADITIONAL, FOLDED]
    all_ids, lengths = encoder.tokenizer.encode_known(sentences)
    expected = [ids.tolist() for ids in np.split(all_ids, np.cumsum(lengths)[:-1])]
    assert any(encoder.tokenizer.unknown not in ids for ids in expected)

    def assert_reads_alike(content):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        for sentence, ids in zip(sentences, expected, strict=True):
            assert rows[tokenizer.encode(sentence).ids].tolist() == ids

    assert_reads_alike(content)
    for step in content["normalizer"]["normalizers"]:
        if "Precompiled" in step["type"]:
            step.clear()
            step["type"] = "NFKC"
    assert_reads_alike(content)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Encoders and their ONNX folders by name; embeddings of "gated" have length one."""
    work = tmp_path_factory.mktemp("exported")
    folders = {}
    for name in SIZES:
        encoder = load_model(name, work)
        export_onnx(encoder, work / f"{name}.folder", normalize=name == "gated")
        folders[name] = encoder, work / f"{name}.folder"
    return folders


def expected_embeddings(encoder: SentenceEncoder, name: str) -> np.ndarray:
    return encoder.encode(SENTENCES, normalize=name == "gated")


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_the_mean_over_the_pieces_is_the_embedding(exported, name):
    encoder, folder = exported[name]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / onnx_folder.TOKENIZER_FILE))
    session = onnxruntime.InferenceSession(str(folder / onnx_folder.MODEL_FILE))
    encodings = tokenizer.encode_batch(SENTENCES)
    ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
    pooled, states = session.run(["sentence_embedding", "last_hidden_state"], {"input_ids": ids})
    assert states.shape == (*ids.shape, 32)
    # A sentence without a known word has no pieces, and a zero vector.
    mean = (states * mask[..., None]).sum(axis=1) / np.maximum(1, mask.sum(axis=1, keepdims=True))
    expected = expected_embeddings(encoder, name)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(pooled, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js on this machine")
@pytest.mark.skipif(
    not (LIBRARY / "node_modules" / "@huggingface" / "transformers").is_dir(),
    reason=f"no transformers.js in {LIBRARY}",
)
def test_the_pipeline_of_transformers_js_gives_the_same_embeddings(exported):
    folders = {name: str(folder) for name, (_, folder) in exported.items()}
    request = json.dumps({"sentences": SENTENCES, "folders": folders})
    command = ["node", "-e", PIPELINE, "--", str(LIBRARY)]
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    # The library warns if a file of the folder is missing.
    assert done.stderr == ""
    results = json.loads(done.stdout)
    assert results.keys() == exported.keys()
    for name, (all_vectors, normalized_vectors) in results.items():
        expected = expected_embeddings(exported[name][0], name)
        embeddings = np.array(all_vectors, dtype=float)
        has_known_word = expected.any(axis=1)
        np.testing.assert_allclose(embeddings[has_known_word], expected[has_known_word], atol=1e-4)
        assert np.isnan(embeddings[~has_known_word]).all()
        unit = expected[0] / np.linalg.norm(expected[0])
        np.testing.assert_allclose(np.array(normalized_vectors)[0], unit, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js on this machine")
@pytest.mark.skipif(
    not (LIBRARY / "node_modules" / "@huggingface" / "transformers").is_dir(),
    reason=f"no transformers.js in {LIBRARY}",
)
@pytest.mark.parametrize("topics", [["dog", "cat", "house"], ["animal", "animal", "thing"]])
def test_a_classifier_gives_the_same_answers(exported, topics, tmp_path):
    encoder, _ = exported["best"]
    embeddings = encoder.encode(["a red dog", "one cat", "the house"])
    fitted = LogisticRegression(C=1e4).fit(embeddings, topics)
    np.savez(
        tmp_path / "c.npz", coef=fitted.coef_, intercept=fitted.intercept_, classes=fitted.classes_
    )
    export_onnx(encoder, tmp_path / "onnx", classifier=tmp_path / "c.npz")
    request = json.dumps({"sentences": SENTENCES[:3], "folder": str(tmp_path / "onnx")})
    command = ["node", "-e", CLASSIFIER, "--", str(LIBRARY)]
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    all_classes, best, vectors = json.loads(done.stdout)
    expected = encoder.encode(SENTENCES[:3])
    np.testing.assert_allclose(vectors[0], expected[0], atol=1e-4)
    assert [answer["label"] for answer in best] == fitted.predict(expected).tolist()
    for answers, probabilities in zip(all_classes, fitted.predict_proba(expected), strict=True):
        scores = {answer["label"]: answer["score"] for answer in answers}
        for name, probability in zip(fitted.classes_, probabilities, strict=True):
            assert scores[name] == pytest.approx(probability, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js on this machine")
@pytest.mark.skipif(
    not (LIBRARY / "node_modules" / "onnxruntime-node").is_dir(),
    reason=f"no onnxruntime-node in {LIBRARY}",
)
def test_onnx_runtime_for_javascript_needs_the_mask(exported):
    encoder, folder = exported["best"]
    (ids,) = encoder.tokenizer.encode(SENTENCES[:1])
    request = json.dumps({"ids": ids.tolist(), "model": str(folder / onnx_folder.MODEL_FILE)})

    def run(script):
        command = ["node", "-e", script, "--", str(LIBRARY)]
        return subprocess.run(command, input=request, capture_output=True, text=True, timeout=60)

    done = run(RUNTIME)
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_allclose(json.loads(done.stdout), encoder.encode(SENTENCES[0]), atol=1e-4)
    without_mask = "\n".join(line for line in RUNTIME.split("\n") if "mask" not in line)
    assert "input 'attention_mask' is missing" in run(without_mask).stderr


def test_a_unigram_model_with_bytes_is_not_offered_to_transformers_js(tmp_path):
    """The library cannot read bytes; without tokenizer_config.json it refuses the folder."""
    model = write_model(tmp_path / "random", "unigram", byte_fallback=True)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    onnx_folder.write_tokenizer(encoder, encoder.tokenizer.symbols, tmp_path)
    assert (tmp_path / onnx_folder.TOKENIZER_FILE).exists()
    assert not (tmp_path / onnx_folder.TOKENIZER_CONFIG_FILE).exists()
