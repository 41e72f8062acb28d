"""Search and mining: time against the bare matrix product, peak memory, recall of the approximate
indexes.

python -m benchmarks.speed.retrieval --output benchmarks/speed/results/retrieval.json --model MODEL
--data DIR

Without --model, vectors are random; with it, candidates are the sentences of DIR/train, and the
sets of DIR/eval tell whether bfloat16 finds what float32 finds. Contestants take turns, so that a
noisy machine is noisy for all of them.
"""

import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
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
from fairseq_lxsr.vectors import build_index, mine, nearest_neighbours, normalise_rows, search_index
from fairseq_lxsr.vectors.index import write_index

PRECISIONS = ("float32", "bfloat16")
BLOCK = 4096
K, MINING_K = 10, 4


def random_vectors(count: int, width: int) -> np.ndarray:
    return normalise_rows(
        np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    )


def translations(vectors: np.ndarray, noise: float = 0.8) -> np.ndarray:
    """Vectors near others, as a translation is near to its source."""
    other = np.random.default_rng(1).standard_normal(vectors.shape, dtype=np.float32)
    return normalise_rows(vectors + noise / vectors.shape[1] ** 0.5 * other)


def bare_product(queries: np.ndarray, candidates: np.ndarray) -> None:
    """The product as one writes it, with the matrix of all scores."""
    torch.from_numpy(queries) @ torch.from_numpy(candidates).T


def blocked_product(
    queries: np.ndarray, candidates: np.ndarray, dtype: torch.dtype = torch.float32
) -> None:
    """The product in blocks into the same memory: its cost without that of fetching fresh pages."""
    a, b = torch.from_numpy(queries).to(dtype), torch.from_numpy(candidates).to(dtype)
    for rows in a.split(BLOCK // 2):
        scores = torch.empty(len(rows) * BLOCK, dtype=dtype)
        for block in b.split(BLOCK):
            torch.mm(
                rows, block.T, out=scores[: len(rows) * len(block)].view(len(rows), len(block))
            )


def products_both_ways(source: np.ndarray, target: np.ndarray) -> None:
    blocked_product(source, target)
    blocked_product(target, source)


def timed(
    contestants: dict[str, Callable[[], object]], repeats: int
) -> dict[str, dict[str, float]]:
    """Seconds of each: median, least, most."""
    return {
        name: {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
        for name, seconds in take_turns(contestants, repeats).items()
    }


def search_times(
    queries: np.ndarray, candidates: np.ndarray, repeats: int
) -> dict[str, dict[str, float]]:
    """XSR: the 10 nearest of 2,000 queries."""
    half = candidates.astype(np.float16)
    return timed(
        {
            "product": lambda: bare_product(queries, candidates),
            "product in blocks": lambda: blocked_product(queries, candidates),
            "product in blocks, bfloat16": lambda: blocked_product(
                queries, candidates, torch.bfloat16
            ),
            "faiss flat": lambda: faiss.knn(
                queries, candidates, K, metric=faiss.METRIC_INNER_PRODUCT
            ),
            "float32": lambda: nearest_neighbours(queries, candidates, K),
            "float32, stored as float16": lambda: nearest_neighbours(queries, half, K),
            "bfloat16": lambda: nearest_neighbours(queries, candidates, K, precision="bfloat16"),
        },
        repeats,
    )


def mining_times(
    source: np.ndarray, target: np.ndarray, repeats: int
) -> dict[str, dict[str, float]]:
    """Neighbours both ways, so two products; pairs by margin included."""
    return timed(
        {
            "two products in blocks": lambda: products_both_ways(source, target),
            "faiss flat, both ways": lambda: [
                faiss.knn(a, b, MINING_K, metric=faiss.METRIC_INNER_PRODUCT)
                for a, b in ((source, target), (target, source))
            ],
            "mine, float32": lambda: mine(source, target, MINING_K),
            "mine, bfloat16": lambda: mine(source, target, MINING_K, precision="bfloat16"),
        },
        repeats,
    )


def peak_memory(folder: str, count: int, precision: str) -> float:
    """MB that a search of memory-mapped vectors adds to this process, without the mapped pages."""
    candidates = np.load(f"{folder}/candidates.npy", mmap_mode="r")
    queries = np.load(f"{folder}/queries.npy", mmap_mode="r")[:count]
    nearest_neighbours(queries[:64], candidates[:64], K)
    peak, before = 0, held()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, held())

    watching = threading.Thread(target=watch)
    watching.start()
    nearest_neighbours(queries, candidates, K, precision=precision)
    done.set()
    watching.join()
    return (peak - before) / 1e6


def held() -> int:
    """Bytes of memory, not of files, that this process holds."""
    return entry(os.getpid(), "status", "RssAnon")


def memory(queries: np.ndarray, candidates: np.ndarray) -> list[dict[str, object]]:
    """Peak memory of a search of memory-mapped vectors, without the mapped pages, in a process of
    its own.
    """
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("candidates", candidates), ("queries", queries)):
            np.save(f"{folder}/{name}.npy", rows)
        for precision in PRECISIONS:
            for count in (2_000, 20_000, len(queries)):
                peak = alone(peak_memory, folder, count, precision)
                results.append({"precision": precision, "queries": count, "peak MB": peak})
                print(results[-1], file=sys.stderr)
    return results


