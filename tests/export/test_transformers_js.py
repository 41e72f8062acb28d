"""The pipelines of transformers.js give the embeddings of `SentenceEncoder` from the ONNX folder.

The library is in the folder into which .ci/run installs it. Without it, or without Node.js, only the
computation of its pipelines is tested.
"""

import copy
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
# Options of `write_model` by the name of a model.
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
# Programs for Node.js. They read JSON from standard input; their argument is the folder LIBRARY.
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


def answer_of_node(program: str, request: dict) -> subprocess.CompletedProcess:
    """Run a program of Node.js, whose standard output is its answer."""
    command = ["node", "-e", program, "--", str(LIBRARY)]
    return subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, timeout=120
    )


def needs_module(name: str):
    """Return the mark of a test that needs Node.js and one of its modules."""
    is_missing = not shutil.which("node") or not (LIBRARY / "node_modules" / name).is_dir()
    return pytest.mark.skipif(is_missing, reason=f"no Node.js, or no {name} in {LIBRARY}")


def load_model(name: str, work: Path) -> SentenceEncoder:
    """Load one of `SIZES`; the rules of a folded model take seconds."""
    sizes = SIZES[name]
    if name == "folded":
        sizes = sizes | {"rule": write_folded_rules(work)}
    return SentenceEncoder.from_pretrained(write_model(work / name, **sizes), "cpu")


def with_nfkc(content: dict) -> dict:
    """Return the tokenizer with NFKC in place of compiled rules, as transformers.js reads it."""
    content = copy.deepcopy(content)
    for step in content["normalizer"]["normalizers"]:
        if "Precompiled" in step["type"]:
            step.clear()
            step["type"] = "NFKC"
    return content


@pytest.mark.parametrize(
    "change", [copy.deepcopy, with_nfkc], ids=["tokenizers", "transformers.js"]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("chinese", marks=pytest.mark.slow),
        "chinese unigram",
        pytest.param("folded", marks=pytest.mark.slow),
    ],
)
def test_letters_are_replaced_with_and_without_compiled_rules(name, change, tmp_path):
    encoder = load_model(name, tmp_path)
    symbols = extended_symbols(encoder.tokenizer, encoder.size.vocab_size)
    symbols = with_spellings(encoder.tokenizer, symbols)
    # Spellings of a piece have its row of the table.
    rows = rows_of_symbols(encoder.tokenizer, symbols, encoder.size.vocab_size)

    onnx_folder.write_tokenizer(encoder, symbols, tmp_path)

    content = json.loads((tmp_path / onnx_folder.TOKENIZER_FILE).read_text(encoding="utf-8"))
    exported = tokenizers.Tokenizer.from_str(json.dumps(change(content)))
    all_ids, lengths = encoder.tokenizer.encode_known([*TRADITIONAL, FOLDED])
    expected = np.split(all_ids, np.cumsum(lengths)[:-1])
    for sentence, ids in zip([*TRADITIONAL, FOLDED], expected, strict=True):
        assert rows[exported.encode(sentence).ids].tolist() == ids.tolist()
    # Not all sentences have an unknown piece.
    assert any(encoder.tokenizer.unknown not in ids for ids in expected)


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
    """The pipeline of transformers.js computes it."""
    encoder, folder = exported[name]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / onnx_folder.TOKENIZER_FILE))
    session = onnxruntime.InferenceSession(str(folder / onnx_folder.MODEL_FILE))
    encodings = tokenizer.encode_batch(SENTENCES)
    ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)

    pooled, states = session.run(["sentence_embedding", "last_hidden_state"], {"input_ids": ids})

    expected = expected_embeddings(encoder, name)
    # A sentence without a known word has no pieces, and a zero vector.
    num_pieces = np.maximum(1, mask.sum(axis=1, keepdims=True))
    mean = (states * mask[..., None]).sum(axis=1) / num_pieces
    assert states.shape == (*ids.shape, encoder.output_dim)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(pooled, expected, atol=1e-5)


