"""Which update to export: rules that choose among the checkpoints of one training.

python -m benchmarks.quality.checkpoint_rule --data DIR --work FOLDER \
    --output benchmarks/quality/results/checkpoint_rule.jsonl

Texts of five kinds and languages are trained on as `lxsr run` does, with a checkpoint at each
validation. Every checkpoint, and the mean of the last few, is evaluated on pairs of the same text
that were left out (`own`), and on public sets of other kinds of text. P@1 is the mean of both
directions, in percent. One training therefore compares all rules. WORK/runs has one file per
training, written as it ends; trainings that have a file are not repeated. With --tables the rules
are compared on the trainings of the file --output, and nothing is trained.
"""

import argparse
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.machine import commit, machine
from benchmarks.quality.add_language import p_at_1
from benchmarks.quality.sets import Sets, eval_sets, read_text
from benchmarks.script import add_sizes_and_seeds, command_line, lxsr, read_results, write_results
from fairseq_lxsr.embeddings import load
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.export.folder import export_checkpoint

# Name of the set of pairs that were left out of the training text.
OWN = "own"
OWN_PAIRS = 1000
# Each of several updates may be a checkpoint, and the last one is in a file of its own.
KEEP_ALL = ("--no-no-epoch-checkpoints", "--keep-interval-updates", 100)
VALIDATION = re.compile(r"\| valid \|.* loss (\S+) .* accuracy (\S+) .* num_updates (\d+)")
# The default of `lxsr run`, which is too large for a thousand short pairs.
VOCAB_SIZE = 8000
SMALL_VOCAB_SIZE = 4000
SMALL_TEXT = 2000
# Numbers of checkpoints to average.
MEANS = (2, 3, 5)
# Sets of paragraphs take longer than they tell.
PUBLIC_SETS = ("PUD", "Tatoeba", "XQuAD questions")


class Source(NamedTuple):
    """A training text.

    Attributes:
        pair: its languages.
        file: the aligned files below the folder of the text, without `.LANG.txt.gz`.
        same_kind: the public set that has the same kind of text, which is left out.
    """

    pair: str
    file: str
    same_kind: str = ""


SOURCES = {
    "captions": Source("en-de", "train/multi30k"),
    "everyday": Source("en-tr", "more/tatoeba-manythings.en-tr", "Tatoeba"),
    "software": Source("en-es", "train/tech.en-es"),
    "game": Source("en-ru", "large/wesnoth.en-ru"),
    "law": Source("en-fr", "large/calaws-annual.en-fr"),
}


class Training(NamedTuple):
    """One training of the grid.

    Attributes:
        text: name of the training text.
        pairs: number of pairs given to `lxsr prepare`.
        seed: random seed for choosing pairs and for training.
        updates: value of --max-update; 0 for the recipe's length.
    """

    text: str
    pairs: int
    seed: int
    updates: int = 0

    @property
    def name(self) -> str:
        return f"{self.text}.{self.pairs}.{self.seed}.{self.updates or 'recipe'}"


def balanced(
    texts: Sequence[str], sizes: Sequence[int], seeds: Sequence[int]
) -> Iterator[tuple[str, int, int]]:
    """Yield texts, sizes and seeds, ordered so that every part of them has all texts and sizes."""
    for seed in seeds:
        for turn in range(len(sizes)):
            for number, text in enumerate(texts):
                yield text, sizes[(number + turn) % len(sizes)], seed


def write_text(data: Path, training: Training, prefix: Path) -> dict[str, list[str]]:
    """Write the training text, and return pairs of the same text that are not in it."""
    source = SOURCES[training.text]
    languages = source.pair.split("-")
    sides = [read_text(data / f"{source.file}.{language}.txt.gz") for language in languages]
    # A sentence that occurs twice would be a wrong candidate for itself.
    seen: set[str] = set()
    pairs = []
    for pair in zip(*sides, strict=True):
        if seen.isdisjoint(pair):
            pairs.append(pair)
        seen.update(pair)
    order = np.random.default_rng(training.seed).permutation(len(pairs))
    test_pairs = [pairs[row] for row in order[:OWN_PAIRS]]
    chosen = [pairs[row] for row in order[OWN_PAIRS:][: training.pairs]]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        lines = "".join(f"{pair[side]}\n" for pair in chosen)
        Path(f"{prefix}.{language}").write_text(lines, encoding="utf-8")
    return {
        language: [pair[side] for pair in test_pairs] for side, language in enumerate(languages)
    }


