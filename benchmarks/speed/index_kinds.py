"""Recall, time, memory and disk space of the kinds of index, by number of vectors.

OMP_NUM_THREADS=1 python -m benchmarks.speed.index_kinds TEXT --models lxsr-static MODEL \
    --folder FOLDER --output benchmarks/speed/results/index_kinds.json

TEXT has distinct sentences, one per line. The first 200 are queries, and the others are indexed. If
a size exceeds their number, the further vectors are means of the vectors of two random sentences;
such a size is measured for the first model only.

A query is searched alone, on one thread, with the index open and the query embedded; its time is
processor time. `plain` is the search of an index of `--plain`, for ten neighbours; `ranked` is the
first step of all other searches, which finds the candidates of the ranking. Memory is what opening
and searching add to the process, without pages of files, which the system can drop. Recall is the
share of the ten nearest vectors that a plain search finds.
"""

import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit, machine
from benchmarks.processes import entry
from benchmarks.script import alone, command_line, write_results
from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search.retrieval import PASSAGE_DEPTH
from fairseq_lxsr.search.segment_vectors import SegmentVectors
from fairseq_lxsr.vectors import build_index, nearest_neighbours, read_index, write_index
from fairseq_lxsr.vectors.index import MIN_SKETCH_ROWS, build_sketch

QUERIES = 200
K = 10
# Vectors to compute and write at a time.
BLOCK_ROWS = 50_000
# Queries are timed until they have taken this many seconds.
SECONDS = 10
SEARCHES = ("plain", "ranked")


def embed_text(model: str, text: Path, count: int) -> np.ndarray:
    """Return the first `count` embeddings of lines with a known word, or all if there are fewer."""
    encoder = load(model)
    lines = iter(read_lines(text))
    blocks: list[np.ndarray] = []
    while sum(map(len, blocks)) < count and (block := list(islice(lines, BLOCK_ROWS))):
        vectors = np.asarray(encoder.embed(Text(block)), dtype=np.float32)
        blocks.append(vectors[vectors.any(axis=1)])
    return np.concatenate(blocks)[:count]


def write_flat(embeddings: np.ndarray, size: int, path: Path) -> float:
    """Write a flat index of `size` vectors, and return the seconds that the index alone takes."""
    raw = path.with_suffix(".raw")
    rng = np.random.default_rng(1)
    with open(raw, "wb") as stream:
        for start in range(0, size, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, size)
            block = embeddings[start:stop]
            num_missing = stop - start - len(block)
            first, second = rng.integers(len(embeddings), size=(2, num_missing))
            means = (embeddings[first] + embeddings[second]) / 2
            stream.write(block.tobytes())
            stream.write(means.tobytes())
    vectors = np.memmap(raw, np.float32, "r", shape=(size, embeddings.shape[1]))
    start_time = time.process_time()
    write_index(build_index(vectors), path)
    seconds = time.process_time() - start_time
    raw.unlink()
    return seconds


def write_sketch(vectors: np.ndarray, path: Path) -> float:
    """Write the sketch of vectors, if there are enough, and return the seconds that it takes."""
    start = time.process_time()
    path.unlink(missing_ok=True)
    if len(vectors) >= MIN_SKETCH_ROWS:
        write_index(build_sketch(vectors, np.arange(len(vectors))), path)
    return time.process_time() - start


def anonymous_memory() -> float:
    """Return the MB of memory of this process, without pages of files."""
    return entry(os.getpid(), "status", "RssAnon") / 1e6


def measure_search(vectors: Path, sketch: Path | None, queries: np.ndarray, search: str) -> Any:
    """Open an index, and search for one query after the other.

    Returns:
        The median milliseconds of a query, the added memory in MB, and the neighbours.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    before = anonymous_memory()
    opened = None
    if sketch:
        opened = read_index(sketch)
    segment = SegmentVectors(read_index(vectors), opened, None)
    find = segment.nearest_windows if search == "ranked" else segment.neighbours
    depth = PASSAGE_DEPTH if search == "ranked" else K
    # The first search reads the files.
    find(queries[:1], depth, None)
    times: list[float] = []
    neighbours = []
    for query in queries:
        start = time.process_time()
        _, rows = find(query[None], depth, None)
        times.append(time.process_time() - start)
        neighbours.append(rows[0])
        if sum(times) > SECONDS:
            break
    memory = anonymous_memory() - before
    return 1000 * float(np.median(times)), memory, np.array(neighbours)


def measure_kind(
    kind: str, path: Path, sketch: Path | None, queries: np.ndarray, exact: np.ndarray
) -> dict[str, Any]:
    """Measure both searches of an index."""
    result: dict[str, Any] = {"kind": kind}
    for search in SEARCHES:
        milliseconds, memory, neighbours = alone(measure_search, path, sketch, queries, search)
        result[f"{search} ms"] = round(milliseconds, 2)
        result[f"{search} memory MB"] = round(memory, 1)
        if search == "plain":
            shared = [len(np.intersect1d(*rows)) for rows in zip(neighbours, exact, strict=False)]
            result["recall"] = round(100 * float(np.mean(shared)) / K, 2)
    size = path.stat().st_size
    if sketch:
        size += sketch.stat().st_size
    result["disk MB"] = round(size / 1e6, 1)
    return result


def compare_kinds(
    embeddings: np.ndarray, queries: np.ndarray, size: int, folder: Path
) -> list[dict[str, Any]]:
    """Build and measure an index of each kind with `size` vectors."""
    flat = folder / "flat"
    sketch = folder / "sketch"
    seconds = {"flat": write_flat(embeddings, size, flat)}
    vectors = read_index(flat).rows
    _, exact = nearest_neighbours(queries, vectors, K, unit_candidates=True)
    sketch_seconds = write_sketch(vectors, sketch)
    results = []
    for kind in INDEX_KINDS:
        path = folder / kind
        if kind != "flat":
            start = time.process_time()
            write_index(build_index(vectors, kind), path)
            seconds[kind] = time.process_time() - start + sketch_seconds
        has_sketch = kind != "flat" and sketch.exists()
        result = measure_kind(kind, path, sketch if has_sketch else None, queries, exact)
        result["build seconds"] = round(seconds[kind], 1)
        if kind != "flat":
            path.unlink()
        print(size, result, file=sys.stderr)
        results.append(result)
    flat.unlink()
    sketch.unlink(missing_ok=True)
    return results


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", type=Path, metavar="TEXT", help="distinct sentences, one per line")
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL", help="models")
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        default=[10_000, 1_000_000, 10_000_000],
        metavar="N",
        help="numbers of vectors (default: 10000 1000000 10000000)",
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="FOLDER", help="folder for the indexes"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "commit": commit(), "indexes": []}
    embeddings = {}
    for model in args.models:
        embeddings[model] = embed_text(model, args.text, QUERIES + max(args.sizes))
    for size in args.sizes:
        for model in args.models:
            queries = embeddings[model][:QUERIES]
            rows = embeddings[model][QUERIES:]
            if size > len(rows) and model != args.models[0]:
                continue
            place = {"model": Path(model).name, "width": rows.shape[1], "vectors": size}
            for result in compare_kinds(rows, queries, size, args.folder):
                results["indexes"].append({**place, **result})
            write_results(args.output, results)


if __name__ == "__main__":
    main()
