"""How time and memory of every verb of `lxsr` grow with the number of lines.

python -m benchmarks.speed.growth --output benchmarks/speed/results/growth.json

The text is generated. The model has no layers and width 64, so that the time is that of everything
else. Seconds are processor seconds, user and system, of a command and all its processes, each with
one thread (OMP_NUM_THREADS=1), so that other programs on the machine change them little. Neither
the time nor the memory of imports is counted. The exponent is that of t = a + b n^k through the
three largest sizes, and likewise for the memory. Verbs that compare all lines with each other are
quadratic; they and the trainings stop at a tenth of the lines. Verbs that are not measured keep
their values in the file of results.
"""

import argparse
import gc
import importlib
import json
import os
import pkgutil
import runpy
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairseq_cli.train import cli_main as fairseq_train

# These are imported once, before the forks.
import fairseq_lxsr.encoder
import fairseq_lxsr.tasks
from benchmarks.machine import commit, machine, versions
from benchmarks.made_up import LANGUAGES, pairs, write_documents, write_pairs
from benchmarks.processes import Cost, anonymous, watch
from benchmarks.script import command_line, write_results
from fairseq_lxsr.options import INDEX_KINDS

# The largest difference between the measured exponent and that of the work.
GOAL = 0.05
# Queries of a search.
QUERIES = 100
# Least growth between two sizes, in seconds and bytes; less tells nothing of the exponent.
LEAST_SECONDS = 0.3
LEAST_BYTES = 20e6
WIDTH = 64
TRAINING = "--cpu --num-workers 0 --disable-validation --log-interval 100"
TRAIN = f"train {{work}}/data-bin {TRAINING} --no-save"


@dataclass(frozen=True)
class Verb:
    """A command of `lxsr`.

    Attributes:
        arguments: its arguments; {model}, {work} (the folder of this size) and {text} are replaced.
        work: exponent of the work that it has to do.
        part: the largest size is divided by it, for a slow verb.
    """

    arguments: str
    work: float = 1
    part: int = 1


def quadratic(arguments: str) -> Verb:
    """Return a verb that compares all lines with each other."""
    return Verb(arguments, work=2, part=10)


PREPARE = (
    "prepare --work {work} --data {text} --filters length,ratio,letters --vocab-size 4000"
    " --workers 1 --valid-size 100 --test-size 9"
)
# For verbs that read stored embeddings, so that they do not compute them again.
STORED = "--model {work}/vectors"
PAIRS = "--source {text}.en --target {text}.fr"
BOTH = f"{STORED} {PAIRS}"
# For verbs that do not read stored embeddings.
ENCODED = f"--model {{model}} {PAIRS}"
PREPARING = {
    "clean": Verb(f"{PREPARE} --until clean"),
    "subwords": Verb(f"{PREPARE} --until subwords"),
    "binarise": Verb(PREPARE),
}
TRAININGS = {
    "train, first update": Verb(f"{TRAIN} --recipe paper_small --arch lxsr_tiny --max-update 1"),
    "train, first update, lsi": Verb(
        f"{TRAIN} --recipe best --encoder-embed-dim 16 --batch-size 64 --max-update 1"
    ),
    "train, first update, translation": Verb(
        f"{TRAIN} --recipe laser_small --arch laser_tiny --max-update 1"
    ),
    "train, an epoch": Verb(
        f"{TRAIN} --recipe best --encoder-embed-dim 16 --batch-size 256 --max-epoch 1", part=10
    ),
    "train-context, an epoch and a round": Verb("train-context {work}/context.yaml", part=10),
}
EMBEDDING = {
    "embed": Verb("embed --model {model} --input {text}.en --output {work}/vectors/text.en.npy"),
    "embed, the other side": Verb(
        "embed --model {model} --input {text}.fr --output {work}/vectors/text.fr.npy"
    ),
    "embed, int8": Verb(
        "embed --model {model} --input {text}.en --output {work}/en8.npy --output-dtype int8"
    ),
    "embed, queries": Verb(
        "embed --model {model} --input {work}/queries --output {work}/vectors/queries.npy", 0
    ),
}


