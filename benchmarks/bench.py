"""All benchmarks, small: what each measures, beside its goal. `make bench` on a quiet machine.

python -m benchmarks.bench --output benchmarks/results/bench.json     # minutes, on two cores
python -m benchmarks.bench --only speed.train speed.encode
python -m benchmarks.bench --smoke     # whether all of them run; nothing is judged

Text is made up, and so are the goals of this size: what a benchmark finds at its own size is in
benchmarks/notebook/performance.md. The exit status is 1 where a benchmark fails; a goal that is not
met is only told, a busy machine meets none. A new benchmark is one row of `ROWS`.
"""

import importlib.util
import json
import operator
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.corpora import fillers
from benchmarks.machine import commit, machine, versions
from benchmarks.made_up import write_pairs, write_studies
from benchmarks.script import command_line, lxsr, read_results, write_results
from fairseq_lxsr.modules.cpu import cpu_has

VOCABULARY = 50_000  # of the paper; the made-up text has fewer pieces, the others are not used
SIZES = {
    False: {"pairs": 20_000, "updates": 60, "width": 512},
    True: {"pairs": 6_000, "updates": 2, "width": 64},
}


@dataclass(frozen=True)
class Figure:
    """A number that a benchmark is judged by.

    Attributes:
        name: what it is.
        read: finds it in the results.
        least: the goal, where more is better.
        most: the goal, where less is better.
    """

    name: str
    read: Callable[[Any], float]
    least: float | None = None
    most: float | None = None

    def found(self, results: Any) -> dict[str, Any]:
        value = self.read(results)
        found: dict[str, Any] = {"name": self.name, "measured": float(f"{value:.4g}")}
        if self.least is not None:
            return found | {"goal": f">= {self.least:g}", "met": value >= self.least}
        if self.most is not None:
            return found | {"goal": f"<= {self.most:g}", "met": value <= self.most}
        return found


@dataclass(frozen=True)
class Row:
    """How a benchmark runs small.

    Attributes:
        options: {work}, {studies}, {text}, {data} and {model} in them are filled in, see `Made`.
        smoke: further options, the last of which counts, of the run that only shows that it runs;
            None for no such run.
        figures: what is taken from its results.
        lines: its results are a line of JSON each.
        needs: a folder that the user has to name, see `main`.
        package: one that need not be installed.
        bfloat16: it computes in bfloat16; without the instructions for it products take 40 times as
            long.
    """

    options: str
    smoke: str | None = ""
    figures: tuple[Figure, ...] = ()
    lines: bool = False
    needs: str = ""
    package: str = ""
    bfloat16: bool = False

    def missing(self, paths: dict[str, Path]) -> str:
        """Why it cannot run; empty where it can."""
        if self.needs and not paths[self.needs]:
            return f"it needs --{self.needs}"
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"no package {self.package}"
        if self.bfloat16 and not cpu_has("bfloat16"):
            return "this processor has no instructions for bfloat16"
        return ""


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def ratio(first: Callable[[Any], float], second: Callable[[Any], float]) -> Callable[[Any], float]:
    return lambda results: first(results) / second(results)


def training(system: str, value: str = "pairs per second") -> Callable[[Any], float]:
    return lambda results: median([run[value] for run in results["runs"][system]])


def encoding(contestant: str) -> Callable[[Any], float]:
    """Sentences a second."""
    return lambda results: results["sentences"] / median(results["seconds"][contestant])


def share_of_products(dtype: str) -> Callable[[Any], float]:
    def share(results: Any) -> float:
        seconds = median(results["seconds"][f"ours, {dtype}"])
        return 100 * results["layer flops"] / seconds / results["product flops per second"][dtype]

    return share


def preparing(whose: str) -> Callable[[Any], float]:
    """Seconds of cleaning and binarising; the plain script counts them without the dictionaries of
    ours.
    """

    def seconds(results: Any) -> float:
        stages = [results["comparison"][0][whose][stage] for stage in ("clean", "binarise")]
        return sum(stage["seconds"] if isinstance(stage, dict) else stage for stage in stages)

    return seconds


def serving(ours: str, theirs: str) -> Callable[[Any], float]:
    """Requests a second of 16 clients, in units of another server's."""
    return lambda results: operator.truediv(
        *(results["runs"][name]["16"]["requests per second"] for name in (ours, theirs))
    )


def over(part: str, name: str, other: str) -> Callable[[Any], float]:
    """Time of one, in units of the other's."""
    return lambda results: results[part][name]["median"] / results[part][other]["median"]


