"""How time and memory of every verb of `lxsr` grow with the number of lines.

python -m benchmarks.speed.growth --output benchmarks/speed/results/growth.json

Text is made up; the model has no layers and width 64, so that the time is that of everything else.
Seconds are those of the processor, user and system, of a command and all its processes, each with
one thread (OMP_NUM_THREADS=1): another program on the machine changes them little. Imports are not
counted, nor the memory that they take. The exponent is that of t = a + b n^k through the three
largest sizes, for the memory too. A verb that compares all lines with all others is quadratic; it
and trainings stop at a tenth of the lines. Other verbs in the file of results stay.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairseq_cli.train import cli_main as fairseq_train

import fairseq_lxsr.encoder  # imported once, before the forks
import fairseq_lxsr.tasks
from benchmarks.machine import commit, machine, versions
from benchmarks.made_up import pairs, write_documents, write_pairs
from benchmarks.processes import Cost, anonymous, watch
from benchmarks.script import command_line, write_results
from fairseq_lxsr.options import INDEX_KINDS

GOAL = 0.05  # more than the exponent of the work
FEW = 100  # queries of a search
LEAST_SECONDS, LEAST_BYTES = 0.3, 20e6  # between two sizes; less tells nothing of the growth
WIDTH = 64
TRAINING = "--cpu --num-workers 0 --disable-validation --log-interval 100"
TRAIN = f"train {{work}}/data-bin {TRAINING} --no-save"


@dataclass(frozen=True)
class Verb:
    """A command of `lxsr`.

    Attributes:
        arguments: {model}, {work} (a folder for this size) and {text} in it are filled in.
        work: exponent of what it has to do.
        part: the largest size is divided by it, for a verb that is slow.
    """

    arguments: str
    work: float = 1
    part: int = 1


def quadratic(arguments: str) -> Verb:
    return Verb(arguments, 2, 10)


PREPARE = (
    "prepare --work {work} --data {text} --filters length,ratio,letters --vocab-size 4000 --workers 1 "
    "--valid-size 100 --test-size 9"
)
INVERTED = ("ivf", "ivf-pq")  # 4 sqrt(n) lists, and every vector is compared with all of them
STORED = "--model {work}/vectors"  # so that what reads embeddings does not compute them again
PAIRS = "--source {text}.en --target {text}.fr"
# some verbs read no stored embeddings
BOTH, ENCODED = (f"{STORED} {PAIRS}", f"--model {{model}} {PAIRS}")
VERBS = {  # in this order: some read what others have written
    "clean": Verb(f"{PREPARE} --until clean"),
    "subwords": Verb(f"{PREPARE} --until subwords"),
    "binarise": Verb(PREPARE),
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
    **{
        f"{verb}, {kind}": Verb(f"{verb} {options}", work)
        for kind in INDEX_KINDS
        for verb, options, work in (
            (
                "index",
                f"{STORED} --input {{text}}.en --output {{work}}/{kind} --kind {kind}",
                1.5 if kind in INVERTED else 1,
            ),
            (
                "search",
                f"{STORED} --index {{work}}/{kind} --input {{work}}/queries --output {{work}}/found.tsv",
                1,
            ),
        )
    },
    "score": Verb(f"score {ENCODED} --output {{work}}/scores.tsv"),
    "score, margin": quadratic(f"score {ENCODED} --output {{work}}/margins.tsv --margin ratio"),
    "mine": quadratic(f"mine {BOTH} --output {{work}}/mined.tsv"),
    "mine, binary": quadratic(f"mine {BOTH} --output {{work}}/mined.tsv --kind binary"),
    **{
        f"eval {name}": quadratic(f"eval {name} {BOTH}")
        for name in ("xsim", "tatoeba", "xsr", "mteb-bitext")
    },
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
    "report": quadratic(f"report {{work}}/report {BOTH}"),
}
# what `write_tables` writes, which some verbs read
TABLES = ("context", "bucc", "sts", "labelled", "xnli", "report")


def import_plugin() -> None:
    """Import what --user-dir imports; fairseq leaves it out where the package is there already."""
    for module in pkgutil.iter_modules(fairseq_lxsr.tasks.__path__, "fairseq_lxsr.tasks."):
        importlib.import_module(module.name)


def make_model(work: Path) -> Path:
    """A model folder, after some updates on a little text."""
    write_pairs(work / "text", 10_000)
    sizes = ("--valid-size", 100, "--test-size", 100, "--vocab-size", 4_000)
    lxsr("prepare", "--work", work, "--data", work / "text", "--workers", 1, *sizes, folder=work)
    options = ("--encoder-embed-dim", WIDTH, "--max-update", 5, *TRAINING.split())
    lxsr(
        "train",
        work / "data-bin",
        "--recipe",
        "best",
        *options,
        "--save-dir",
        work / "run",
        folder=work,
    )
    checkpoint = work / "run" / "checkpoint_last.pt"
    lxsr("export", "folder", "--checkpoint", checkpoint, "--output", work / "model", folder=work)
    return work / "model"


def write_text(work: Path, count: int, verbs: Iterable[Verb]) -> None:
    """Everything that the verbs read, of so many lines each."""
    write_pairs(work / "text", count)
    for name in ("labelled", "xnli", "report", "vectors"):
        (work / name).mkdir()
    if any(f"{{work}}/{table}" in verb.arguments for table in TABLES for verb in verbs):
        write_tables(work, count)
    with open(work / "text.en") as lines:
        (work / "queries").write_text("".join(islice(lines, FEW)))
    languages = "".join(f"  {name}: {work}/novels.{name}.txt.gz\n" for name in ("en", "fr"))
    (work / "context.yaml").write_text(
        f"documents:\n{languages}work: {work}/context\narch: context_transformer_tiny\nvocab_size: 4000\n"
        "draw: 500\nbest: 100\npairs: 50\nrounds: 1\nworkers: 1\n"
    )


def write_tables(work: Path, count: int) -> None:
    """Labelled text, pairs with scores, hidden pairs, documents and a log of training."""
    both = list(pairs(count))
    labels = ("entailment", "neutral", "contradiction")
    for part in ("train", "dev", "test"):
        with open(work / "labelled" / f"en.{part}.tsv", "w") as output:
            output.writelines(f"{row % 4}\t{source}\n" for row, (source, _) in enumerate(both))
        with open(work / "xnli" / f"en.{part}.tsv", "w") as output:
            output.writelines(
                f"{labels[row % 3]}\t{source}\t{source}\n" for row, (source, _) in enumerate(both)
            )
    with open(work / "sts.tsv", "w") as output:
        output.writelines(
            f"{source}\t{target}\t{row % 6}\n" for row, (source, target) in enumerate(both)
        )
    for side, language in enumerate(("en", "fr")):
        with open(work / f"bucc.training.{language}", "w") as output:
            output.writelines(
                f"{language}-{row:09}\t{pair[side]}\n" for row, pair in enumerate(both)
            )
        write_documents(work / f"novels.{language}.txt.gz", [pair[side] for pair in both])
    with open(work / "bucc.training.gold", "w") as output:
        output.writelines(f"en-{row:09}\tfr-{row:09}\n" for row in range(0, count, 50))
    with open(work / "report" / "train.log", "w") as output:
        for row in range(1, count + 1):
            values = {"epoch": 1, "loss": f"{1 / row:.4f}", "num_updates": str(row)}
            output.write(f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(values)}\n")


def run(name: str, verb: Verb, model: Path, work: Path) -> dict[str, float]:
    before = anonymous(os.getpid())
    cost = lxsr(
        *verb.arguments.format(model=model, work=work, text=work / "text").split(), folder=work
    )
    peak = max(0, cost.anonymous - before)
    print(
        f"{work.name} lines, {name}: {cost.processor:.1f} s, {peak / 1e6:.0f} MB",
        file=sys.stderr,
        flush=True,
    )
    return {"processor seconds": round(cost.processor, 2), "peak bytes": peak}


def lxsr(*words: object, folder: Path) -> Cost:
    """Run a verb in a fork of this process, which has imported everything: what is left is the
    work.
    """
    log = folder / "log"
    child = os.fork()
    if not child:
        with open(log, "w") as said:
            for output in (1, 2):
                os.dup2(said.fileno(), output)
        os._exit(exit_status(list(map(str, words))))
    status, cost = watch(child)
    if status:
        sys.exit(
            f"lxsr {' '.join(map(str, words))}: exit status {status}\n{log.read_text(errors='replace')[-3000:]}"
        )
    return cost


def exit_status(words: list[str]) -> int:
    """Run `lxsr` in this process; `lxsr train` too, which gives its process to fairseq-train."""

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
    """k of t = a + b n^k through the three largest sizes; None where the last step is smaller than
    `least`.

    The ratio of the two differences is (n3^k - n2^k) / (n2^k - n1^k), which grows with k.
    """
    if len(values) < 3:
        return None
    n1, n2, n3 = sorted(values)[-3:]
    first, second = values[n2] - values[n1], values[n3] - values[n2]
    if second < least or first <= 0:
        return None
    low, high = 0.01, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        ratio = (n3**middle - n2**middle) / (n2**middle - n1**middle)
        low, high = (middle, high) if ratio < second / first else (low, middle)
    return round(low, 2)


def summary(name: str, runs: dict[int, dict[str, float]]) -> dict:
    """What the results keep of a verb; its memory must be linear whatever its work is."""
    found = {
        "exponent": exponent(
            {size: run["processor seconds"] for size, run in runs.items()}, LEAST_SECONDS
        ),
        "exponent of memory": exponent(
            {size: run["peak bytes"] for size, run in runs.items()}, LEAST_BYTES
        ),
    }
    most = {"exponent": VERBS[name].work + GOAL, "exponent of memory": 1 + GOAL}
    met = all(value is None or value <= most[key] for key, value in found.items())
    return {"runs": runs, "exponent of the work": VERBS[name].work, **found, "goal met": met}


def show(verbs: dict[str, dict]) -> None:
    sizes = sorted({size for verb in verbs.values() for size in verb["runs"]})
    print(
        f"{'':44}"
        + "".join(f"{size:>18,}" for size in sizes)
        + f"{'time':>8}{'memory':>8}{'goal':>6}"
    )
    for name, verb in verbs.items():
        cells = ""
        for size in sizes:
            found = verb["runs"].get(size)
            cell = (
                f"{found['processor seconds']:.1f} s {found['peak bytes'] / 1e6:6.0f} MB"
                if found
                else ""
            )
            cells += f"{cell:>18}"
        exponents = "".join(
            f"{'' if verb[key] is None else verb[key]:>8}"
            for key in ("exponent", "exponent of memory")
        )
        print(f"{name:44}{cells}{exponents}{'met' if verb['goal met'] else 'NO':>6}")


def write(runs: dict[str, dict[int, dict[str, float]]], output: Path | None) -> dict[str, dict]:
    """Write what there is so far: the run of a whole night may be interrupted; other verbs in the
    file stay.

    Returns: the summary of each verb.
    """
    where = {"machine": machine(), "versions": versions(), "commit": commit()}
    verbs = {name: summary(name, found) | where for name, found in runs.items()}
    known = json.loads(output.read_text())["verbs"] if output and output.exists() else {}
    write_results(output, {"verbs": known | verbs})
    return verbs


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 100_000, 1_000_000],
        metavar="N",
        help="of lines",
    )
    parser.add_argument(
        "--only", nargs="+", choices=VERBS, default=list(VERBS), metavar="VERB", help="default: all"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="for text and results (default: a temporary one)",
    )
    args = parser.parse_args()
    runs: dict[str, dict[int, dict[str, float]]] = {}
    import_plugin()
    gc.freeze()  # a collection in a fork would write to the memory of all imports, which then is its own
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
