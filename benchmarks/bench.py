"""Run all benchmarks with small inputs, and print each figure next to its goal (`make bench`).

python -m benchmarks.bench --output benchmarks/results/bench.json     # minutes, on two cores
python -m benchmarks.bench --only speed.train speed.encode
python -m benchmarks.bench --smoke     # only checks that all benchmarks run

The text is generated, and the goals hold for these small inputs on a quiet machine:
benchmarks/notebook/performance.md has the results at full size. The exit status is 1 if a benchmark
fails, but not if a goal is missed. A new benchmark is one row of `ROWS`.
"""

import importlib.util
import json
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

# The paper's number of word pieces; the generated text uses fewer of them.
VOCABULARY = 50_000
# Sizes of the data and the model, by whether it is a smoke run.
SIZES = {
    False: {"pairs": 20_000, "updates": 60, "width": 512},
    True: {"pairs": 6_000, "updates": 2, "width": 64},
}

# Computes a figure from the results of a benchmark.
Reader = Callable[[Any], float]


@dataclass(frozen=True)
class Figure:
    """A number that a benchmark is judged by.

    Attributes:
        name: its name in the results.
        read: computes the figure from the results.
        least: the goal, if larger is better.
        most: the goal, if smaller is better.
    """

    name: str
    read: Reader
    least: float | None = None
    most: float | None = None

    def judge(self, results: Any) -> dict[str, Any]:
        """Return the measured value, the goal and whether it is met."""
        value = self.read(results)
        judged: dict[str, Any] = {"name": self.name, "measured": float(f"{value:.4g}")}
        if self.least is not None:
            judged |= {"goal": f">= {self.least:g}", "met": value >= self.least}
        elif self.most is not None:
            judged |= {"goal": f"<= {self.most:g}", "met": value <= self.most}
        return judged


@dataclass(frozen=True)
class Row:
    """How a benchmark runs with small inputs.

    Attributes:
        options: its options; {work}, {studies}, {text}, {data} and {model} are replaced by the
            paths of `Inputs`.
        smoke: further options of the smoke run, which override `options`; None for no smoke run.
        figures: the figures to compute from its results.
        lines: whether its results are lines of JSON.
        needs: option of this script that it needs, see `main`.
        package: optional package that it needs.
        bfloat16: whether it computes in bfloat16, which takes 40 times as long on a processor
            without instructions for it.
    """

    options: str
    smoke: str | None = ""
    figures: tuple[Figure, ...] = ()
    lines: bool = False
    needs: str = ""
    package: str = ""
    bfloat16: bool = False

    def missing(self, paths: dict[str, Path]) -> str:
        """Return why the benchmark cannot run here; an empty string if it can."""
        if self.needs and not paths[self.needs]:
            return f"it needs --{self.needs}"
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"the package {self.package} is not installed"
        if self.bfloat16 and not cpu_has("bfloat16"):
            return "this processor has no instructions for bfloat16"
        return ""