def write_text_and_read_sets(data: Path, training: Training, prefix: Path) -> Sets:
    """Write the training text, and return the sets to evaluate on: own and other kinds of text."""
    source = SOURCES[training.text]
    sets: Sets = {OWN: write_text(data, training, prefix)}
    for name, sides in eval_sets(data, source.pair).items():
        if name in PUBLIC_SETS and name != source.same_kind:
            sets[name] = sides
    return sets


def run(data: Path, training: Training, work: Path) -> dict:
    """Train, evaluate every checkpoint, and return the results."""
    source = SOURCES[training.text]
    start = time.perf_counter()
    sets = write_text_and_read_sets(data, training, work / "text")
    vocab_size = VOCAB_SIZE
    if training.pairs < SMALL_TEXT:
        vocab_size = SMALL_VOCAB_SIZE
    lxsr(
        *("prepare", "--data", work / "text", "--work", work, "--lang-pairs", source.pair),
        *("--vocab-size", vocab_size),
    )
    checkpoints = work / "checkpoints"
    length = ("--max-update", training.updates) if training.updates else ()
    lxsr(
        *("train", work / "data-bin", "--recipe", "best", "--save-dir", checkpoints, *KEEP_ALL),
        *("--seed", training.seed, "--cpu", "--num-workers", 0, *length),
    )
    trained = time.perf_counter()
    valid = work / "corpus" / source.pair
    sets["valid"] = {
        language: read_text(valid / f"valid.{language}") for language in source.pair.split("-")
    }
    rows = measure_all(checkpoints, sets, source.pair[3:], work)
    return {
        **training._asdict(),
        "pair": source.pair,
        "valid_pairs": len(sets["valid"]["en"]),
        "training_seconds": round(trained - start),
        "seconds": round(time.perf_counter() - start),
        "machine": machine(),
        "commit": commit(),
        **rows,
    }


def measure_all(folder: Path, sets: Sets, language: str, work: Path) -> dict[str, list[dict]]:
    """Return the scores of every checkpoint in the order of updates, and of means of the last."""
    validations = {}
    for loss, accuracy, updates in VALIDATION.findall((folder / "train.log").read_text()):
        validations[int(updates)] = {"loss": float(loss), "accuracy": float(accuracy)}
    files = {}
    for file in folder.glob("checkpoint*.pt"):
        files[read_checkpoint(file)["optimizer_history"][-1]["num_updates"]] = file
    updates = sorted(files)
    checkpoints = []
    for update in updates:
        scores = measured(files[update], sets, language, work / "model")
        checkpoints.append({"update": update, **validations[update], "P@1": scores})
    means = []
    for count in MEANS:
        # In the folder of the checkpoints, which has the dictionary of the training.
        mean = folder / "mean.pt"
        write_mean([files[update] for update in updates[-count:]], mean)
        scores = measured(mean, sets, language, work / "model")
        means.append({"checkpoints": count, "P@1": scores})
    return {"checkpoints": checkpoints, "means": means}


def measured(checkpoint: Path, sets: Sets, language: str, folder: Path) -> dict[str, float]:
    """Return P@1 of a checkpoint on some sets, the mean of both directions."""
    shutil.rmtree(folder, ignore_errors=True)
    return score_sets(export_checkpoint(checkpoint, folder), sets, language)


def score_sets(model: Path, sets: Sets, language: str) -> dict[str, float]:
    """Return P@1 of a model folder on some sets, the mean of both directions, in percent."""
    encoder = load(str(model))
    scores = {}
    for name, sides in sets.items():
        pairs = list(zip(sides["en"], sides[language], strict=True))
        scores[name] = round(fmean(p_at_1(encoder, pairs, language)), 2)
    return scores