def recall(index: str, value: str = "recall@1") -> Callable[[Any], float]:
    return lambda results: next(
        row[value] for row in results["indexes"] if row["vectors"] == f"index {index}"
    )


def pud(results: Any) -> float:
    """P@1 of the last run, mean of the directions."""
    found = results[-1]
    # round3: of context_bitext
    own = [found[name] for name in ("pud", "PUD P@1", "round3") if name in found]
    values = found["retrieval"]["PUD"] if "retrieval" in found else own[0]
    numbers = [value["alone"] if isinstance(value, dict) else value for value in values.values()]
    return sum(numbers) / len(numbers)


def right_of_mined(results: Any) -> float:
    """Per cent of right pairs among those with a margin of 1.1 or more."""
    return next(row["right"] for row in results["rerank 10"] if row["threshold"] == 1.1)


def most_growth(results: Any) -> float:
    """The largest exponent beyond that of the work."""
    verbs = [verb for verb in results["verbs"].values() if verb["exponent"] is not None]
    return round(
        max((verb["exponent"] - verb["exponent of the work"] for verb in verbs), default=0.0), 2
    )


def static_encoding(results: Any) -> float:
    """Speed of ours in all threads, in units of that of the faster of theirs."""
    seconds = {name: median(found["clock"]) for name, found in all_threads(results).items()}
    return min(seconds["sentence-transformers"], seconds["model2vec"]) / seconds["ours"]


def all_threads(results: Any) -> Any:
    return next(
        found
        for name, found in results["encoding seconds"].items()
        if name.endswith("threads: all")
    )


def static_training(ours: str) -> Callable[[Any], float]:
    def times_theirs(results: Any) -> float:
        (speeds,) = results["training pairs per second"].values()
        return median(speeds[ours]) / median(speeds["sentence-transformers"])

    return times_theirs


def ray_overhead(results: Any) -> float:
    """Processor time of embedding in one worker, in units of that in one process."""
    found = {row["workers"]: row["processor"] for row in results["rows"] if row["verb"] == "embed"}
    return found[1] / found[0]