def median(values: list[float]) -> float:
    """Return the median, the larger of two middle values."""
    return sorted(values)[len(values) // 2]


def ratio(first: Reader, second: Reader) -> Reader:
    """Return the first figure in units of the second."""
    return lambda results: first(results) / second(results)


def training(system: str, value: str = "pairs per second") -> Reader:
    """Return the speed of training a system."""
    return lambda results: median([run[value] for run in results["runs"][system]])


def encoding(contestant: str) -> Reader:
    """Return the number of encoded sentences per second."""
    return lambda results: results["sentences"] / median(results["seconds"][contestant])


def share_of_products(dtype: str) -> Reader:
    """Return the speed of encoding, in percent of the speed of bare matrix products."""

    def share(results: Any) -> float:
        seconds = median(results["seconds"][f"ours, {dtype}"])
        return 100 * results["layer flops"] / seconds / results["product flops per second"][dtype]

    return share


def preparing(script: str) -> Reader:
    """Return the seconds of cleaning and binarising.

    Those of the plain script do not include learning the dictionary.
    """

    def total_seconds(results: Any) -> float:
        total = 0.0
        for name in ("clean", "binarise"):
            stage = results["comparison"][0][script][name]
            total += stage["seconds"] if isinstance(stage, dict) else stage
        return total

    return total_seconds


def serving(server: str) -> Reader:
    """Return the number of requests per second of 16 clients."""
    return lambda results: results["runs"][server]["16"]["requests per second"]


def timing(part: str, name: str) -> Reader:
    """Return the median seconds of a contestant."""
    return lambda results: results[part][name]["median"]


def recall(index: str, value: str = "recall@1") -> Reader:
    """Return a value of the row of an index."""
    return lambda results: next(
        row[value] for row in results["indexes"] if row["vectors"] == f"index {index}"
    )


def pud(results: Any) -> float:
    """Return the mean P@1 on PUD over the directions, of the last run."""
    run = results[-1]
    if "retrieval" in run:
        by_direction = run["retrieval"]["PUD"]
    else:
        # The last name is that of the last round of context_bitext.
        by_direction = next(run[name] for name in ("pud", "PUD P@1", "round3") if name in run)
    values = [
        value["alone"] if isinstance(value, dict) else value for value in by_direction.values()
    ]
    return sum(values) / len(values)


def right_of_mined(results: Any) -> float:
    """Return the percentage of right pairs among those with a margin of at least 1.1."""
    return next(row["right"] for row in results["rerank 10"] if row["threshold"] == 1.1)


def least_precision(results: Any) -> float:
    """Return the smallest P@1 of codes in the default index over all lists."""
    return min(row["default"] for row in results["P@1"].values())


def most_growth(results: Any) -> float:
    """Return the largest difference between the exponent of the time and that of the work."""
    differences = [0.0]
    for verb in results["verbs"].values():
        if verb["exponent"] is not None:
            differences.append(verb["exponent"] - verb["exponent of the work"])
    return round(max(differences), 2)


def static_encoding(results: Any) -> float:
    """Return our speed on all threads, in units of the faster peer's."""
    timings = next(
        by_contestant
        for name, by_contestant in results["encoding seconds"].items()
        if name.endswith("threads: all")
    )
    seconds = {name: median(values["clock"]) for name, values in timings.items()}
    return min(seconds["sentence-transformers"], seconds["model2vec"]) / seconds["ours"]


def static_training(contestant: str) -> Reader:
    """Return our speed of training, in units of sentence-transformers'."""

    def relative_speed(results: Any) -> float:
        (speeds,) = results["training pairs per second"].values()
        return median(speeds[contestant]) / median(speeds["sentence-transformers"])

    return relative_speed


def ray_overhead(results: Any) -> float:
    """Return the processor time of embedding in one Ray worker, in units of one process."""
    processor = {
        row["workers"]: row["processor"] for row in results["rows"] if row["verb"] == "embed"
    }
    return processor[1] / processor[0]


def wrong_losses(results: Any) -> float:
    """Return the number of precisions whose losses differ from the CPU's."""
    return sum(not values.get("agrees", True) for values in results["losses"].values())


F32 = "float32"
BF16 = "bfloat16"
CONTEXT = "context_transformer_static_mean"
# A module of benchmarks; a comma separates it from the name of one of several runs.
ROWS = {
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
        "{data} --source {text}.en --target {text}.fr --sentences 20000 --widths 512 --updates 60 "
        "--repeats 1",
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
                ratio(timing("search", F32), timing("search", "product in blocks")),
                most=1.3,
            ),
            Figure(
                "search, time over faiss flat",
                ratio(timing("search", F32), timing("search", "faiss flat")),
                most=1.0,
            ),
            Figure(
                "mining, time over bare products",
                ratio(
                    timing("mining", "mine, float32"), timing("mining", "two products in blocks")
                ),
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
    "quality.codes": Row(
        "--model {model} --lines 200",
        "--lines 6",
        (Figure("codes whose line is first, %", least_precision, least=98),),
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
        f"--data {{studies}} --work {{work}}/context --arch {CONTEXT} --languages fr --draws 500 "
        "--pairs 500"
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
        # The tests of --ray cover it.
        None,
        (Figure("processor, embed by Ray over alone", ray_overhead, most=1.5),),
        package="ray",
    ),
    "speed.serve": Row(
        "{text}.en --model {model} --clients 1 16 --seconds 2 --repeats 1",
        "--clients 1 2 --seconds 0.2",
        (
            Figure(
                "16 clients, times sentence-transformers",
                ratio(serving("ours"), serving("sentence-transformers")),
                least=2,
            ),
            Figure(
                "16 clients, times a batch a request",
                ratio(serving("ours"), serving("ours, alone")),
                least=1.5,
            ),
        ),
        package="starlette",
    ),
    "speed.serve_attack": Row(
        "{text}.en --model {model} --seconds 2 --repeats 1",
        "--seconds 0.5 --attacks idle --repeats 1",
        (
            Figure(
                "p99 with 1,000 idle connections, times the quiet value",
                lambda results: results["attacks"]["idle"]["p99 ratio"],
                most=3,
            ),
        ),
        package="starlette",
    ),
    "gpu": Row(
        "--device cpu --small",
        # A test runs it.
        None,
        (
            Figure(
                "losses that are not the CPU's",
                wrong_losses,
                most=0,
            ),
        ),
    ),
    # A test runs its parts.
    "speed.gpu_predicted": Row("", None),
    "speed.layers": Row(
        "--device cpu --pairs 16 --updates 3", "--layers 1 2 --pairs 2 --updates 1"
    ),
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
# Scripts without a row: they need results, models, text or programs from elsewhere.
NOT_RUN = (
    "pictures",
    "quality.tables",
    "quality.languages",
    "quality.spellings",
    "quality.thresholds",
    "quality.peers",
    "quality.rates",
    "quality.language_means",
    "quality.layers_table",
    "quality.pretrained",
    "quality.rerank",
    "quality.add_language",
    "quality.checkpoint_rule",
    "quality.choices",
    "quality.at_length",
    "speed.index_kinds",
    "speed.search_service",
    "speed.passage_search",
    "released.bisent2vec",
)


class Inputs:
    """The text, data and model that the benchmarks read.

    Attributes:
        paths: `work`, the folder of everything; `studies`, text of `write_studies`; `text`, prefix
            of aligned files; `data`, a data folder; `model`, a model folder without layers.
    """

    def __init__(self, work: Path, smoke: bool):
        self.size = SIZES[smoke]
        self.paths = {name: work / name for name in ("studies", "text", "data", "model")}
        self.paths["work"] = work
        write_studies(self.paths["studies"], self.size["pairs"])
        write_pairs(self.paths["text"], self.size["pairs"])
        self.prepare()
        self.train()
        if not smoke:
            self.fill_dictionary()

    def prepare(self) -> None:
        """Make the data folder."""
        prepared = self.paths["work"] / "prepared"
        options = "--workers 1 --valid-size 100 --test-size 100 --vocab-size 8000"
        lxsr("prepare", "--work", prepared, "--data", self.paths["text"], *options.split())
        (prepared / "data-bin").rename(self.paths["data"])

    def train(self) -> None:
        """Train and export the model."""
        save_dir = self.paths["work"] / "run"
        width, updates = self.size["width"], self.size["updates"]
        options = (
            f"--recipe best --encoder-embed-dim {width} --max-update {updates} --cpu"
            f" --num-workers 0 --disable-validation --save-dir {shlex.quote(str(save_dir))}"
        )
        lxsr("train", self.paths["data"], *shlex.split(options))
        checkpoint = save_dir / "checkpoint_last.pt"
        lxsr("export", "folder", "--checkpoint", checkpoint, "--output", self.paths["model"])

    def fill_dictionary(self) -> None:
        """Extend the dictionary to the paper's size, for its speed of training."""
        for path in self.paths["data"].glob("dict*.txt"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text + fillers(VOCABULARY - len(text.splitlines())), encoding="utf-8")


def run(name: str, row: Row, paths: dict[str, Path], smoke: bool) -> dict[str, Any]:
    """Run a benchmark, and return its command, its seconds and its figures or how it failed."""
    module = f"benchmarks.{name.split(',')[0]}"
    output = paths["work"] / f"{name}.{'jsonl' if row.lines else 'json'}"
    options = f"{row.options} {row.smoke if smoke else ''}".format(**paths)
    command = [sys.executable, "-m", module, *shlex.split(options), "--output", str(output)]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seconds = round(time.perf_counter() - start, 1)
    result: dict[str, Any] = {"command": f"{module} {options}", "seconds": seconds}
    if done.returncode:
        return result | {"failed": done.stdout[-3000:]}
    results = read_results(output) if row.lines else json.loads(output.read_text())
    if smoke:
        return result | {"figures": []}
    try:
        return result | {"figures": [figure.judge(results) for figure in row.figures]}
    except LookupError as error:
        # The other benchmarks run all the same.
        return result | {"failed": f"a figure is missing in its results: {error!r}"}


def show(name: str, result: dict[str, Any]) -> None:
    """Print the figures of a benchmark, or how it failed."""
    if "failed" in result:
        print(f"{name:24}failed: {result['command']}\n{result['failed']}", flush=True)
    figures = result.get("figures") or [{"name": "it ran", "measured": result["seconds"]}]
    verdicts = {True: "met", False: "not met", None: ""}
    for figure in figures:
        goal = figure.get("goal", "")
        verdict = verdicts[figure.get("met")]
        line = f"{name:24}{figure['name']:40}{figure['measured']:>12,.4g}{goal:>12}{verdict:>10}"
        print(line, flush=True)


def run_all(
    names: list[str], paths: dict[str, Path], smoke: bool, output: Path | None
) -> dict[str, Any]:
    """Run benchmarks, print and write their figures, and return the results by name."""
    benchmarks: dict[str, Any] = {}
    results = {"machine": machine(), "versions": versions(), "commit": commit()}
    print(f"{'':24}{'':40}{'measured':>12}{'goal':>12}")
    for name in names:
        row = ROWS[name]
        if smoke and row.smoke is None:
            continue
        if missing := row.missing(paths):
            print(f"{name:24}not run: {missing}", flush=True)
            continue
        benchmarks[name] = run(name, row, paths, smoke)
        show(name, benchmarks[name])
        # After each benchmark, in case the run is interrupted.
        write_results(output, results | {"benchmarks": benchmarks})
    return benchmarks


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ROWS,
        metavar="NAME",
        default=list(ROWS),
        help="benchmarks to run (default: all)",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="run with minimal inputs; judge no figure"
    )
    parser.add_argument(
        "--released",
        type=Path,
        metavar="DIR",
        help="checkout of the authors' code, for released.lightweight",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        paths = Inputs(Path(temporary), args.smoke).paths | {"released": args.released}
        benchmarks = run_all(args.only, paths, args.smoke, args.output)
    if any("failed" in result for result in benchmarks.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
