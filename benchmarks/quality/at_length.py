"""The paper's claims at its own length: its models trained side by side on one GPU, and evaluated.

python -m benchmarks.quality.at_length --data-bin DATA_BIN --data DIR --output FILE.json \
    --rows layers_2 layers_0 align --together 3 --seconds 400

python -m benchmarks.quality.at_length --data DIR --trim FOLDER     # for a machine without DIR

DATA_BIN is a folder of `lxsr prepare`, English and French. DIR has eval, train, valid, docs and
classification; --trim writes a small folder that can be given in its place. All rows have the same
number of updates: with --epochs so many passes over the text; with --seconds alone as many as the
slowest row does in time, found by a short trial of the rows side by side. Each row is exported and
evaluated as soon as it is trained, and FILE.json is written again after each step.

The paper is Mao et al. 2021, "Lightweight cross-lingual sentence representation learning".
"""

import argparse
import heapq
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks import ROOT
from benchmarks.machine import machine
from benchmarks.quality.sets import (
    CANDIDATES,
    CLASSIFICATION,
    classification,
    contrast,
    distractors,
    eval_sets,
    minimal_pairs,
    retrieval,
)
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.data_folder import count_pairs, find_dictionary

PAIR = "en-fr"
LANGUAGES = PAIR.split("-")

# The learning rate rises for a quarter of the updates, then falls to zero.
PAPER = ("paper", "--lr-scheduler", "polynomial_decay")
# Recipe and options of each row, the most important rows first. `align`, `ugt` and `mlm` have that
# loss alone; the others have align and sim beside the generative loss.
ROWS = {
    "layers_2": PAPER,
    "layers_0": (*PAPER, "--encoder-layers", "0"),
    "align": (*PAPER, "--objective", "none", "--sim-weight", "0"),
    "xtr": (*PAPER, "--objective", "xtr"),
    "ugt": (*PAPER, "--align-weight", "0", "--sim-weight", "0"),
    "layers_1": (*PAPER, "--encoder-layers", "1"),
    "mlm": (*PAPER, "--objective", "mlm", "--align-weight", "0", "--sim-weight", "0"),
    "layers_6": (*PAPER, "--encoder-layers", "6"),
    "released": ("released",),
}
# Options of --small: a width at which a test can afford every row.
SMALL = (
    "--encoder-embed-dim",
    "32",
    "--encoder-ffn-embed-dim",
    "64",
    "--encoder-attention-heads",
    "2",
)

# Seconds of training in a trial.
TRIAL = 12
SMALL_TRIAL = 4
# More updates than a trial can do.
ENDLESS = 10**6
# Share of the time that the plan fills. The rest is for rows that become slower than in the trial.
FILLED = 0.93
# Grace period in seconds before a training that does not stop by itself is killed.
GRACE = 30
# Time limit of exporting a model, and of evaluating it, in seconds; a CPU needs more.
MEASURING_LIMIT = 150
# Number of points of the curve of the loss.
POINTS = 40
# Parts of the evaluation, each in a separate process: most time goes into classifiers on the CPU.
PARTS = ("retrieval", *CLASSIFICATION)
# File of a trimmed folder.
TEXT_FILE = "retrieval.json"


# -- evaluation text


def trim(data: Path, folder: Path) -> None:
    """Write only the text that a model is evaluated on.

    Args:
        data: folder with eval, train, valid, docs and classification.
        folder: the output folder, which can be given in place of `data`.
    """
    sets = eval_sets(data, PAIR)
    crowd = {}
    for language in LANGUAGES:
        test_sentences = {sentence for sides in sets.values() for sentence in sides[language]}
        crowd[language] = distractors(data, language, PAIR, CANDIDATES, test_sentences)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"sets": sets, "distractors": crowd}, ensure_ascii=False)
    (folder / TEXT_FILE).write_text(content, encoding="utf-8")
    for name, language, part in product(CLASSIFICATION, LANGUAGES, ("train", "test")):
        path = Path("classification", name, f"{language}.{part}.tsv.gz")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data / path, folder / path)


