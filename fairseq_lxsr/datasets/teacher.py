"""A teacher's embeddings of the training text, read from disk as they are needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.datasets.batch import DrawnPairs
from fairseq_lxsr.datasets.masking import IntArray
from fairseq_lxsr.errors import InputError


class TeacherEmbeddings:
    """Embeddings of one or both sides of aligned text; the side that has none takes those of the other.

    Args: source, target: [N, E] of any floating type, row i of sentence i.
    """

    def __init__(self, source: np.ndarray | None, target: np.ndarray | None):
        self.sides = [side for side in (source, target) if side is not None]
        self.width: int = self.sides[0].shape[1]

    def rows(self, pairs: IntArray) -> tuple[np.ndarray, np.ndarray]:
        """pairs [B] -> embeddings of the sources and of the targets [B, E] float32."""
        found = [side[pairs].astype(np.float32) for side in self.sides]
        return found[0], found[-1]


class TeacherRows:
    """Part of a batch: the teacher's embeddings of its pairs.

    Args: teachers: one for each corpus of the dataset.
    """

    def __init__(self, teachers: Sequence[TeacherEmbeddings]):
        self.teachers = teachers

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        which = data.corpus_of(pairs.index[0])  # of all: a batch is of one corpus
        rows = pairs.index % len(data) - data.offsets[which]
        batch["teacher"] = np.concatenate(self.teachers[which].rows(rows))


def read_teacher(folder: Path, split: str, pair: tuple[str, str], count: int | None = None) -> TeacherEmbeddings | None:
    """FOLDER/SPLIT.SRC-TGT.LANG.npy of either language or both; None where there is neither.

    Args: count: number of pairs that the text has, where known.
    Raises: InputError for a file that is no [N, E] array of numbers, or has not a row for every pair.
    """
    paths = [folder / name for name in teacher_files(split, pair)]
    sides = [_open(path, count) if path.is_file() else None for path in paths]
    there = [side for side in sides if side is not None]
    if len({side.shape for side in there}) > 1:
        raise InputError(f"{paths[0]}: {there[0].shape}, {paths[1].name}: {there[1].shape}; expected the same shape")
    return TeacherEmbeddings(*sides) if there else None


def teacher_files(split: str, pair: tuple[str, str]) -> list[str]:
    return [f"{split}.{'-'.join(pair)}.{language}.npy" for language in pair]


def _open(path: Path, count: int | None) -> np.ndarray:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{path}: no array of numbers ({error}); expected embeddings as .npy") from None
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise InputError(
            f"{path}: {rows.dtype} of shape {rows.shape}; expected floating-point numbers [sentences, width]"
        )
    if count is not None and len(rows) != count:
        raise InputError(
            f"{path}: {len(rows):,} rows, the text has {count:,} sentences; embed the very text that was binarised"
        )
    return rows
