"""A linear classifier of scikit-learn in the ONNX graph gives the same answers; other files are refused."""

import json
import pickle

import numpy as np
import pytest
from conftest import lxsr_here as lxsr
from conftest import refused
from random_model import write_model
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.svm import LinearSVC

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_onnx, onnx
from fairseq_lxsr.export.classifier import LinearClassifier

SENTENCES = ["a red dog", "the dogs see", "one cat", "the cat sees", "houses", "a red house"]
TOPICS = ["dog", "dog", "cat", "cat", "house", "house"]
NORMAL = np.random.default_rng(0).normal(size=(200, 8))


def write(path, classifier):
    """Write a classifier as in docs/tools.md."""
    np.savez(
        path,
        coef=classifier.coef_,
        intercept=classifier.intercept_,
        classes=classifier.classes_.astype(str),
    )
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("random") / "model", gated=True, num_layers=0)
    return SentenceEncoder.from_pretrained(folder, "cpu")


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize(
    "kind", [LogisticRegression(), LinearSVC(fit_intercept=False), RidgeClassifier()]
)
def test_the_largest_logit_is_the_answer(kind, num_classes, tmp_path):
    classes = np.array(["b", "a", "10"])[:num_classes]
    fitted = kind.fit(NORMAL, classes[np.arange(200) % num_classes])
    classifier = LinearClassifier.read(write(tmp_path / "c.npz", fitted), 8)
    assert classifier.weights.dtype == classifier.biases.dtype == np.float32
    logits = NORMAL @ classifier.weights.T + classifier.biases
    names = np.array(classifier.names)[logits.argmax(axis=1)]
    np.testing.assert_array_equal(names, fitted.predict(NORMAL))


def test_names_of_numbered_classes_are_text(tmp_path):
    np.savez(tmp_path / "c.npz", coef=NORMAL[:3], intercept=NORMAL[0, :3], classes=[3, 1, 2])
    classifier = LinearClassifier.read(tmp_path / "c.npz", 8)
    assert classifier.config()["id2label"] == {"0": "3", "1": "1", "2": "2"}
    assert classifier.config()["label2id"] == {"3": 0, "1": 1, "2": 2}


ARRAYS = {"coef": NORMAL[:3], "intercept": NORMAL[0, :3], "classes": np.array(["a", "b", "c"])}
INVALID = {
    "another width": ({"coef": NORMAL[:3, :7]}, r"\(3, 7\).*\(3, 8\)"),
    "too few functions": ({"coef": NORMAL[:2]}, r"\(2, 8\).*\(3, 8\)"),
    "one function of three classes": ({"coef": NORMAL[:1]}, r"\(1, 8\).*\(3, 8\)"),
    "a vector": ({"coef": NORMAL[0]}, r"\(1, 8\).*\(3, 8\)"),
    "a cube": ({"coef": NORMAL[:12].reshape(3, 4, 8)}, r"\(3, 4, 8\)"),
    "integers": ({"coef": np.ones((3, 8), int)}, "coef.*int64"),
    "text": ({"intercept": np.array(["1", "2", "3"])}, "intercept.*<U1"),
    "not a number": ({"coef": np.full((3, 8), np.nan)}, "coef.*finite"),
    "too large for float32": ({"intercept": np.array([0, 0, 1e39])}, "intercept.*finite"),
    "another intercept": ({"intercept": NORMAL[0, :2]}, r"intercept.*\(2,\).*\(3,\)"),
    "the same name twice": ({"classes": np.array(["a", "b", "a"])}, "classes.*a, b, a"),
    "one class": ({"classes": np.array(["a"]), "coef": NORMAL[:1]}, "classes"),
    "classes that are floats": ({"classes": np.arange(3.0)}, "classes.*float64"),
    "a table of classes": ({"classes": np.array([["a"], ["b"], ["c"]])}, r"classes.*\(3, 1\)"),
    "objects, which only pickle reads": ({"classes": np.array(["a", "b", None])}, "savez"),
    "another array": ({"mean": NORMAL[0]}, "mean"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arrays_are_refused(name, tmp_path):
    changed, message = INVALID[name]
    np.savez(tmp_path / "c.npz", **(ARRAYS | changed))
    with pytest.raises(InputError, match=rf"c\.npz: .*{message}"):
        LinearClassifier.read(tmp_path / "c.npz", 8)


def test_invalid_and_large_files_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "c.npz"
    np.savez(file, **ARRAYS)
    whole = file.read_bytes()
    np.savez(file, coef=ARRAYS["coef"])
    contents = [b"", b"coef", pickle.dumps(ARRAYS), file.read_bytes(), whole[:-50]]
    contents.append(whole[:300] + b"\xff" + whole[301:])
    np.save(tmp_path / "array.npy", ARRAYS["coef"])
    contents.append((tmp_path / "array.npy").read_bytes())
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"c\.npz: .*coef, intercept, classes"):
            LinearClassifier.read(file, 8)
    file.write_bytes(whole)
    monkeypatch.setattr("fairseq_lxsr.export.classifier.MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"c\.npz: .*bytes exceed 100"):
        LinearClassifier.read(file, 8)


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_code_in_the_file_does_not_run(encoder, tmp_path):
    trace = tmp_path / "trace"
    file = tmp_path / "c.joblib"
    file.write_bytes(pickle.dumps(Harmful(trace)))
    np.savez(tmp_path / "c.npz", **(ARRAYS | {"coef": np.array([Harmful(trace)], dtype=object)}))
    for path in (file, tmp_path / "c.npz"):
        words = ("--model", encoder.folder, "--classifier", path, "--output", tmp_path / "onnx")
        refused(lxsr("export", "onnx", *words, check=False), path, "coef")
    assert not trace.exists()
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("topics", [TOPICS, ["pet"] * 4 + ["thing"] * 2])
def test_the_graph_answers_like_scikit_learn(encoder, topics, int8, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from tokenizers import Tokenizer

    fitted = LogisticRegression(C=100).fit(encoder.encode(SENTENCES, normalize=True), topics)
    file = write(tmp_path / "c.npz", fitted)
    export_onnx(encoder, tmp_path / "onnx", normalize=True, int8=int8, classifier=file)
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / onnx.MODEL_FILE))
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / onnx.TOKENIZER_FILE))
    sentences = [*SENTENCES, "the red cat sees a dog", ""]
    ids = np.array([row.ids for row in tokenizer.encode_batch(sentences)], dtype=np.int64)
    names = ["sentence_embedding", "logits", "probabilities", "label"]
    embeddings, logits, probabilities, labels = session.run(names, {"input_ids": ids})
    # The classifier is exact even if the embeddings are rounded.
    expected = fitted.predict_proba(embeddings)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))
    assert logits.shape == expected.shape
    if not int8:
        expected = fitted.predict_proba(encoder.encode(sentences, normalize=True))
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    answers = [config["id2label"][str(label)] for label in labels]
    assert answers == fitted.predict(embeddings).tolist()
    assert config["label2id"] == {name: int(number) for number, name in config["id2label"].items()}


def test_a_classifier_in_the_output_folder_is_not_overwritten(encoder, tmp_path):
    export_onnx(encoder, tmp_path / "onnx")
    np.savez(tmp_path / "onnx" / "c.npz", **ARRAYS)
    words = ("--classifier", tmp_path / "onnx" / "c.npz", "--output", tmp_path / "onnx")
    refused(lxsr("export", "onnx", "--model", encoder.folder, *words, check=False), "c.npz")
    assert (tmp_path / "onnx" / "c.npz").exists()
