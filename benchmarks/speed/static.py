"""Models without layers side by side: ours, sentence-transformers' StaticEmbedding, model2vec;
encoding and training.

python -m benchmarks.speed.static DATA_BIN --source train.en --target train.fr \
    --output benchmarks/speed/results/static.json

DATA_BIN is a folder of `lxsr prepare`; the two files are the pairs that it was made of. All have
tables of one size over the same pieces, in float32 with random numbers, which are as fast as
others. Ours adds the order of the pieces, the others are means. Text becomes vectors in one call,
in all threads that each takes by itself, and on one core. Training is as users run it: the recipe
`best` by fairseq-train; SentenceTransformerTrainer with MultipleNegativesRankingLoss. Contestants
take turns.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit, machine, versions
from benchmarks.models import random_encoder, read_fast_tokenizer
from benchmarks.script import alone, command_line, write_results
from benchmarks.speed.train import train as train_ours
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.tokenizer import TEXT_FILE, TextOptions

OURS, ST, M2V = "ours", "sentence-transformers", "model2vec"
WITH_NEGATIVES = "ours, with hard negatives"
BATCH = 1024  # pairs of a batch in training, and sentences of one in theirs, which are slower with their defaults
WARM_UP = 20  # updates that are not timed
THREADS = ("all", "one")


@contextmanager
def one_core(wanted: bool):
    """What starts inside has one core, and libraries that count threads by variables have one."""
    if not wanted:
        yield
        return
    cores, before = os.sched_getaffinity(0), dict(os.environ)
    os.sched_setaffinity(0, {max(cores)})
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.environ.clear()
        os.environ.update(before)


def their_tokenizer(data: Path) -> Any:
    """Theirs over the same pieces, with the normalization that it has itself: faster than what
    gives equal ids.
    """
    from tokenizers import normalizers

    fast = read_fast_tokenizer(data)
    lower = [normalizers.Lowercase()] if TextOptions.load(data / TEXT_FILE).lowercase else []
    fast.normalizer = normalizers.Sequence([normalizers.NFKC(), *lower])
    return fast


def our_encoder(data: Path, width: int) -> SentenceEncoder:
    size: dict[str, Any] = {
        "embed_dim": width,
        "ffn_embed_dim": width,
        "num_heads": 1,
        "num_layers": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        return random_encoder(
            Path(folder, "model"), data, "cpu", **size, gated=True, order_coefficients=1
        )


def encoders(data: Path, width: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    fast = their_tokenizer(data)
    table = np.random.default_rng(1).standard_normal(
        (fast.get_vocab_size(), width), dtype=np.float32
    )
    theirs = SentenceTransformer(modules=[StaticEmbedding(fast, table)], device="cpu")
    return {
        OURS: our_encoder(data, width).encode,
        ST: partial(theirs.encode, batch_size=BATCH, show_progress_bar=False),
        M2V: StaticModel(table, fast, max_length=None).encode,
    }


def time_encoding(
    data: Path, width: int, sentences: list[str], repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds on the clock, and of all processors, of each run; the first of ours has read no word
    before.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    runs = encoders(data, width)
    for name, run in runs.items():
        if name != OURS:  # start their threads
            run(sentences[:1000])
    for _ in range(repeats):
        for name, run in runs.items():
            clock, processor = time.perf_counter(), time.process_time()
            assert run(sentences).shape == (len(sentences), width)
            found = seconds.setdefault(name, {"clock": [], "processors": []})
            found["clock"].append(time.perf_counter() - clock)
            found["processors"].append(time.process_time() - processor)
    return seconds


def train_theirs(
    data: Path, width: int, files: tuple[Path, Path], updates: int
) -> dict[str, float]:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from benchmarks.quality.baselines import Training

    pairs = dict(
        zip(("anchor", "positive"), (list(read_lines(path)) for path in files), strict=True)
    )
    model = SentenceTransformer(
        modules=[StaticEmbedding(their_tokenizer(data), embedding_dim=width)], device="cpu"
    )
    with tempfile.TemporaryDirectory() as folder:
        ends = Training(BATCH, 0.02).run(
            model, Dataset.from_dict(pairs), Path(folder), math.inf, updates, seed=1
        )
    return {"pairs per second": BATCH * (updates - WARM_UP) / (ends[-1] - ends[WARM_UP - 1])}


def train_both(args: argparse.Namespace, width: int) -> dict[str, list[float]]:
    """Pairs a second of each run, without the first updates."""
    own = (
        "--encoder-embed-dim",
        width,
        "--no-init-embeddings",
        "--batch-size",
        BATCH,
        "--log-interval",
        WARM_UP,
    )
    program = ("fairseq_lxsr.cli.main", "train", args.data.absolute(), "--recipe", "best", *own)
    runs = {
        OURS: lambda: train_ours((*program, "--no-hard-negatives"), args.updates),
        WITH_NEGATIVES: lambda: train_ours(program, args.updates),
        ST: lambda: alone(train_theirs, args.data, width, (args.source, args.target), args.updates),
    }
    speeds: dict[str, list[float]] = {}
    for _ in range(args.repeats):
        for name, run in runs.items():
            speeds.setdefault(name, []).append(run()["pairs per second"])
            print(f"width {width}, {name}: {speeds[name][-1]:,.0f} pairs/s", file=sys.stderr)
    return speeds


def show(name: str, speeds: dict[str, list[float]]) -> None:
    """Medians with their range, and the ratio to the faster of theirs."""
    theirs = max(statistics.median(found) for name, found in speeds.items() if name in (ST, M2V))
    print(f"{name:56}{'median (min - max)':>30}{'of theirs':>12}")
    for contestant, found in speeds.items():
        median = statistics.median(found)
        spread = f"{median:,.0f} ({min(found):,.0f} - {max(found):,.0f})"
        print(f"  {contestant:54}{spread:>30}{median / theirs:12.2f}")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path, help="data folder of `lxsr prepare`")
    parser.add_argument(
        "--source", type=Path, required=True, metavar="FILE", help="sentences of its training text"
    )
    parser.add_argument(
        "--target",
        type=Path,
        required=True,
        metavar="FILE",
        help="their translations, line by line",
    )
    parser.add_argument(
        "--sentences", type=int, default=113_000, help="of both files, evenly (default: 113,000)"
    )
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[512, 256], help="default: 512 256"
    )
    parser.add_argument(
        "--updates", type=int, default=120, help="of a run of training (default: 120)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="default: 5")
    parser.add_argument(
        "--parts", nargs="+", choices=("encoding", "training"), default=["encoding", "training"]
    )
    parser.add_argument(
        "--small", action="store_true", help="2,000 sentences, width 64, 40 updates, once"
    )
    args = parser.parse_args()
    if args.small:
        args.sentences, args.widths, args.updates, args.repeats = 2000, [64], 2 * WARM_UP, 1
    lines = [
        line for path in (args.source, args.target) for line in read_lines(path) if line.strip()
    ]
    sentences = [
        lines[i] for i in np.random.default_rng(0).permutation(len(lines))[: args.sentences]
    ]
    words = sum(len(sentence.split()) for sentence in sentences) / len(sentences)
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "sentences": len(sentences),
        "words per sentence": round(words, 1),
        "encoding seconds": {},
        "training pairs per second": {},
    }
    for width, threads in product(args.widths, THREADS) if "encoding" in args.parts else ():
        name = f"width {width}, threads: {threads}"
        with one_core(threads == "one"):
            seconds = alone(time_encoding, args.data, width, sentences, args.repeats)
        results["encoding seconds"][name] = seconds
        for kind in ("clock", "processors"):
            speeds = {
                who: [len(sentences) / t for t in found[kind]] for who, found in seconds.items()
            }
            show(f"encoding, {name}: sentences/s, {kind}", speeds)
    for width in args.widths if "training" in args.parts else ():
        speeds = results["training pairs per second"][f"width {width}"] = train_both(args, width)
        show(f"training, width {width}: pairs/s", speeds)
    write_results(args.output, results)


if __name__ == "__main__":
    main()
