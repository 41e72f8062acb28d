"""Which learning rates suit a run of quality.yaml, by the loss on held-out pairs.

python -m benchmarks.quality.rates --data DIR --work FOLDER --only NAME ... \
    --output benchmarks/quality/results/rates.jsonl

Every run is trained with each rate and each rate of the embedding table, by the same number of
updates, and the learning rate falls to zero at the last one. DIR and FOLDER are those of `run`, and
so is the text. Trainings that are already in the file are skipped.
"""

import argparse
import itertools
import re
import shlex
import time
from pathlib import Path

import yaml

from benchmarks import script
from benchmarks.corpora import prepare
from benchmarks.machine import machine
from benchmarks.quality.config import resolve
from benchmarks.quality.run import DEVICE
from benchmarks.script import add_result, add_text_and_work, command_line, read_results

PAIR = "en-fr"
VOCAB_SIZE = 16_000
CONFIG = Path(__file__).with_name("quality.yaml")
# The fields that identify a line of results.
KEY = ("name", "rate", "table rate", "updates", "seed")
# Columns of fairseq's line of validation.
LOSSES = ("loss", "align", "gen", "sim", "accuracy")


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    add_text_and_work(parser)
    parser.add_argument("--only", nargs="+", required=True, metavar="NAME", help="runs to train")
    for option, meaning, values in (
        ("--rates", "learning rates", [0.001]),
        ("--table-rates", "learning rates of the embedding table", [0.01, 0.03]),
    ):
        shown = " ".join(map(str, values))
        parser.add_argument(
            option,
            nargs="+",
            type=float,
            default=values,
            metavar="X",
            help=f"{meaning} (default: {shown})",
        )
    parser.add_argument(
        "--updates", type=int, default=200, metavar="N", help="updates of each (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the trainings (default: 1)")
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def held_out(log: str) -> dict[str, float]:
    """Return the losses of the last validation in a log of fairseq-train."""
    line = re.findall(r"\| valid \| .*", log)[-1]
    return {name: float(re.findall(rf"\| {name} (\S+)", line)[0]) for name in LOSSES}


def train(phase: dict, data_bin: Path, options: list) -> dict[str, float]:
    """Train one phase of a run with further options, and return its losses on held-out pairs."""
    command = [data_bin, "--recipe", phase["recipe"], DEVICE, "--num-workers", 0]
    command += shlex.split(phase.get("options", ""))
    return held_out(script.train(*command, *options, "--no-save"))


def main() -> None:
    args = parse_options()
    configs = yaml.safe_load(CONFIG.read_text())
    done = {tuple(map(result.get, KEY)) for result in read_results(args.output)}
    data_bin = prepare(args.data, args.work / PAIR, [PAIR], VOCAB_SIZE)
    for name, rate, table_rate in itertools.product(args.only, args.rates, args.table_rates):
        key = (name, rate, table_rate, args.updates, args.seed)
        if key in done:
            continue
        options = ["--lr", rate, "--embed-lr-scale", table_rate / rate, "--seed", args.seed]
        options += ["--max-update", args.updates, "--validate-interval-updates", args.updates]
        start = time.perf_counter()
        losses = train(resolve(configs, name)["phases"][0], data_bin, options)
        seconds = round(time.perf_counter() - start)
        result = dict(zip(KEY, key, strict=True)) | {"held out": losses, "seconds": seconds}
        print(*key, losses, flush=True)
        add_result(args.output, result | {"machine": machine()})


if __name__ == "__main__":
    main()
