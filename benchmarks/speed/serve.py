"""Requests a second and their times: `lxsr serve` beside the same model served by
sentence-transformers.

python -m benchmarks.speed.serve --model MODEL text.en --output benchmarks/speed/results/serve.json

A request has one sentence, and its answer is in base64, as OpenAI's client asks for it. Clients
keep their connections and ask again as soon as they have an answer; they are one process, on the
cores that the server also has. The server of sentence-transformers is what users write: Starlette
and uvicorn, `model.encode` in a thread for each request. Servers take turns; `alone` is ours with a
batch for each request.
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

OURS, ALONE, ST = "ours", "ours, alone", "sentence-transformers"
MOST = {OURS: 2048, ALONE: 1}  # texts of a batch


def serve(contestant: str, model: str, port: int) -> None:
    """Serve one model, in a process of its own."""
    import uvicorn

    app: Any = app_of_st(model) if contestant == ST else app_of_ours(model, MOST[contestant])
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


def app_of_ours(model: str, most: int) -> Any:
    from fairseq_lxsr import SentenceEncoder
    from fairseq_lxsr.serve import ServeOptions
    from fairseq_lxsr.serve.app import make_app

    return make_app(SentenceEncoder.from_pretrained(model), "model", ServeOptions(max_inputs=most))


def app_of_st(model: str) -> Any:
    from sentence_transformers import SentenceTransformer
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    encoder = SentenceTransformer(model, trust_remote_code=True)

    async def embeddings(request: Request) -> JSONResponse:
        asked = await request.json()
        how = {"normalize_embeddings": True, "show_progress_bar": False}
        rows = await run_in_threadpool(encoder.encode, asked["input"], **how)
        values = [base64.b64encode(row.tobytes()).decode() for row in rows]
        return JSONResponse(
            {"data": [{"index": index, "embedding": value} for index, value in enumerate(values)]}
        )

    return Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"])])


def request_of(sentence: str) -> bytes:
    body = json.dumps({"model": "model", "input": [sentence], "encoding_format": "base64"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def client(port: int, requests: list[bytes], until: float) -> list[float]:
    """Ask one request after the other. Returns: seconds of each."""
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
    """Ask by several clients at once."""
    shares = [
        [request_of(text) for text in islice(sentences, start, None, clients)]
        for start in range(clients)
    ]
    start = time.perf_counter()
    found = await asyncio.gather(*(client(port, share, start + seconds) for share in shares))
    took, times = time.perf_counter() - start, sorted(one for part in found for one in part)
    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    return {
        "requests per second": round(len(times) / took, 1),
        "p50 ms": round(p50, 3),
        "p99 ms": round(p99, 3),
    }


def measured(contestant: str, model: str, port: int, run: Callable[[], Any]) -> Any:
    """Start a server, wait for it, measure, end it."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.serve",
        "--serve",
        contestant,
        "--model",
        model,
        "--port",
        port,
    ]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT)
    try:
        for _ in range(600):
            try:
                asyncio.run(load(port, ["warm"], 1, 0.2))
                break
            except OSError:
                if process.poll() is not None:
                    sys.exit(f"the server of {contestant} ended with {process.returncode}")
                time.sleep(0.1)
        return asyncio.run(run())
    finally:
        process.terminate()
        process.wait()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    sentences = list(islice((line for line in read_lines(args.text) if line.strip()), 5000))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lxsr("export", "sentence-transformers", "--model", args.model, "--output", f"{folder}/st")
        models = {OURS: args.model, ALONE: args.model, ST: f"{folder}/st"}
        for _ in range(args.repeats):
            for name, model in models.items():
                for clients in args.clients:
                    run = partial(load, args.port, sentences, clients, args.seconds)
                    found = measured(name, model, args.port, run)
                    print(f"{name}, {clients} clients: {found}", file=sys.stderr)
                    runs.setdefault(name, {}).setdefault(str(clients), []).append(found)
    return {
        name: {clients: medians(found) for clients, found in rows.items()}
        for name, rows in runs.items()
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", nargs="?", metavar="FILE", help="sentences, one a line")
    parser.add_argument("--model", required=True, metavar="FOLDER")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of each measurement (default: 5)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument(
        "--serve", choices=(OURS, ALONE, ST), help="only serve; what the script starts itself with"
    )
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.port)
        return
    if not args.text:
        parser.error("no FILE; expected sentences to ask for")
    found = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "seconds": args.seconds,
    }
    write_results(args.output, found | {"runs": compare(args)})


if __name__ == "__main__":
    main()
