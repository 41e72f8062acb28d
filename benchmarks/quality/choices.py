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
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.machine import commit, machine
from benchmarks.quality.add_language import p_at_1
from benchmarks.quality.checkpoint_rule import (
    OWN,
    PUBLIC_SETS,
    SOURCES,
    Training,
    other_kinds,
    write_text,
)
from benchmarks.quality.sets import Sets, eval_sets
from benchmarks.script import add_result, command_line, lxsr, read_results
from fairseq_lxsr.embeddings import load


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
    sets: Sets = {OWN: write_text(data, training, work / "text")}
    for name, sides in eval_sets(data, language_pair).items():
        if name in PUBLIC_SETS and name != SOURCES[training.text].same_kind:
            sets[name] = sides
    start = time.perf_counter()
    lxsr(
        *("run", work / "text", "--lang-pair", language_pair, "--work", work / "run"),
        *("--seed", training.seed, *options.split()),
    )
    seconds = time.perf_counter() - start
    encoder = load(str(work / "run" / "model"))
    language = language_pair[3:]
    scores = {}
    for name, sides in sets.items():
        pairs = list(zip(sides["en"], sides[language], strict=True))
        scores[name] = round(fmean(p_at_1(encoder, pairs, language)), 2)
    return {
        **training._asdict(),
        "options": options,
        "seconds": round(seconds),
        "machine": machine(),
        "commit": commit(),
        "P@1": scores,
    }


def print_tables(rows: list[dict]) -> None:
    """Print the P@1 of the second options minus that of the first ones."""
    scores = {}
    for row in rows:
        scores[row["text"], row["pairs"], row["seed"], row["options"]] = row
    print("| choice | text | pairs | seeds | own | other kinds | time |")
    print("|---|---|---|---|---|---|---|")
    for choice in CHOICES:
        for text in choice.texts:
            own = []
            others = []
            times = []
            for seed in sorted({row["seed"] for row in rows}):
                place = text, choice.pairs, seed
                first = scores.get((*place, choice.first))
                second = scores.get((*place, choice.second))
                if first is None or second is None:
                    continue
                own.append(second["P@1"][OWN] - first["P@1"][OWN])
                others.append(other_kinds(second["P@1"]) - other_kinds(first["P@1"]))
                times.append(second["seconds"] / first["seconds"])
            if own:
                print(
                    f"| {choice.second} | {text} | {choice.pairs:,} | {len(own)} | "
                    f"{fmean(own):+.2f} | {fmean(others):+.2f} | {fmean(times):.1f} times |"
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


def main() -> None:
    args = parse_options()
    done = read_results(args.output)
    if args.tables:
        print_tables(done)
        return
    names = {(row["text"], row["pairs"], row["seed"], row["options"]) for row in done}
    for seed in args.seeds:
        for choice in CHOICES:
            for text in choice.texts:
                for options in (choice.first, choice.second):
                    name = (text, choice.pairs, seed, options)
                    if name in names:
                        continue
                    names.add(name)
                    work = args.work.absolute() / "choice"
                    shutil.rmtree(work, ignore_errors=True)
                    training = Training(text, choice.pairs, seed)
                    row = run(args.data.absolute(), training, options, work)
                    add_result(args.output, row)
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
