"""A linear classifier of scikit-learn in the ONNX graph gives the same answers; other files are refused."""

import io
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
# The width of embeddings in the tests without a model.
WIDTH = 8
NORMAL = np.random.default_rng(0).normal(size=(200, WIDTH))


def write_classifier(path, classifier):
    """Write a classifier of scikit-learn as in docs/tools.md; return the path."""
    np.savez(
        path,
        coef=classifier.coef_,
        intercept=classifier.intercept_,
        classes=classifier.classes_.astype(str),
    )
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The encoder of a model without layers."""
    folder = write_model(tmp_path_factory.mktemp("random") / "model", gated=True, num_layers=0)
    return SentenceEncoder.from_pretrained(folder, "cpu")


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize(
    "kind", [LogisticRegression(), LinearSVC(fit_intercept=False), RidgeClassifier()]
)
def test_the_class_of_the_largest_logit_is_the_prediction_of_scikit_learn(
    kind, num_classes, tmp_path
):
    """For two classes, scikit-learn stores one function, and no intercept if it is not fitted."""
    # Not in alphabetical order.
    classes = np.array(["b", "a", "10"])[:num_classes]
    labels = classes[np.arange(len(NORMAL)) % num_classes]
    fitted = kind.fit(NORMAL, labels)

    classifier = LinearClassifier.read(write_classifier(tmp_path / "c.npz", fitted), WIDTH)

    logits = NORMAL @ classifier.weights.T + classifier.biases
    names = np.array(classifier.names)[logits.argmax(axis=1)]
    np.testing.assert_array_equal(names, fitted.predict(NORMAL))
    assert classifier.weights.dtype == np.float32
    assert classifier.biases.dtype == np.float32


def test_names_of_numbered_classes_are_text(tmp_path):
    np.savez(tmp_path / "c.npz", coef=NORMAL[:3], intercept=NORMAL[0, :3], classes=[3, 1, 2])

    config = LinearClassifier.read(tmp_path / "c.npz", WIDTH).config()

    assert config["id2label"] == {"0": "3", "1": "1", "2": "2"}
    assert config["label2id"] == {"3": 0, "1": 1, "2": 2}


# A valid classifier of three classes.
ARRAYS = {"coef": NORMAL[:3], "intercept": NORMAL[0, :3], "classes": np.array(["a", "b", "c"])}
# By the name of the case: the arrays that are changed, and what the message says.
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
        LinearClassifier.read(tmp_path / "c.npz", WIDTH)


def bytes_of(save, *arrays, **named_arrays) -> bytes:
    """Return the file that `numpy.save` or `numpy.savez` writes."""
    stream = io.BytesIO()
    save(stream, *arrays, **named_arrays)
    return stream.getvalue()


VALID_FILE = bytes_of(np.savez, **ARRAYS)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"coef", id="text"),
        pytest.param(pickle.dumps(ARRAYS), id="pickle"),
        pytest.param(bytes_of(np.save, ARRAYS["coef"]), id="npy"),
        pytest.param(bytes_of(np.savez, coef=ARRAYS["coef"]), id="one of three arrays"),
        pytest.param(VALID_FILE[:-50], id="cut"),
        pytest.param(VALID_FILE[:300] + b"\xff" + VALID_FILE[301:], id="changed byte"),
    ],
)
def test_a_file_that_is_no_classifier_is_refused(tmp_path, content):
    file = tmp_path / "c.npz"
    file.write_bytes(content)

    with pytest.raises(InputError, match=r"c\.npz: .*coef, intercept, classes"):
        LinearClassifier.read(file, WIDTH)


def test_arrays_that_are_too_large_are_refused(tmp_path, monkeypatch):
    (tmp_path / "c.npz").write_bytes(VALID_FILE)
    monkeypatch.setattr("fairseq_lxsr.export.classifier.MAX_BYTES", 100)

    with pytest.raises(InputError, match=r"c\.npz: .*bytes exceed 100"):
        LinearClassifier.read(tmp_path / "c.npz", WIDTH)


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def write_pickle(path, harmful) -> None:
    path.write_bytes(pickle.dumps(harmful))


def write_array_of_objects(path, harmful) -> None:
    np.savez(path, **(ARRAYS | {"coef": np.array([harmful], dtype=object)}))


@pytest.mark.parametrize(
    ("name", "write"), [("c.joblib", write_pickle), ("c.npz", write_array_of_objects)]
)
def test_pickled_code_in_the_file_does_not_run(encoder, tmp_path, name, write):
    trace = tmp_path / "trace"
    path = tmp_path / name
    write(path, Harmful(trace))

    words = ("--model", encoder.folder, "--classifier", path, "--output", tmp_path / "onnx")
    done = lxsr("export", "onnx", *words, check=False)

    refused(done, path, "coef")
    assert not trace.exists()
    assert not (tmp_path / "onnx").exists()


# Three classes, and two, for which scikit-learn has another formula.
LABELS = [pytest.param(TOPICS, id="3 classes"), pytest.param(["pet"] * 4 + ["thing"] * 2, id="2")]


@pytest.fixture(params=LABELS)
def fitted(request, encoder):
    """A classifier of scikit-learn that was fitted to the embeddings of SENTENCES."""
    embeddings = encoder.encode(SENTENCES, normalize=True)
    return LogisticRegression(C=100).fit(embeddings, request.param)


def answers_of_graph(folder, sentences) -> list[np.ndarray]:
    """Return embeddings, logits, probabilities and labels of sentences by an exported graph."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from tokenizers import Tokenizer

    session = onnxruntime.InferenceSession(str(folder / onnx.MODEL_FILE))
    tokenizer = Tokenizer.from_file(str(folder / onnx.TOKENIZER_FILE))
    ids = np.array([row.ids for row in tokenizer.encode_batch(sentences)], dtype=np.int64)
    names = ["sentence_embedding", "logits", "probabilities", "label"]
    return session.run(names, {"input_ids": ids})


