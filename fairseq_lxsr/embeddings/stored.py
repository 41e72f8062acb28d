"""Embeddings in files: an encoder that reads them from a folder, and functions for single files."""

import re
from collections import Counter
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_lxsr.embeddings.codes import Calibration, StoredCodes
from fairseq_lxsr.embeddings.contract import Text, count_zeros, short_hash
from fairseq_lxsr.embeddings.formats import all_formats, format_of_file
from fairseq_lxsr.embeddings.write import hash_lines, index_path
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines, single_line
from fairseq_lxsr.files.open import sha256, stamp
from fairseq_lxsr.files.records import check_described, is_count, parse_json
from fairseq_lxsr.options import EMBEDDING_DTYPES, at_least
from fairseq_lxsr.vectors.rows import FloatArray

# Maps the options of `lxsr embed` that can change embeddings, under their names in description
# files, to the values that do not change them.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32",),
    "computed_in": ("float32",),
    "batch_size": (None,),
    "normalize": (False,),
    "on_long": ("cut", "error"),
    "truncate_dim": (None,),
}
# Format of model fingerprints; other values in a description file are ignored.
FINGERPRINT = re.compile(r"[\w.=-]{1,200}")


class StoredEmbeddings:
    """An encoder that reads embeddings from a folder with one file per text file.

        encoder = StoredEmbeddings("vectors")
        encoder.embed(Text(lines, file="corpus/test.en"))  # reads vectors/test.en.npy

    The embeddings of a text file NAME are in NAME.npy, in a LASER-raw file NAME.raw, or in another
    format. NAME may lack the suffix .gz, .txt or .tsv of the text file. Row i belongs to line i of
    the text file. Files with a description FILE.json from `lxsr embed` must come from the same
    model, and from the lines of their text file.

    Args:
        folder: folder with the embedding files.
        raw_width: number of dimensions in LASER-raw files without a description.
    """

    def __init__(self, folder: str | Path, raw_width: int = 1024):
        self.folder = Path(folder)
        self.raw_width = raw_width
        # Text file and model of each embedding file used so far.
        self.text_of: dict[Path, str] = {}
        self.model_of: dict[Path, str] = {}
        # Embedding files whose text has been checked.
        self.checked: set[Path] = set()

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the files' common model; if they have none, a hash of the files.

        The model fingerprint is followed by the options of `lxsr embed` that change embeddings.
        """
        checksums = {path: sha256(path) for path in embedding_files(self.folder)}
        models = {_described_model(path, checksum) for path, checksum in checksums.items()}
        if len(models) == 1:
            model = models.pop()
            if model:
                return model
        return short_hash(*(f"{path.name}={checksum}" for path, checksum in checksums.items()))

    @cached_property
    def width(self) -> int:
        """Embedding width of the first file. Files of the same model have the same width."""
        return read_embeddings(embedding_files(self.folder)[0], self.raw_width).shape[1]

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        if not text.file:
            raise InputError(
                f"{self.folder}: stored embeddings belong to text files, not to a stream; use "
                f"the model that created them ({self.fingerprint}) with --model NAME, or one "
                "of the embedded text files with --input FILE"
            )
        path = self._find(text.file)
        embedded_file = self.text_of.setdefault(path, text.file)
        if embedded_file != text.file:
            raise InputError(
                f"{path} would be used for both {embedded_file} and {text.file}; give the "
                "text files different names"
            )
        description = read_description(path)
        if "model" in description:
            self._check_model(path, description["model"])
        stored = read_embeddings(path, self.raw_width)
        rows = np.arange(len(text)) if text.rows is None else text.rows
        total = len(text) if text.total is None else text.total
        if len(stored) != total:
            raise InputError(
                f"{path} contains {len(stored):,} embeddings for {total:,} lines of {text.file}; "
                "expected one per line"
            )
        if len(text) and "text" in description and path not in self.checked:
            _check_text(path, description["text"], text)
            self.checked.add(path)
        # Numbers that overflow to infinity are rejected later, where the embeddings are used.
        with np.errstate(over="ignore"):
            embeddings = np.asarray(stored[rows], dtype=np.float32)
        return count_zeros(embeddings, counts)

    def _check_model(self, path: Path, model: str) -> None:
        """Check that a file comes from the same model as the files before it."""
        for earlier_path, earlier_model in self.model_of.items():
            if earlier_model != model:
                raise InputError(
                    f"{path} contains embeddings from model {model}, but {earlier_path} from "
                    f"model {earlier_model}, which are not comparable; embed both texts with the "
                    "same model"
                )
        self.model_of[path] = model

    def _find(self, file: str) -> Path:
        """Return the file with the embeddings of a text file."""
        name = Path(file).name
        unpacked = name.removesuffix(".gz")
        bases = [name, unpacked, unpacked.removesuffix(".txt").removesuffix(".tsv")]
        suffixes = [file_format.suffix for file_format in all_formats()]
        for base in bases:
            for suffix in suffixes:
                path = self.folder / f"{base}{suffix}"
                if path.is_file():
                    return path
        raise InputError(
            f"{self.folder / name}{suffixes[0]}: no such file, nor with {', '.join(suffixes[1:])}; "
            f"expected the embeddings of {file}"
        )


def _described_model(path: Path, checksum: str) -> str | None:
    """Return the model of an embedding file, and the options that affected its embeddings.

    The result is None if no description records the model. A description whose SHA-256 is not
    `checksum` belongs to other content, and is ignored.
    """
    try:
        description = read_description(path)
    except InputError:
        # Reading the file itself will raise this error again.
        return None
    if description.get("sha256") != checksum:
        return None
    model = description["model"]
    for name, neutral_values in NEUTRAL_VALUES.items():
        value = description.get(name)
        if value not in neutral_values:
            model += f"-{name}={value}"
    return model if FINGERPRINT.fullmatch(model) else None


def _check_text(path: Path, text_hash: str, text: Text) -> None:
    """Check that the embeddings were computed from the lines of a text.

    Args:
        path: embedding file.
        text_hash: hash of the embedded lines. It may match the sentences as they were read, or the
            lines of their file.
        text: text to check.
    """
    readings = [iter(text.lines)] if text.rows is None else []
    if Path(text.file).is_file() and (text.rows is None or _holds_sentences(text)):
        readings.append(read_lines(text.file, is_sentence=False))
    if readings and all(hash_lines(lines)[1] != text_hash for lines in readings):
        raise InputError(
            f"{path}: not the embeddings of the lines of {text.file} in this order; embed the "
            "text again"
        )


def _holds_sentences(text: Text) -> bool:
    """Return whether each line of a text file is one sentence, rather than a row of several
    columns."""
    assert text.rows is not None
    line = next(islice(read_lines(text.file, is_sentence=False), int(text.rows[0]), None), "")
    return single_line(line).lower() == single_line(text[0]).lower()


def read_description(path: Path) -> dict[str, Any]:
    """Read the JSON description that `lxsr embed` writes next to an embedding file.

    Args:
        path: embedding file.

    Returns:
        The description, in which `model`, `dimension`, `dtype` and `calibration` were checked. It
        is empty if the file has no description.

    Raises:
        InputError: if the description is invalid.
    """
    description_path = index_path(path)
    if not description_path.is_file():
        return {}
    try:
        description = parse_json(description_path.read_text(encoding="utf-8"))
        model = description["model"]
        dimension = description["dimension"]
        dtype = description["dtype"]
        if not (isinstance(model, str) and is_count(dimension) and dimension):
            raise TypeError(f"model {model!r:.40}, dimension {dimension!r:.40}")
        if dtype not in EMBEDDING_DTYPES:
            raise ValueError(f"dtype is {dtype!r:.40}, not {' or '.join(EMBEDDING_DTYPES)}")
        calibration = None
        if dtype == "int8":
            calibration = Calibration.from_json(description["calibration"], dimension)
        return description | {"calibration": calibration}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{description_path}: not a valid description of {path.name} ({error!r}); "
            "embed the text again"
        ) from None


def read_embeddings(path: str | Path, raw_width: int = 1024) -> np.ndarray[Any, Any] | StoredCodes:
    """Read embeddings [N, D], memory-mapped if the format allows it.

    int8 and binary rows are converted to float32 when they are read.

    Args:
        path: embedding file.
        raw_width: D of a LASER-raw file without a description, which contains float32.

    Returns:
        An array [N, D], or codes that are decoded row by row.

    Raises:
        InputError: if the file is missing or has another format, or if its checksum does not match
            the description.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the name")
    at_least(1).check("raw_width", raw_width)
    description: dict[str, Any] = {"dimension": raw_width, "dtype": "float32"}
    description |= read_description(path)
    stored = format_of_file(path).read(path, description)
    _check_once(path, *stamp(path))
    if description["dtype"] in ("int8", "binary"):
        return StoredCodes(stored, description["dimension"], description.get("calibration"))
    return stored


