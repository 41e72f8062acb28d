"""LASER, cLASER, T-LASER, cT-LASER and the lightweight model in sizes for a CPU, trained for the
same time.

python -m benchmarks.quality.laser_family --data DIR --work FOLDER \
    --output benchmarks/quality/results/laser_family.jsonl \
    --minutes 4 --only laser_1 laser_6 claser_6 tlaser ctlaser lxsr

DIR has train/NAME.PAIR.LANG.txt.gz (multi30k without the pair), eval/pud.LANG.txt.gz and
classification/SET/LANG.PART.tsv.gz. One line of results a run: loss on held-out text after 250
updates and at the end, P@1 among the 1,000 sentences of PUD both ways, accuracy of a classifier
trained on English and applied to the others. Runs that are in the file already are left out, so
that an interrupted benchmark goes on.
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np

from benchmarks.corpora import prepare
from benchmarks.machine import machine
from benchmarks.quality.sets import CLASSIFICATION, classification, retrieval_with_english
from benchmarks.script import add_result, command_line, lxsr, read_results, train
from fairseq_lxsr import SentenceEncoder

LANGUAGES = ("de", "es", "fr", "it")
VOCAB_SIZE = 8_000
KEY = ("system", "pairs", "minutes", "seed")  # of a run
COMMON = (
    "--cpu",
    "--num-workers",
    "0",
    "--validate-interval-updates",
    "250",
    "--save-interval-updates",
    "100000",
)
# a recipe of `lxsr recipes` and options; the length of all is --stop-time-hours
TRANSLATE = ("--no-max-epoch",)
SYSTEMS = {
    "laser_1": ("laser_small", *TRANSLATE),
    "laser_6": ("laser_small", *TRANSLATE, "--arch", "laser_6_small"),
    "claser_6": ("laser_small", *TRANSLATE, "--arch", "laser_6_small", "--constraint", "norm"),
    "tlaser": ("tlaser_small", *TRANSLATE),
    "ctlaser": ("tlaser_small", *TRANSLATE, "--constraint", "norm"),
    "lxsr": (
        *("paper_small", "--no-max-update", "--adam-betas", "(0.9, 0.98)"),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "500"),
    ),
}
JOINT = ("laser_1", "laser_6", "claser_6", "tlaser", "ctlaser", "lxsr")
SINGLE = ("tlaser", "ctlaser")
SINGLE_PAIRS = ("en-fr", "en-de")


def runs(pairs: list[str]) -> list[tuple[str, str]]:
    """Systems and what they are trained on: all pairs together, and some alone."""
    single = [(system, pair) for pair in SINGLE_PAIRS if pair in pairs for system in SINGLE]
    return [*((system, ",".join(pairs)) for system in JOINT), *single]


def trained(system: str, pairs: str, data: Path, save_dir: Path, minutes: float, seed: int) -> dict:
    """One run of fairseq-train of `minutes`; with two directions a pair for translation."""
    recipe, *options = SYSTEMS[system]
    directions = pairs
    if recipe != "paper_small":
        directions = ",".join(f"{pair},{pair[3:]}-{pair[:2]}" for pair in pairs.split(","))
    own = (
        "--lang-pairs",
        directions,
        "--save-dir",
        save_dir,
        "--seed",
        seed,
        "--stop-time-hours",
        minutes / 60,
    )
    log = train(data, "--recipe", recipe, *COMMON, *options, *own).splitlines()
    valid = [line for line in log if "| valid on " in line]
    losses = [
        float(found[1])
        for line in valid
        if (found := re.search(r"\| (?:nll_)?loss ([0-9.]+)", line))
    ]
    nll = [
        float(found[1]) for line in valid if (found := re.search(r"\| nll_loss ([0-9.]+)", line))
    ]
    words = [float(found[1]) for line in log if (found := re.search(r", wps=([0-9.]+),", line))]
    updates = [
        int(found[1]) for line in valid if (found := re.search(r"num_updates ([0-9]+)", line))
    ]
    kept = nll or losses
    return {
        "updates": updates[-1],
        "words per second": float(np.median(words)),
        "valid": [kept[0], kept[-1]],
    }


def measure(system: str, pairs: str, args: argparse.Namespace, data_bin: Path) -> dict:
    save_dir = args.work / f"{system}.{pairs}.{args.minutes:g}.{args.seed}"
    start = time.perf_counter()
    result = {"system": system, "pairs": pairs, "minutes": args.minutes, "seed": args.seed}
    result |= trained(system, pairs, data_bin, save_dir, args.minutes, args.seed)
    result["seconds"] = round(time.perf_counter() - start)
    lxsr(
        "export",
        "folder",
        "--checkpoint",
        save_dir / "checkpoint_last.pt",
        "--output",
        save_dir / "model",
    )
    encoder = SentenceEncoder.from_pretrained(save_dir / "model")
    languages = tuple(pair[3:] for pair in pairs.split(","))
    result["PUD P@1"] = retrieval_with_english(encoder, args.data, languages)
    for name in CLASSIFICATION:
        result[name] = classification(
            encoder.encode, args.data / "classification" / name, ("en", *languages)
        )
    return result | {"machine": machine()}


def show(results: list[dict]) -> None:
    columns = ("updates", "words/s", "loss from", "to", "PUD P@1", *CLASSIFICATION)
    print(f"{'pairs':26}{'system':10}" + "".join(f"{column:>16}" for column in columns))
    for result in results:
        transfer = [
            np.mean([value for language, value in result[name].items() if language != "en"])
            for name in CLASSIFICATION
        ]
        values = [
            result["words per second"],
            *result["valid"],
            np.mean(list(result["PUD P@1"].values())),
            *transfer,
        ]
        numbers = f"{result['updates']:16,}" + "".join(f"{value:16,.1f}" for value in values)
        print(f"{result['pairs']:26}{result['system']:10}{numbers}")


def main() -> None:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="for text, checkpoints and models",
    )
    parser.add_argument(
        "--minutes", type=float, default=5, help="of training, each run (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--languages", nargs="+", default=LANGUAGES, metavar="LANG", help="default: de es fr it"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="SYSTEM", default=list(SYSTEMS), help="default: all"
    )
    args = parser.parse_args()
    args.work = args.work.absolute()
    results = read_results(args.output)
    done = {tuple(result[name] for name in KEY) for result in results}
    all_pairs = [f"en-{language}" for language in args.languages]
    data_bin = prepare(args.data, args.work, all_pairs, VOCAB_SIZE)
    for system, pairs in runs(all_pairs):
        if system not in args.only or (system, pairs, args.minutes, args.seed) in done:
            continue
        results.append(measure(system, pairs, args, data_bin))
        show(results[-1:])
        add_result(args.output, results[-1])
    show(results)


if __name__ == "__main__":
    main()
