"""Time and memory of search and mining, compared with bare matrix products.

python -m benchmarks.speed.retrieval --output benchmarks/speed/results/retrieval.json \
    --model MODEL --data DIR

Without --model, the vectors are random. With it, the candidates are the sentences of DIR/train, and
the sets of DIR/eval tell whether bfloat16 finds the same neighbours as float32. Contestants take
turns, so that a noisy machine is noisy for all of them.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.machine import machine
from benchmarks.processes import entry
from benchmarks.script import alone, command_line, take_turns, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.vectors import mine, nearest_neighbours, normalise_rows

PRECISIONS = ("float32", "bfloat16")
# Candidates of a block of a matrix product.
BLOCK = 4096
# Numbers of neighbours of a search and of mining.
K = 10
MINING_K = 4
# How far the vector of a translation is from that of its source.
NOISE = 0.8
# Seconds between two measurements of the memory.
INTERVAL = 0.005

Times = dict[str, dict[str, float]]


def random_vectors(count: int, width: int) -> np.ndarray:
    """Return random unit vectors [count, width]."""
    return normalise_rows(
        np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    )


def translations(vectors: np.ndarray) -> np.ndarray:
    """Return vectors near other vectors, as a translation is near its source."""
    noise = np.random.default_rng(1).standard_normal(vectors.shape, dtype=np.float32)
    return normalise_rows(vectors + NOISE / vectors.shape[1] ** 0.5 * noise)


def bare_product(queries: np.ndarray, candidates: np.ndarray) -> None:
    """Compute the product as one writes it, with the matrix of all scores."""
    torch.from_numpy(queries) @ torch.from_numpy(candidates).T


def blocked_product(
    queries: np.ndarray, candidates: np.ndarray, dtype: torch.dtype = torch.float32
) -> None:
    """Compute the product in blocks into the same memory, without the cost of fresh pages."""
    all_rows = torch.from_numpy(queries).to(dtype)
    all_columns = torch.from_numpy(candidates).to(dtype)
    for rows in all_rows.split(BLOCK // 2):
        scores = torch.empty(len(rows) * BLOCK, dtype=dtype)
        for columns in all_columns.split(BLOCK):
            out = scores[: len(rows) * len(columns)].view(len(rows), len(columns))
            torch.mm(rows, columns.T, out=out)


def products_both_ways(source: np.ndarray, target: np.ndarray) -> None:
    """Compute the products of both directions in blocks."""
    blocked_product(source, target)
    blocked_product(target, source)


def faiss_both_ways(source: np.ndarray, target: np.ndarray) -> None:
    """Find the neighbours of both directions by faiss."""
    faiss.knn(source, target, MINING_K, metric=faiss.METRIC_INNER_PRODUCT)
    faiss.knn(target, source, MINING_K, metric=faiss.METRIC_INNER_PRODUCT)


def timed(contestants: dict[str, Callable[[], object]], repeats: int) -> Times:
    """Return the median, the least and the largest seconds of each contestant."""
    times = {}
    for name, seconds in take_turns(contestants, repeats).items():
        times[name] = {
            "median": statistics.median(seconds),
            "min": min(seconds),
            "max": max(seconds),
        }
    return times


def search_times(queries: np.ndarray, candidates: np.ndarray, repeats: int) -> Times:
    """Measure the search for the 10 nearest neighbours of every query."""
    half = candidates.astype(np.float16)
    ip = faiss.METRIC_INNER_PRODUCT
    contestants: dict[str, Callable[[], object]] = {
        "product": lambda: bare_product(queries, candidates),
        "product in blocks": lambda: blocked_product(queries, candidates),
        "product in blocks, bfloat16": lambda: blocked_product(queries, candidates, torch.bfloat16),
        "faiss flat": lambda: faiss.knn(queries, candidates, K, metric=ip),
        "float32": lambda: nearest_neighbours(queries, candidates, K),
        "float32, stored as float16": lambda: nearest_neighbours(queries, half, K),
        "bfloat16": lambda: nearest_neighbours(queries, candidates, K, precision="bfloat16"),
    }
    return timed(contestants, repeats)


def mining_times(source: np.ndarray, target: np.ndarray, repeats: int) -> Times:
    """Measure mining: the neighbours of both directions, so two products, and the margins."""
    contestants: dict[str, Callable[[], object]] = {
        "two products in blocks": lambda: products_both_ways(source, target),
        "faiss flat, both ways": lambda: faiss_both_ways(source, target),
        "mine, float32": lambda: mine(source, target, MINING_K),
        "mine, bfloat16": lambda: mine(source, target, MINING_K, precision="bfloat16"),
    }
    return timed(contestants, repeats)


def peak_memory(folder: str, count: int, precision: str) -> float:
    """Return the MB that a search of memory-mapped vectors adds to this process.

    The mapped pages do not count.
    """
    candidates = np.load(f"{folder}/candidates.npy", mmap_mode="r")
    queries = np.load(f"{folder}/queries.npy", mmap_mode="r")[:count]
    # A first search, so that what is allocated once does not count.
    nearest_neighbours(queries[:64], candidates[:64], K)
    before = anonymous_memory()
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(INTERVAL):
            peak = max(peak, anonymous_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    nearest_neighbours(queries, candidates, K, precision=precision)
    done.set()
    watching.join()
    return (peak - before) / 1e6


def anonymous_memory() -> int:
    """Return the bytes of memory, without pages of files, that this process holds."""
    return entry(os.getpid(), "status", "RssAnon")


def memory(queries: np.ndarray, candidates: np.ndarray) -> list[dict[str, object]]:
    """Measure the peak memory of searches of memory-mapped vectors, each in a new process."""
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/candidates.npy", candidates)
        np.save(f"{folder}/queries.npy", queries)
        for precision in PRECISIONS:
            for count in (2_000, 20_000, len(queries)):
                peak = alone(peak_memory, folder, count, precision)
                results.append({"precision": precision, "queries": count, "peak MB": peak})
                print(results[-1], file=sys.stderr)
    return results


def eval_sets(folder: Path) -> dict[str, list[Path]]:
    """Return the aligned files of a folder, by the common part of their names."""
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.txt.gz")):
        name = re.sub(r"\.[a-z]+\.txt\.gz$", "", path.name)
        sets.setdefault(name, []).append(path)
    return {name: paths for name, paths in sets.items() if len(paths) > 1}


class Agreement:
    """Whether both precisions find the same nearest neighbour.

    Attributes:
        counts: numbers of sets, directions and queries, and of queries whose neighbours differ,
            alone and with distractors.
        seconds: total seconds of the searches, by precision.
    """

    def __init__(self, encoder: SentenceEncoder, distractors: np.ndarray):
        self.encoder = encoder
        self.distractors = distractors
        names = ("sets", "directions", "queries", "differ", "differ with distractors")
        self.counts = dict.fromkeys(names, 0)
        self.seconds = dict.fromkeys(PRECISIONS, 0.0)

    def add_set(self, paths: Sequence[Path]) -> None:
        """Compare the neighbours in aligned files, from English and into English."""
        english = next(filter(is_english, paths), paths[0])
        vectors = {path: self.encoder.encode(list(read_lines(path))) for path in paths}
        self.counts["sets"] += 1
        for path in paths:
            if path != english:
                self.add_direction(vectors[english], vectors[path])
                self.add_direction(vectors[path], vectors[english])

    def add_direction(self, queries: np.ndarray, candidates: np.ndarray) -> None:
        """Compare the neighbours of queries, with and without distractors."""
        self.counts["differ"] += self.differing(queries, candidates)
        crowd = np.concatenate([candidates, self.distractors])
        self.counts["differ with distractors"] += self.differing(queries, crowd)
        self.counts["directions"] += 1
        self.counts["queries"] += len(queries)

    def differing(self, queries: np.ndarray, candidates: np.ndarray) -> int:
        """Return the number of queries whose neighbours differ."""
        neighbours = {}
        for precision in PRECISIONS:
            start = time.perf_counter()
            _, neighbours[precision] = nearest_neighbours(
                queries, candidates, 1, precision=precision
            )
            self.seconds[precision] += time.perf_counter() - start
        return int((neighbours["float32"] != neighbours["bfloat16"]).sum())

    def results(self) -> dict[str, object]:
        """Return the counts and the seconds."""
        seconds = {f"seconds, {precision}": value for precision, value in self.seconds.items()}
        return {**self.counts, **seconds}


def is_english(path: Path) -> bool:
    """Return whether a file of an evaluation set is the English one."""
    return ".en.txt" in path.name or ".eng.txt" in path.name


def agreement(encoder: SentenceEncoder, folder: Path, distractors: np.ndarray) -> dict[str, object]:
    """Count the queries whose nearest neighbour differs between the precisions."""
    comparison = Agreement(encoder, distractors)
    for name, paths in eval_sets(folder).items():
        comparison.add_set(paths)
        print(name, comparison.counts, file=sys.stderr)
    return comparison.results()


def training_vectors(encoder: SentenceEncoder, folder: Path, count: int) -> np.ndarray:
    """Return the embeddings of the first training sentences that are not English."""
    lines = list(islice(training_lines(folder), count))
    return encoder.encode(lines, show_progress=True)


def training_lines(folder: Path) -> Iterator[str]:
    """Yield the training sentences that are not English."""
    for path in sorted(folder.glob("*.txt.gz")):
        if not re.search(r"\.(en|source)\.txt", path.name):
            yield from (line for line in read_lines(path) if line.strip())


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a table."""
    print(f"\n{title}")
    for row in rows:
        cells = []
        for name, value in row.items():
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            cells.append(f"{name} {text}")
        print("  " + "  ".join(cells))


