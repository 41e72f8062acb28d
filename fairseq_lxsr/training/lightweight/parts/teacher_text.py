"""Additional text in any language, with teacher embeddings, that is added to each batch."""

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
    """The N texts (words or sentences) in one file, with their teacher embeddings.

    Attributes:
        ids: concatenated piece ids of all texts [P].
        ends: end position of each text in `ids` [N].
        vectors: teacher embeddings [N, E].
    """

    ids: IntArray
    ends: IntArray
    vectors: "ChosenRows"

    def pieces(self, row: int, max_length: int) -> IntArray:
        """Return the ids of a text, truncated to `max_length`."""
        start = self.ends[row - 1] if row else 0
        return self.ids[start : min(self.ends[row], start + max_length)]


def read_teacher_texts(folder: Path, data: Sequence[Path]) -> list[TeacherText]:
    """Read all NAME.txt files in a folder, with their embeddings in NAME.npy.

    Args:
        folder: folder with the texts, one text per line.
        data: data folders for training, which contain the tokenizer.

    Raises:
        InputError: if a file is missing, or does not match the other files.
    """
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise InputError(
            f"--teacher-text {folder}: no .txt files; expected NAME.txt, and NAME.npy with one row "
            "per line"
        )
    text = find_text(list(data))
    tokenizer = Tokenizer(text.sentencepiece_model, text.options, read_dictionary(text.dictionary))
    texts = [_read_texts(path, tokenizer) for path in files]
    dimensions = sorted({part.vectors.shape[1] for part in texts})
    if len(dimensions) > 1:
        raise InputError(
            f"--teacher-text {folder}: embeddings of different widths "
            f"{', '.join(map(str, dimensions))}; use embeddings from one teacher"
        )
    return texts


def _read_texts(path: Path, tokenizer: Tokenizer) -> TeacherText:
    lines = list(read_lines(path))
    vectors = open_rows(path.with_suffix(".npy"), len(lines))
    ids, lengths = tokenizer.encode_flat(lines)
    line = np.repeat(np.arange(len(lines)), lengths)
    is_known = np.bincount(line[ids != tokenizer.unknown], minlength=len(lines)) > 0
    if not is_known.any():
        raise InputError(
            f"{path}: no line contains a piece from the dictionary; use text in the model's "
            "languages"
        )
    # Skip lines without any known piece.
    known_rows = ChosenRows(vectors, np.flatnonzero(is_known))
    return TeacherText(ids[is_known[line]], lengths[is_known].cumsum(), known_rows)


class ChosenRows:
    """Selected rows of an array on disk, read only when they are indexed.

    Args:
        rows: array on disk [M, E].
        chosen: indices of the selected rows [N].
    """

    def __init__(self, rows: np.ndarray, chosen: IntArray):
        self._rows = rows
        self._chosen = chosen
        self.shape = (len(chosen), rows.shape[1])

    def __getitem__(self, index: IntArray) -> np.ndarray:
        return self._rows[self._chosen[index]]


@dataclass(frozen=True)
class DrawnTeacherTexts:
    """Adds a random text and its embedding for each pair. All files are equally likely.

    The text depends only on (seed, epoch, pair index), not on batch order or the number of workers.

    Attributes:
        texts: texts of each file.
    """

    texts: Sequence[TeacherText]

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        data = pairs.dataset
        draw_file = uniform(data.seed, data.epoch, pairs.index, Draw.TEACHER_FILE)
        draw_text = uniform(data.seed, data.epoch, pairs.index, Draw.TEACHER_TEXT)
        files = (draw_file * len(self.texts)).astype(np.int64)
        counts = np.array([len(part.ends) for part in self.texts])
        rows = (draw_text * counts[files]).astype(np.int64)
        pieces = [
            self.texts[i].pieces(j, data.max_positions) for i, j in zip(files, rows, strict=True)
        ]
        vectors = np.empty((len(rows), self.texts[0].vectors.shape[1]), dtype=np.float32)
        for i in np.unique(files):
            vectors[files == i] = self.texts[i].vectors[rows[files == i]]
        width = data.padded_width(max(map(len, pieces)))
        batch["net_input"]["teacher_text"] = padded(pieces, data.padding_idx, width)
        batch["teacher_text"] = vectors
