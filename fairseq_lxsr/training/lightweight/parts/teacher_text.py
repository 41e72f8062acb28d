"""Text of any language with a teacher's embeddings of it, words or sentences, drawn beside the
pairs of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.data_folder import find_text
from fairseq_lxsr.text.tokenizer import Tokenizer, read_dictionary
from fairseq_lxsr.training.dataset import DrawnPairs, padded
from fairseq_lxsr.training.draws import Draw, uniform
from fairseq_lxsr.training.lightweight.parts.teacher import open_rows
from fairseq_lxsr.vectors.rows import IntArray


@dataclass(frozen=True)
class TeacherText:
    """Texts of one file as pieces, and the teacher's embeddings [N, E] of them."""

    ids: IntArray  # [P] pieces of all texts, one text after the other
    ends: IntArray  # [N]
    vectors: "ChosenRows"

    def pieces(self, row: int, most: int) -> IntArray:
        """Return the first `most` pieces of a text."""
        start = self.ends[row - 1] if row else 0
        return self.ids[start : min(self.ends[row], start + most)]


def read_teacher_texts(folder: Path, data: Sequence[Path]) -> list[TeacherText]:
    """Read every NAME.txt of a folder with NAME.npy beside it, split as the text of the data
    folders was.
    """
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise InputError(
            f"--teacher-text {folder}: has no .txt; expected NAME.txt, and NAME.npy with a row a line"
        )
    text = find_text(list(data))
    tokenizer = Tokenizer(text.sentencepiece_model, text.options, read_dictionary(text.dictionary))
    found = [_read(path, tokenizer) for path in files]
    if len({part.vectors.shape[1] for part in found}) > 1:
        raise InputError(
            f"--teacher-text {folder}: embeddings of several widths; expected one teacher"
        )
    return found


def _read(path: Path, tokenizer: Tokenizer) -> TeacherText:
    lines = list(read_lines(path))
    vectors = open_rows(path.with_suffix(".npy"), len(lines))
    ids, lengths = tokenizer.encode_flat(lines)
    line = np.repeat(np.arange(len(lines)), lengths)
    is_known = np.bincount(line[ids != tokenizer.unknown], minlength=len(lines)) > 0
    if not is_known.any():
        raise InputError(
            f"{path}: no line has a piece of the dictionary; expected text in the languages of the model"
        )
    return TeacherText(
        ids[is_known[line]],
        lengths[is_known].cumsum(),
        ChosenRows(vectors, np.flatnonzero(is_known)),
    )


class ChosenRows:
    """Rows of an array on disk, chosen by their numbers."""

    def __init__(self, rows: np.ndarray, chosen: IntArray):
        self._rows, self._chosen = rows, chosen
        self.shape = len(chosen), rows.shape[1]

    def __getitem__(self, places: IntArray) -> np.ndarray:
        return self._rows[self._chosen[places]]


@dataclass(frozen=True)
class DrawnTeacherTexts:
    """Part of a batch: as many texts as pairs, files drawn alike, and the teacher's embeddings of
    them.

    A text is drawn for each pair, so neither the order of batches nor the number of workers changes
    which.
    """

    texts: Sequence[TeacherText]

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        draws = (Draw.TEACHER_FILE, Draw.TEACHER_TEXT)
        file, row = (uniform(data.seed, data.epoch, pairs.index, draw) for draw in draws)
        files = (file * len(self.texts)).astype(np.int64)
        rows = (row * np.array([len(part.ends) for part in self.texts])[files]).astype(np.int64)
        drawn = [
            self.texts[i].pieces(j, data.max_positions) for i, j in zip(files, rows, strict=True)
        ]
        vectors = np.empty((len(rows), self.texts[0].vectors.shape[1]), dtype=np.float32)
        for i in np.unique(files):
            vectors[files == i] = self.texts[i].vectors[rows[files == i]]
        batch["net_input"]["teacher_text"] = padded(
            drawn, data.padding_idx, data.padded_width(max(map(len, drawn)))
        )
        batch["teacher_text"] = vectors