F32, BF16 = "float32", "bfloat16"
PRODUCTS = "two products in blocks"
CONTEXT = "context_transformer_static_mean"
ROWS = {  # a module of benchmarks, and after a comma which of its runs
    "speed.prepare": Row(
        "--data {studies}/train --pairs 60000 --repeats 1 --largest",
        "--pairs 2000 --vocab-size 2000 --held-out 100",
        (
            Figure(
                "speed, times a plain script",
                ratio(preparing("plain"), preparing("ours")),
                least=2.5,
            ),
        ),
    ),
    "speed.train": Row(
        "{data} --updates 30 --repeats 1 --precisions float32",
        "--updates 3 --options '--arch lxsr_tiny --log-interval 1'",
        (Figure("float32, pairs/s", training(f"lxsr_base, {F32}"), least=190),),
    ),
    "speed.train, bfloat16": Row(
        "{data} --updates 30 --repeats 1 --precisions bfloat16",
        None,
        (Figure("bfloat16, pairs/s", training(f"lxsr_base, {BF16}"), least=600),),
        bfloat16=True,
    ),
    "speed.train, LASER family": Row(
        "{data} --systems laser_1 ctlaser --precisions bfloat16 --updates 3 --repeats 1",
        None,
        (
            Figure("LASER_1, words/s", training(f"laser_1, {BF16}", "words per second"), least=650),
            Figure(
                "cT-LASER, words/s", training(f"ctlaser, {BF16}", "words per second"), least=490
            ),
        ),
        bfloat16=True,
    ),
    "speed.batching": Row(
        "--repeats 3",
        "--sentences 2000 --repeats 1",
        (
            Figure(
                "numpy, s a million sentences",
                lambda results: median(results["seconds"]["numpy, 4096 tokens"]),
                most=1,
            ),
        ),
    ),
    "speed.encode": Row(
        "{model} {text}.en --sentences 2000 --repeats 1 --dtypes float32",
        "--sentences 50 --width 64 --layers 1 --vocabulary 1000 --no-memory",
        (
            Figure(
                "float32, times sentence-transformers",
                ratio(encoding(f"ours, {F32}"), encoding("sentence-transformers")),
                least=2.0,
            ),
        ),
    ),
    "speed.encode, bfloat16": Row(
        "{model} {text}.en --sentences 2000 --repeats 1 --dtypes bfloat16",
        None,
        (Figure("bfloat16, % of bare products", share_of_products(BF16), least=45),),
        bfloat16=True,
    ),
    "speed.static": Row(
        "{data} --source {text}.en --target {text}.fr --sentences 20000 --widths 512 --updates 60 --repeats 1",
        "--small",
        (
            Figure("encoding, times the faster of theirs", static_encoding, least=3),
            Figure("training, times theirs", static_training("ours"), least=2),
            Figure(
                "with hard negatives, times theirs",
                static_training("ours, with hard negatives"),
                least=1.3,
            ),
        ),
        package="model2vec",
    ),
    "speed.retrieval": Row(
        "--candidates 50000 --queries 1000 --mining 10000 --repeats 3",
        "--candidates 500 --queries 50 --mining 300 --width 16 --repeats 1",
        (
            Figure(
                "search, time over bare products",
                over("search", F32, "product in blocks"),
                most=1.3,
            ),
            Figure("search, time over faiss flat", over("search", F32, "faiss flat"), most=1.0),
            Figure(
                "mining, time over bare products",
                over("mining", "mine, float32", "two products in blocks"),
                most=1.3,
            ),
        ),
    ),
    "speed.small_vectors": Row(
        "--model {model} --source {text}.en --target {text}.fr --candidates 10000 --queries 500",
        "--candidates 1000 --queries 20",
        (
            Figure("int8, recall of the first", recall("int8"), least=0.99),
            Figure("binary, recall of the first", recall("binary"), least=0.98),
            Figure("binary, bytes a vector", recall("binary", "bytes"), most=800),
        ),
    ),
    "quality.mined": Row(
        "--model {model} --corpus {work}/prepared/corpus/en-fr",
        "--rerank 10",
        (Figure("of pairs found with --rerank 10, % right", right_of_mined, least=90),),
    ),
    "speed.growth": Row(
        "--sizes 5000 50000 250000 --only clean subwords binarise embed score",
        "--sizes 500 --only clean",
        (Figure("exponent beyond the work's", most_growth, most=0.05),),
    ),
    "quality.run": Row(
        "--data {studies} --work {work}/quality --only best --updates 50",
        "--updates 2 --vocab-size 1000",
        (Figure("P@1", pud),),
        lines=True,
    ),
    "quality.laser_family": Row(
        "--data {studies} --work {work}/family --languages fr --only lxsr --minutes 0.2",
        "--minutes 0.01",
        (Figure("P@1", pud),),
        lines=True,
    ),
    "quality.context": Row(
        f"--data {{studies}} --work {{work}}/context --arch {CONTEXT} --languages fr --draws 500 --pairs 500"
        " --epochs 1",
        "--rounds 1 --draws 20 --pairs 20",
        (Figure("P@1", pud),),
        lines=True,
    ),
    "quality.context_bitext": Row(
        "--data {studies} --work {work}/context --counts 2000 --seconds 5",
        "--counts 100 --seconds 1",
        (Figure("P@1", pud),),
        lines=True,
    ),
    "speed.cluster": Row(
        "--model {model} --source {text}.en --target {text}.fr --lines 10000 --workers 1 2",
        None,  # the tests of --ray run what it runs
        (Figure("processor, embed by Ray over alone", ray_overhead, most=1.5),),
        package="ray",
    ),
    "speed.serve": Row(
        "{text}.en --model {model} --clients 1 16 --seconds 2 --repeats 1",
        "--clients 1 2 --seconds 0.2",
        (
            Figure(
                "16 clients, times sentence-transformers",
                serving("ours", "sentence-transformers"),
                least=2,
            ),
            Figure(
                "16 clients, times a batch a request", serving("ours", "ours, alone"), least=1.5
            ),
        ),
        package="starlette",
    ),
    "gpu": Row(
        "--device cpu --small",
        None,  # a test runs it
        (
            Figure(
                "losses that are not the CPU's",
                lambda results: sum(
                    not found.get("agrees", True) for found in results["losses"].values()
                ),
                most=0,
            ),
        ),
    ),
    "speed.gpu_predicted": Row("", None),  # a test runs its parts
    "released.lightweight": Row(
        "--data {data} --released {released} --recipes released --updates 20 --width 64",
        "--updates 2 --layers 1",
        (
            Figure(
                "difference of the loss",
                lambda results: results[0]["largest relative difference"],
                most=1e-3,
            ),
        ),
        lines=True,
        needs="released",
    ),
}
# one shows what quality measured, one needs a model that quality trained, one text of three
# languages: a test runs it
NOT_RUN = (  # they need models, text or programs of others
    "quality.tables",
    "quality.pretrained",
    "quality.rerank",
    "quality.add_language",
    "released.bisent2vec",
)


