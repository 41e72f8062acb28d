"""Kill `lxsr embed`, `mine` and `train-context` at random moments and let them go on: the bytes of
a run in peace.

    python tests/kill_at_random.py FOLDER --lines 200000 --kills 20

Every run is a fork of this process, which has imported everything and computed nothing: no time
goes into starting. The signal goes to the process alone or to its children too, at random.
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
# how a run may end: the signal itself, or what the command makes of it; by SIGKILL it is never the
# latter
ENDS = {signal.SIGKILL: {-9}, signal.SIGTERM: {-15, 143}, signal.SIGINT: {-2, 130}}
IMPORTED = (embeddings, evaluation, search, SentenceEncoder)
TIMED = ("train.log", "rounds.jsonl", "*.pt")  # files that hold the time or the seconds of a run
CONTEXT = {
    "arch": "context_transformer_tiny",
    "vocab_size": 200,
    "valid_documents": 50,
    "max_positions": 40,
}
CONTEXT |= {"shards": 2, "epochs": 1, "rounds": 1, "draw": 2000, "best": 1000, "pairs": 5000}
CONTEXT |= {"batch_size": 256, "workers": 1}


class Attacked(NamedTuple):
    """A command line under attack, and when it is killed at the latest: of its seconds in peace and
    the kills.
    """

    words: list[str]
    longest: Callable[[float, int], float]


def write_text(folder: Path, lines: int) -> tuple[Path, Path]:
    """Two files of different sentences: every pair of the toy corpus's sentences is one."""
    pairs = toy.sentences(6000)
    files = folder / "text.en", folder / "text.fr"
    for side, file in enumerate(files):
        with file.open("w", encoding="utf-8") as text:
            for one, other in itertools.islice(itertools.product(pairs, pairs), lines):
                text.write(f"{one[side]} {other[side]}\n")
    return files


def start(command: list[str], errors: Path) -> int:
    """Returns: the process that runs the command."""
    # until the command runs, no handler prints a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = os.fork()
    if process:
        # it has ended, or done it itself
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process, process)
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # a shell's background job ignores it
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
    said = errors.read_text(encoding="utf-8", errors="replace")
    if status not in expected or "Traceback" in said:
        sys.exit(f"ended with {status}, expected {sorted(expected)}: {said[-3000:]}")
    return status


def wait_for_children(folder: Path, seconds: float) -> None:
    """Wait until no process holds a lock in a folder: one that was killed alone leaves the training
    that it began.
    """
    deadline = time.monotonic() + seconds
    for path in folder.rglob("*lock"):
        with contextlib.suppress(FileNotFoundError), path.open() as lock:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.1)


def differing(folder: Path, other: Path) -> list[str]:
    """The files that are not the same in two folders."""
    names = [
        {str(path.relative_to(each)) for path in each.rglob("*") if path.is_file()}
        for each in (folder, other)
    ]
    compared = (
        name for name in names[0] & names[1] if not any(Path(name).match(timed) for timed in TIMED)
    )
    return sorted(names[0] ^ names[1]) + sorted(
        name for name in compared if (folder / name).read_bytes() != (other / name).read_bytes()
    )


def survives(command: Attacked, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill a command, which writes to FOLDER/work, and let it go on until it was killed so often:
    figures of it.
    """
    draws, errors = random.Random(seed), folder / "errors"
    whole, work = folder / "whole", folder / "work"
    began = time.perf_counter()
    finish(start(command.words, errors), errors, {0})
    seconds, done, ends, runs = time.perf_counter() - began, 0, [], 0
    work.rename(whole)  # files may hold the path, so it is the same in all runs
    while done < kills or any(ends[-1:]):
        process = start(command.words, errors)
        if done < kills:
            sent, send = SIGNALS[done % len(SIGNALS)], draws.choice((os.kill, os.killpg))
            time.sleep(draws.uniform(0, command.longest(seconds, kills)))
            send(process, sent)  # where it has ended, it is still to be waited for
            ends.append(finish(process, errors, {0} | ENDS[sent]))
            done += ends[-1] != 0
            wait_for_children(work, 10 * seconds)
        else:
            ends.append(finish(process, errors, {0}))
        if ends[-1] == 0:
            runs += 1
            if wrong := differing(whole, work):
                sys.exit(f"{work}: other than {whole}: {wrong}")
            shutil.rmtree(work)
    shutil.rmtree(whole)
    return {
        "command": command.words[0],
        "seconds": round(seconds, 1),
        "kills": done,
        "complete": runs,
        "ends": ends,
    }


def stories(lines: Iterable[str]) -> Iterator[str]:
    """Documents of one line, which are mined only, and after ten of them one of four lines, which
    trains too.
    """
    remaining = iter(lines)
    for size in itertools.cycle([1] * 10 + [4]):
        story = "".join(itertools.islice(remaining, size))
        if not story:
            return
        yield story


def commands(folder: Path, lines: int) -> dict[str, Attacked]:
    """Every command that can be attacked, over its text."""
    source, target = write_text(folder, lines)
    documents = {}
    for language, text in (("en", source), ("fr", target)):
        documents[language] = folder / f"documents.{language}"
        with text.open(encoding="utf-8") as stream:
            documents[language].write_text("\n".join(stories(stream)), encoding="utf-8")
    work, config = folder / "work", folder / "context.yaml"
    named = {
        "documents": {language: str(path) for language, path in documents.items()},
        "work": str(work),
    }
    config.write_text(yaml.safe_dump(named | CONTEXT), encoding="utf-8")
    model = ["--model", str(MODEL), "--device", "cpu"]
    texts = ["--source", str(source), "--target", str(target)]

    def often(seconds: float, kills: int) -> float:
        return 3 * seconds / kills

    return {
        "embed": Attacked(
            ["embed", *model, "--input", str(source), "--resume", "--output", f"{work}/x.npy"],
            often,
        ),
        "mine": Attacked(["mine", *model, *texts, "--output", f"{work}/pairs.tsv"], often),
        # its training takes seconds to start, and continues from what it saved last
        "train-context": Attacked(
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
    attacked = commands(args.folder.absolute(), args.lines)
    for verb in args.verbs:
        found = survives(attacked[verb], args.folder.absolute(), args.kills, args.seed)
        print(json.dumps({"lines": args.lines, **found}), flush=True)


if __name__ == "__main__":
    run()
