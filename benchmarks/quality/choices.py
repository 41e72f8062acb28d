"""What `lxsr run` chooses by itself, measured against the other choice.

python -m benchmarks.quality.choices --data DIR --work FOLDER \
    --output benchmarks/quality/results/choices.jsonl

Each row is one `lxsr run` with one of its options, on the text, the number of pairs and the seed
of a training of `quality.checkpoint_rule`. The model that it exports is evaluated on pairs of the
same text that were left out (`own`), and on public sets of other kinds of text. P@1 is the mean of
both directions, in percent. Rows that --output has are not repeated. With --tables only the
differences are printed.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.machine import commit, machine
from benchmarks.quality.checkpoint_rule import (
    SOURCES,
    Training,
    gains,
    score_sets,
    write_text_and_read_sets,
)
from benchmarks.script import add_result, command_line, lxsr, read_results

# Text, number of pairs, seed and options.
Run = tuple[str, int, int, str]


class Choice(NamedTuple):
    """Options of `lxsr run` that are compared.

    Attributes:
        name: what is chosen.
        first: options of the first training.
        second: options of the second training.
        texts: names of the training texts.
        pairs: number of pairs.
    """

    name: str
    first: str
    second: str
    texts: tuple[str, ...]
    pairs: int


SMALL_TEXTS = ("captions", "game", "everyday")
LARGE_TEXTS = ("software", "law")
SHORT_PAIRS = ("--no-short-pairs", "--short-pairs")
CHOICES = (
    Choice("short pairs", *SHORT_PAIRS, SMALL_TEXTS, 1000),
    Choice("short pairs", *SHORT_PAIRS, SMALL_TEXTS, 5000),
    Choice("short pairs", *SHORT_PAIRS, ("everyday", *LARGE_TEXTS), 17_000),
    Choice("word pieces", "--vocab-size 8000", "--vocab-size 16000", LARGE_TEXTS, 30_000),
    Choice("near batches", "", "--near-batches", LARGE_TEXTS, 30_000),
)


def run(data: Path, training: Training, options: str, work: Path) -> dict:
    """Train by `lxsr run`, and return the row of the results."""
    language_pair = SOURCES[training.text].pair
    sets = write_text_and_read_sets(data, training, work / "text")
    start = time.perf_counter()
    lxsr(
        *("run", work / "text", "--lang-pair", language_pair, "--work", work / "run"),
        *("--seed", training.seed, *options.split()),
    )
    seconds = time.perf_counter() - start
    return {
        **training._asdict(),
        "options": options,
        "seconds": round(seconds),
        "machine": machine(),
        "commit": commit(),
        "P@1": score_sets(work / "run" / "model", sets, language_pair[3:]),
    }


def print_table(rows: list[dict]) -> None:
    """Print the P@1 of the second options minus that of the first ones."""
    rows_by_run = {}
    for row in rows:
        rows_by_run[row["text"], row["pairs"], row["seed"], row["options"]] = row
    print("| choice | text | pairs | seeds | own | other kinds | time |")
    print("|---|---|---|---|---|---|---|")
    for choice in CHOICES:
        for text in choice.texts:
            print_row(choice, text, rows_by_run)


def print_row(choice: Choice, text: str, rows_by_run: dict[Run, dict]) -> None:
    """Print a row of the table, unless one of the two trainings is missing for all seeds."""
    own_gains = []
    other_gains = []
    time_ratios = []
    for seed in sorted({run[2] for run in rows_by_run}):
        first = rows_by_run.get((text, choice.pairs, seed, choice.first))
        second = rows_by_run.get((text, choice.pairs, seed, choice.second))
        if first is None or second is None:
            continue
        own_gain, other_gain = gains(second["P@1"], first["P@1"])
        own_gains.append(own_gain)
        other_gains.append(other_gain)
        time_ratios.append(second["seconds"] / first["seconds"])
    if own_gains:
        print(
            f"| {choice.second} | {text} | {choice.pairs:,} | {len(own_gains)} | "
            f"{fmean(own_gains):+.2f} | {fmean(other_gains):+.2f} | "
            f"{fmean(time_ratios):.1f} times |"
        )


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, metavar="DIR", help="text, as for quality.run")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="folder of the trainings")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1, 2], metavar="N", help="seeds (default: 1 2)"
    )
    parser.add_argument(
        "--tables", action="store_true", help="print the table of --output, and train nothing"
    )
    return parser.parse_args()


def runs(seeds: Sequence[int]) -> Iterator[Run]:
    """Yield every run once: text, number of pairs, seed and options."""
    for seed in seeds:
        distinct: dict[Run, None] = {}
        for choice in CHOICES:
            for text, options in product(choice.texts, (choice.first, choice.second)):
                distinct[text, choice.pairs, seed, options] = None
        yield from distinct


def main() -> None:
    args = parse_options()
    rows = read_results(args.output)
    if args.tables:
        print_table(rows)
        return
    done = {(row["text"], row["pairs"], row["seed"], row["options"]) for row in rows}
    work = args.work.absolute() / "choice"
    for text, pairs, seed, options in runs(args.seeds):
        if (text, pairs, seed, options) in done:
            continue
        shutil.rmtree(work, ignore_errors=True)
        row = run(args.data.absolute(), Training(text, pairs, seed), options, work)
        add_result(args.output, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
