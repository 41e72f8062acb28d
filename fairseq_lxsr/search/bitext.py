"""Translation pairs from two text files, by margin; every step resumes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write, is_blank, read_lines, sha256
from fairseq_lxsr.retrieval import MinedPairs, first_unusable, mine_neighbours, nearest_neighbours
from fairseq_lxsr.search.resumable import claim_folder, resumable_array

ENCODE_ROWS = 20_000  # sentences between two moments at which work is safe
SEARCH_ROWS = 32_768


@dataclass(frozen=True)
class Side:
    """One of the two files, and how its sentences become vectors.

    Args:
        path: text, one sentence a line.
        encode: sentences and the numbers of their lines, from 0, to embeddings [n, D].
        fingerprint: changes when the vectors do.
    """

    path: Path
    encode: Callable[[list[str], np.ndarray], np.ndarray]
    fingerprint: str


def mine_files(
    source: Side,
    target: Side,
    output: Path,
    work: Path,
    *,
    k: int = 4,
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    top: int | None = None,
    precision: str = "float32",
    memory_mb: int = 128,
    show_progress: bool = False,
) -> MinedPairs:
    """Write `score<TAB>source<TAB>target` by falling score; identical lines count once, empty ones not at all.

    Args:
        work: folder that keeps embeddings and neighbours; a run that was interrupted goes on from it, and another
            threshold, margin or retrieval uses it again.
        threshold: least score of a pair; top: largest number of pairs. None for no limit.
    Raises: InputError for a work folder of another run, and as `retrieval.mine`.
    """
    claim_folder(
        work,
        {
            **{f"{name} text": sha256(side.path) for name, side in (("source", source), ("target", target))},
            **{f"{name} model": side.fingerprint for name, side in (("source", source), ("target", target))},
            "k": k,
        },
    )
    texts, embeddings = [], []
    for name, side in (("source", source), ("target", target)):
        lines, rows = distinct_lines(side.path)
        texts.append(lines)
        embeddings.append(_embed(work / f"{name}.npy", side, lines, rows, show_progress))
    if embeddings[0].shape[1] != embeddings[1].shape[1]:
        raise InputError(
            f"embeddings of {source.path} are {embeddings[0].shape[1]} wide and those of {target.path} "
            f"{embeddings[1].shape[1]}; expected the same model for both"
        )
    search = {"precision": precision, "memory_mb": memory_mb}
    left, right = embeddings
    forward = _neighbours(work / "forward.npy", left, right, k, search, show_progress)
    backward = _neighbours(work / "backward.npy", right, left, k, search, show_progress)
    pairs = mine_neighbours(forward["cosines"], forward["ids"], backward["cosines"], backward["ids"], margin, retrieval)
    if threshold is not None:
        pairs = pairs.above(threshold)
    if top is not None:
        pairs = pairs.first(top)
    with atomic_write(output) as stream:
        for score, i, j in zip(pairs.scores.tolist(), pairs.source.tolist(), pairs.target.tolist(), strict=True):
            stream.write(f"{score:.6f}\t{_cell(texts[0][i])}\t{_cell(texts[1][j])}\n")
    return pairs


def distinct_lines(path: Path) -> tuple[list[str], np.ndarray]:
    """The lines that are not empty, each once, and their numbers from 0."""
    first: dict[str, int] = {}
    for number, line in enumerate(read_lines(path)):
        if not is_blank(line):
            first.setdefault(line.strip(), number)
    if not first:
        raise InputError(f"{path}: no text in it; expected one sentence a line")
    return list(first), np.array(list(first.values()))


def _cell(sentence: str) -> str:
    return sentence.replace("\t", " ")


def _embed(path: Path, side: Side, lines: list[str], rows: np.ndarray, show_progress: bool) -> np.ndarray:
    def compute(start: int, stop: int) -> np.ndarray:
        block = np.asarray(side.encode(lines[start:stop], rows[start:stop]), dtype=np.float32)
        unusable = first_unusable(block)
        if unusable:
            index, why = unusable
            raise InputError(
                f"{side.path}, line {rows[start + index] + 1}: the embedding of {lines[start + index]!r:.60} {why}; "
                "remove the line or mend the encoder"
            )
        return block

    width = side.encode(lines[:1], rows[:1]).shape[1]
    return resumable_array(path, (len(lines), width), np.float32, compute, ENCODE_ROWS, show_progress)


def _neighbours(
    path: Path, queries: np.ndarray, candidates: np.ndarray, k: int, search: dict[str, Any], show_progress: bool
) -> np.ndarray:
    """Cosines and ids of the nearest, [N] rows of k each."""
    row = np.dtype([("cosines", np.float32, (k,)), ("ids", np.int64, (k,))])

    def compute(start: int, stop: int) -> np.ndarray:
        block = np.empty(stop - start, dtype=row)
        block["cosines"], block["ids"] = nearest_neighbours(queries[start:stop], candidates, k, **search)
        return block

    return resumable_array(path, (len(queries),), row, compute, SEARCH_ROWS, show_progress)
