"""Make a dirty corpus from clean text in three languages; each pair is labelled right or wrong.

python make_dirty.py --source a.en --target a.fr --other a.de --output dirty

Line i of the three files has the same meaning. The output is dirty.tsv with source and target, and
dirty.labels with the kind of each pair: `true`, or one of the faults below. Each fault has the
probability --rate.
"""

import argparse
import random
from collections import Counter
from itertools import chain
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines


def shifted(row: int, sides: dict[str, list[str]]) -> str:
    """Return the translation of the next line."""
    return sides["target"][(row + 1) % len(sides["target"])]


def truncated(row: int, sides: dict[str, list[str]]) -> str:
    """Return the first half of the translation."""
    words = sides["target"][row].split()
    return " ".join(words[: max(1, len(words) // 2)])


def wrong_language(row: int, sides: dict[str, list[str]]) -> str:
    """Return the correct translation into another language."""
    return sides["other"][row]


def untranslated(row: int, sides: dict[str, list[str]]) -> str:
    """Return the source itself."""
    return sides["source"][row]


FAULTS = {fault.__name__: fault for fault in (shifted, truncated, wrong_language, untranslated)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for side in ("source", "target", "other"):
        parser.add_argument(
            f"--{side}", type=Path, nargs="+", required=True, metavar="FILE", help=".gz too"
        )
    parser.add_argument("--output", type=Path, required=True, metavar="PREFIX")
    parser.add_argument(
        "--rate", type=float, default=0.1, help="probability of each fault (default: 0.1)"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with exit_on_input_error("make_dirty.py"):
        write(parser, args)


def write(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if not 0 <= args.rate * len(FAULTS) < 1:
        raise InputError(
            f"--rate {args.rate}; expected from 0 to less than {1 / len(FAULTS)}, for "
            f"{len(FAULTS)} faults"
        )
    sides: dict[str, list[str]] = {}
    for side in ("source", "target", "other"):
        lines = chain.from_iterable(map(read_lines, getattr(args, side)))
        sides[side] = [line.replace("\t", " ") for line in lines]
    if len(set(map(len, sides.values()))) != 1:
        counts = ", ".join(f"{len(lines):,}" for lines in sides.values())
        parser.error(f"--source, --target and --other have {counts} lines; expected equal numbers")
    draw = random.Random(args.seed)
    weights = [1 - args.rate * len(FAULTS), *[args.rate] * len(FAULTS)]
    labels = draw.choices(["true", *FAULTS], weights, k=len(sides["source"]))
    with (
        open(f"{args.output}.tsv", "w", encoding="utf-8") as text,
        open(f"{args.output}.labels", "w") as kinds,
    ):
        for row, label in enumerate(labels):
            target = sides["target"][row]
            if label in FAULTS:
                target = FAULTS[label](row, sides)
            text.write(f"{sides['source'][row]}\t{target}\n")
            kinds.write(f"{label}\n")
    counts = ", ".join(f"{count:,} {kind}" for kind, count in Counter(labels).items())
    print(f"{args.output}.tsv: {len(labels):,} pairs, {counts}")


if __name__ == "__main__":
    main()
