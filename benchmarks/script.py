"""What the scripts have in common: options, commands, turns, files of results."""

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
    """Options of a script that its docstring describes, `--output` among them."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = "results are added to it" if results.endswith("jsonl") else "write the results here"
    parser.add_argument("--output", type=Path, metavar=results, required=required, help=how)
    return parser


def write_results(path: Path | None, results: Any) -> None:
    """Write results as JSON, where a file is named."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def add_result(path: Path, result: Any) -> None:
    """Add a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as output:
        output.write(json.dumps(result) + "\n")


def read_results(path: Path) -> list[dict]:
    """The lines of a file, none where there is no file: what an interrupted benchmark has
    measured.
    """
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the project; where it fails, end with the last of what it
    said.
    """
    command = list(map(str, words))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{said}")
    return done


def train(*options: object) -> str:
    """Run `lxsr train`. Returns: its log, in fairseq's format `simple` where none is given."""
    shown = () if "--log-format" in options else ("--log-format", "simple")
    return run(sys.executable, "-m", "fairseq_lxsr.cli.main", "train", *options, *shown).stdout


def lxsr(*arguments: object) -> str:
    """Run another verb, whose progress is shown. Returns: what it prints."""
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def alone(function: Callable, *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def take_turns(
    contestants: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each in every repeat; they take turns, so that a noisy machine is noisy for all of
    them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            seconds[name].append(time.perf_counter() - start)
            print(f"{name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    return seconds