def searching() -> dict[str, Verb]:
    """Return the verbs that write and search each kind of index."""
    verbs = {}
    for kind in INDEX_KINDS:
        index = f"{{work}}/{kind}"
        verbs[f"index, {kind}"] = Verb(
            f"index {STORED} --input {{text}}.en --output {index} --kind {kind}"
        )
        verbs[f"search, {kind}"] = Verb(
            f"search {STORED} --index {index} --input {{work}}/queries --output {{work}}/found.tsv"
        )
    return verbs


SCORING = {
    "score": Verb(f"score {ENCODED} --output {{work}}/scores.tsv"),
    "score, margin": quadratic(f"score {ENCODED} --output {{work}}/margins.tsv --margin ratio"),
    "mine": quadratic(f"mine {BOTH} --output {{work}}/mined.tsv"),
    "mine, binary": quadratic(f"mine {BOTH} --output {{work}}/mined.tsv --kind binary"),
}
EVALUATION = {
    "eval xsim": quadratic(f"eval xsim {BOTH}"),
    "eval tatoeba": quadratic(f"eval tatoeba {BOTH}"),
    "eval xsr": quadratic(f"eval xsr {BOTH}"),
    "eval mteb-bitext": quadratic(f"eval mteb-bitext {BOTH}"),
    "eval bucc": quadratic(
        "eval bucc --model {model} --data {work}/bucc --lang-pairs en-fr --form oracle"
    ),
    "eval sts": Verb(
        "eval sts --model {model} --data {work}/sts --lang-pairs en-fr --output {work}/sts.jsonl"
    ),
    "eval mldoc": Verb(
        "eval mldoc --model {model} --data {work}/labelled --langs en --epochs 1 --seeds 1", part=10
    ),
    "eval xnli": Verb(
        "eval xnli --model {model} --data {work}/xnli --langs en --epochs 1 --seeds 1", part=10
    ),
    "compare": Verb("compare {work}/sts.jsonl {work}/sts.jsonl --draws 100"),
    "report": Verb(f"report {{work}}/report {BOTH}"),
}
# The order matters: some verbs read the output of others.
VERBS = PREPARING | TRAININGS | EMBEDDING | searching() | SCORING | EVALUATION
# The inputs of some verbs that `write_tables` writes.
TABLES = ("context", "bucc", "sts", "labelled", "xnli", "report")

# The measured seconds and bytes of a verb, by the number of lines.
Runs = dict[int, dict[str, float]]


def import_plugin() -> None:
    """Import what --user-dir imports; fairseq skips it if the package is already imported."""
    for module in pkgutil.iter_modules(fairseq_lxsr.tasks.__path__, "fairseq_lxsr.tasks."):
        importlib.import_module(module.name)


def make_model(work: Path) -> Path:
    """Write a model folder after a few updates on a little text."""
    write_pairs(work / "text", 10_000)
    options = "--workers 1 --valid-size 100 --test-size 100 --vocab-size 4000"
    lxsr("prepare", "--work", work, "--data", work / "text", *options.split(), folder=work)
    options = f"--recipe best --encoder-embed-dim {WIDTH} --max-update 5 {TRAINING}"
    save_dir = work / "run"
    lxsr("train", work / "data-bin", *options.split(), "--save-dir", save_dir, folder=work)
    checkpoint = save_dir / "checkpoint_last.pt"
    lxsr("export", "folder", "--checkpoint", checkpoint, "--output", work / "model", folder=work)
    return work / "model"


def write_text(work: Path, count: int, verbs: Iterable[Verb]) -> None:
    """Write everything that some verbs read, with `count` lines in each file."""
    write_pairs(work / "text", count)
    for name in ("labelled", "xnli", "report", "vectors"):
        (work / name).mkdir()
    if any(map(reads_tables, verbs)):
        write_tables(work, count)
    with open(work / "text.en") as lines:
        (work / "queries").write_text("".join(islice(lines, QUERIES)))
    languages = "".join(f"  {name}: {work}/novels.{name}.txt.gz\n" for name in LANGUAGES)
    (work / "context.yaml").write_text(
        f"documents:\n{languages}work: {work}/context\narch: context_transformer_tiny\n"
        "vocab_size: 4000\ndraw: 500\nbest: 100\npairs: 50\nrounds: 1\nworkers: 1\n"
    )