@pytest.fixture(scope="module")
def embeddings_of_pipelines(exported):
    """By model, the embeddings of SENTENCES by transformers.js, and that of the first, normalized."""
    folders = {name: str(folder) for name, (_, folder) in exported.items()}
    done = answer_of_node(PIPELINE, {"sentences": SENTENCES, "folders": folders})
    assert done.returncode == 0, done.stderr[-3000:]
    # The library warns if a file of the folder is missing.
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.slow
@needs_module("@huggingface/transformers")
@pytest.mark.parametrize("name", SIZES)
def test_the_pipeline_of_transformers_js_gives_the_same_embeddings(
    exported, embeddings_of_pipelines, name
):
    encoder, _ = exported[name]
    expected = expected_embeddings(encoder, name)
    has_known_word = expected.any(axis=1)

    all_vectors, _ = embeddings_of_pipelines[name]

    # JSON has null for NaN: the library divides by the number of pieces, which is zero.
    embeddings = np.array(all_vectors, dtype=float)
    np.testing.assert_allclose(embeddings[has_known_word], expected[has_known_word], atol=1e-4)
    assert np.isnan(embeddings[~has_known_word]).all()


@pytest.mark.slow
@needs_module("@huggingface/transformers")
@pytest.mark.parametrize("name", SIZES)
def test_the_pipeline_of_transformers_js_can_normalize(exported, embeddings_of_pipelines, name):
    encoder, _ = exported[name]

    _, [normalized] = embeddings_of_pipelines[name]

    expected = encoder.encode(SENTENCES[0], normalize=True)
    np.testing.assert_allclose(normalized, expected, atol=1e-4)


@pytest.mark.slow
@needs_module("@huggingface/transformers")
@pytest.mark.parametrize(
    "topics", [["dog", "cat", "house"], ["animal", "animal", "thing"]], ids=["3 classes", "2"]
)
def test_a_classifier_in_transformers_js_gives_the_answers_of_scikit_learn(
    exported, topics, tmp_path
):
    encoder, _ = exported["best"]
    embeddings = encoder.encode(["a red dog", "one cat", "the house"])
    fitted = LogisticRegression(C=1e4).fit(embeddings, topics)
    np.savez(
        tmp_path / "c.npz", coef=fitted.coef_, intercept=fitted.intercept_, classes=fitted.classes_
    )
    export_onnx(encoder, tmp_path / "onnx", classifier=tmp_path / "c.npz")
    sentences = SENTENCES[:3]

    done = answer_of_node(CLASSIFIER, {"sentences": sentences, "folder": str(tmp_path / "onnx")})

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    answers_of_all_classes, best_answers, [embedding] = json.loads(done.stdout)
    expected = encoder.encode(sentences)
    np.testing.assert_allclose(embedding, expected[0], atol=1e-4)
    assert [answer["label"] for answer in best_answers] == fitted.predict(expected).tolist()
    probabilities = fitted.predict_proba(expected)
    for answers, row in zip(answers_of_all_classes, probabilities, strict=True):
        scores = {answer["label"]: answer["score"] for answer in answers}
        assert scores == pytest.approx(dict(zip(fitted.classes_, row, strict=True)), abs=1e-4)


@pytest.mark.slow
@needs_module("onnxruntime-node")
def test_the_program_of_docs_tools_embeds_with_onnx_runtime_for_javascript(exported):
    encoder, folder = exported["best"]
    [ids] = encoder.tokenizer.encode(SENTENCES[:1])

    done = answer_of_node(
        RUNTIME, {"ids": ids.tolist(), "model": str(folder / onnx_folder.MODEL_FILE)}
    )

    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_allclose(json.loads(done.stdout), encoder.encode(SENTENCES[0]), atol=1e-4)


@pytest.mark.slow
@needs_module("onnxruntime-node")
def test_onnx_runtime_for_javascript_needs_the_mask(exported):
    """There, optional inputs are not optional, as docs/tools.md says."""
    encoder, folder = exported["best"]
    [ids] = encoder.tokenizer.encode(SENTENCES[:1])
    without_mask = "\n".join(line for line in RUNTIME.split("\n") if "mask" not in line)

    done = answer_of_node(
        without_mask, {"ids": ids.tolist(), "model": str(folder / onnx_folder.MODEL_FILE)}
    )

    assert "input 'attention_mask' is missing" in done.stderr


def test_a_unigram_model_with_bytes_is_not_offered_to_transformers_js(tmp_path):
    """The library cannot read bytes; without tokenizer_config.json it refuses the folder."""
    model = write_model(tmp_path / "random", "unigram", byte_fallback=True)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")

    onnx_folder.write_tokenizer(encoder, encoder.tokenizer.symbols, tmp_path)

    assert (tmp_path / onnx_folder.TOKENIZER_FILE).exists()
    assert not (tmp_path / onnx_folder.TOKENIZER_CONFIG_FILE).exists()
