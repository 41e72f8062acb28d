"""Models without layers compared: ours, sentence-transformers' StaticEmbedding and model2vec.

python -m benchmarks.speed.static DATA_BIN --source train.en --target train.fr \
    --output benchmarks/speed/results/static.json

DATA_BIN is a folder of `lxsr prepare`; the two files are the pairs that it was made of. Encoding
and training are measured, and the contestants take turns. All have tables of one size over the same
pieces, in float32 with random numbers, which are as fast as trained ones. Ours adds the order of
the pieces; the others are means. Text is encoded in one call, on all threads that each contestant
starts by itself and on one core. Training is as users run it: the recipe `best` in fairseq-train,
and SentenceTransformerTrainer with MultipleNegativesRankingLoss.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

OURS = "ours"
WITH_NEGATIVES = "ours, with hard negatives"
ST = "sentence-transformers"
M2V = "model2vec"
PEERS = (ST, M2V)
# Pairs of a batch in training. sentence-transformers also encodes in batches of this size, because
# it is slower with its default.
BATCH = 1024
# The first updates are not timed.
WARM_UP = 20
# Sentences that a peer encodes before the measurement, so that its threads start.
WARM_UP_SENTENCES = 1000
THREADS = ("all", "one")
ENCODING = "encoding"
TRAINING = "training"

Encode = Callable[[list[str]], np.ndarray]


@contextmanager
def one_core() -> Iterator[None]:
    """Restrict the processes that start inside the context to one core and one thread."""
    cores = os.sched_getaffinity(0)
    environment = dict(os.environ)
    os.sched_setaffinity(0, {max(cores)})
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.environ.clear()
        os.environ.update(environment)


def peer_tokenizer(data: Path) -> Any:
    """Return a tokenizer over the same pieces with the tokenizer's own normalization.

    It is faster than the normalization that gives the same ids as ours.
    """
    from tokenizers import normalizers

    tokenizer = read_fast_tokenizer(data)
    steps: list[Any] = [normalizers.NFKC()]
    if TextOptions.load(data / TEXT_FILE).lowercase:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def our_encoder(data: Path, width: int) -> SentenceEncoder:
    """Return our model without layers, with random weights."""
    size: dict[str, Any] = {
        "embed_dim": width,
        "ffn_embed_dim": width,
        "num_heads": 1,
        "num_layers": 0,
        "gated": True,
        "order_coefficients": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        return random_encoder(Path(folder, "model"), data, "cpu", **size)


def encoders(data: Path, width: int) -> dict[str, Encode]:
    """Return the functions that encode, by contestant."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = peer_tokenizer(data)
    shape = (tokenizer.get_vocab_size(), width)
    table = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    st_model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, table)], device="cpu")
    return {
        OURS: our_encoder(data, width).encode,
        ST: partial(st_model.encode, batch_size=BATCH, show_progress_bar=False),
        M2V: StaticModel(table, tokenizer, max_length=None).encode,
    }


