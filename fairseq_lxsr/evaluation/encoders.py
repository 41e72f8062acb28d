"""Adapters that let other systems be measured: stored embeddings, word vectors, sentence-transformers folders."""

import hashlib
import importlib.util
import logging
import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_lxsr.choices import EMBEDDING_DTYPES, WORD_WEIGHTS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.text import Encoder, Text
from fairseq_lxsr.files import read_lines, sha256
from fairseq_lxsr.retrieval.neighbours import FloatArray
from fairseq_lxsr.stored import is_count, open_array, parse_json

logger = logging.getLogger(__name__)

FINGERPRINT_DIGITS = 12


def short_hash(*parts: str) -> str:
    """Twelve hexadecimal digits, as the fingerprint of a model folder."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:FINGERPRINT_DIGITS]


class EncodeMethod:
    """Anything with `encode(sentences) -> [N, D]`, such as `SentenceEncoder`.

    Args: options: passed on to `encode`.
    """

    def __init__(self, encoder: Any, fingerprint: str, **options: Any):
        self.encoder, self.options = encoder, options
        self.fingerprint = fingerprint

    def embed(self, text: Text) -> FloatArray:
        return self.encoder.encode(list(text.lines), **self.options)


class ByLanguage:
    """An encoder for each language, for systems whose languages have files of their own."""

    def __init__(self, encoders: Mapping[str, Encoder]):
        self.encoders = dict(encoders)

    @property
    def fingerprint(self) -> str:
        return short_hash(*(f"{language}={self.encoders[language].fingerprint}" for language in sorted(self.encoders)))

    def embed(self, text: Text) -> FloatArray:
        if text.language not in self.encoders:
            raise InputError(
                f"no model for the language {text.language!r}, only for {', '.join(sorted(self.encoders))}; "
                f"add --model {text.language}=..."
            )
        return self.encoders[text.language].embed(text)


class StoredEmbeddings:
    """A folder of embeddings made elsewhere: for a text file NAME, NAME.npy or LASER-raw NAME.raw (float32).

    The text's own .gz or .txt may be left out of the name. Row i belongs to line i of the text as it is in its file.
    Where `lxsr embed` described files in FILE.json, they must be of one model.

    Args:
        raw_width: D of LASER-raw files that nothing describes.
    """

    def __init__(self, folder: str | Path, raw_width: int = 1024):
        self.folder = Path(folder)
        self.raw_width = raw_width
        self.text_of: dict[Path, str] = {}
        self.model_of: dict[Path, str] = {}

    @cached_property
    def fingerprint(self) -> str:
        """Of all embeddings in the folder."""
        files = sorted(path for path in self.folder.iterdir() if path.suffix in (".npy", ".raw") and path.is_file())
        return short_hash(*(f"{path.name}={sha256(path)}" for path in files))

    def embed(self, text: Text) -> FloatArray:
        path = self._find(text.file)
        known = self.text_of.setdefault(path, text.file)
        if known != text.file:
            raise InputError(f"{path} would stand for {known} and for {text.file}; give the text files different names")
        about = read_description(path)
        if "model" in about:
            self._check_model(path, about["model"])
        stored = read_embeddings(path, about.get("dimension", self.raw_width), about.get("dtype", "float32"))
        rows = np.arange(len(text)) if text.rows is None else text.rows
        total = len(text) if text.total is None else text.total
        if len(stored) != total:
            raise InputError(
                f"{path}: {len(stored):,} embeddings for the {total:,} lines of {text.file}; expected one a line"
            )
        return np.asarray(stored[rows], dtype=np.float32)

    def _check_model(self, path: Path, model: str) -> None:
        for other, known in self.model_of.items():
            if known != model:
                raise InputError(
                    f"{path} is of model {model}, {other} of model {known}; their vectors do not share a space: embed "
                    "both texts with one model"
                )
        self.model_of[path] = model

    def _find(self, file: str) -> Path:
        name = Path(file).name
        bases = [name, name.removesuffix(".gz"), name.removesuffix(".gz").removesuffix(".txt").removesuffix(".tsv")]
        for base in bases:
            for suffix in (".npy", ".raw"):
                if (self.folder / f"{base}{suffix}").is_file():
                    return self.folder / f"{base}{suffix}"
        raise InputError(f"{self.folder / name}.npy: no such file, nor .raw; expected the embeddings of {file}")


def read_description(path: Path) -> dict[str, Any]:
    """What `lxsr embed` wrote beside a file of embeddings: model, dimension, dtype; empty where there is nothing.

    Raises: InputError for a description that is something else.
    """
    beside = path.with_name(f"{path.name}.json")
    if not beside.is_file():
        return {}
    try:
        index = parse_json(beside.read_text(encoding="utf-8"))
        found = {name: index[name] for name in ("model", "dimension", "dtype")}
        if not (isinstance(found["model"], str) and is_count(found["dimension"]) and found["dimension"]):
            raise TypeError(f"model {found['model']!r:.40}, dimension {found['dimension']!r:.40}")
        if found["dtype"] not in EMBEDDING_DTYPES:
            raise ValueError(f"dtype {found['dtype']!r:.40}, not {' or '.join(EMBEDDING_DTYPES)}")
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{beside}: does not describe {path.name} ({error!r}); embed the text again") from None


def read_embeddings(path: str | Path, raw_width: int = 1024, raw_dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Embeddings [N, D], memory-mapped: .npy of float32 or float16, anything else as LASER-raw.

    Raises: InputError where the file is something else.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the name")
    if raw_width < 1:
        raise InputError(f"--raw-dim {raw_width}; expected the width of the embeddings")
    if path.suffix != ".npy":
        size = path.stat().st_size
        if not size or size % (np.dtype(raw_dtype).itemsize * raw_width):
            raise InputError(
                f"{path}: {size:,} bytes, not rows of {raw_width} {raw_dtype}; set --raw-dim to their width, or embed "
                "the text again"
            )
        return np.memmap(path, dtype=raw_dtype, mode="r").reshape(-1, raw_width)
    try:
        stored = open_array(path)
    except ValueError as error:
        raise InputError(f"{path}: not a numpy file of numbers ({error}); write it with numpy.save") from None
    if stored.ndim != 2 or stored.dtype not in (np.float32, np.float16, np.float64) or not len(stored):
        raise InputError(f"{path}: {stored.dtype} of shape {stored.shape}; expected floats [N, D]")
    return stored


class WordVectors:
    """Sentences as combined word vectors of a text (.vec) file: a header `count width`, or none, then `word x x ...`.

    Words are split at white space; a word unknown as it is is looked up in lower case. `mean`, `sum`, or `idf`: mean
    weighted by log((1 + sentences) / sentences with the word), counted in the text at hand.
    """

    def __init__(self, path: str | Path, weights: str = "mean", show_progress: bool = False):
        if weights not in WORD_WEIGHTS:
            raise InputError(f"word weights {weights!r}; expected one of {', '.join(WORD_WEIGHTS)}")
        self.path, self.weights = Path(path), weights
        self.rows, self.vectors = read_word_vectors(self.path, show_progress)
        self.fingerprint = short_hash(sha256(self.path), weights)

    def embed(self, text: Text) -> FloatArray:
        words = [self._known(line) for line in text.lines]
        counts = Counter(row for sentence in words for row in set(sentence))
        embeddings = np.zeros((len(words), self.vectors.shape[1]), dtype=np.float32)
        for index, sentence in enumerate(words):
            if sentence:
                embeddings[index] = self._combine(sentence, counts, len(words))
        return embeddings

    def _known(self, line: str) -> list[int]:
        found = (self.rows.get(word, self.rows.get(word.lower())) for word in line.split())
        return [row for row in found if row is not None]

    def _combine(self, sentence: list[int], counts: Counter[int], sentences: int) -> FloatArray:
        vectors = self.vectors[sentence]
        if self.weights == "sum":
            return vectors.sum(axis=0)
        if self.weights == "mean":
            return vectors.mean(axis=0)
        # add-one, so that a word of every sentence still counts a little
        idf = np.array([math.log((1 + sentences) / counts[row]) for row in sentence], dtype=np.float32)
        return (idf[:, None] * vectors).sum(axis=0) / idf.sum()


def read_word_vectors(path: Path, show_progress: bool = False) -> tuple[dict[str, int], FloatArray]:
    """Words and their vectors [V, D]; of a word that stands there twice the first.

    Raises: InputError naming the line that is no word vector.
    """
    rows: dict[str, int] = {}
    vectors: list[FloatArray] = []
    header, words = None, 0
    lines = tqdm(read_lines(path), desc=path.name, unit=" words", disable=None if show_progress else True)
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2:
            header = fields
            continue
        words += 1
        word, values = fields[0], fields[1:]
        try:
            vector = np.array(values, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if not len(vector) or (vectors and len(vector) != len(vectors[0])) or not np.isfinite(vector).all():
            width = len(vectors[0]) if vectors else "its"
            raise InputError(f"{path}, line {number}: {line!r:.60}; expected a word and {width} numbers")
        if word not in rows:
            rows[word] = len(vectors)
            vectors.append(vector)
    if not vectors:
        raise InputError(f"{path}: no word vectors in it; expected `word x x ...` on every line")
    if header is not None and header != [str(words), str(len(vectors[0]))]:
        logger.warning(f"{path}: {words} words of width {len(vectors[0])}, but its first line says {' '.join(header)}")
    return rows, np.stack(vectors)


def sentence_transformers_folder(
    folder: str | Path, batch_size: int = 64, device: str | None = None, show_progress: bool = False
) -> EncodeMethod:
    """A folder of sentence-transformers, or of a Hugging Face encoder (then with mean pooling), from local disk.

    Weights are read from safetensors, and code in the folder is not run.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        raise InputError(f"{folder}: needs sentence-transformers, which is missing: pip install 'fairseq-lxsr[st]'")
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AssertionError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder}: sentence-transformers cannot load it ({reason:.150})") from None
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    fingerprint = short_hash(*(f"{path.relative_to(folder)}={sha256(path)}" for path in files))
    return EncodeMethod(model, fingerprint, batch_size=batch_size, show_progress_bar=show_progress)


def is_stored(path: Path) -> bool:
    """Whether a folder holds embeddings."""
    return path.is_dir() and any(file.suffix in (".npy", ".raw") for file in path.iterdir())