def write_mean(files: Sequence[Path], output: Path) -> None:
    """Write a checkpoint whose weights are the mean of some checkpoints of one training."""
    mean = read_checkpoint(files[-1])
    weights = {name: weight.clone() for name, weight in mean["model"].items()}
    for file in files[:-1]:
        for name, weight in read_checkpoint(file)["model"].items():
            weights[name] += weight
    for weight in weights.values():
        weight /= len(files)
    torch.save(mean | {"model": weights}, output)


# -- Rules


def first_best(key: Callable[[dict], float]) -> Callable[[dict], dict]:
    """Return a rule that takes the first of the checkpoints with the best value."""
    return lambda run: max(run["checkpoints"], key=key)


def mean_of_last(number: int) -> Callable[[dict], dict]:
    """Return a rule that takes a mean of the last checkpoints, by its position in `MEANS`."""
    return lambda run: run["means"][number]


RULES: dict[str, Callable[[dict], dict]] = {
    "accuracy in the batch": first_best(lambda row: row["accuracy"]),
    "retrieval among held-out pairs": first_best(lambda row: row["P@1"]["valid"]),
    "validation loss": first_best(lambda row: -row["loss"]),
    "last": lambda run: run["checkpoints"][-1],
    **{f"mean of the last {count}": mean_of_last(number) for number, count in enumerate(MEANS)},
}


def other_kinds(scores: dict[str, float]) -> float:
    """Return the mean P@1 of the public sets."""
    return fmean(value for name, value in scores.items() if name not in (OWN, "valid"))


def gains(scores: dict[str, float], base: dict[str, float]) -> tuple[float, float]:
    """Return the gains in P@1 over other scores: on the same text, and on other kinds of text."""
    return scores[OWN] - base[OWN], other_kinds(scores) - other_kinds(base)


def print_tables(runs: Sequence[dict]) -> None:
    """Print the P@1 of each rule minus that of `last`, by number of pairs."""
    print("| rule | pairs | trainings | own | least | other kinds | least | update |")
    print("|---|---|---|---|---|---|---|---|")
    sizes = sorted({run["pairs"] for run in runs})
    for name, rule in RULES.items():
        for size in sizes:
            chosen = [run for run in runs if run["pairs"] == size and not run["updates"]]
            print(table_row(name, rule, chosen, f"{size:,}"))
        print(table_row(name, rule, [run for run in runs if not run["updates"]], "all"))


def table_row(name: str, rule: Callable[[dict], dict], runs: Sequence[dict], size: str) -> str:
    """Return a row of the table: mean and least difference from the last checkpoint."""
    own_gains = []
    other_gains = []
    updates = []
    for run in runs:
        chosen = rule(run)
        last = RULES["last"](run)["P@1"]
        own_gain, other_gain = gains(chosen["P@1"], last)
        own_gains.append(own_gain)
        other_gains.append(other_gain)
        updates.append(chosen.get("update", 0))
    if not runs:
        return f"| {name} | {size} | 0 |"
    return (
        f"| {name} | {size} | {len(runs)} | {fmean(own_gains):+.2f} | {min(own_gains):+.2f} | "
        f"{fmean(other_gains):+.2f} | {min(other_gains):+.2f} | {fmean(updates):.0f} |"
    )


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, metavar="DIR", help="text, as for quality.run")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="folder of the trainings")
    parser.add_argument(
        "--texts",
        nargs="+",
        default=list(SOURCES),
        choices=SOURCES,
        help=f"training texts (default: {' '.join(SOURCES)})",
    )
    add_sizes_and_seeds(parser)
    parser.add_argument(
        "--updates",
        type=int,
        default=0,
        metavar="N",
        help="length of every training (default: that of the recipe)",
    )
    parser.add_argument(
        "--tables", action="store_true", help="print the tables of --output, and train nothing"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    if args.tables:
        print_tables(read_results(args.output))
        return
    results = args.work / "runs"
    for text, pairs, seed in balanced(args.texts, args.pairs, args.seeds):
        training = Training(text, pairs, seed, args.updates)
        result = results / f"{training.name}.json"
        if result.exists():
            continue
        work = args.work / training.name
        shutil.rmtree(work, ignore_errors=True)
        write_results(result, run(args.data.absolute(), training, work.absolute()))
        shutil.rmtree(work)
    lines = [json.dumps(json.loads(file.read_text())) for file in sorted(results.glob("*.json"))]
    args.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
