"""An encoder that reads embeddings made elsewhere from a folder with one file for each text
file.
"""

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

# options of `lxsr embed` that change vectors, as its descriptions name them, and their values that
# change nothing
USUAL: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32",),
    "computed_in": ("float32",),
    "batch_size": (None,),
    "normalize": (False,),
    "on_long": ("cut", "error"),
    "truncate_dim": (None,),
}
FINGERPRINT = re.compile(r"[\w.=-]{1,200}")  # what a signature can hold


class StoredEmbeddings:
    """Reads embeddings made elsewhere: for a text file NAME, NAME.npy, LASER-raw NAME.raw, or
    another format.

    NAME may omit the .gz or .txt of the text file. Row i belongs to line i of the text file. Files
    that `lxsr embed` described in FILE.json must come from one model, and each from the lines of
    its text file.

    Args:
        raw_width: D of LASER-raw files without a description.
    """

    def __init__(self, folder: str | Path, raw_width: int = 1024):
        self.folder = Path(folder)
        self.raw_width = raw_width
        self.text_of: dict[Path, str] = {}
        self.model_of: dict[Path, str] = {}
        self.checked: set[Path] = set()  # files whose text was compared

    @cached_property
    def fingerprint(self) -> str:
        """The model that made all files of the folder, where their descriptions name one; else a
        hash of the files.

        The options of `lxsr embed` that changed the vectors stand behind the model.
        """
        hashes = {path: sha256(path) for path in embedding_files(self.folder)}
        makers = {_maker(path, checksum) for path, checksum in hashes.items()}
        if len(makers) == 1 and (maker := makers.pop()):
            return maker
        return short_hash(*(f"{path.name}={checksum}" for path, checksum in hashes.items()))

    @cached_property
    def width(self) -> int:
        """Width of the first file, and of all files where they come from one model."""
        return read_embeddings(embedding_files(self.folder)[0], self.raw_width).shape[1]

    def embed(self, text: Text, counts: Counter[str] | None = None) -> FloatArray:
        if not text.file:
            raise InputError(
                f"{self.folder}: stored embeddings belong to text files, not to a stream; expected a model, "
                f"the one that made them ({self.fingerprint}), --model NAME, or a text file that was "
                "embedded too, --input FILE"
            )
        path = self._find(text.file)
        known = self.text_of.setdefault(path, text.file)
        if known != text.file:
            raise InputError(
                f"{path} would stand for {known} and for {text.file}; give the text files different names"
            )
        about = read_description(path)
        if "model" in about:
            self._check_model(path, about["model"])
        stored = read_embeddings(path, self.raw_width)
        rows = np.arange(len(text)) if text.rows is None else text.rows
        total = len(text) if text.total is None else text.total
        if len(stored) != total:
            raise InputError(
                f"{path}: {len(stored):,} embeddings for {total:,} lines of {text.file}; expected as many"
            )
        if len(text) and "text" in about and path not in self.checked:
            _check_text(path, about["text"], text)
            self.checked.add(path)
        with np.errstate(over="ignore"):  # infinity is refused later, where the vectors are used
            vectors = np.asarray(stored[rows], dtype=np.float32)
        return count_zeros(vectors, counts)

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
        bases = [
            name,
            name.removesuffix(".gz"),
            name.removesuffix(".gz").removesuffix(".txt").removesuffix(".tsv"),
        ]
        names = [f"{base}{found.suffix}" for base in bases for found in all_formats()]
        for path in (self.folder / name for name in names):
            if path.is_file():
                return path
        first, *others = (found.suffix for found in all_formats())
        raise InputError(
            f"{self.folder / name}{first}: no such file, nor {', '.join(others)}; expected the embeddings of {file}"
        )


def _maker(path: Path, checksum: str) -> str | None:
    """Return the model that made a file, with options that changed the vectors; None where no
    description says it.

    `checksum` is the SHA-256 of the file, which a description of this very file has.
    """
    try:
        about = read_description(path)
    except InputError:  # refused where the file itself is read
        return None
    if about.get("sha256") != checksum:
        return None
    changed = (
        f"-{name}={about.get(name)}"
        for name, usual in USUAL.items()
        if about.get(name) not in usual
    )
    maker = about["model"] + "".join(changed)
    return maker if FINGERPRINT.fullmatch(maker) else None


