"""Speed and memory of preparing text: ours in several processes, compared with a plain script.

python -m benchmarks.speed.prepare --data DIR --output benchmarks/speed/results/prepare.json

DIR has aligned text as NAME.SRC.txt.gz and NAME.TGT.txt.gz. It is repeated until there are enough
pairs; each repetition adds a word of its own to both sides, in letters because sentences are
compared without their digits. The plain script does in one process what `lxsr prepare` does except
for the subwords, with the same filters: it keeps all sentences in memory, writes the pieces as text
and calls `fairseq-preprocess --workers 1`. At the sizes of --largest, ours runs alone, to see
whether its time is linear and its memory constant. The memory is the sum over all processes; a
shared page counts for each.
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
SPLITS = ("train", "valid", "test")
STAGES = ("clean", "subwords", "binarise")
MEBIBYTE = 2**20

TextPair = tuple[str, str]


def corpus(folder: Path) -> list[TextPair]:
    """Read the pairs of all aligned files of a folder."""
    source, target = PAIR
    pairs: list[TextPair] = []
    for path in sorted(folder.glob(f"*.{source}.txt.gz")):
        name = path.name.removesuffix(f"{source}.txt.gz")
        translation = path.with_name(f"{name}{target}.txt.gz")
        if translation.is_file():
            pairs.extend(read_parallel(path, translation))
    return pairs


def letters(number: int) -> str:
    """Write a number as a word."""
    word = ""
    while number:
        number, digit = divmod(number, 26)
        word += chr(ord("a") + digit)
    return f"q{word}"


def repeat(pairs: list[TextPair], count: int) -> Iterator[TextPair]:
    """Repeat pairs until there are `count` of them; the repetitions differ in a word."""
    for repetition in itertools.count():
        mark = letters(repetition)
        for source, target in pairs:
            if not count:
                return
            count -= 1
            yield f"{source} {mark}", f"{target} {mark}"


def write_text(pairs: list[TextPair], count: int, prefix: Path) -> None:
    """Write `count` pairs to PREFIX.SRC and PREFIX.TGT."""
    source, target = PAIR
    with open(f"{prefix}.{source}", "w") as left, open(f"{prefix}.{target}", "w") as right:
        for source_line, target_line in repeat(pairs, count):
            left.write(f"{source_line}\n")
            right.write(f"{target_line}\n")


def ours(work: Path, prefix: Path, count: int, args: argparse.Namespace) -> dict:
    """Measure every stage of `lxsr prepare`."""
    command: list[object] = [sys.executable, "-m", "fairseq_lxsr.cli.main", "prepare"]
    command += ["--work", work, "--data", prefix, "--lang-pairs", "-".join(PAIR)]
    command += ["--workers", args.workers, "--filters", ",".join(FILTERS)]
    command += ["--valid-size", args.held_out, "--test-size", args.held_out]
    command += ["--vocab-size", args.vocab_size]
    result: dict = {"pairs": count, "workers": args.workers}
    for stage in STAGES:
        # The stages before are unchanged; their files are only read once more.
        until = [] if stage == STAGES[-1] else ["--until", stage]
        cost = measured([*command, *until])
        result[stage] = {"seconds": cost.seconds, "peak bytes": cost.peak}
        memory = f"{cost.peak / MEBIBYTE:.0f} MiB"
        print(f"{count:,} pairs, {stage}: {cost.seconds:.1f} s, {memory}", file=sys.stderr)
    return result


class PlainScript:
    """The same work in one process, as one writes it in a hurry.

    Args:
        work: new folder of all files.
        prefix: prefix of the text.
        subwords: folder of the word pieces.
        held_out: number of pairs of the validation set, and of the test set.
    """

    def __init__(self, work: Path, prefix: Path, subwords: Path, held_out: int):
        work.mkdir()
        self.work = work
        self.prefix = prefix
        self.subwords = subwords
        self.held_out = held_out

    def run(self) -> dict:
        """Return the seconds of cleaning and of binarising, and the number of clean pairs."""
        start = time.perf_counter()
        clean = self.clean()
        splits = self.split(clean)
        cleaned = time.perf_counter()
        self.write_pieces(splits)
        self.preprocess()
        end = time.perf_counter()
        return {"clean": cleaned - start, "binarise": end - cleaned, "kept": len(clean)}

    def clean(self) -> list[tuple[TextPair, TextPair]]:
        """Return the distinct pairs that pass the filters, each with its form for comparisons."""
        source, target = PAIR
        filters = make_filters({name: {} for name in FILTERS}, PAIR)
        keys = set()
        clean = []
        for lines in read_parallel(f"{self.prefix}.{source}", f"{self.prefix}.{target}"):
            pair = " ".join(lines[0].split()), " ".join(lines[1].split())
            if all(pair) and first_failing_filter(pair, filters) is None:
                key = comparable(pair[0]), comparable(pair[1])
                if key not in keys:
                    keys.add(key)
                    clean.append((pair, key))
        return clean

    def split(self, clean: list[tuple[TextPair, TextPair]]) -> dict[str, list[TextPair]]:
        """Hold out random pairs; the training pairs share no sentence with them."""
        random.Random(1).shuffle(clean)
        held = clean[: 2 * self.held_out]
        held_sources = {key[0] for _, key in held}
        held_targets = {key[1] for _, key in held}
        train = []
        for pair, key in clean[2 * self.held_out :]:
            if key[0] not in held_sources and key[1] not in held_targets:
                train.append(pair)
        held_pairs = [pair for pair, _ in held]
        return {
            "valid": held_pairs[: self.held_out],
            "test": held_pairs[self.held_out :],
            "train": train,
        }

    def write_pieces(self, splits: dict[str, list[TextPair]]) -> None:
        """Write the word pieces of each split and language as text."""
        options = TextOptions.load(self.subwords / "text.json")
        tokenizer = Tokenizer(self.subwords / "sentencepiece.model", options)
        for split, pairs in splits.items():
            for side, language in enumerate(PAIR):
                with open(self.work / f"{split}.{language}", "w") as stream:
                    for start in range(0, len(pairs), 10_000):
                        lines = [pair[side] for pair in pairs[start : start + 10_000]]
                        stream.writelines(
                            " ".join(pieces) + "\n" for pieces in tokenizer.pieces(lines)
                        )

    def preprocess(self) -> None:
        """Binarise the pieces by fairseq-preprocess."""
        source, target = PAIR
        command: list[object] = [sys.executable, "-m", "fairseq_cli.preprocess"]
        command += ["--source-lang", source, "--target-lang", target]
        for split in SPLITS:
            command += [f"--{split}pref", self.work / split]
        command += ["--srcdict", self.subwords / "dict.txt", "--joined-dictionary"]
        command += ["--destdir", self.work / "bin", "--workers", 1]
        measured(command)


def compare(work: Path, prefix: Path, args: argparse.Namespace) -> dict:
    """Prepare the same text by both, and return what was measured."""
    our_result = ours(work / "ours", prefix, args.pairs, args)
    subwords = work / "ours" / "subwords"
    plain_result = PlainScript(work / "plain", prefix, subwords, args.held_out).run()
    print(f"plain script: {plain_result}", file=sys.stderr)
    files = (work / "ours" / "corpus" / "en-fr" / f"{split}.en" for split in SPLITS)
    count = sum(1 for file in files for _ in read_lines(file))
    return {"ours": our_result, "plain": plain_result, "kept by ours": count}


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of aligned text")
    parser.add_argument(
        "--pairs", type=int, default=300_000, help="pairs of the comparison (default: 300,000)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of the comparison (default: 3)"
    )
    parser.add_argument(
        "--largest",
        type=int,
        nargs="*",
        default=[1_000_000, 10_000_000],
        help="further numbers of pairs, for ours alone (default: 1,000,000 10,000,000)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of `lxsr prepare` (default: 2)"
    )
    parser.add_argument(
        "--held-out",
        type=int,
        default=2000,
        help="pairs of the validation set, and of the test set (default: 2000)",
    )
    parser.add_argument(
        "--vocab-size", type=int, default=16_000, help="number of word pieces (default: 16,000)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
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
        prefix = work / "text"
        write_text(pairs, args.pairs, prefix)
        for number in range(args.repeats):
            folder = work / f"repeat{number}"
            folder.mkdir()
            results["comparison"].append(compare(folder, prefix, args))
        for count in args.largest:
            write_text(pairs, count, prefix)
            results["sizes"].append(ours(work / f"size{count}", prefix, count, args))
    report(results)
    write_results(args.output, results)


def report(results: dict) -> None:
    """Print the speeds, those of the comparison relative to the plain script."""
    for run in results["comparison"]:
        count = run["ours"]["pairs"]
        our_total = plain_total = 0.0
        cells = []
        for stage in ("clean", "binarise"):
            our_seconds = run["ours"][stage]["seconds"]
            plain_seconds = run["plain"][stage]
            our_total += our_seconds
            plain_total += plain_seconds
            relative = f"{plain_seconds / our_seconds:.1f} x the plain script"
            cells.append(f"{stage} {count / our_seconds:,.0f} pairs/s ({relative})")
        together = f"{count / our_total:,.0f} pairs/s, {plain_total / our_total:.1f} x"
        print(f"{count:,} pairs: {', '.join(cells)}; together {together}")
    for size in results["sizes"]:
        count = size["pairs"]
        cells = []
        for stage in STAGES:
            seconds = size[stage]["seconds"]
            memory = f"{size[stage]['peak bytes'] / MEBIBYTE:.0f} MiB"
            cells.append(f"{stage} {seconds:.0f} s ({count / seconds:,.0f} pairs/s), {memory}")
        print(f"{count:,} pairs: {', '.join(cells)}")


if __name__ == "__main__":
    main()