def show_times(title: str, times: Times, unit: str) -> None:
    """Print the seconds of all contestants, also relative to one of them."""
    rows: list[dict[str, Any]] = []
    for name, seconds in times.items():
        relative = seconds["median"] / times[unit]["median"]
        rows.append({"": name, **seconds, f"of {unit}": relative})
    show(title, rows)


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--candidates",
        type=int,
        default=200_000,
        help="number of candidates (default: 200,000)",
    )
    parser.add_argument(
        "--queries", type=int, default=2_000, help="number of queries (default: 2,000)"
    )
    parser.add_argument(
        "--width", type=int, default=512, help="width of the random vectors (default: 512)"
    )
    parser.add_argument(
        "--mining",
        type=int,
        default=200_000,
        help="sentences of each side of mining; 0: no mining (default: 200,000)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="repeats of the search; mining runs once (default: 5)",
    )
    parser.add_argument("--model", help="model folder, for real vectors")
    parser.add_argument("--data", type=Path, help="folder with train/ and eval/, for real vectors")
    return parser.parse_args()


def measure_random(args: argparse.Namespace) -> dict[str, Any]:
    """Measure search and mining of random vectors."""
    candidates = random_vectors(args.candidates, args.width)
    queries = translations(candidates[: args.queries])
    size = f"{args.queries} x {args.candidates} x {args.width}"
    results: dict[str, Any] = {"machine": machine(), "size": size}
    results["search"] = search_times(queries, candidates, args.repeats)
    show_times(f"Search, {size}, seconds", results["search"], "product")
    results["memory"] = memory(translations(candidates), candidates)
    show("Peak memory of a search, MB", results["memory"])
    if args.mining:
        source = candidates[: args.mining]
        results["mining"] = mining_times(source, translations(source), 1)
        title = f"Mining, {args.mining:,} x {args.mining:,} x {args.width}"
        show_times(title, results["mining"], "two products in blocks")
    return results


def measure_model(args: argparse.Namespace) -> dict[str, Any]:
    """Measure bfloat16 with the embeddings of a model."""
    encoder = SentenceEncoder.from_pretrained(args.model)
    vectors = training_vectors(encoder, args.data / "train", args.candidates)
    results: dict[str, Any] = {}
    results["agreement"] = agreement(encoder, args.data / "eval", vectors)
    show("First neighbours that bfloat16 finds differently", [results["agreement"]])
    return results


def main() -> None:
    args = parse_options()
    results = measure_random(args)
    if args.model and args.data:
        results |= measure_model(args)
    write_results(args.output, results)


if __name__ == "__main__":
    main()
