"""The LASER family and the lightweight model in sizes for a CPU, trained for the same time.

python -m benchmarks.quality.laser_family --data DIR --work FOLDER \
    --output benchmarks/quality/results/laser_family.jsonl \
    --minutes 4 --only laser_1 laser_6 claser_6 tlaser ctlaser lxsr

DIR has train/NAME.PAIR.LANG.txt.gz (multi30k without the pair), eval/pud.LANG.txt.gz and
classification/SET/LANG.PART.tsv.gz. Each run gives one line of results: the loss on held-out text
after 250 updates and at the end, P@1 among the 1,000 sentences of PUD in both directions, and the
accuracy of a classifier that is trained on English and applied to the other languages. Runs that
are already in the file are skipped, so that an interrupted benchmark continues.
"""

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.corpora import prepare
from benchmarks.machine import machine
from benchmarks.quality.sets import CLASSIFICATION, classification, retrieval_with_english
from benchmarks.script import add_result, command_line, lxsr, read_results, train
from fairseq_lxsr import SentenceEncoder

LANGUAGES = ("de", "es", "fr", "it")
VOCAB_SIZE = 8_000
# The fields that identify a run.
KEY = ("system", "pairs", "minutes", "seed")
COMMON = (
    *("--cpu", "--num-workers", "0"),
    *("--validate-interval-updates", "250", "--save-interval-updates", "100000"),
)
# The length of every training is --stop-time-hours.
TRANSLATE = ("--no-max-epoch",)
# The recipe of each system, as in `lxsr recipes`, and its options.
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
# Systems that are trained on all language pairs, and those that are also trained on single ones.
JOINT = ("laser_1", "laser_6", "claser_6", "tlaser", "ctlaser", "lxsr")
SINGLE = ("tlaser", "ctlaser")
SINGLE_PAIRS = ("en-fr", "en-de")


def runs(pairs: list[str]) -> list[tuple[str, str]]:
    """Return the systems, each with the comma-separated language pairs that it is trained on."""
    joint = [(system, ",".join(pairs)) for system in JOINT]
    single = []
    for pair in SINGLE_PAIRS:
        if pair in pairs:
            single += [(system, pair) for system in SINGLE]
    return joint + single


def trained(system: str, pairs: str, data: Path, save_dir: Path, minutes: float, seed: int) -> dict:
    """Train a system, and return its updates, its speed and its loss on held-out text.

    Translation is trained in both directions of each pair.
    """
    recipe, *options = SYSTEMS[system]
    directions = pairs
    if recipe != "paper_small":
        directions = ",".join(f"{pair},{pair[3:]}-{pair[:2]}" for pair in pairs.split(","))
    run_options = ("--lang-pairs", directions, "--save-dir", save_dir, "--seed", seed)
    length = ("--stop-time-hours", minutes / 60)
    log = train(data, "--recipe", recipe, *COMMON, *options, *run_options, *length)
    validations = "\n".join(line for line in log.splitlines() if "| valid on " in line)
    # The losses of translation are those without label smoothing.
    losses = re.findall(r"\| nll_loss ([0-9.]+)", validations)
    losses = losses or re.findall(r"\| (?:nll_)?loss ([0-9.]+)", validations)
    updates = re.findall(r"num_updates ([0-9]+)", validations)
    speeds = re.findall(r", wps=([0-9.]+),", log)
    return {
        "updates": int(updates[-1]),
        "words per second": float(np.median(list(map(float, speeds)))),
        "valid": [float(losses[0]), float(losses[-1])],
    }


def measure(system: str, pairs: str, args: argparse.Namespace, data_bin: Path) -> dict:
    """Train a system, and return its line of results."""
    save_dir = args.work / f"{system}.{pairs}.{args.minutes:g}.{args.seed}"
    start = time.perf_counter()
    result = {"system": system, "pairs": pairs, "minutes": args.minutes, "seed": args.seed}
    result |= trained(system, pairs, data_bin, save_dir, args.minutes, args.seed)
    result["seconds"] = round(time.perf_counter() - start)
    checkpoint = save_dir / "checkpoint_last.pt"
    model = save_dir / "model"
    lxsr("export", "folder", "--checkpoint", checkpoint, "--output", model)
    encoder = SentenceEncoder.from_pretrained(model)
    languages = tuple(pair[3:] for pair in pairs.split(","))
    result["PUD P@1"] = retrieval_with_english(encoder, args.data, languages)
    for name in CLASSIFICATION:
        folder = args.data / "classification" / name
        result[name] = classification(encoder.encode, folder, ("en", *languages))
    return result | {"machine": machine()}


def show(results: Sequence[dict]) -> None:
    """Print a table of results; accuracies are means over the languages other than English."""
    columns = ("updates", "words/s", "loss from", "to", "PUD P@1", *CLASSIFICATION)
    heads = "".join(f"{column:>16}" for column in columns)
    print(f"{'pairs':26}{'system':10}{heads}")
    for result in results:
        values = [result["words per second"], *result["valid"]]
        values.append(np.mean(list(result["PUD P@1"].values())))
        for name in CLASSIFICATION:
            transfer = [value for language, value in result[name].items() if language != "en"]
            values.append(np.mean(transfer))
        numbers = "".join(f"{value:16,.1f}" for value in values)
        print(f"{result['pairs']:26}{result['system']:10}{result['updates']:16,}{numbers}")


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of text, checkpoints and models",
    )
    parser.add_argument(
        "--minutes", type=float, default=5, help="minutes of training of each run (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the training (default: 1)")
    parser.add_argument(
        "--languages",
        nargs="+",
        default=LANGUAGES,
        metavar="LANG",
        help="languages next to English (default: de es fr it)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="SYSTEM",
        default=list(SYSTEMS),
        help="systems to train (default: all)",
    )
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def main() -> None:
    args = parse_options()
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
