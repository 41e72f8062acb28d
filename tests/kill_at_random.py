"""Kill `lxsr embed` and `lxsr mine` at random moments and let them go on: the bytes are those of a run in peace.

    python tests/kill_at_random.py FOLDER --lines 200000 --kills 20

Every run is a fork of this process, which has imported everything and computed nothing: no time goes into starting.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import toy

from fairseq_lxsr import embeddings, evaluation, search
from fairseq_lxsr.cli.main import main
from fairseq_lxsr.embeddings import stream
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import bitext

MODEL = Path(__file__).parent / "golden" / "compatibility" / "lxsr.model"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# how a run may end: the signal itself, or what the command makes of it; by SIGKILL it is never the latter
ENDS = {signal.SIGKILL: {-9}, signal.SIGTERM: {-15, 143}, signal.SIGINT: {-2, 130}}
IMPORTED = (embeddings, evaluation, search, SentenceEncoder)


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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command runs, no handler prints a traceback
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
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


def equal(folder: Path, other: Path) -> bool:
    """Whether two folders hold the same files."""
    names = [sorted(path.name for path in each.iterdir()) for each in (folder, other)]
    if names[0] != names[1]:
        sys.exit(f"{folder} has {names[0]}, {other} has {names[1]}")
    return all((folder / name).read_bytes() == (other / name).read_bytes() for name in names[0])


def survives(command: list[str], output: str, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill a command and let it go on until it was killed so often.

    Args:
        command: without --output.
        output: the name of the file that it writes.
        kills: how often.
    Returns: figures for people.
    """
    draws, errors = random.Random(seed), folder / "errors"
    whole, killed = folder / "whole", folder / "killed"
    began = time.perf_counter()
    finish(start([*command, "--output", str(whole / output)], errors), errors, {0})
    seconds, done, ends, rounds = time.perf_counter() - began, 0, [], 0
    while True:
        process = start([*command, "--output", str(killed / output)], errors)
        if done < kills:
            sent = SIGNALS[done % len(SIGNALS)]
            time.sleep(draws.uniform(0, 3 * seconds / kills))
            os.kill(process, sent)  # where it has ended, it is still to be waited for
            ends.append(finish(process, errors, {0} | ENDS[sent]))
            done += ends[-1] != 0
        else:
            ends.append(finish(process, errors, {0}))
        if ends[-1] == 0:
            rounds += 1
            if not equal(whole, killed):
                sys.exit(f"{killed}: other bytes than {whole}")
            shutil.rmtree(killed)
            if done == kills:
                break
    shutil.rmtree(whole)
    return {"command": command[0], "seconds": round(seconds, 1), "kills": done, "complete": rounds, "ends": ends}


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--block", type=int, default=20_000, help="lines between two moments at which work is safe")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    stream.WINDOW = bitext.ENCODE_ROWS = bitext.SEARCH_ROWS = args.block
    source, target = map(str, write_text(args.folder, args.lines))
    model = ["--model", str(MODEL), "--device", "cpu"]
    for command, output in (
        (["embed", *model, "--input", source, "--resume"], "x.npy"),
        (["mine", *model, "--source", source, "--target", target], "pairs.tsv"),
    ):
        print(json.dumps({"lines": args.lines, **survives(command, output, args.folder, args.kills, args.seed)}))


if __name__ == "__main__":
    run()
