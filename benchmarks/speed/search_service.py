"""Search as a service: recall against time by kind of index, and latency of `lxsr serve --index`.

OMP_NUM_THREADS=1 python -m benchmarks.speed.search_service notes.txt --queries queries.txt \
    --output benchmarks/speed/results/search_service.json --plot docs/search_service.svg

Both files have one text per line. The time of a query is processor time of one core, for one query
after the other, with the index open and the query embedded; recall is the share of the ten nearest
sentences that the kind finds. The server is the command, with the kind `float16`; its clients send
one query after the other, on the cores that the server also has.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.machine import commit, machine
from benchmarks.script import command_line, lxsr, write_results
from benchmarks.speed.serve import add_load_options, client
from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.search import CorpusIndex

MODEL = "lxsr-static"
K = 10
# Numbers of inverted lists to search, by kind; the other kinds have none.
PROBES = {"ivf": (1, 2, 4, 8, 16, 32, 64, 128)}
KINDS = ("flat", "float16", "int8", "binary", "ivf")
SERVED = "float16"


def measure_kind(index: CorpusIndex, vectors: np.ndarray, probes: int) -> dict[str, Any]:
    """Return the neighbours of queries, one after the other, and the median time of a query."""
    times = []
    neighbours = []
    for vector in vectors:
        start = time.process_time()
        _, rows = index.neighbours(vector[None], K, probes)
        times.append(time.process_time() - start)
        neighbours.append(set(rows[0].tolist()))
    return {"ms": round(1000 * float(np.median(times)), 3), "neighbours": neighbours}


def compare_kinds(notes: Path, queries: list[str], folder: Path) -> list[dict[str, Any]]:
    """Build an index of each kind with the command, and measure it."""
    encoder = load(MODEL)
    vectors = np.asarray(encoder.embed(Text(queries)))
    results = []
    exact: list[set[int]] = []
    for kind in KINDS:
        path = folder / kind
        lxsr(
            "index", "--model", MODEL, "--input", notes, "--output", path, "--kind", kind, "--plain"
        )
        index = CorpusIndex.load(path)
        size = sum(file.stat().st_size for file in index.files)
        for probes in PROBES.get(kind, (32,)):
            # The first query reads the files.
            measure_kind(index, vectors[:10], probes)
            result = measure_kind(index, vectors, probes)
            neighbours = result.pop("neighbours")
            exact = exact or neighbours
            shared = [len(a & b) for a, b in zip(neighbours, exact, strict=True)]
            recall = round(100 * sum(shared) / (K * len(exact)), 2)
            result |= {"kind": kind, "recall": recall, "MB": round(size / 1e6, 1)}
            if kind in PROBES:
                result["probes"] = probes
            print(result, file=sys.stderr)
            results.append(result)
    return results


def request_of(query: str) -> bytes:
    """Return the request of a search."""
    body = json.dumps({"query": query, "k": K}).encode()
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def latencies(port: int, queries: list[str], clients: int, seconds: float) -> list[float]:
    """Send searches by several clients at once, and return the seconds of each, ascending."""
    requests = [request_of(query) for query in queries]
    until = time.perf_counter() + seconds
    parts = await asyncio.gather(
        *(client(port, requests[number::clients], until) for number in range(clients))
    )
    return sorted(latency for part in parts for latency in part)


def measure_server(args: argparse.Namespace, queries: list[str], index: Path) -> dict[str, Any]:
    """Start the server of an index, and measure its latency and memory."""
    command = [sys.executable, "-m", "fairseq_lxsr", "serve", "--model", MODEL]
    process = subprocess.Popen(
        [*command, "--index", str(index), "--port", str(args.port)], cwd=ROOT
    )
    address = f"http://127.0.0.1:{args.port}"
    results: dict[str, Any] = {}
    try:
        for _ in range(600):
            time.sleep(0.1)
            try:
                asyncio.run(latencies(args.port, ["warm"], 1, 0.5))
                break
            except OSError:
                continue
        for clients in args.clients:
            times = asyncio.run(latencies(args.port, queries, clients, args.seconds))
            results[str(clients)] = {
                "searches per second": round(len(times) / args.seconds, 1),
                "p50 ms": round(1000 * times[len(times) // 2], 2),
                "p99 ms": round(1000 * times[int(0.99 * (len(times) - 1))], 2),
            }
            print(clients, results[str(clients)], file=sys.stderr)
        metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()
        for line in metrics.splitlines():
            if line.startswith("process_resident_memory_bytes "):
                results["memory MB"] = round(float(line.split()[1]) / 1e6, 1)
    finally:
        process.terminate()
        process.wait()
    return results


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Plot recall against the time of a query."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # This size is legible on a page of 360 pixels.
    figure, axes = plt.subplots(figsize=(4.8, 3.8), layout="constrained")
    for kind in KINDS:
        points = [result for result in results if result["kind"] == kind]
        axes.plot(
            [point["ms"] for point in points],
            [point["recall"] for point in points],
            marker="o",
            label=kind,
        )
    axes.set(
        xscale="log", xlabel="ms of one core for a query", ylabel="recall of the ten nearest, %"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", type=Path, metavar="FILE", help="notes, one per line")
    parser.add_argument("--queries", type=Path, metavar="FILE", help="queries, one per line")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot recall against time")
    add_load_options(parser)
    parser.add_argument("--port", type=int, default=8766, help="port of the server (default: 8766)")
    args = parser.parse_args()
    if args.queries:
        queries = list(islice(filter(str.strip, read_lines(args.queries)), 500))
        with tempfile.TemporaryDirectory() as folder:
            kinds = compare_kinds(args.text, queries, Path(folder))
            server = measure_server(args, queries, Path(folder) / SERVED)
        results = {"machine": machine(), "commit": commit(), "kinds": kinds, "server": server}
        write_results(args.output, results)
    else:
        # Draw again from the file of an earlier run.
        kinds = json.loads(args.output.read_text())["kinds"]
    if args.plot:
        plot(kinds, args.plot)


if __name__ == "__main__":
    main()
