"""Pairs per second and memory of preparing text: ours in several processes, and the same work as a
plain script.

python -m benchmarks.speed.prepare --data DIR --output benchmarks/speed/results/prepare.json

DIR has aligned text as NAME.SRC.txt.gz and NAME.TGT.txt.gz. It is repeated until there are enough
pairs; each repetition has a word of its own at the end of both sides, in letters, because sentences
are compared without their digits. The plain script does in one process what `lxsr prepare` does but
for the subwords, with the same filters: it remembers all sentences in memory, writes the pieces as
text and calls `fairseq-preprocess --workers 1`. The rest is ours, at sizes up to --largest: is the
time a straight line, does the memory stay? Memory is the sum over all processes, shared pages
counted for each.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.processes import measured
from benchmarks.script import command_line, write_results
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.preparation.clean import comparable, first_failing_filter, make_filters
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer

PAIR = ("en", "fr")
FILTERS = ("characters", "length", "ratio", "letters", "identical", "numbers")


def corpus(folder: Path) -> list[tuple[str, str]]:
    """The pairs of all aligned files of a folder."""
    pairs: list[tuple[str, str]] = []
    for path in sorted(folder.glob(f"*.{PAIR[0]}.txt.gz")):
        other = path.with_name(path.name.removesuffix(f"{PAIR[0]}.txt.gz") + f"{PAIR[1]}.txt.gz")
        if other.is_file():
            pairs.extend(read_parallel(path, other))
    return pairs


def letters(number: int) -> str:
    """A number as a word."""
    word = ""
    while number:
        number, digit = divmod(number, 26)
        word += chr(ord("a") + digit)
    return f"q{word}"


def repeat(pairs: list[tuple[str, str]], count: int) -> Iterator[tuple[str, str]]:
    for repetition in itertools.count():
        mark = letters(repetition)
        for source, target in pairs:
            if not count:
                return
            count -= 1
            yield f"{source} {mark}", f"{target} {mark}"


def write_text(pairs: list[tuple[str, str]], count: int, prefix: Path) -> None:
    with open(f"{prefix}.{PAIR[0]}", "w") as left, open(f"{prefix}.{PAIR[1]}", "w") as right:
        for source, target in repeat(pairs, count):
            left.write(f"{source}\n")
            right.write(f"{target}\n")


def ours(work: Path, prefix: Path, count: int, args: argparse.Namespace) -> dict:
    """Every stage of `lxsr prepare`, timed."""
    lxsr = (sys.executable, "-m", "fairseq_lxsr.cli.main")
    common: tuple[str | Path | int, ...] = (
        *(
            "--work",
            work,
            "--lang-pairs",
            "-".join(PAIR),
            "--workers",
            args.workers,
            "--data",
            prefix,
        ),
        *(
            "--filters",
            ",".join(FILTERS),
            "--valid-size",
            args.held_out,
            "--test-size",
            args.held_out,
        ),
        *("--vocab-size", args.vocab_size),
    )
    # each call finds the stages before its own unchanged, which takes the time of reading their
    # files once
    stages = {"clean": ("--until", "clean"), "subwords": ("--until", "subwords"), "binarise": ()}
    result: dict = {"pairs": count, "workers": args.workers}
    for stage, options in stages.items():
        seconds, _, memory, _ = measured([*lxsr, "prepare", *common, *options])
        result[stage] = {"seconds": seconds, "peak bytes": memory}
        print(
            f"{count:,} pairs, {stage}: {seconds:.1f} s, {memory / 2**20:.0f} MiB", file=sys.stderr
        )
    return result


def plain(work: Path, prefix: Path, subwords: Path, held_out: int) -> dict:
    """The same work in one process, as one writes it when one is in a hurry."""
    work.mkdir()
    start = time.perf_counter()
    filters = make_filters({name: {} for name in FILTERS}, PAIR)
    known, kept = set(), []
    for source, target in read_parallel(f"{prefix}.{PAIR[0]}", f"{prefix}.{PAIR[1]}"):
        pair = " ".join(source.split()), " ".join(target.split())
        if all(pair) and first_failing_filter(pair, filters) is None:
            key = comparable(pair[0]), comparable(pair[1])
            if key not in known:
                known.add(key)
                kept.append((pair, key))
    random.Random(1).shuffle(kept)
    held, rest = kept[: 2 * held_out], kept[2 * held_out :]
    sides = [{key[side] for _, key in held} for side in (0, 1)]
    splits = {
        "valid": held[:held_out],
        "test": held[held_out:],
        "train": [
            (pair, key) for pair, key in rest if key[0] not in sides[0] and key[1] not in sides[1]
        ],
    }
    cleaned = time.perf_counter()
    tokenizer = Tokenizer(
        subwords / "sentencepiece.model", TextOptions.load(subwords / "text.json")
    )
    for split, pairs in splits.items():
        for side, language in enumerate(PAIR):
            with open(work / f"{split}.{language}", "w") as stream:
                for start_at in range(0, len(pairs), 10_000):
                    lines = [pair[side] for pair, _ in pairs[start_at : start_at + 10_000]]
                    stream.writelines(" ".join(pieces) + "\n" for pieces in tokenizer.pieces(lines))
    prefixes = [part for split in splits for part in (f"--{split}pref", work / split)]
    options = (
        "--srcdict",
        subwords / "dict.txt",
        "--joined-dictionary",
        "--destdir",
        work / "bin",
        "--workers",
        1,
    )
    languages = ("--source-lang", PAIR[0], "--target-lang", PAIR[1])
    measured([sys.executable, "-m", "fairseq_cli.preprocess", *languages, *prefixes, *options])
    end = time.perf_counter()
    return {"clean": cleaned - start, "binarise": end - cleaned, "kept": len(kept)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of aligned text")
    parser.add_argument(
        "--pairs", type=int, default=300_000, help="of the comparison (default: 300,000)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of the comparison (default: 3)")
    parser.add_argument(
        "--largest", type=int, nargs="*", default=[1_000_000, 10_000_000], help="further sizes"
    )
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--held-out",
        type=int,
        default=2000,
        help="pairs, for validation and for testing (default: 2000)",
    )
    parser.add_argument("--vocab-size", type=int, default=16_000, help="default: 16,000")
    args = parser.parse_args()
    pairs = corpus(args.data)
    results: dict = {
        "machine": machine(),
        "source pairs": len(pairs),
        "filters": FILTERS,
        "comparison": [],
        "sizes": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_text(pairs, args.pairs, work / "text")
        for run in range(args.repeats):
            mine = ours(work / f"ours{run}", work / "text", args.pairs, args)
            theirs = plain(
                work / f"plain{run}", work / "text", work / f"ours{run}" / "subwords", args.held_out
            )
            files = (
                work / f"ours{run}/corpus/en-fr/{split}.en" for split in ("train", "valid", "test")
            )
            kept = sum(1 for file in files for _ in read_lines(file))
            results["comparison"].append({"ours": mine, "plain": theirs, "kept by ours": kept})
            print(f"plain script: {theirs}", file=sys.stderr)
        for count in args.largest:
            write_text(pairs, count, work / "text")
            results["sizes"].append(ours(work / f"size{count}", work / "text", count, args))
    report(results)
    write_results(args.output, results)


def report(results: dict) -> None:
    for run in results["comparison"]:
        count = run["ours"]["pairs"]
        mine = {stage: run["ours"][stage]["seconds"] for stage in ("clean", "binarise")}
        row = ", ".join(
            f"{stage} {count / mine[stage]:,.0f} pairs/s ({run['plain'][stage] / mine[stage]:.1f} x the plain script)"
            for stage in mine
        )
        whole = (run["plain"]["clean"] + run["plain"]["binarise"]) / sum(mine.values())
        print(
            f"{count:,} pairs: {row}; together {count / sum(mine.values()):,.0f} pairs/s, {whole:.1f} x"
        )
    for size in results["sizes"]:
        stages = {stage: size[stage] for stage in ("clean", "subwords", "binarise")}
        row = ", ".join(
            f"{stage} {found['seconds']:.0f} s ({size['pairs'] / found['seconds']:,.0f} pairs/s), "
            f"{found['peak bytes'] / 2**20:.0f} MiB"
            for stage, found in stages.items()
        )
        print(f"{size['pairs']:,} pairs: {row}")


if __name__ == "__main__":
    main()