class Made:
    """What the benchmarks read, made once.

    Attributes:
        paths: work, a folder of all results; studies, text as `write_studies` has it; text, a
            prefix of aligned files; data, a data folder; model, a model folder without layers.
    """

    def __init__(self, work: Path, smoke: bool):
        size = SIZES[smoke]
        self.paths = {name: work / name for name in ("studies", "text", "data", "model")} | {
            "work": work
        }
        write_studies(work / "studies", size["pairs"])
        write_pairs(work / "text", size["pairs"])
        sizes = ("--valid-size", 100, "--test-size", 100, "--vocab-size", 8_000)
        lxsr(
            "prepare", "--work", work / "prepared", "--data", work / "text", "--workers", 1, *sizes
        )
        (work / "prepared" / "data-bin").rename(work / "data")
        options = (
            "--encoder-embed-dim",
            size["width"],
            "--max-update",
            size["updates"],
            "--cpu",
            "--num-workers",
            0,
        )
        run = ("--disable-validation", "--save-dir", work / "run")
        lxsr("train", work / "data", "--recipe", "best", *options, *run)
        lxsr(
            "export",
            "folder",
            "--checkpoint",
            work / "run" / "checkpoint_last.pt",
            "--output",
            work / "model",
        )
        if not smoke:
            self.fill_dictionary()

    def fill_dictionary(self) -> None:
        """Give the dictionary of the data folder the size of the paper's, for training at its
        speed.
        """
        for path in self.paths["data"].glob("dict*.txt"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text + fillers(VOCABULARY - len(text.splitlines())), encoding="utf-8")


def run(name: str, row: Row, paths: dict[str, Path], smoke: bool) -> dict[str, Any]:
    """Returns: seconds, and figures or how it failed."""
    module = f"benchmarks.{name.split(',')[0]}"
    output = paths["work"] / f"{name}.{'jsonl' if row.lines else 'json'}"
    words = f"{row.options} {row.smoke if smoke else ''}".format(**paths)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", module, *shlex.split(words), "--output", str(output)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    result: dict[str, Any] = {
        "command": f"{module} {words}",
        "seconds": round(time.perf_counter() - start, 1),
    }
    if done.returncode:
        return result | {"failed": done.stdout[-3000:]}
    results = read_results(output) if row.lines else json.loads(output.read_text())
    try:
        return result | {
            "figures": [] if smoke else [figure.found(results) for figure in row.figures]
        }
    except LookupError as error:  # the others run all the same
        return result | {"failed": f"a figure is not in its results: {error!r}"}


def show(name: str, result: dict[str, Any]) -> None:
    if "failed" in result:
        print(f"{name:24}failed: {result['command']}\n{result['failed']}", flush=True)
    for figure in result.get("figures") or [{"name": "it ran", "measured": result["seconds"]}]:
        goal, met = (
            figure.get("goal", ""),
            {True: "met", False: "not met", None: ""}[figure.get("met")],
        )
        print(
            f"{name:24}{figure['name']:40}{figure['measured']:>12,.4g}{goal:>12}{met:>10}",
            flush=True,
        )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, metavar="NAME", default=list(ROWS), help="default: all"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="as small as it can be, nothing is judged"
    )
    parser.add_argument(
        "--released",
        type=Path,
        metavar="DIR",
        help="checkout of the authors' code, for one of them",
    )
    args = parser.parse_args()
    benchmarks: dict[str, Any] = {}
    found = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "benchmarks": benchmarks,
    }
    with tempfile.TemporaryDirectory() as temporary:
        paths = Made(Path(temporary), args.smoke).paths | {"released": args.released}
        print(f"{'':24}{'':40}{'measured':>12}{'goal':>12}")
        for name in args.only:
            if args.smoke and ROWS[name].smoke is None:
                continue
            if missing := ROWS[name].missing(paths):
                print(f"{name:24}not run: {missing}", flush=True)
                continue
            benchmarks[name] = run(name, ROWS[name], paths, args.smoke)
            show(name, benchmarks[name])
            write_results(args.output, found)  # after each, for a run that is interrupted
    if any("failed" in result for result in benchmarks.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
