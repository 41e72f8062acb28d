"""Teacher embeddings of the training text, read from disk on demand."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import check_described, open_array
from fairseq_lxsr.text.data_folder import count_pairs
from fairseq_lxsr.training.dataset import DrawnPairs
from fairseq_lxsr.vectors.rows import IntArray

# Number of values to check at a time.
VALUES_AT_ONCE = 1 << 22
# Largest float16 value: --fp16 would turn larger values into infinity.
LARGEST_FLOAT16 = 65_504


class TeacherEmbeddings:
    """Teacher embeddings of aligned text, in any floating-point dtype.

    Args:
        source: source embeddings [N, E]; None uses the target embeddings instead.
        target: target embeddings [N, E]; None uses the source embeddings instead.
    """

    def __init__(self, source: np.ndarray | None, target: np.ndarray | None):
        self.sides = [side for side in (source, target) if side is not None]
        self.width: int = self.sides[0].shape[1]

    def rows(self, pairs: IntArray) -> tuple[np.ndarray, np.ndarray]:
        """Read the source and target embeddings of pairs [B], float32 [B, E] each."""
        embeddings = [side[pairs].astype(np.float32) for side in self.sides]
        return embeddings[0], embeddings[-1]


@dataclass(frozen=True)
class TeacherRows:
    """Adds the teacher embeddings of the pairs to a batch.

    Attributes:
        teachers: teacher embeddings of every corpus in the dataset.
    """

    teachers: Sequence[TeacherEmbeddings]

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        # All pairs in a batch come from one corpus.
        corpus = data.corpus_of(pairs.index[0])
        rows = pairs.index % len(data) - data.offsets[corpus]
        batch["teacher"] = np.concatenate(self.teachers[corpus].rows(rows))


def read_teacher(
    folder: Path, split: str, pair: tuple[str, str], count: int | None = None
) -> TeacherEmbeddings | None:
    """Open the teacher embeddings of a split, FOLDER/SPLIT.SRC-TGT.LANG.npy.

    Args:
        folder: folder with the embeddings.
        split: `train`, `valid` or `test`.
        pair: source and target language.
        count: number of pairs in the text, if known.

    Returns:
        The embeddings, or None if neither file exists.

    Raises:
        InputError: if a file does not contain embeddings of this text.
    """
    source_path, target_path = (folder / name for name in teacher_files(split, pair))
    source = _open_if_exists(source_path, count)
    target = _open_if_exists(target_path, count)
    if source is None and target is None:
        return None
    if source is not None and target is not None and source.shape != target.shape:
        raise InputError(
            f"{source_path}: shape {source.shape} does not match {target_path.name}: shape "
            f"{target.shape}"
        )
    return TeacherEmbeddings(source, target)


def _open_if_exists(path: Path, count: int | None) -> np.ndarray | None:
    return open_rows(path, count) if path.is_file() else None


def embedding_folders(
    option: str, value: str, shards: Sequence[Path], pairs: Sequence[tuple[str, str]]
) -> list[Path]:
    """Parse an option that names one or more folders with embeddings.

    Args:
        option: name of the option, for messages.
        value: value of the option: one folder, or one folder per shard, joined by `os.pathsep`.
        shards: data folders of the text.
        pairs: language pairs to train on.

    Returns:
        A single folder for all shards, or one folder per shard.

    Raises:
        InputError: if the number of folders is wrong, a folder is missing, or one folder is used
            for several shards with the same language pair.
    """
    folders = [Path(name) for name in value.split(os.pathsep)]
    if len(folders) not in (1, len(shards)):
        raise InputError(
            f"{option}: {len(folders)} folders; expected 1, or one per data shard ({len(shards)})"
        )
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{option}: {folder}: no such folder; create it with `lxsr embed`")
    lang_pairs = ",".join(map("-".join, pairs))
    # Maps each folder and language pair to the data shard that the embeddings belong to.
    shard_of: dict[tuple[Path, frozenset[str]], Path] = {}
    # A single folder is used for all shards.
    for shard, folder in zip(shards, folders * len(shards), strict=False):
        for name in count_pairs(shard, lang_pairs):
            key = (folder.resolve(), frozenset(name.split("-")))
            first_shard = shard_of.setdefault(key, shard)
            if first_shard.resolve() != shard.resolve():
                raise InputError(
                    f"{option}: {folder} is used for {first_shard} and for {shard}, which both "
                    f"contain {name}; use one folder per shard, joined by {os.pathsep!r}"
                )
    return folders


def teacher_files(split: str, pair: tuple[str, str]) -> list[str]:
    """Return the file names of the source and target embeddings."""
    return [f"{split}.{'-'.join(pair)}.{language}.npy" for language in pair]


def missing_teacher(folder: Path, pair: tuple[str, str]) -> InputError:
    """Return the error to raise if `read_teacher` finds no embeddings of the training text."""
    source, target = teacher_files("train", pair)
    return InputError(
        f"{folder}: found neither {source} nor {target}; create one or both with `lxsr embed`"
    )


def open_rows(path: Path, count: int | None) -> np.ndarray:
    """Open an array of embeddings, and check its values.

    Args:
        path: an .npy file.
        count: expected number of rows; None if unknown.

    Raises:
        InputError: if the file is not a matrix of finite floats, or its number of rows is wrong.
    """
    try:
        rows = open_array(path)
    except ValueError as error:
        raise InputError(
            f"{path}: not an array of numbers ({error}); expected embeddings as .npy"
        ) from None
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.shape[1]:
        raise InputError(
            f"{path}: {rows.dtype} array of shape {rows.shape}; expected a floating-point array of "
            "shape [sentences, width]"
        )
    if count is not None and len(rows) != count:
        raise InputError(
            f"{path}: {len(rows):,} embeddings for {count:,} sentences; embed exactly the text "
            "that was binarised"
        )
    stat = path.stat()
    _check_values(path, stat.st_size, stat.st_mtime_ns)
    return rows


@functools.cache
def _check_values(path: Path, *size_and_time: int) -> None:
    """Check the values in a file once per process, because shards are reopened repeatedly.

    Args:
        path: an .npy file.
        *size_and_time: size and modification time, so that a changed file is checked again.
    """
    check_described(path)
    rows = open_array(path)
    step = max(1, VALUES_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        # Compare Python floats, because the limit may overflow in the file's dtype. Minimum and
        # maximum are NaN if any value is NaN.
        if -LARGEST_FLOAT16 <= float(block.min()) <= float(block.max()) <= LARGEST_FLOAT16:
            continue
        is_invalid = ~(np.abs(block.astype(np.float64)) <= LARGEST_FLOAT16)
        row, column = (int(position) for position in np.argwhere(is_invalid)[0])
        raise InputError(
            f"{path}: value {block[row, column]:g} in row {start + row + 1:,}, column "
            f"{column + 1:,}; expected finite numbers of at most {LARGEST_FLOAT16:,}: embed the "
            "text again"
        )