def reads_tables(verb: Verb) -> bool:
    """Return whether a verb reads a file of `write_tables`."""
    return any(f"{{work}}/{table}" in verb.arguments for table in TABLES)


def write_tables(work: Path, count: int) -> None:
    """Write labelled text, pairs with scores, hidden pairs, documents and a log of training."""
    text = list(pairs(count))
    write_labelled(work, [source for source, _ in text])
    with open(work / "sts.tsv", "w") as output:
        for row, (source, target) in enumerate(text):
            output.write(f"{source}\t{target}\t{row % 6}\n")
    for side, language in enumerate(LANGUAGES):
        lines = [pair[side] for pair in text]
        with open(work / f"bucc.training.{language}", "w") as output:
            output.writelines(f"{language}-{row:09}\t{line}\n" for row, line in enumerate(lines))
        write_documents(work / f"novels.{language}.txt.gz", lines)
    with open(work / "bucc.training.gold", "w") as output:
        output.writelines(f"en-{row:09}\tfr-{row:09}\n" for row in range(0, count, 50))
    with open(work / "report" / "train.log", "w") as output:
        for row in range(1, count + 1):
            values = {"epoch": 1, "loss": f"{1 / row:.4f}", "num_updates": str(row)}
            output.write(f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(values)}\n")


def write_labelled(work: Path, sentences: Sequence[str]) -> None:
    """Write the labelled sentences of MLDoc and XNLI."""
    labels = ("entailment", "neutral", "contradiction")
    for part in ("train", "dev", "test"):
        with open(work / "labelled" / f"en.{part}.tsv", "w") as output:
            output.writelines(f"{row % 4}\t{line}\n" for row, line in enumerate(sentences))
        with open(work / "xnli" / f"en.{part}.tsv", "w") as output:
            for row, line in enumerate(sentences):
                output.write(f"{labels[row % 3]}\t{line}\t{line}\n")


def run(name: str, verb: Verb, model: Path, work: Path) -> dict[str, float]:
    """Run a verb, and return its processor seconds and its peak memory."""
    before = anonymous(os.getpid())
    arguments = verb.arguments.format(model=model, work=work, text=work / "text")
    cost = lxsr(*arguments.split(), folder=work)
    peak = max(0, cost.anonymous - before)
    result = f"{cost.processor:.1f} s, {peak / 1e6:.0f} MB"
    print(f"{work.name} lines, {name}: {result}", file=sys.stderr, flush=True)
    return {"processor seconds": round(cost.processor, 2), "peak bytes": peak}


def lxsr(*words: object, folder: Path) -> Cost:
    """Run a verb in a fork of this process, and return its cost.

    The fork has imported everything, so that only the work is measured. The log is written to a
    folder.
    """
    log = folder / "log"
    child = os.fork()
    if not child:
        with open(log, "w") as stream:
            for output in (1, 2):
                os.dup2(stream.fileno(), output)
        os._exit(exit_status(list(map(str, words))))
    status, cost = watch(child)
    if status:
        end = log.read_text(errors="replace")[-3000:]
        sys.exit(f"lxsr {' '.join(map(str, words))}: exit status {status}\n{end}")
    return cost


