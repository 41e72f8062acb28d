"""Kill `lxsr embed`, `mine` and `train-context` at random moments and continue them: the outputs
must be the bytes of an undisturbed run.

    python tests/kill_at_random.py FOLDER --lines 200000 --kills 20

Every run is a fork of this process, which has imported everything, so that a run starts at once.
The signal goes to the process alone or to its children too, at random.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import toy
import yaml

from fairseq_lxsr import embeddings, evaluation, search
from fairseq_lxsr.cli.main import main
from fairseq_lxsr.context import rounds
from fairseq_lxsr.embeddings import write as stream
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import bitext

MODEL = Path(__file__).parent / "golden" / "compatibility" / "best.model"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Exit statuses that a signal may cause: by the signal itself, or by the handler of the command.
ENDS = {signal.SIGKILL: {-9}, signal.SIGTERM: {-15, 143}, signal.SIGINT: {-2, 130}}
IMPORTED = (embeddings, evaluation, search, SentenceEncoder)
# Files with the time or the duration of a run, which are not compared.
TIMED = ("train.log", "rounds.jsonl", "*.pt")
CONTEXT = {
    "arch": "context_transformer_tiny",
    "vocab_size": 200,
    "valid_documents": 50,
    "max_positions": 40,
    "shards": 2,
    "epochs": 1,
    "rounds": 1,
    "draw": 2000,
    "best": 1000,
    "pairs": 5000,
    "batch_size": 256,
    "workers": 1,
}


class Command(NamedTuple):
    """A command line to kill.

    Attributes:
        words: the command line without `lxsr`.
        latest_kill: the latest second of a kill, given the seconds of an undisturbed run and the
            number of kills.
    """

    words: list[str]
    latest_kill: Callable[[float, int], float]


def write_text(folder: Path, lines: int) -> tuple[Path, Path]:
    """Write aligned files of distinct lines, each of two sentences of the toy corpus."""
    pairs = toy.sentences(6000)
    files = folder / "text.en", folder / "text.fr"
    for side, file in enumerate(files):
        with file.open("w", encoding="utf-8") as text:
            for first, second in itertools.islice(itertools.product(pairs, pairs), lines):
                text.write(f"{first[side]} {second[side]}\n")
    return files


def start(command: list[str], errors: Path) -> int:
    """Run a command in a fork; return the id of its process."""
    # Before the command runs, an interrupt must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = os.fork()
    if process:
        # The child also calls setpgid, or has ended.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process, process)
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # A background job of a shell ignores interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main(command)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def finish(process: int, errors: Path, expected: set[int]) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    message = errors.read_text(encoding="utf-8", errors="replace")
    if status not in expected or "Traceback" in message:
        sys.exit(f"ended with {status}, expected {sorted(expected)}: {message[-3000:]}")
    return status


def wait_for_children(folder: Path, seconds: float) -> None:
    """Wait until no process holds a lock in a folder.

    A process that was killed alone leaves the training that it has started.
    """
    deadline = time.monotonic() + seconds
    for path in folder.rglob("*lock"):
        with contextlib.suppress(FileNotFoundError), path.open() as lock:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.1)


def file_names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def differing(folder: Path, expected: Path) -> list[str]:
    """Return the names of the files that are not the same in two folders."""
    names = file_names(folder)
    expected_names = file_names(expected)
    differences = sorted(names ^ expected_names)
    for name in sorted(names & expected_names):
        if any(Path(name).match(pattern) for pattern in TIMED):
            continue
        if (folder / name).read_bytes() != (expected / name).read_bytes():
            differences.append(name)
    return differences


def kill_and_continue(command: Command, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill a command, which writes to FOLDER/work, and continue it, until all kills are done.

    Returns:
        the number of kills and of complete runs, and the exit statuses.
    """
    draws = random.Random(seed)
    errors = folder / "errors"
    expected = folder / "expected"
    work = folder / "work"
    begin = time.perf_counter()
    finish(start(command.words, errors), errors, {0})
    seconds = time.perf_counter() - begin
    # Files may contain the path, so it is the same in all runs.
    work.rename(expected)
    num_kills = 0
    num_complete = 0
    statuses = []
    is_running = False
    while num_kills < kills or is_running:
        process = start(command.words, errors)
        if num_kills < kills:
            sent = SIGNALS[num_kills % len(SIGNALS)]
            send = draws.choice((os.kill, os.killpg))
            time.sleep(draws.uniform(0, command.latest_kill(seconds, kills)))
            # The id is valid even if the process has ended, because nobody has waited for it.
            send(process, sent)
            status = finish(process, errors, {0} | ENDS[sent])
            if status != 0:
                num_kills += 1
            wait_for_children(work, 10 * seconds)
        else:
            status = finish(process, errors, {0})
        statuses.append(status)
        is_running = status != 0
        if status == 0:
            num_complete += 1
            differences = differing(work, expected)
            if differences:
                sys.exit(f"{work} differs from {expected}: {differences}")
            shutil.rmtree(work)
    shutil.rmtree(expected)
    return {
        "command": command.words[0],
        "seconds": round(seconds, 1),
        "kills": num_kills,
        "complete": num_complete,
        "ends": statuses,
    }


def stories(lines: Iterable[str]) -> Iterator[str]:
    """Yield documents: ten of one line, which are only mined, then one of four, which also trains."""
    remaining = iter(lines)
    for size in itertools.cycle([1] * 10 + [4]):
        story = "".join(itertools.islice(remaining, size))
        if not story:
            return
        yield story


def commands(folder: Path, lines: int) -> dict[str, Command]:
    """Return every command, with its text."""
    source, target = write_text(folder, lines)
    documents = {}
    for language, text in (("en", source), ("fr", target)):
        documents[language] = folder / f"documents.{language}"
        with text.open(encoding="utf-8") as stream:
            documents[language].write_text("\n".join(stories(stream)), encoding="utf-8")
    work = folder / "work"
    config = folder / "context.yaml"
    files = {
        "documents": {language: str(path) for language, path in documents.items()},
        "work": str(work),
    }
    config.write_text(yaml.safe_dump(files | CONTEXT), encoding="utf-8")
    model = ["--model", str(MODEL), "--device", "cpu"]
    texts = ["--source", str(source), "--target", str(target)]

    def often(seconds: float, kills: int) -> float:
        return 3 * seconds / kills

    return {
        "embed": Command(
            ["embed", *model, "--input", str(source), "--resume", "--output", f"{work}/x.npy"],
            often,
        ),
        "mine": Command(["mine", *model, *texts, "--output", f"{work}/pairs.tsv"], often),
        # The training takes seconds to start, and continues from its last checkpoint.
        "train-context": Command(
            ["train-context", str(config)], lambda seconds, kills: seconds / 2
        ),
    }


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbs", nargs="+", default=["embed", "mine", "train-context"])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--block", type=int, default=20_000, help="lines between two moments at which work is safe"
    )
    parser.add_argument(
        "--save-every",
        type=int,
        default=100,
        help="updates between two checkpoints of train-context",
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    stream.WINDOW = bitext.ENCODE_ROWS = bitext.SEARCH_ROWS = args.block
    rounds.SAVE_INTERVAL = args.save_every
    folder = args.folder.absolute()
    command_of = commands(folder, args.lines)
    for verb in args.verbs:
        results = kill_and_continue(command_of[verb], folder, args.kills, args.seed)
        print(json.dumps({"lines": args.lines, **results}), flush=True)


if __name__ == "__main__":
    run()
