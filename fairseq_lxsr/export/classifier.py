"""Adds a linear classifier, for example of scikit-learn, to the ONNX graph of an encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError, first_line, listed
from fairseq_lxsr.files.open import open_file

# Names of the graph's outputs. transformers.js requires the first name.
LOGITS_OUTPUT = "logits"
PROBABILITIES_OUTPUT = "probabilities"
LABEL_OUTPUT = "label"
# Arrays in the file, named after the attributes of scikit-learn.
ARRAYS = ("coef", "intercept", "classes")
# A statement that writes the file, for messages.
WRITE = "numpy.savez(FILE, coef=c.coef_, intercept=c.intercept_, classes=c.classes_.astype(str))"
# Maximum size of the arrays in bytes: a larger classifier is implausible.
MAX_BYTES = 2**30


@dataclass(frozen=True)
class LinearClassifier:
    """A linear classifier: the logit of each class is a linear function of the embedding.

    It predicts the class with the largest logit.

        classifier = LinearClassifier.read("classifier.npz", encoder.output_dim)
        logits = encoder.encode(sentences) @ classifier.weights.T + classifier.biases

    Attributes:
        weights: float32 [K, D].
        biases: float32 [K].
        names: names of the K classes.
    """

    weights: np.ndarray
    biases: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def read(cls, path: str | Path, width: int) -> "LinearClassifier":
        """Read the arrays `coef`, `intercept` and `classes` from a file written by `numpy.savez`.

        Nothing is unpickled, because that could run code.

        Args:
            path: file in the format .npz.
            width: number of dimensions D of the embeddings.

        Returns:
            The classifier. For two classes, scikit-learn stores only the weights and the bias of
            the second; those of the first are set to 0.

        Raises:
            InputError: if the file does not contain exactly these arrays, if their shapes or types
                are wrong, or if a number is not finite.
        """
        arrays = _read_arrays(path)
        names = _class_names(path, arrays["classes"])
        # For two classes, some classifiers store a vector, others a matrix with one row.
        weights = np.atleast_2d(_finite(path, "coef", arrays["coef"]))
        biases = _finite(path, "intercept", arrays["intercept"])
        rows = 1 if len(names) == 2 else len(names)
        if weights.shape != (rows, width):
            raise InputError(
                f"{path}: coef has shape {weights.shape}; expected {(rows, width)} for "
                f"{len(names):,} classes and embeddings of {width} dimensions: train the "
                "classifier on embeddings of this model"
            )
        # A classifier without an intercept stores the number 0.
        if biases.shape not in ((), (rows,)):
            raise InputError(
                f"{path}: intercept has shape {biases.shape}; expected {(rows,)}: write it with "
                f"{WRITE}"
            )
        biases = np.broadcast_to(biases, rows)
        if rows == 1:
            weights = np.concatenate([np.zeros_like(weights), weights])
            biases = np.concatenate([np.zeros_like(biases), biases])
        return cls(weights, biases, names)

    def config(self) -> dict[str, Any]:
        """Return the settings of the classes that transformers.js expects in config.json."""
        return {
            "problem_type": "single_label_classification",
            "id2label": {str(index): name for index, name in enumerate(self.names)},
            "label2id": {name: index for index, name in enumerate(self.names)},
        }

    def add_to(self, model: Any, embeddings: str) -> None:
        """Add logits [B, K], probabilities [B, K] and labels [B] to the outputs of a graph.

        Args:
            model: the ONNX model, changed in place.
            embeddings: name of the embeddings [B, D] in the graph.
        """
        from onnx import TensorProto, helper, numpy_helper

        logits = LOGITS_OUTPUT
        weights = numpy_helper.from_array(self.weights, "class_weights")
        biases = numpy_helper.from_array(self.biases, "class_biases")
        inputs = [embeddings, weights.name, biases.name]
        graph = model.graph
        graph.initializer.extend([weights, biases])
        graph.node.extend(
            [
                helper.make_node("Gemm", inputs, [logits], transB=1),
                helper.make_node("Softmax", [logits], [PROBABILITIES_OUTPUT], axis=1),
                helper.make_node("ArgMax", [logits], [LABEL_OUTPUT], axis=1, keepdims=0),
            ]
        )
        shape: list[str | int] = ["sentences", len(self.names)]
        for name in (logits, PROBABILITIES_OUTPUT):
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        label = helper.make_tensor_value_info(LABEL_OUTPUT, TensorProto.INT64, shape[:1])
        graph.output.append(label)


def _read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of the file; see `LinearClassifier.read`."""
    with open_file(path) as stream:
        try:
            # numpy treats a file in an unknown format as a pickle, which is rejected here.
            content: Any = np.load(stream, allow_pickle=False)
            return _load_members(content)
        except OSError:
            raise
        except Exception as error:
            # zipfile and numpy raise many types of errors for damaged files.
            raise InputError(
                f"{path}: not a NumPy file of a classifier ({first_line(error):.150}); expected "
                f"{listed(ARRAYS)}: "
                f"write it with {WRITE}"
            ) from None


def _load_members(content: Any) -> dict[str, np.ndarray]:
    """Load the arrays from an open .npz file.

    Raises:
        ValueError: if the file contains other arrays, or the arrays are too large.
    """
    if not isinstance(content, np.lib.npyio.NpzFile):
        raise ValueError("a single array")
    if set(content.files) != set(ARRAYS):
        raise ValueError(f"it has {listed(content.files) or 'no array'}")
    archive: Any = content.zip
    size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise ValueError(f"{size:,} bytes exceed {MAX_BYTES:,}")
    return {name: content[name] for name in ARRAYS}


def _class_names(path: str | Path, classes: np.ndarray) -> tuple[str, ...]:
    """Return the names of the classes, after checking that they are a list of different names."""
    names = tuple(map(str, classes.ravel().tolist()))
    is_list = classes.ndim == 1 and classes.dtype.kind in "Uiub"
    if not is_list or len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"{path}: classes contains {listed(names)} (dtype {classes.dtype}, shape "
            f"{classes.shape}); expected a list of two or more different names or integers: write "
            f"it with {WRITE}"
        )
    return names


def _finite(path: str | Path, name: str, numbers: np.ndarray) -> np.ndarray:
    """Convert numbers to float32, and check that the results are finite."""
    if numbers.dtype.kind != "f":
        raise InputError(
            f"{path}: {name} has dtype {numbers.dtype}; expected floating-point numbers: write it "
            f"with {WRITE}"
        )
    with np.errstate(over="ignore"):
        converted = numbers.astype(np.float32)
    if not np.isfinite(converted).all():
        raise InputError(
            f"{path}: {name} contains numbers that are not finite in float32; expected finite "
            "numbers: train the classifier again"
        )
    return converted
