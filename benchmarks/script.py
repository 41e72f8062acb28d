"""What all benchmark scripts share: options, commands, taking turns and files of results."""

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import ROOT


def command_line(
    doc: str | None, results: str = "FILE.json", required: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the option `--output`; scripts add their own options.

    Args:
        doc: docstring of the script, which `--help` prints.
        results: how `--output` is written in the help; to a `.jsonl` file, results are appended.
        required: whether `--output` is required.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    meaning = "append the results" if results.endswith("jsonl") else "write the results"
    parser.add_argument("--output", type=Path, metavar=results, required=required, help=meaning)
    return parser


def add_text_and_work(parser: argparse.ArgumentParser) -> None:
    """Add --data and --work, the folders that the benchmarks of quality read and write."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of text and models"
    )


def add_sizes_and_seeds(parser: argparse.ArgumentParser) -> None:
    """Add the options of a grid of trainings: numbers of pairs and seeds."""
    for name, meaning, values in (
        ("--pairs", "numbers of pairs", [1000, 5000, 17_000]),
        ("--seeds", "random seeds", [1, 2, 3]),
    ):
        shown = " ".join(map(str, values))
        parser.add_argument(
            name,
            nargs="+",
            type=int,
            default=values,
            metavar="N",
            help=f"{meaning} (default: {shown})",
        )


def write_results(path: Path | None, results: Any) -> None:
    """Write results as JSON; without a path, do nothing."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def add_result(path: Path, result: Any) -> None:
    """Append a result to a file, as one line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as output:
        output.write(json.dumps(result) + "\n")


def read_results(path: Path) -> list[dict]:
    """Read the results that an interrupted benchmark has written so far.

    Returns:
        The results; empty if the file does not exist.
    """
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the project.

    If it fails, the script ends with the last lines of its output.
    """
    command = list(map(str, words))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        output = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{output}")
    return done


def train(*options: object) -> str:
    """Run `lxsr train` and return its log, in the format `simple` unless the options name one."""
    log_format = () if "--log-format" in options else ("--log-format", "simple")
    command = (sys.executable, "-m", "fairseq_lxsr.cli.main", "train", *options, *log_format)
    return run(*command).stdout


def lxsr(*arguments: object) -> str:
    """Run a verb of `lxsr`, whose progress stays visible, and return what it prints."""
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def alone(function: Callable, *arguments: Any) -> Any:
    """Call a function in a new process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def take_turns(
    contestants: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    """Time functions that take turns, so that a noisy machine is noisy for all of them.

    Returns:
        The seconds of each repeat, by the name of the contestant.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            seconds[name].append(time.perf_counter() - start)
            print(f"{name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    return seconds
