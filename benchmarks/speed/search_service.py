"""Latency and memory of a search service, `lxsr serve --index`.

OMP_NUM_THREADS=1 python -m benchmarks.speed.search_service notes.txt --queries queries.txt \
    --output benchmarks/speed/results/search_service.json

Both files have one text per line. The index is of kind `float16`, with one vector for each note.
The clients send one query after the other, on the cores that the server also has.
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

from benchmarks import ROOT
from benchmarks.machine import commit, machine
from benchmarks.script import command_line, lxsr, write_results
from benchmarks.speed.serve import add_load_options, client
from fairseq_lxsr.files.lines import read_lines

MODEL = "lxsr-static"
K = 10


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


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", type=Path, metavar="FILE", help="notes, one per line")
    parser.add_argument(
        "--queries", type=Path, required=True, metavar="FILE", help="queries, one per line"
    )
    add_load_options(parser)
    parser.add_argument("--port", type=int, default=8766, help="port of the server (default: 8766)")
    args = parser.parse_args()
    queries = list(islice(filter(str.strip, read_lines(args.queries)), 500))
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        options = ("--output", index, "--kind", "float16", "--plain")
        lxsr("index", "--model", MODEL, "--input", args.text, *options)
        server = measure_server(args, queries, index)
    write_results(args.output, {"machine": machine(), "commit": commit(), "server": server})


if __name__ == "__main__":
    main()