def load_embeddings(path: str | Path, raw_width: int = 1024) -> NDArray[np.float32]:
    """Load an embedding file as float32 [N, D], from any format and dtype of `lxsr embed`.

        vectors = load_embeddings("work/en-fr/test.en.npy")
        cosines, ids = nearest_neighbours(vectors, load_embeddings("work/en-fr/test.fr.npy"), k=5)

    int8 and binary embeddings are decoded using the description FILE.json. In contrast,
    `numpy.load` would return the codes, which have the wrong neighbours. float32 is memory-mapped
    if the format allows it.

    Args:
        path: embedding file.
        raw_width: D of a LASER-raw file without a description, which contains float32.

    Returns:
        Embeddings, float32 [N, D].

    Raises:
        InputError: if the file is missing, damaged or in another format, or contains codes without
            a description.
    """
    return np.asarray(read_embeddings(path, raw_width), dtype=np.float32)


@lru_cache
def _check_once(path: Path, *stamp: int) -> None:
    """Verify the checksum of a file, but only once for the same `stamp`."""
    check_described(path)


def embedding_files(folder: Path) -> list[Path]:
    """Return the embedding files in a folder, sorted by name.

    Args:
        folder: folder to list.

    Returns:
        Paths of the files.
    """
    formats = {file_format.suffix: file_format for file_format in all_formats()}
    files = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in formats or not path.is_file():
            continue
        if not formats[path.suffix].described or index_path(path).is_file():
            files.append(path)
    return files


def is_embeddings_folder(path: Path) -> bool:
    """Return whether a path is a folder with embeddings.

    Args:
        path: path to check.

    Returns:
        True for a folder that contains an embedding file.
    """
    return path.is_dir() and bool(embedding_files(path))
