"""Latency of `lxsr serve` while other clients attack it.

python -m benchmarks.speed.serve_attack text.en --output benchmarks/speed/results/serve_attack.json

Sixteen clients send one sentence after the other over kept connections. Meanwhile, the attackers of
one of these kinds are connected:

- idle: connections that never send a byte;
- flood: more connections than the server accepts (`--max-connections`);
- unread: clients that ask for 2,048 embeddings and do not read them;
- search: one client that searches 2,048 queries, as often as it is answered.

Each attack is measured between two phases without attackers, with the same server. All run on the
same cores, so an attack that computes costs at least its share of these.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any

from benchmarks import ROOT
from benchmarks.machine import commit, machine, versions
from benchmarks.script import command_line, lxsr, write_results
from benchmarks.speed.serve import SENTENCES, load, wait_for
from fairseq_lxsr.files.lines import read_lines

CLIENTS = 16
IDLE = 1000
FLOOD = 6000
UNREAD = 64
TEXTS = 2048
# Seconds after the attackers have connected, and before the phase after them.
PAUSE = 1.0


def request(path: str, fields: dict[str, Any]) -> bytes:
    """Return a POST request."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.asynccontextmanager
async def connections(port: int, count: int, sent: bytes) -> AsyncIterator[None]:
    """Open connections that send something and read nothing."""
    opened = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            opened.append(connection)
            await loop.sock_connect(connection, ("127.0.0.1", port))
            # The server may have closed the connection already.
            with contextlib.suppress(OSError):
                await loop.sock_sendall(connection, sent)
        yield
    finally:
        for connection in opened:
            connection.close()


@contextlib.asynccontextmanager
async def searches(port: int, sentences: list[str]) -> AsyncIterator[None]:
    """Search without a pause."""
    query = request("/search", {"query": sentences[:TEXTS], "k": 5})

    async def search_all() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**30)
        while True:
            writer.write(query)
            # The answer is sent in chunks; an empty one ends it.
            await reader.readuntil(b"\r\n0\r\n\r\n")

    task = asyncio.create_task(search_all())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def memory(process: int) -> float:
    """Return the resident memory of a process in MB."""
    with open(f"/proc/{process}/statm") as pages:
        return round(int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def phases(args: argparse.Namespace, sentences: list[str], process: int) -> list[dict]:
    """Measure every attack between two phases without attackers."""
    texts = request("/v1/embeddings", {"input": (sentences * TEXTS)[:TEXTS]})
    attacks: dict[str, Callable[[], Any]] = {
        "idle": lambda: connections(args.port, IDLE, b""),
        "flood": lambda: connections(args.port, FLOOD, b""),
        "unread": lambda: connections(args.port, UNREAD, texts),
        "search": lambda: searches(args.port, sentences),
    }
    results = []
    for name, attack in attacks.items():
        if name not in args.attacks:
            continue
        before = await load(args.port, sentences, CLIENTS, args.seconds)
        async with attack():
            await asyncio.sleep(PAUSE)
            during = await load(args.port, sentences, CLIENTS, args.seconds)
            size = memory(process)
        await asyncio.sleep(PAUSE)
        after = await load(args.port, sentences, CLIENTS, args.seconds)
        quiet = statistics.mean([before["p99 ms"], after["p99 ms"]])
        result = {
            "attack": name,
            "before": before,
            "during": during,
            "after": after,
            "p99 ratio": round(during["p99 ms"] / quiet, 2),
            "MB during": size,
            "MB after": memory(process),
        }
        print(result, file=sys.stderr)
        results.append(result)
    return results


def summary(runs: list[dict]) -> dict[str, Any]:
    """Return the median of every value by attack, and the range of the ratio."""
    by_attack: dict[str, list[dict]] = {}
    for result in runs:
        by_attack.setdefault(result["attack"], []).append(result)
    table = {}
    for name, results in by_attack.items():
        ratios = [result["p99 ratio"] for result in results]
        row: dict[str, Any] = {"p99 ratio": statistics.median(ratios)}
        row["p99 ratio, range"] = [min(ratios), max(ratios)]
        for phase in ("before", "during", "after"):
            row[phase] = {
                value: statistics.median(result[phase][value] for result in results)
                for value in results[0][phase]
            }
        for value in ("MB during", "MB after"):
            row[value] = statistics.median(result[value] for result in results)
        table[name] = row
    return table


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", metavar="FILE", help="text with one sentence per line")
    parser.add_argument(
        "--model",
        default="lxsr-static",
        metavar="FOLDER",
        help="model folder (default: lxsr-static)",
    )
    parser.add_argument(
        "--attacks",
        nargs="+",
        default=["idle", "flood", "unread", "search"],
        metavar="NAME",
        help="attacks to measure (default: all)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="seconds of each phase (default: 5)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of repeats (default: 3)")
    parser.add_argument("--port", type=int, default=8765, help="port of the server (default: 8765)")
    args = parser.parse_args()
    sentences = list(islice(filter(str.strip, read_lines(args.text)), SENTENCES))
    runs: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        index = f"{folder}/index"
        lxsr("index", "--input", args.text, "--model", args.model, "--output", index)
        options = ["--index", index, "--port", args.port, "--name", "model"]
        command = [sys.executable, "-m", "fairseq_lxsr", "serve", *map(str, options)]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            wait_for("the command", process, args.port)
            for _ in range(args.repeats):
                runs += asyncio.run(phases(args, sentences, process.pid))
        finally:
            process.terminate()
            process.wait()
    results = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "seconds": args.seconds,
        "repeats": args.repeats,
        "attacks": summary(runs),
    }
    write_results(args.output, results)


if __name__ == "__main__":
    main()
