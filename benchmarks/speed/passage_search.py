"""Search of passages: time of a query and recall, by kind of index.

OMP_NUM_THREADS=1 python -m benchmarks.speed.passage_search passages.txt --queries queries.txt \
    --folder indexes --output benchmarks/speed/results/passage_search.json

Both files have one text per line. The time of a query is processor time of one core from the text
to the hits, for one query after the other, with the index and the model open. Recall is the share
of the ten passages that `flat` finds. Indexes in --folder are used again.
"""

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit, machine
from benchmarks.script import command_line, lxsr, write_results
from fairseq_lxsr.embeddings import load
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex

MODEL = "lxsr-static"
K = 10
# Number of queries before the measurement, which read the files.
WARM_UP = 30


def measure_kind(path: Path, encoder: Any, queries: list[str]) -> tuple[list[float], list[set]]:
    """Return the seconds of each query, ascending, and the ids of the passages found."""
    index = CorpusIndex.load(path)
    for query in queries[:WARM_UP]:
        index.search(query, encoder, k=K)
    times = []
    passages = []
    for query in queries:
        start = time.process_time()
        hits = index.search(query, encoder, k=K)
        times.append(time.process_time() - start)
        passages.append({hit.id for hit in hits})
    return sorted(times), passages


def compare_kinds(args: Any, queries: list[str]) -> list[dict[str, Any]]:
    """Build an index of each kind with the command, and measure it."""
    encoder = load(MODEL)
    results = []
    exact: list[set] = []
    for kind in args.kinds:
        path = args.folder / kind
        if not path.exists():
            options = ("--kind", kind)
            lxsr("index", "--model", MODEL, "--input", args.text, "--output", path, *options)
        times, passages = measure_kind(path, encoder, queries)
        exact = exact or passages
        shares = [len(a & b) / len(b) for a, b in zip(passages, exact, strict=True) if b]
        size = sum(file.stat().st_size for file in CorpusIndex.load(path).files)
        result = {
            "kind": kind,
            "median ms": round(1000 * float(np.median(times)), 2),
            "fastest tenth ms": round(1000 * times[len(times) // 10], 2),
            "recall": round(100 * float(np.mean(shares)), 2),
            "MB": round(size / 1e6, 1),
        }
        print(result, file=sys.stderr)
        results.append(result)
    return results


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("text", type=Path, metavar="FILE", help="passages, one per line")
    parser.add_argument(
        "--queries", type=Path, required=True, metavar="FILE", help="queries, one per line"
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="FOLDER", help="folder of the indexes"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=INDEX_KINDS, choices=INDEX_KINDS, help="kinds (default: all)"
    )
    args = parser.parse_args()
    queries = list(islice(filter(str.strip, read_lines(args.queries)), 500))
    kinds = compare_kinds(args, queries)
    write_results(args.output, {"machine": machine(), "commit": commit(), "kinds": kinds})


if __name__ == "__main__":
    main()
