"""A teacher's embeddings of the training text, read from disk on demand."""

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

VALUES_AT_ONCE = 1 << 22  # numbers checked at a time
LARGEST = 65_504  # largest absolute value, that of float16: --fp16 turns larger ones into infinity


class TeacherEmbeddings:
    """Embeddings [N, E] of one or both sides of aligned text, in any float type; one without takes
    the other's.
    """

    def __init__(self, source: np.ndarray | None, target: np.ndarray | None):
        self.sides = [side for side in (source, target) if side is not None]
        self.width: int = self.sides[0].shape[1]

    def rows(self, pairs: IntArray) -> tuple[np.ndarray, np.ndarray]:
        """Read the embeddings of the sources and of the targets of pairs [B], each [B, E]
        float32.
        """
        found = [side[pairs].astype(np.float32) for side in self.sides]
        return found[0], found[-1]


@dataclass(frozen=True)
class TeacherRows:
    """Part of a batch: the teacher's embeddings of its pairs."""

    teachers: Sequence[TeacherEmbeddings]  # one for each corpus of the dataset

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        # the same for all pairs: a batch comes from one corpus
        which = data.corpus_of(pairs.index[0])
        rows = pairs.index % len(data) - data.offsets[which]
        batch["teacher"] = np.concatenate(self.teachers[which].rows(rows))


def read_teacher(
    folder: Path, split: str, pair: tuple[str, str], count: int | None = None
) -> TeacherEmbeddings | None:
    """Open FOLDER/SPLIT.SRC-TGT.LANG.npy of one or both languages, None where neither exists.

    `count` is the number of pairs of the text, if it is known.
    """
    paths = [folder / name for name in teacher_files(split, pair)]
    sides = [open_rows(path, count) if path.is_file() else None for path in paths]
    there = [side for side in sides if side is not None]
    if len({side.shape for side in there}) > 1:
        raise InputError(
            f"{paths[0]}: {there[0].shape}, {paths[1].name}: {there[1].shape}; expected the same shape"
        )
    return TeacherEmbeddings(*sides) if there else None


def embedding_folders(
    option: str, value: str, shards: Sequence[Path], pairs: Sequence[tuple[str, str]]
) -> list[Path]:
    """Split the value of an option that names a folder of embeddings, one for each shard of the
    text or one for all.
    """
    folders = [Path(name) for name in value.split(os.pathsep)]
    if len(folders) not in (1, len(shards)):
        raise InputError(
            f"{option}: {len(folders)} folders; expected {len(shards)}, as of the text"
        )
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{option}: {folder}: no such folder; make it with `lxsr embed`")
    wanted = ",".join(map("-".join, pairs))
    # whose text the rows of a pair belong to
    shard_of: dict[tuple[Path, frozenset[str]], Path] = {}
    # one folder is that of all shards
    for shard, folder in zip(shards, folders * len(shards), strict=False):
        for name in count_pairs(shard, wanted):
            known = shard_of.setdefault((folder.resolve(), frozenset(name.split("-"))), shard)
            if known.resolve() != shard.resolve():
                raise InputError(
                    f"{option}: {folder} for {known} and for {shard}, which both have {name}; expected a folder for "
                    f"each shard, joined by {os.pathsep!r}"
                )
    return folders


def teacher_files(split: str, pair: tuple[str, str]) -> list[str]:
    return [f"{split}.{'-'.join(pair)}.{language}.npy" for language in pair]


def open_rows(path: Path, count: int | None) -> np.ndarray:
    """Open the embeddings of `count` sentences, where that is known, and check their values."""
    try:
        rows = open_array(path)
    except ValueError as error:
        raise InputError(
            f"{path}: no array of numbers ({error}); expected embeddings as .npy"
        ) from None
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.shape[1]:
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}; expected floats [sentences, width]"
        )
    if count is not None and len(rows) != count:
        raise InputError(
            f"{path}: {len(rows):,} rows, the text has {count:,} sentences; embed the very text that was binarised"
        )
    stat = path.stat()
    _check_values(path, stat.st_size, stat.st_mtime_ns)
    return rows


@functools.cache
def _check_values(path: Path, *size_and_time: int) -> None:
    """Check the values, once per process and file: shards are opened again every few epochs."""
    check_described(path)
    rows = open_array(path)
    step = max(1, VALUES_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        # compared as Python floats, not in the type of the file; min and max are NaN if any number
        # is
        if not -LARGEST <= float(block.min()) <= float(block.max()) <= LARGEST:
            row, column = (
                int(place)
                for place in np.argwhere(~(np.abs(block.astype(np.float64)) <= LARGEST))[0]
            )
            raise InputError(
                f"{path}: row {start + row + 1:,} has {block[row, column]:g} at place {column + 1:,}; expected finite "
                f"numbers of at most {LARGEST:,}, embed the text again"
            )