def time_encoding(
    data: Path, width: int, sentences: list[str], repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Return the elapsed seconds and the processor seconds of each run, by contestant.

    Our first run includes reading every word for the first time.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    functions = encoders(data, width)
    for name, encode in functions.items():
        seconds[name] = {"clock": [], "processors": []}
        if name != OURS:
            encode(sentences[:WARM_UP_SENTENCES])
    for _ in range(repeats):
        for name, encode in functions.items():
            start = time.perf_counter()
            processor_start = time.process_time()
            assert encode(sentences).shape == (len(sentences), width)
            seconds[name]["clock"].append(time.perf_counter() - start)
            seconds[name]["processors"].append(time.process_time() - processor_start)
    return seconds


def train_st(data: Path, width: int, files: tuple[Path, Path], updates: int) -> dict[str, float]:
    """Train sentence-transformers, and return its speed without the first updates."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from benchmarks.quality.baselines import Training

    source, target = (list(read_lines(path)) for path in files)
    pairs = Dataset.from_dict({"anchor": source, "positive": target})
    embedding = StaticEmbedding(peer_tokenizer(data), embedding_dim=width)
    model = SentenceTransformer(modules=[embedding], device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        training = Training(BATCH, 0.02)
        ends = training.run(model, pairs, Path(folder), math.inf, updates, seed=1)
    return {"pairs per second": BATCH * (updates - WARM_UP) / (ends[-1] - ends[WARM_UP - 1])}


def train_both(args: argparse.Namespace, width: int) -> dict[str, list[float]]:
    """Return the pairs per second of each run without the first updates, by contestant."""
    program: tuple[object, ...] = (
        *("fairseq_lxsr.cli.main", "train", args.data.absolute(), "--recipe", "best"),
        *("--encoder-embed-dim", width, "--no-init-embeddings", "--batch-size", BATCH),
        *("--log-interval", WARM_UP),
    )
    files = (args.source, args.target)
    runs = {
        OURS: partial(train_ours, (*program, "--no-hard-negatives"), args.updates),
        WITH_NEGATIVES: partial(train_ours, program, args.updates),
        ST: partial(alone, train_st, args.data, width, files, args.updates),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repeats):
        for name, run in runs.items():
            speeds[name].append(run()["pairs per second"])
            print(f"width {width}, {name}: {speeds[name][-1]:,.0f} pairs/s", file=sys.stderr)
    return speeds


def show(title: str, speeds: dict[str, list[float]]) -> None:
    """Print medians with their range, and relative to the faster peer."""
    peer_medians = [statistics.median(speeds[name]) for name in PEERS if name in speeds]
    fastest = max(peer_medians)
    print(f"{title:56}{'median (min - max)':>30}{'of theirs':>12}")
    for contestant, values in speeds.items():
        median = statistics.median(values)
        spread = f"{median:,.0f} ({min(values):,.0f} - {max(values):,.0f})"
        print(f"  {contestant:54}{spread:>30}{median / fastest:12.2f}")


def chosen_sentences(files: tuple[Path, Path], count: int) -> list[str]:
    """Draw sentences of both files."""
    lines = [line for path in files for line in read_lines(path) if line.strip()]
    rows = np.random.default_rng(0).permutation(len(lines))[:count]
    return [lines[row] for row in rows]


def encoding_results(args: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    """Measure encoding with each width, on all threads and on one core."""
    results = {}
    for width in args.widths:
        for threads in THREADS:
            name = f"width {width}, threads: {threads}"
            task = partial(alone, time_encoding, args.data, width, sentences, args.repeats)
            if threads == "one":
                with one_core():
                    results[name] = task()
            else:
                results[name] = task()
            for clock in ("clock", "processors"):
                speeds = {}
                for contestant, seconds in results[name].items():
                    speeds[contestant] = [len(sentences) / value for value in seconds[clock]]
                show(f"encoding, {name}: sentences/s, {clock}", speeds)
    return results


def training_results(args: argparse.Namespace) -> dict[str, Any]:
    """Measure training with each width."""
    results = {}
    for width in args.widths:
        results[f"width {width}"] = train_both(args, width)
        show(f"training, width {width}: pairs/s", results[f"width {width}"])
    return results


def parse_options() -> argparse.Namespace:
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
        "--sentences",
        type=int,
        default=113_000,
        help="number of sentences of both files together (default: 113,000)",
    )
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[512, 256],
        help="widths of the embeddings (default: 512 256)",
    )
    parser.add_argument(
        "--updates", type=int, default=120, help="updates of a training (default: 120)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="number of repeats (default: 5)")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=(ENCODING, TRAINING),
        default=[ENCODING, TRAINING],
        help="what to measure (default: both)",
    )
    parser.add_argument(
        "--small", action="store_true", help="2,000 sentences, width 64, 40 updates, one repeat"
    )
    args = parser.parse_args()
    if args.small:
        args.sentences = 2000
        args.widths = [64]
        args.updates = 2 * WARM_UP
        args.repeats = 1
    return args


def main() -> None:
    args = parse_options()
    sentences = chosen_sentences((args.source, args.target), args.sentences)
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
    if ENCODING in args.parts:
        results["encoding seconds"] = encoding_results(args, sentences)
    if TRAINING in args.parts:
        results["training pairs per second"] = training_results(args)
    write_results(args.output, results)


if __name__ == "__main__":
    main()