def exit_status(words: list[str]) -> int:
    """Run `lxsr` in this process, and return its exit status.

    `lxsr train`, which replaces its process by fairseq-train, runs in this process too.
    """

    def train(_, command: list[str]) -> None:
        sys.argv = command[command.index("-c") + 1 :]
        fairseq_train()
        sys.exit()

    os.execv = train  # type: ignore[assignment]
    sys.argv = ["lxsr", *words]
    try:
        runpy.run_module("fairseq_lxsr.cli.main", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def exponent(values: dict[int, float], least: float) -> float | None:
    """Return k of t = a + b n^k through the three largest sizes n.

    The ratio of the two differences is (n3^k - n2^k) / (n2^k - n1^k), which grows with k.

    Args:
        values: the value t of each size.
        least: smallest difference between the last two values.

    Returns:
        The exponent; None if there are fewer than three sizes or the difference is smaller.
    """
    if len(values) < 3:
        return None
    n1, n2, n3 = sorted(values)[-3:]
    first = values[n2] - values[n1]
    second = values[n3] - values[n2]
    if second < least or first <= 0:
        return None
    low = 0.01
    high = 4.0
    for _ in range(40):
        middle = (low + high) / 2
        ratio = (n3**middle - n2**middle) / (n2**middle - n1**middle)
        if ratio < second / first:
            low = middle
        else:
            high = middle
    return round(low, 2)


def summary(name: str, runs: Runs) -> dict:
    """Return the runs of a verb, their exponents and whether these meet the goal.

    The memory must be linear whatever the work is.
    """
    seconds = {size: run["processor seconds"] for size, run in runs.items()}
    sizes_in_bytes = {size: run["peak bytes"] for size, run in runs.items()}
    work = VERBS[name].work
    time_exponent = exponent(seconds, LEAST_SECONDS)
    memory_exponent = exponent(sizes_in_bytes, LEAST_BYTES)
    goal_met = time_exponent is None or time_exponent <= work + GOAL
    goal_met = goal_met and (memory_exponent is None or memory_exponent <= 1 + GOAL)
    return {
        "runs": runs,
        "exponent of the work": work,
        "exponent": time_exponent,
        "exponent of memory": memory_exponent,
        "goal met": goal_met,
    }


def show(verbs: dict[str, dict]) -> None:
    """Print the table of all verbs and sizes."""
    sizes = sorted({size for verb in verbs.values() for size in verb["runs"]})
    heads = "".join(f"{size:>18,}" for size in sizes)
    print(f"{'':44}{heads}{'time':>8}{'memory':>8}{'goal':>6}")
    for name, verb in verbs.items():
        line = f"{name:44}"
        for size in sizes:
            cell = ""
            if size in verb["runs"]:
                run = verb["runs"][size]
                cell = f"{run['processor seconds']:.1f} s {run['peak bytes'] / 1e6:6.0f} MB"
            line += f"{cell:>18}"
        for key in ("exponent", "exponent of memory"):
            value = "" if verb[key] is None else verb[key]
            line += f"{value:>8}"
        verdict = "met" if verb["goal met"] else "NO"
        print(f"{line}{verdict:>6}")


def write(runs: dict[str, Runs], output: Path | None) -> dict[str, dict]:
    """Write the results so far, because the run of a whole night may be interrupted.

    Other verbs in the file stay.

    Returns:
        The summary of each verb.
    """
    origin = {"machine": machine(), "versions": versions(), "commit": commit()}
    verbs = {name: summary(name, verb_runs) | origin for name, verb_runs in runs.items()}
    stored = json.loads(output.read_text())["verbs"] if output and output.exists() else {}
    write_results(output, {"verbs": stored | verbs})
    return verbs


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 100_000, 1_000_000],
        metavar="N",
        help="numbers of lines (default: 1,000 10,000 100,000 1,000,000)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=VERBS,
        default=list(VERBS),
        metavar="VERB",
        help="verbs to measure (default: all)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="folder for text and output (default: the system's temporary folder)",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    runs: dict[str, Runs] = {}
    import_plugin()
    # A garbage collection in a fork would write to the memory of all imports and so copy it.
    gc.freeze()
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        model = make_model(Path(temporary))
        for size in args.sizes:
            chosen = [name for name in args.only if size * VERBS[name].part <= max(args.sizes)]
            with tempfile.TemporaryDirectory(dir=temporary) as parent:
                work = Path(parent, str(size))
                work.mkdir()
                write_text(work, size, [VERBS[name] for name in chosen])
                for name in chosen:
                    runs.setdefault(name, {})[size] = run(name, VERBS[name], model, work)
                    write(runs, args.output)
    show(write(runs, args.output))


if __name__ == "__main__":
    main()
