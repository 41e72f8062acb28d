"""The loss of small vectors: recall against exact search, P@1, bytes per vector and seconds.

python -m benchmarks.speed.small_vectors --model MODEL --source train.en --target train.fr \
    --output FILE.json

The candidates are distinct sentences of --target, the queries are the translations of some of them.
Measured are all kinds of indexes, and exact search of embeddings that are stored as int8 or signs
(`lxsr embed --output-dtype`) or cut to their first dimensions (`--truncate-dim`). Seconds are
processor seconds of all threads, for one search of all queries, which are float32.
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
from fairseq_lxsr.vectors import build_index, nearest_neighbours, search_index
from fairseq_lxsr.vectors.index import KINDS, write_index

# The number of neighbours.
K = 10
# `lxsr embed` also computes the scales of int8 from the first lines.
CALIBRATION_LINES = 20_000
# Returns cosine similarities and numbers of the neighbours of all queries, [N, K] each.
Search = Callable[[], tuple[np.ndarray, np.ndarray]]


def distinct_pairs(source: Path, target: Path, count: int) -> list[tuple[str, str]]:
    """Return the first pairs whose target sentences are distinct."""
    source_of: dict[str, str] = {}
    for source_line, target_line in zip(read_lines(source), read_lines(target), strict=True):
        if len(source_of) < count and source_line.strip() and target_line.strip():
            source_of.setdefault(target_line, source_line)
    return [(source_line, target_line) for target_line, source_line in source_of.items()]


class Comparison:
    """Searches of the same candidates, compared with exact search.

    Args:
        queries: float32 embeddings of the queries [N, D].
        candidates: float32 embeddings of the candidates [M, D].
        translations: number of the translation of each query [N].
    """

    def __init__(self, queries: np.ndarray, candidates: np.ndarray, translations: np.ndarray):
        self.queries = queries
        self.candidates = candidates
        self.translations = translations
        _, self.exact = nearest_neighbours(queries, candidates, K)

    def measure(self, name: str, size: float, search: Search) -> dict[str, Any]:
        """Search, and return a row of the table.

        Args:
            name: name of the row.
            size: bytes of a stored vector.
            search: the search to measure.
        """
        start = time.process_time()
        _, neighbours = search()
        seconds = time.process_time() - start
        shared = [len(np.intersect1d(*rows)) for rows in zip(neighbours, self.exact, strict=True)]
        row = {
            "vectors": name,
            "bytes": size,
            "recall@1": float((neighbours[:, 0] == self.exact[:, 0]).mean()),
            "recall@10": float(np.mean(shared) / K),
            "P@1": float((neighbours[:, 0] == self.translations).mean()),
            "seconds": seconds,
        }
        show(row)
        return row

    def index_rows(self) -> list[dict]:
        """Measure all kinds of `build_index`; their size is that of the file with its tables."""
        rows = []
        for kind in KINDS:
            index = build_index(self.candidates, kind)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "index"
                write_index(index, path)
                size = path.stat().st_size / len(self.candidates)
            search = partial(search_index, index, self.queries, K)
            rows.append(self.measure(f"index {kind}", size, search))
        return rows

    def stored_rows(self) -> list[dict]:
        """Measure exact search of candidates with fewer bytes or fewer dimensions."""
        rows = []
        for name, (size, vectors) in stored_forms(self.candidates).items():
            queries = self.queries[:, : vectors.shape[1]]
            search = partial(nearest_neighbours, queries, vectors, K)
            rows.append(self.measure(name, size, search))
        return rows


def show(row: dict[str, Any]) -> None:
    """Print a row of the table."""
    cells = []
    for name, value in row.items():
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        cells.append(f"{name} {text}")
    print("  ".join(cells))


def stored_forms(vectors: np.ndarray) -> dict[str, tuple[float, np.ndarray]]:
    """Return the bytes per vector and the stored values of each form."""
    calibration = Calibration.of(vectors[:CALIBRATION_LINES])
    width = vectors.shape[1]
    signs = np.where(vectors > 0, 1, -1).astype(np.float32)
    forms: dict[str, tuple[float, np.ndarray]] = {
        "float32": (4 * width, vectors),
        "float16": (2 * width, vectors.astype(np.float16)),
        "int8": (width, calibration.values(calibration.codes(vectors))),
        "binary": (-(-width // 8), signs),
    }
    for part in (2, 4, 8):
        dimensions = width // part
        forms[f"first {dimensions}"] = (4 * width // part, vectors[:, :dimensions])
    return forms


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
        "--candidates",
        type=int,
        default=100_000,
        metavar="N",
        help="largest number of candidates (default: 100,000)",
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=2_000,
        metavar="N",
        help="number of queries (default: 2,000)",
    )
    args = parser.parse_args()
    encoder = SentenceEncoder.from_pretrained(args.model)
    pairs = distinct_pairs(args.source, args.target, args.candidates)
    rows = np.linspace(0, len(pairs) - 1, args.queries).astype(int)
    candidates = encoder.encode([target for _, target in pairs], show_progress=True)
    queries = encoder.encode([pairs[row][0] for row in rows])
    comparison = Comparison(queries, candidates, rows)
    results = {
        "machine": machine(),
        "model": encoder.fingerprint,
        "size": f"{len(queries)} x {len(candidates)} x {candidates.shape[1]}",
        "indexes": comparison.index_rows(),
        "stored": comparison.stored_rows(),
    }
    write_results(args.output, results)


if __name__ == "__main__":
    main()
