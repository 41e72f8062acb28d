"""Vectors of fewer bytes: recall against exact search, P@1 of the translation, bytes a vector,
seconds.

python -m benchmarks.speed.small_vectors --model MODEL --source train.en --target train.fr --output
FILE.json

Candidates are different sentences of --target, queries the translations of some of them. Measured
are every kind of index, embeddings stored in int8 and as signs (`lxsr embed --output-dtype`) and
searched exactly, and the first dimensions alone (`--truncate-dim`). Seconds are those of the
processor, over all threads, for one search of all queries, which are float32.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings.codes import Calibration
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.vectors import build_index, nearest_neighbours, search_index
from fairseq_lxsr.vectors.index import write_index

K = 10
CALIBRATED_ON = 20_000  # first lines, as in `lxsr embed`
Search = Callable[[], tuple[np.ndarray, np.ndarray]]


def different_pairs(source: Path, target: Path, count: int) -> list[tuple[str, str]]:
    """The first pairs whose targets differ from each other."""
    found: dict[str, str] = {}
    for line, other in zip(read_lines(source), read_lines(target), strict=True):
        if line.strip() and other.strip() and len(found) < count:
            found.setdefault(other, line)
    return [(line, other) for other, line in found.items()]


def measure(
    name: str, size: float, search: Search, exact: np.ndarray, true: np.ndarray
) -> dict[str, Any]:
    """One row of the table.

    Args:
        name: what is measured.
        size: bytes of a stored vector.
        search: finds cosines and numbers of the K nearest of every query, [N, K] each.
        exact: numbers of the nearest by exact search of the float32 vectors [N, K].
        true: number of the translation of every query [N].
    """
    start = time.process_time()
    _, found = search()
    seconds = time.process_time() - start
    shared = [len(np.intersect1d(*rows)) for rows in zip(found, exact, strict=True)]
    row = {
        "vectors": name,
        "bytes": size,
        "recall@1": float((found[:, 0] == exact[:, 0]).mean()),
        "recall@10": float(np.mean(shared) / K),
        "P@1": float((found[:, 0] == true).mean()),
        "seconds": seconds,
    }
    print(
        "  ".join(
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        )
    )
    return row


def index_rows(
    queries: np.ndarray, candidates: np.ndarray, exact: np.ndarray, true: np.ndarray
) -> list[dict]:
    """Every kind of `lxsr index`; the bytes are those of the file, its tables included."""
    rows = []
    for kind in INDEX_KINDS:
        index = build_index(candidates, kind)
        with tempfile.TemporaryDirectory() as folder:
            write_index(index, Path(folder) / "index")
            size = (Path(folder) / "index").stat().st_size / len(candidates)
        rows.append(
            measure(f"index {kind}", size, partial(search_index, index, queries, K), exact, true)
        )
    return rows


def stored_rows(
    queries: np.ndarray, candidates: np.ndarray, exact: np.ndarray, true: np.ndarray
) -> list[dict]:
    """Candidates of fewer bytes or fewer dimensions, searched exactly by queries in float32."""
    calibration, width = Calibration.of(candidates[:CALIBRATED_ON]), candidates.shape[1]
    stored = {
        "float32": (4 * width, candidates),
        "float16": (2 * width, candidates.astype(np.float16)),
        "int8": (width, calibration.values(calibration.codes(candidates))),
        "binary": (-(-width // 8), np.where(candidates > 0, 1, -1).astype(np.float32)),
    }
    stored |= {
        f"first {width // part}": (4 * width // part, candidates[:, : width // part])
        for part in (2, 4, 8)
    }
    rows = []
    for name, (size, vectors) in stored.items():
        search = partial(nearest_neighbours, queries[:, : vectors.shape[1]], vectors, K)
        rows.append(measure(name, size, search, exact, true))
    return rows


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="sentences")
    parser.add_argument(
        "--target",
        type=Path,
        required=True,
        metavar="FILE",
        help="their translations, line by line",
    )
    parser.add_argument(
        "--candidates", type=int, default=100_000, metavar="N", help="default: 100,000"
    )
    parser.add_argument("--queries", type=int, default=2_000, metavar="N", help="default: 2,000")
    args = parser.parse_args()
    encoder = SentenceEncoder.from_pretrained(args.model)
    pairs = different_pairs(args.source, args.target, args.candidates)
    true = np.linspace(0, len(pairs) - 1, args.queries).astype(int)
    candidates = encoder.encode([target for _, target in pairs], show_progress=True)
    queries = encoder.encode([pairs[row][0] for row in true])
    _, exact = nearest_neighbours(queries, candidates, K)
    results = {
        "machine": machine(),
        "model": encoder.fingerprint,
        "size": f"{len(queries)} x {len(candidates)} x {candidates.shape[1]}",
        "indexes": index_rows(queries, candidates, exact, true),
        "stored": stored_rows(queries, candidates, exact, true),
    }
    write_results(args.output, results)


if __name__ == "__main__":
    main()