def approximate(
    queries: np.ndarray, candidates: np.ndarray, repeats: int
) -> list[dict[str, object]]:
    """Every kind of index: time to build and to search, recall of the exact first and of the exact
    ten, size.
    """
    _, exact = nearest_neighbours(queries, candidates, K)
    results: list[dict[str, object]] = []
    for kind, all_probes in (
        ("flat", (1,)),
        ("float16", (1,)),
        ("ivf", (8, 32, 128)),
        ("ivf-pq", (8, 32, 128)),
    ):
        start = time.perf_counter()
        index = build_index(candidates, kind)
        built = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            write_index(index, Path(folder) / "index")
            size = os.path.getsize(f"{folder}/index") / 1e6
        for probes in all_probes:
            seconds = timed({kind: partial(search_index, index, queries, K, probes)}, repeats)[kind]
            _, found = search_index(index, queries, K, probes)
            both = [len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]
            results.append(
                {
                    "index": kind,
                    "probes": probes if kind.startswith("ivf") else None,
                    "seconds": seconds["median"],
                    "recall of the first": float((found[:, 0] == exact[:, 0]).mean()),
                    "recall of ten": float(np.mean(both) / K),
                    "build seconds": built,
                    "MB": size,
                }
            )
    return results


def eval_sets(folder: Path) -> dict[str, list[Path]]:
    """Aligned files of a folder by what their names share."""
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.txt.gz")):
        sets.setdefault(re.sub(r"\.[a-z]+\.txt\.gz$", "", path.name), []).append(path)
    return {name: paths for name, paths in sets.items() if len(paths) > 1}


def agreement(encoder: SentenceEncoder, folder: Path, distractors: np.ndarray) -> dict[str, object]:
    """Queries whose first neighbour differs between the precisions: each set alone, and with
    distractors added.
    """
    counts = {"sets": 0, "directions": 0, "queries": 0, "differ": 0, "differ with distractors": 0}
    seconds = dict.fromkeys(PRECISIONS, 0.0)
    for name, paths in eval_sets(folder).items():
        english = next(
            (path for path in paths if ".en.txt" in path.name or ".eng.txt" in path.name), paths[0]
        )
        vectors = {path: encoder.encode(list(read_lines(path))) for path in paths}
        counts["sets"] += 1
        for path in paths:
            if path == english:
                continue
            for source, target in ((english, path), (path, english)):
                for key, candidates in (
                    ("differ", vectors[target]),
                    ("differ with distractors", np.concatenate([vectors[target], distractors])),
                ):
                    found = {}
                    for precision in PRECISIONS:
                        start = time.perf_counter()
                        found[precision] = nearest_neighbours(
                            vectors[source], candidates, 1, precision=precision
                        )[1]
                        seconds[precision] += time.perf_counter() - start
                    counts[key] += int((found["float32"] != found["bfloat16"]).sum())
                counts["directions"] += 1
                counts["queries"] += len(vectors[source])
        print(name, counts, file=sys.stderr)
    return counts | {f"seconds, {precision}": value for precision, value in seconds.items()}


def training_vectors(encoder: SentenceEncoder, folder: Path, count: int) -> np.ndarray:
    """Embeddings of the first sentences of the training text that is not English."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.txt.gz")):
        if not re.search(r"\.(en|source)\.txt", path.name) and len(lines) < count:
            lines += [line for line in read_lines(path) if line.strip()]
    return encoder.encode(lines[:count], show_progress=True)


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(
            "  "
            + "  ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )


def show_times(title: str, times: dict[str, dict[str, float]], unit: str) -> None:
    rows = [
        {"": name} | found | {f"of {unit}": found["median"] / times[unit]["median"]}
        for name, found in times.items()
    ]
    show(title, rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--candidates", type=int, default=200_000, help="default: 200,000")
    parser.add_argument("--queries", type=int, default=2_000, help="default: 2,000")
    parser.add_argument(
        "--width", type=int, default=512, help="of the vectors that are timed (default: 512)"
    )
    parser.add_argument(
        "--mining", type=int, default=200_000, help="sentences a side; 0 for no mining"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="of the search; mining runs once (default: 5)"
    )
    parser.add_argument("--model", help="model folder, for real vectors")
    parser.add_argument("--data", type=Path, help="folder with train and eval text")
    args = parser.parse_args()
    candidates = random_vectors(args.candidates, args.width)
    queries = translations(candidates[: args.queries])
    results: dict[str, Any] = {
        "machine": machine(),
        "size": f"{args.queries} x {args.candidates} x {args.width}",
    }
    results["search"] = times = search_times(queries, candidates, args.repeats)
    show_times(f"Search, {results['size']}, seconds", times, "product")
    results["memory"] = memory(translations(candidates), candidates)
    show("Peak memory of a search, MB", results["memory"])
    if args.mining:
        source = candidates[: args.mining]
        results["mining"] = mining = mining_times(source, translations(source), 1)
        show_times(
            f"Mining, {args.mining:,} x {args.mining:,} x {args.width}",
            mining,
            "two products in blocks",
        )
    if args.model and args.data:
        encoder = SentenceEncoder.from_pretrained(args.model)
        vectors = training_vectors(encoder, args.data / "train", args.candidates)
        results["approximate"] = approximate(
            translations(vectors[: args.queries]), vectors, args.repeats
        )
        show(
            f"Approximate search among {len(vectors):,} sentences, width {vectors.shape[1]}",
            results["approximate"],
        )
        results["agreement"] = agreement(encoder, args.data / "eval", vectors)
        show("First neighbours that bfloat16 finds differently", [results["agreement"]])
    write_results(args.output, results)


if __name__ == "__main__":
    main()
