"""Requests per second and latency: `lxsr serve` compared with sentence-transformers.

python -m benchmarks.speed.serve --model MODEL text.en --output benchmarks/speed/results/serve.json

A request has one sentence, and its answer is in base64, as OpenAI's client requests it. The clients
keep their connections and send the next request as soon as they have an answer; they are one
process on the cores that the server also has. The server of sentence-transformers is what users
write: Starlette and uvicorn, with `model.encode` in a thread for each request. The servers take
turns. `ours` is the command `lxsr serve`; `ours, alone` is the same with a batch for each request.
"""

import argparse
import asyncio
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any

from benchmarks import ROOT
from benchmarks.machine import commit, machine, versions
from benchmarks.script import command_line, lxsr, write_results
from fairseq_lxsr.files.lines import read_lines

OURS = "ours"
ALONE = "ours, alone"
ST = "sentence-transformers"
# The options of `lxsr serve` by server.
SERVE_OPTIONS = {OURS: [], ALONE: ["--max-inputs", "1"]}
# Sentences that are requested.
SENTENCES = 5000
# Attempts to connect to a server that starts, and the seconds between them.
ATTEMPTS = 600
PAUSE = 0.1


def serve(model: str, port: int) -> None:
    """Serve a model with sentence-transformers in this process."""
    import uvicorn

    uvicorn.run(st_app(model), port=port, log_level="warning", access_log=False)


def command(contestant: str, model: str, port: int) -> list[str]:
    """Return the command that starts a server."""
    address = ["--model", model, "--port", str(port)]
    if contestant == ST:
        return [sys.executable, "-m", "benchmarks.speed.serve", "--serve", *address]
    options = ["--name", "model", *SERVE_OPTIONS[contestant]]
    return [sys.executable, "-m", "fairseq_lxsr", "serve", *address, *options]


def st_app(model: str) -> Any:
    """Return an application that encodes with sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    encoder = SentenceTransformer(model, trust_remote_code=True)
    options = {"normalize_embeddings": True, "show_progress_bar": False}

    async def embeddings(request: Request) -> JSONResponse:
        body = await request.json()
        rows = await run_in_threadpool(encoder.encode, body["input"], **options)
        data = []
        for index, row in enumerate(rows):
            data.append({"index": index, "embedding": base64.b64encode(row.tobytes()).decode()})
        return JSONResponse({"data": data})

    return Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"])])


def request_of(sentence: str) -> bytes:
    """Return the request for the embedding of a sentence."""
    body = json.dumps({"model": "model", "input": [sentence], "encoding_format": "base64"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def client(port: int, requests: list[bytes], until: float) -> list[float]:
    """Send one request after the other until a time, and return the seconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds: list[float] = []
    for request in cycle(requests):
        start = time.perf_counter()
        if start > until:
            break
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        if not head.startswith(b"http/1.1 200"):
            sys.exit(f"the server answered {head[:40]!r}")
        seconds.append(time.perf_counter() - start)
    writer.close()
    return seconds


async def load(port: int, sentences: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Send requests by several clients at once, and return speed and latency."""
    requests = list(map(request_of, sentences))
    start = time.perf_counter()
    latencies = await asyncio.gather(
        *(client(port, requests[number::clients], start + seconds) for number in range(clients))
    )
    elapsed = time.perf_counter() - start
    times = sorted(latency for by_request in latencies for latency in by_request)
    last = len(times) - 1
    return {
        "requests per second": round(len(times) / elapsed, 1),
        "p50 ms": round(1000 * times[int(0.5 * last)], 3),
        "p99 ms": round(1000 * times[int(0.99 * last)], 3),
    }


def measured(contestant: str, model: str, port: int, run: Callable[[], Any]) -> Any:
    """Start a server, wait until it answers, run a measurement, and stop the server."""
    process = subprocess.Popen(command(contestant, model, port), cwd=ROOT)
    try:
        wait_for(contestant, process, port)
        return asyncio.run(run())
    finally:
        process.terminate()
        process.wait()


def wait_for(contestant: str, process: subprocess.Popen, port: int) -> None:
    """Wait until a server answers."""
    for _ in range(ATTEMPTS):
        try:
            asyncio.run(load(port, ["warm"], 1, 0.2))
            return
        except OSError:
            if process.poll() is not None:
                sys.exit(f"the server of {contestant} ended with {process.returncode}")
            time.sleep(PAUSE)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of all repeats, by server and number of clients."""
    sentences = list(islice(filter(str.strip, read_lines(args.text)), SENTENCES))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lxsr("export", "sentence-transformers", "--model", args.model, "--output", f"{folder}/st")
        models = {OURS: args.model, ALONE: args.model, ST: f"{folder}/st"}
        for _ in range(args.repeats):
            for name, model in models.items():
                for clients in args.clients:
                    run = partial(load, args.port, sentences, clients, args.seconds)
                    speed = measured(name, model, args.port, run)
                    print(f"{name}, {clients} clients: {speed}", file=sys.stderr)
                    runs.setdefault(name, {}).setdefault(str(clients), []).append(speed)
    summary: dict[str, Any] = {}
    for name, by_clients in runs.items():
        summary[name] = {clients: medians(repeats) for clients, repeats in by_clients.items()}
    return summary


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a measurement with several numbers of clients."""
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=[1, 16, 64],
        metavar="N",
        help="numbers of clients (default: 1 16 64)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="seconds of each measurement (default: 5)"
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", nargs="?", metavar="FILE", help="text with one sentence per line")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="model folder")
    add_load_options(parser)
    parser.add_argument("--repeats", type=int, default=3, help="number of repeats (default: 3)")
    parser.add_argument("--port", type=int, default=8765, help="port of the server (default: 8765)")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="only serve with sentence-transformers; the script uses this option to start itself",
    )
    args = parser.parse_args()
    if args.serve:
        serve(args.model, args.port)
        return
    if not args.text:
        parser.error("FILE is missing; expected a text file with the sentences to request")
    results = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "seconds": args.seconds,
    }
    write_results(args.output, results | {"runs": compare(args)})


if __name__ == "__main__":
    main()