@pytest.mark.parametrize("int8", [False, True])
def test_the_graph_gives_the_probabilities_of_scikit_learn(encoder, fitted, int8, tmp_path):
    file = write_classifier(tmp_path / "c.npz", fitted)
    export_onnx(encoder, tmp_path / "onnx", normalize=True, int8=int8, classifier=file)
    sentences = [*SENTENCES, "the red cat sees a dog", ""]

    embeddings, logits, probabilities, labels = answers_of_graph(tmp_path / "onnx", sentences)

    # The classifier is exact even if the embeddings are rounded.
    expected = fitted.predict_proba(embeddings)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))
    assert logits.shape == expected.shape


def test_a_graph_in_float32_classifies_the_embeddings_of_this_package(encoder, fitted, tmp_path):
    file = write_classifier(tmp_path / "c.npz", fitted)
    export_onnx(encoder, tmp_path / "onnx", normalize=True, classifier=file)

    _, _, probabilities, _ = answers_of_graph(tmp_path / "onnx", SENTENCES)

    expected = fitted.predict_proba(encoder.encode(SENTENCES, normalize=True))
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_the_config_of_the_graph_names_its_labels(encoder, fitted, tmp_path):
    file = write_classifier(tmp_path / "c.npz", fitted)
    export_onnx(encoder, tmp_path / "onnx", normalize=True, classifier=file)

    embeddings, _, _, labels = answers_of_graph(tmp_path / "onnx", SENTENCES)

    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    names = [config["id2label"][str(label)] for label in labels]
    assert names == fitted.predict(embeddings).tolist()
    assert config["label2id"] == {name: int(number) for number, name in config["id2label"].items()}


def test_a_classifier_in_the_output_folder_is_not_overwritten(encoder, tmp_path):
    """Other exported folders are replaced."""
    export_onnx(encoder, tmp_path / "onnx")
    classifier = tmp_path / "onnx" / "c.npz"
    classifier.write_bytes(VALID_FILE)

    words = ("--classifier", classifier, "--output", tmp_path / "onnx")
    done = lxsr("export", "onnx", "--model", encoder.folder, *words, check=False)

    refused(done, "c.npz")
    assert classifier.read_bytes() == VALID_FILE