def _check_text(path: Path, embedded: str, text: Text) -> None:
    """Compare the hash of the lines that were embedded with that of the text as it was read, or of
    its file's lines.
    """
    readings = [iter(text.lines)] if text.rows is None else []
    if Path(text.file).is_file() and (text.rows is None or _holds_sentences(text)):
        readings.append(read_lines(text.file, is_sentence=False))
    if readings and all(hash_lines(lines)[1] != embedded for lines in readings):
        raise InputError(
            f"{path}: embeddings of other lines than {text.file} has, or in another order; embed it again"
        )


def _holds_sentences(text: Text) -> bool:
    """Return whether the lines of the file are the sentences, and not rows with several columns."""
    assert text.rows is not None
    line = next(islice(read_lines(text.file, is_sentence=False), int(text.rows[0]), None), "")
    return single_line(line).lower() == single_line(text[0]).lower()


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of embeddings by `lxsr embed`, with checked `model`, `dimension`,
    `dtype`, `calibration`.

    It is empty where there is none.
    """
    beside = index_path(path)
    if not beside.is_file():
        return {}
    try:
        found = parse_json(beside.read_text(encoding="utf-8"))
        model, dimension, dtype = (found[name] for name in ("model", "dimension", "dtype"))
        if not (isinstance(model, str) and is_count(dimension) and dimension):
            raise TypeError(f"model {model!r:.40}, dimension {dimension!r:.40}")
        if dtype not in EMBEDDING_DTYPES:
            raise ValueError(f"dtype {dtype!r:.40}, not {' or '.join(EMBEDDING_DTYPES)}")
        calibration = (
            Calibration.from_json(found["calibration"], dimension) if dtype == "int8" else None
        )
        return found | {"calibration": calibration}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{beside}: does not describe {path.name} ({error!r}); embed the text again"
        ) from None


def read_embeddings(path: str | Path, raw_width: int = 1024) -> np.ndarray[Any, Any] | StoredCodes:
    """Read embeddings [N, D], memory-mapped where the format allows it; int8 and binary become
    float32 row by row.

    Args:
        path: the file.
        raw_width: D of a LASER-raw file without a description, which holds float32.

    Raises:
        InputError: for a missing file, one of another format, or one that differs from its
            description's SHA-256.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the name")
    at_least(1).check("raw_width", raw_width)
    about: dict[str, Any] = {"dimension": raw_width, "dtype": "float32"} | read_description(path)
    stored = format_of_file(path).read(path, about)
    _check_once(path, *stamp(path))
    if about["dtype"] in ("int8", "binary"):
        return StoredCodes(stored, about["dimension"], about.get("calibration"))
    return stored


def load_embeddings(path: str | Path, raw_width: int = 1024) -> NDArray[np.float32]:
    """Load a file of embeddings, of any format and type that `lxsr embed` writes, as float32 [N,
    D].

    int8 and binary are decoded by the description FILE.json beside the file; float32 stays on disk,
    memory-mapped, where the format allows it. `numpy.load` gives the codes, whose neighbours are
    wrong.

        vectors = load_embeddings("work/en-fr/test.en.npy")
        cosines, found = nearest_neighbours(vectors, load_embeddings("work/en-fr/test.fr.npy"), k=5)

    Args:
        path: the file.
        raw_width: D of a LASER-raw file without a description, which holds float32.

    Raises:
        InputError: for a missing file, one of another format, codes without a description, or a
            damaged file.
    """
    return np.asarray(read_embeddings(path, raw_width), dtype=np.float32)


@lru_cache
def _check_once(path: Path, *stamp: int) -> None:
    """Hash a file once, however many batches of it are read: one of the same stamp is the same."""
    check_described(path)


def embedding_files(folder: Path) -> list[Path]:
    """Return the files of embeddings in a folder, sorted by name."""
    kinds = {found.suffix: found for found in all_formats()}
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and path.is_file())
    return [
        path for path in files if not kinds[path.suffix].described or index_path(path).is_file()
    ]


def is_embeddings_folder(path: Path) -> bool:
    """Return whether a folder holds embeddings."""
    return path.is_dir() and bool(embedding_files(path))
