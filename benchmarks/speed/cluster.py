"""Embedding, indexing and mining in a local Ray cluster of 1 and 2 workers, beside one process:
sentences a second, bytes moved, and that the results are the same.

python -m benchmarks.speed.cluster --model MODEL --source train.en --target train.fr --lines 100000
--output FILE.json

Seconds are those of the clock without starting the workers, and those of the processors inside the
workers' tasks. The bytes are those of files (text, output) and of what goes through Ray: tasks and
what they return, as they are sent.
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
from fairseq_lxsr.search import CorpusIndex, Mining, Side, mine_files, open_index

QUERIES = 20
Run = Callable[[str, Path], None]


class Counted:
    """Workers, and the bytes of what is sent to them and comes back."""

    def __init__(self, workers: Workers):
        self.workers, self.sent = workers, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workers, name)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        from ray import cloudpickle

        for task, result in self.workers.run(tasks):
            self.sent += len(cloudpickle.dumps(task)) + len(cloudpickle.dumps(result))
            yield task, result


def load_model(path: str) -> ModelFolder:
    return ModelFolder(SentenceEncoder.from_pretrained(path, "cpu"), show_progress=False)


def embedder(encoder: Encoder, first: int) -> Any:
    """As `lxsr embed`."""
    return lambda window, counts: encoder.embed(Text(window), counts)


def encode_with(encoder: Encoder) -> Any:
    """As `lxsr index`."""
    return encoder.embed


class Bench:
    """The three verbs over the same text, in one process and in workers.

    Args:
        args: options of the command line.
        folder: a folder for all files.
    """

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.sides = [
            self.text(name, path)
            for name, path in (("source", args.source), ("target", args.target))
        ]
        self.encoder = load_model(args.model)

    def text(self, name: str, path: Path) -> Path:
        """The first lines of a side."""
        copy = self.folder / name
        copy.write_text(
            "".join(f"{line}\n" for line in islice(read_lines(path), self.args.lines)),
            encoding="utf-8",
        )
        return copy

    def one_process(self, verb: str, output: Path) -> None:
        source, target = self.sides
        layout, model = Layout("raw", "float32", self.encoder.width), self.encoder.fingerprint
        if verb == "embed":
            embed_lines(read_lines(source), embedder(self.encoder, 0), output, layout, {})
        elif verb == "index":
            CorpusIndex.build(output, read_lines(target), self.encoder.embed, model)
        else:
            mine_files(
                Side(source, self.encoder), Side(target, self.encoder), output, options=Mining()
            )

    def in_workers(self, workers: Any, verb: str, output: Path) -> None:
        source, target = self.sides
        layout = Layout("raw", "float32", self.encoder.width)
        if verb == "embed":
            embed_shards(
                read_lines(source),
                output,
                Embedding(layout, {"model": workers.model}, embedder),
                workers,
            )
        elif verb == "index":
            index_shards(read_lines(target), output, encode_with, workers)
        else:
            corpora = [Corpus(side, "", self.args.lines) for side in (source, target)]
            mine_shards(corpora[0], corpora[1], output, workers)

    def result(self, verb: str, output: Path) -> str:
        """A hash of what a verb has made: vectors in their order, what is found, or pairs."""
        if verb == "embed":
            files = sorted(output.glob("*.raw")) if output.is_dir() else [output]
            content = b"".join(file.read_bytes() for file in files)
        elif verb == "index":
            queries = list(islice(filter(str.strip, read_lines(self.sides[0])), QUERIES))
            content = repr(open_index(output).search(queries, self.encoder.embed)).encode()
        else:
            content = output.read_bytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each verb and number of workers; 0 is one process without Ray."""
        for verb in ("embed", "index", "mine"):
            yield self.row(verb, 0, self.one_process)
        load = partial(load_model, self.args.model)
        for count in self.args.workers:
            began = time.perf_counter()
            with connect(Cluster(count=count, shard_lines=self.args.shard_lines), load) as workers:
                started = time.perf_counter() - began
                for verb in ("embed", "index", "mine"):
                    counted, workers.seconds = Counted(workers), 0.0
                    row = self.row(
                        verb, count, lambda *words, those=counted: self.in_workers(those, *words)
                    )
                    yield row | {
                        "processor": workers.seconds,
                        "ray_bytes": counted.sent,
                        "start": started,
                    }

    def row(self, verb: str, count: int, run: Run) -> dict[str, Any]:
        output = self.folder / f"{verb}{count}"
        clock, processor = time.perf_counter(), time.process_time()
        run(verb, output)
        row = {
            "verb": verb,
            "workers": count,
            "clock": time.perf_counter() - clock,
            "processor": time.process_time() - processor,
        }
        files = (
            [path for path in output.rglob("*") if path.is_file()] if output.is_dir() else [output]
        )
        row["output_bytes"] = sum(path.stat().st_size for path in files)
        return row | {"result": self.result(verb, output)}


def main(words: list[str] | None = None) -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="sentences")
    parser.add_argument(
        "--target", type=Path, required=True, metavar="FILE", help="sentences of another language"
    )
    parser.add_argument(
        "--lines", type=int, default=2_000, metavar="N", help="of each (default: 2,000)"
    )
    parser.add_argument(
        "--shard-lines", type=int, default=0, metavar="N", help="default: an eighth of --lines"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2"
    )
    args = parser.parse_args(words)
    args.shard_lines = args.shard_lines or -(-args.lines // 8)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        rows = []
        for row in bench.rows():
            rows.append(
                row | {"lines/s": args.lines * (2 if row["verb"] == "mine" else 1) / row["clock"]}
            )
            print(json.dumps(rows[-1]))
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