def measure(model: Path, folder: Path, device: str, part: str) -> dict[str, Any]:
    """Evaluate a model folder.

    Args:
        model: folder of `lxsr export folder`.
        folder: trimmed folder, see `trim`.
        device: cuda or cpu.
        part: one of `PARTS`.

    Returns:
        Scores in percent. For `retrieval`, P@1 of each set and direction, among the distractors and
        `alone`, and minimal pairs by rule; for another part, the accuracy of classifiers trained on
        English.
    """
    encode = SentenceEncoder.from_pretrained(model, device).encode
    if part != "retrieval":
        return {part: classification(encode, folder / "classification" / part, LANGUAGES)}
    text = json.loads((folder / TEXT_FILE).read_text(encoding="utf-8"))
    # P@1 is not broken down by the words that the training text has.
    seen: dict[str, set[str]] = {language: set() for language in LANGUAGES}
    sets: dict[str, Any] = {}
    for name, directions in retrieval(encode, text["sets"], text["distractors"], seen).items():
        sets[name] = {
            direction: {"P@1": figures["P@1"], "alone": figures["alone"]}
            for direction, figures in directions.items()
        }
    pairs = minimal_pairs(text["sets"], LANGUAGES[1])
    return {"retrieval": sets, "contrast": contrast(encode, pairs)}


# -- the plan


@dataclass(frozen=True)
class Speed:
    """How fast a row trains beside the others.

    Args:
        overhead: seconds of the process that are not spent on updates.
        updates_per_second: its updates per second.
    """

    overhead: float
    updates_per_second: float

    def seconds(self, updates: int) -> float:
        """Seconds that so many updates take, from the start of the process to its end."""
        return self.overhead + updates / self.updates_per_second


def last_end(durations: Sequence[float], places: int) -> float:
    """Compute when the last of several jobs ends.

    Args:
        durations: of the jobs, which start in this order, each as soon as a place is free.
        places: number of jobs that run at once.
    """
    ends = [0.0] * places
    for duration in durations:
        start = heapq.heappop(ends)
        heapq.heappush(ends, start + duration)
    return max(ends)


def most_updates(speeds: Sequence[Speed], places: int, seconds: float) -> int:
    """Find the largest number of updates, the same for all rows, that ends in time.

    Args:
        speeds: speeds of the rows, in their starting order.
        places: number of rows that train at once.
        seconds: time from the start of the first row to the end of the last.

    Returns:
        The number of updates; 0 if not even one ends in time.
    """
    fewest = 0
    too_many = ENDLESS
    while too_many - fewest > 1:
        middle = (fewest + too_many) // 2
        if last_end([speed.seconds(middle) for speed in speeds], places) <= seconds:
            fewest = middle
        else:
            too_many = middle
    return fewest


# -- fairseq's log


@dataclass(frozen=True)
class Log:
    """What fairseq-train said with --log-format json.

    Args:
        lines: values of each log interval, as fairseq writes them.
        updates: number of updates at the end.
        seconds: of training.
    """

    lines: list[dict[str, str]]
    updates: int
    seconds: float

    @classmethod
    def read(cls, path: Path) -> "Log":
        """Read a log.

        Raises:
            RuntimeError: if the training did not come to its end.
        """
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = [json.loads(values) for values in re.findall(r"\| train_inner \| (\{.*\})", text)]
        ends = [json.loads(values) for values in re.findall(r"\| train \| (\{.*\})", text)]
        duration = re.search(r"done training in ([\d.]+) seconds", text)
        if not lines or not ends or duration is None:
            raise RuntimeError(f"{path}: no end of a training: {text[-500:]}")
        return cls(lines, int(ends[-1]["train_num_updates"]), float(duration[1]))

    def updates_per_second(self, first: int = 0) -> float:
        """Compute the rate from the log interval `first` on; all intervals have equal length."""
        rates = [float(line["ups"]) for line in self.lines[first:]]
        # fairseq writes 0 for the very first update, and for a rate that it rounds to 0.
        seconds = [1 / rate for rate in rates if rate > 0]
        if not seconds:
            return self.updates / max(0.1, self.seconds)
        return len(seconds) / sum(seconds)


# -- training


