"""Embedding, indexing and mining in a local Ray cluster, compared with a single process.

python -m benchmarks.speed.cluster --model MODEL --source train.en --target train.fr \
    --lines 100000 --output FILE.json

Measured are sentences per second, the bytes that are moved, and whether the results are the same.
Elapsed seconds exclude the start of the workers; processor seconds are those of the workers' tasks.
The bytes are those of files (text, output) and of what Ray sends: tasks and their results.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.cluster import (
    Cluster,
    Corpus,
    Embedding,
    Workers,
    connect,
    embed_shards,
    index_shards,
    mine_shards,
)
from fairseq_lxsr.embeddings import Encoder, Layout, ModelFolder, Text, embed_lines
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.search import CorpusIndex, IndexOptions, Mining, Side, mine_files

VERBS = ("embed", "index", "mine")
# Queries that compare the results of two indexes.
QUERIES = 20
Run = Callable[[str, Path], None]


class CountingWorkers:
    """Workers that count the bytes of the tasks and the results that are sent."""

    def __init__(self, workers: Workers):
        self.workers = workers
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workers, name)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run tasks, and yield each with its result."""
        from ray import cloudpickle

        for task, result in self.workers.run(tasks):
            self.sent += len(cloudpickle.dumps(task)) + len(cloudpickle.dumps(result))
            yield task, result


def load_model(path: str) -> ModelFolder:
    """Load a model on the CPU, as each worker does."""
    return ModelFolder(SentenceEncoder.from_pretrained(path, "cpu"), show_progress=False)


def embedder(encoder: Encoder, first: int) -> Any:
    """Return the function by which `lxsr embed` embeds a block of lines."""
    return lambda window, counts: encoder.embed(Text(window), counts)


def encode_with(encoder: Encoder) -> Any:
    """Return the function by which `lxsr index` embeds a block of lines."""
    return encoder.embed


class Bench:
    """The three verbs on the same text, in one process and in workers.

    Args:
        args: options of the command line.
        folder: folder of all files.
    """

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args = args
        self.folder = folder
        self.sides = [self.copy("source", args.source), self.copy("target", args.target)]
        self.encoder = load_model(args.model)
        self.layout = Layout("raw", "float32", self.encoder.width)

    def copy(self, name: str, path: Path) -> Path:
        """Copy the first lines of a file."""
        output = self.folder / name
        lines = islice(read_lines(path), self.args.lines)
        output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return output

    def one_process(self, verb: str, output: Path) -> None:
        """Run a verb in this process."""
        source, target = self.sides
        if verb == "embed":
            embed_lines(read_lines(source), embedder(self.encoder, 0), output, self.layout, {})
        elif verb == "index":
            fingerprint = self.encoder.fingerprint
            CorpusIndex.build(
                output, read_lines(target), self.encoder.embed, fingerprint, plain=True
            )
        else:
            sides = Side(source, self.encoder), Side(target, self.encoder)
            mine_files(*sides, output, options=Mining())

    def in_workers(self, workers: Any, verb: str, output: Path) -> None:
        """Run a verb in the workers of a cluster."""
        source, target = self.sides
        if verb == "embed":
            embedding = Embedding(self.layout, {"model": workers.model}, embedder)
            embed_shards(read_lines(source), output, embedding, workers)
        elif verb == "index":
            options = IndexOptions(plain=True)
            index_shards(read_lines(target), output, encode_with, workers, options)
        else:
            corpora = [Corpus(side, "", self.args.lines) for side in (source, target)]
            mine_shards(corpora[0], corpora[1], output, workers)

    def result(self, verb: str, output: Path) -> str:
        """Return a hash of the result of a verb: vectors in their order, neighbours or pairs."""
        if verb == "embed":
            files = sorted(output.glob("*.raw")) if output.is_dir() else [output]
            content = b"".join(file.read_bytes() for file in files)
        elif verb == "index":
            queries = list(islice(filter(str.strip, read_lines(self.sides[0])), QUERIES))
            content = repr(CorpusIndex.load(output).search(queries, self.encoder.embed)).encode()
        else:
            content = output.read_bytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each verb and number of workers; 0 workers is one process without Ray."""
        for verb in VERBS:
            yield self.row(verb, 0, self.one_process)
        load = partial(load_model, self.args.model)
        for count in self.args.workers:
            start = time.perf_counter()
            with connect(Cluster(count=count, shard_lines=self.args.shard_lines), load) as workers:
                start_seconds = time.perf_counter() - start
                for verb in VERBS:
                    counting = CountingWorkers(workers)
                    workers.seconds = 0.0
                    row = self.row(verb, count, partial(self.in_workers, counting))
                    row["processor"] = workers.seconds
                    row["ray_bytes"] = counting.sent
                    row["start"] = start_seconds
                    yield row

    def row(self, verb: str, count: int, run: Run) -> dict[str, Any]:
        """Run a verb, and return its time, the size of its output and the hash of its result."""
        output = self.folder / f"{verb}{count}"
        start = time.perf_counter()
        processor_start = time.process_time()
        run(verb, output)
        elapsed = time.perf_counter() - start
        processor = time.process_time() - processor_start
        return {
            "verb": verb,
            "workers": count,
            "clock": elapsed,
            "processor": processor,
            "output_bytes": size_of(output),
            "result": self.result(verb, output),
        }


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def main(words: list[str] | None = None) -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument(
        "--source", type=Path, required=True, metavar="FILE", help="sentences of one language"
    )
    parser.add_argument(
        "--target", type=Path, required=True, metavar="FILE", help="sentences of another language"
    )
    parser.add_argument(
        "--lines",
        type=int,
        default=2_000,
        metavar="N",
        help="lines of each file that are read (default: 2,000)",
    )
    parser.add_argument(
        "--shard-lines",
        type=int,
        default=0,
        metavar="N",
        help="lines of a shard (default: an eighth of --lines)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="numbers of workers (default: 1 2)",
    )
    args = parser.parse_args(words)
    args.shard_lines = args.shard_lines or -(-args.lines // 8)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        rows = []
        for row in bench.rows():
            # Mining reads the lines of both sides.
            sides = 2 if row["verb"] == "mine" else 1
            row["lines/s"] = args.lines * sides / row["clock"]
            rows.append(row)
            print(json.dumps(row))
        results = {
            "machine": machine(),
            "model": bench.encoder.fingerprint,
            "width": bench.encoder.width,
            "lines": args.lines,
            "shard_lines": args.shard_lines,
            "text_bytes": [side.stat().st_size for side in bench.sides],
            "rows": rows,
        }
    write_results(args.output, results)


if __name__ == "__main__":
    main()