@dataclass(frozen=True)
class Setting:
    """What all rows have in common.

    Args:
        data_bin: data folder of `lxsr prepare`.
        text: trimmed folder, see `trim`.
        work: folder of logs, checkpoints and models.
        device: `cuda` or `cpu`.
        batch_size: pairs of an update.
        seed: of training.
        together: number of rows that train at once.
        options: further options of fairseq-train.
        trial: seconds of training in a trial.
        measuring: seconds that exporting a model may take, and measuring it.
    """

    data_bin: Path
    text: Path
    work: Path
    device: str
    batch_size: int
    seed: int
    together: int
    options: tuple[str, ...]
    trial: float
    measuring: float = MEASURING_LIMIT

    def run(self, log: str, limit: float | None, *words: object, jobs: int = 1) -> float:
        """Run a module of Python, with its output in a file.

        Args:
            log: file name, without the suffix.
            limit: time limit in seconds, at which it is killed; None for no limit.
            words: module and arguments.
            jobs: number of such processes of each row that run at once and share the cores.

        Returns:
            Its duration in seconds.

        Raises:
            RuntimeError: if it fails.
            subprocess.TimeoutExpired: if it was killed.
        """
        path = self.log(log)
        path.parent.mkdir(parents=True, exist_ok=True)
        threads = max(1, (os.cpu_count() or 1) // (self.together * jobs))
        start = time.perf_counter()
        with path.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                [sys.executable, "-m", *map(str, words)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            )
        if done.returncode:
            end = path.read_text(encoding="utf-8", errors="replace")[-1500:]
            raise RuntimeError(f"{words[:2]}: exit status {done.returncode}: {end}")
        return time.perf_counter() - start

    def log(self, name: str) -> Path:
        return self.work / "logs" / f"{name}.log"

    @property
    def trial_interval(self) -> int:
        """Number of updates of a log interval in a trial; a CPU does few of them."""
        if self.device == "cpu":
            return 1
        return 10

    def fairseq_train(self, row: str, log: str, limit: float | None, *words: object) -> float:
        """Train a row; `words` say how long. Returns: seconds of the process."""
        recipe, *options = ROWS[row]
        command = ["fairseq_lxsr.cli.main", "train", self.data_bin, "--recipe", recipe, *options]
        command += ["--batch-size", self.batch_size, "--seed", self.seed, *self.options]
        command += ["--disable-validation", "--log-format", "json"]
        if self.device == "cpu":
            command.append("--cpu")
        return self.run(log, limit, *command, *words)

    def try_speed(self, row: str) -> Speed:
        """Train a row for some seconds."""
        log = f"{row}.trial"
        seconds = self.fairseq_train(
            *(row, log, None, "--max-update", ENDLESS, "--stop-time-hours", self.trial / 3600),
            *("--log-interval", self.trial_interval),
            *("--no-save", "--save-dir", self.work / log),
        )
        trained = Log.read(self.log(log))
        # At first the other rows may not train yet, and everything is used for the first time.
        rate = trained.updates_per_second(len(trained.lines) // 2)
        return Speed(max(0.0, seconds - trained.updates / rate), rate)

    def train(self, row: str, updates: int, speed: Speed | None, limit: float | None) -> dict:
        """Train a row at length.

        Args:
            row: its name.
            updates: number of updates.
            speed: its speed in a trial, if there was one.
            limit: time limit of the training in seconds; None for no limit.

        Returns:
            Figures of the training, for the results.
        """
        words: list[object] = ["--max-update", updates]
        if limit is not None:
            overhead = speed.overhead if speed else 0.0
            words += ["--stop-time-hours", max(1.0, limit - overhead) / 3600]
            limit += GRACE
        # Only the end is saved, without what only a further training would need.
        words += ["--save-interval", ENDLESS, "--no-save-optimizer-state"]
        words += ["--save-dir", self.work / row, "--log-interval", max(1, updates // POINTS)]
        seconds = self.fairseq_train(row, row, limit, *words)
        trained = Log.read(self.log(row))
        rate = trained.updates_per_second()
        return {
            "updates": trained.updates,
            "updates planned": updates,
            "epochs": trained.updates * self.batch_size / self.pairs(),
            "pairs per second": rate * self.batch_size,
            "seconds": seconds,
            "final loss": float(trained.lines[-1]["loss"]),
            "loss curve": [
                [int(line["num_updates"]), float(line["loss"])] for line in trained.lines
            ],
        }

    def pairs(self) -> int:
        """Count the training pairs."""
        return sum(count_pairs(self.data_bin, "").values())

    def pieces(self) -> int:
        """Count the word pieces of the vocabulary."""
        return sum(1 for _ in read_lines(find_dictionary(self.data_bin), is_sentence=False))

    def export(self, row: str) -> None:
        """Write the model folder of a row."""
        save_dir = self.work / row
        self.run(
            *(f"{row}.export", self.measuring, "fairseq_lxsr.cli.main", "export", "folder"),
            *("--checkpoint", save_dir / "checkpoint_last.pt"),
            *("--output", save_dir / "model", "--dtype", "float16"),
        )

    def measure(self, row: str, part: str) -> dict[str, Any]:
        """Evaluate on one of `PARTS`, see `measure`."""
        figures = self.work / row / f"{part}.json"
        self.run(
            *(f"{row}.{part}", self.measuring, "benchmarks.quality.at_length"),
            *("--measure", self.work / row / "model", "--part", part),
            *("--data", self.text, "--device", self.device, "--output", figures),
            jobs=len(PARTS),
        )
        return json.loads(figures.read_text())


class Study:
    """Trains and evaluates the rows; a failure is recorded in the results of its row.

    Args:
        setting: what all rows have in common.
        rows: names of the rows.
        output: file of the results; None for none.
    """

    def __init__(self, setting: Setting, rows: Sequence[str], output: Path | None):
        self.setting = setting
        self.output = output
        self.results: dict[str, Any] = {
            "machine": machine(),
            "pairs": setting.pairs(),
            "pieces": setting.pieces(),
            "batch size": setting.batch_size,
            "seed": setting.seed,
            "together": setting.together,
            "options": " ".join(setting.options),
            "rows": {row: {"options": " ".join(ROWS[row])} for row in rows},
        }
        self.failed: set[str] = set()
        self.lock = threading.Lock()

    def add(self, row: str, figures: dict[str, Any]) -> None:
        """Add figures to the results of a row, and write all results."""
        with self.lock:
            self.results["rows"][row] |= figures
            write_results(self.output, self.results)
        shown = {name: value for name, value in figures.items() if name != "loss curve"}
        print(row, json.dumps(shown), flush=True)

    def attempt(self, row: str, part: str, function: Any, *arguments: Any) -> Any:
        """Call a function for a row, and return its result, or None if it failed."""
        try:
            return function(row, *arguments)
        except Exception as error:
            self.failed.add(row)
            self.add(row, {f"{part} failed": str(error)})
            return None

    def rows(self) -> list[str]:
        """List the rows that have not failed."""
        return [row for row in self.results["rows"] if row not in self.failed]

    def try_speeds(self) -> dict[str, Speed]:
        """Try all rows, as many at once as will train at once."""
        speeds = {}
        rows = self.rows()
        with ThreadPoolExecutor(self.setting.together) as trials:
            measured = trials.map(
                lambda row: self.attempt(row, "trial", self.setting.try_speed), rows
            )
        for row, speed in zip(rows, measured, strict=True):
            if speed is not None:
                speeds[row] = speed
                self.add(row, {"trial": asdict(speed)})
        return speeds

    def run(self, epochs: float | None, seconds: float | None) -> None:
        """Train and evaluate all rows.

        Args:
            epochs: number of epochs; None for as many as end in time.
            seconds: limit of the training of all rows, trials included; None for no limit.
        """
        start = time.perf_counter()
        speeds: dict[str, Speed] = {}
        if epochs is None:
            speeds = self.try_speeds()
        # Rows that failed in the trial are omitted.
        rows = self.rows()
        if not rows:
            return
        limits: dict[str, float | None] = dict.fromkeys(rows)
        if epochs is not None:
            updates = math.ceil(epochs * self.setting.pairs() / self.setting.batch_size)
            if seconds is not None:
                turns = math.ceil(len(rows) / self.setting.together)
                limits = dict.fromkeys(rows, seconds / turns)
        else:
            assert seconds is not None
            left = seconds - (time.perf_counter() - start)
            plan = [speeds[row] for row in rows]
            updates = most_updates(plan, self.setting.together, FILLED * left)
            if not updates:
                refuse(
                    f"--seconds {seconds:g}: {max(0, left):.0f} are left after the trial, too few "
                    "for one update; raise --seconds, or give --epochs"
                )
            limits = {row: speeds[row].seconds(updates) / FILLED for row in rows}
        self.results["updates planned"] = updates
        print(f"{updates:,} updates of {self.setting.batch_size} pairs", flush=True)
        with (
            ThreadPoolExecutor(len(rows) * len(PARTS)) as measuring,
            ThreadPoolExecutor(self.setting.together) as training,
        ):
            for row in rows:
                training.submit(
                    self.train_row, row, updates, speeds.get(row), limits[row], measuring
                )

    def train_row(
        self,
        row: str,
        updates: int,
        speed: Speed | None,
        limit: float | None,
        measuring: ThreadPoolExecutor,
    ) -> None:
        """Train a row, and evaluate it while the next one trains."""
        figures = self.attempt(row, "training", self.setting.train, updates, speed, limit)
        if figures is None:
            return
        self.add(row, figures)
        self.attempt(row, "export", self.setting.export)
        if row not in self.failed:
            for part in PARTS:
                measuring.submit(self.measure_part, row, part)

    def measure_part(self, row: str, part: str) -> None:
        figures = self.attempt(row, part, self.setting.measure, part)
        if figures is not None:
            self.add(row, figures)


def refuse(message: str) -> NoReturn:
    """Print an error message, and exit with status 2."""
    print(f"at_length.py: error: {message}", file=sys.stderr)
    sys.exit(2)


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="evaluation text, see above"
    )
    parser.add_argument("--data-bin", type=Path, metavar="DATA_BIN", help="text to train on")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME", help="default: all"
    )
    parser.add_argument(
        "--together", type=int, default=3, metavar="N", help="rows that train at once (default: 3)"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="time limit of training all rows, in seconds"
    )
    parser.add_argument(
        "--measuring",
        type=float,
        default=MEASURING_LIMIT,
        metavar="S",
        help=f"time limit for evaluating a model, in seconds (default: {MEASURING_LIMIT})",
    )
    parser.add_argument("--epochs", type=float, metavar="E", help="length of the training")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--small", action="store_true", help="width 32 instead of 512")
    parser.add_argument(
        "--train-options",
        default="",
        metavar="OPTIONS",
        help="fairseq-train options for all rows, as one argument, for example "
        "--train-options=--fp16",
    )
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep logs, checkpoints and models here"
    )
    parser.add_argument(
        "--trim",
        type=Path,
        metavar="FOLDER",
        help="write the part of --data that evaluation needs, and exit",
    )
    parser.add_argument(
        "--measure",
        type=Path,
        metavar="MODEL",
        help="evaluate a model folder on a trimmed folder, and exit",
    )
    parser.add_argument(
        "--part", choices=PARTS, default=PARTS[0], help="part of --measure (default: retrieval)"
    )
    args = parser.parse_args()
    if not (args.trim or args.measure):
        if args.data_bin is None:
            parser.error("--data-bin is required: specify a data folder of `lxsr prepare`")
        if args.epochs is None and args.seconds is None:
            parser.error("specify --epochs or --seconds for the length of training")
    if args.together < 1:
        parser.error(f"--together {args.together}; expected 1 or more")
    return args


def run_study(args: argparse.Namespace, work: Path) -> Study:
    """Train and evaluate the rows, with all files in a work folder."""
    text = args.data
    if not (text / TEXT_FILE).exists():
        text = work / "text"
        trim(args.data, text)
    options = tuple(shlex.split(args.train_options))
    trial = TRIAL
    if args.small:
        options = SMALL + options
        trial = SMALL_TRIAL
    setting = Setting(
        args.data_bin.absolute(),
        text.absolute(),
        work.absolute(),
        args.device,
        args.batch_size,
        args.seed,
        args.together,
        options,
        trial,
        args.measuring,
    )
    study = Study(setting, args.rows, args.output)
    study.run(args.epochs, args.seconds)
    return study


def main() -> None:
    args = parse_options()
    if args.trim:
        trim(args.data, args.trim)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        refuse("no GPU; expected one, or --device cpu")
    if args.measure:
        write_results(args.output, measure(args.measure, args.data, args.device, args.part))
        return
    if args.work:
        study = run_study(args, args.work)
    else:
        with tempfile.TemporaryDirectory() as folder:
            study = run_study(args, Path(folder))
    if study.failed:
        sys.exit(f"at_length.py: failed: {', '.join(sorted(study.failed))}")


if __name__ == "__main__":
    main()
