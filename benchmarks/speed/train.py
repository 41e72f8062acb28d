"""Words per second and peak memory of training by fairseq-train on a CPU.

python -m benchmarks.speed.train DATA_BIN --updates 80 --output benchmarks/speed/results/train.json
python -m benchmarks.speed.train DATA_BIN --systems laser_1 laser_6 ... --repeats 1 \
    --updates 5 --precisions bfloat16 \
    --output benchmarks/speed/results/train_laser_family.json

DATA_BIN is a folder of `lxsr prepare`; the size of the papers is --vocab-size 50000. For float32
the second command has --updates 4. Systems and precisions take turns, so that a noisy machine is
noisy for all of them; each repeat is a separate process. `fairseq_laser_lstm` is LASER_1 of
fairseq's examples/laser on the same text and with the same batches by tokens, in float32, its only
type on a CPU. Words are pieces of the target; for the lightweight model, pieces of both sides.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import pairwise, permutations, product
from pathlib import Path

from benchmarks import ROOT
from benchmarks.machine import machine
from benchmarks.script import command_line, write_results

PRECISIONS = ("float32", "bfloat16")
LIMITS = ("--max-tokens", "4096", "--log-interval", "1")
TRANSLATION = (*LIMITS, "--update-freq", "1")
# The recipe of each system, as in `lxsr recipes`, and its options.
SYSTEMS = {
    "lxsr_base": ("paper", "--log-interval", "10"),
    "laser_1": ("laser_1", *TRANSLATION),
    "laser_6": ("laser_6", *TRANSLATION),
    "claser_6": ("claser_6", *TRANSLATION),
    "tlaser": ("tlaser", *TRANSLATION),
    "ctlaser": ("ctlaser", *TRANSLATION),
}
FAIRSEQ_LASER = "fairseq_laser_lstm"
FAIRSEQ_LASER_1 = (
    *shlex.split("--task laser --arch laser_lstm --criterion label_smoothed_cross_entropy"),
    *shlex.split("--label-smoothing 0.1 --encoder-bidirectional --encoder-layers 1"),
    *shlex.split("--encoder-hidden-size 512 --encoder-embed-dim 320 --decoder-embed-dim 1024"),
    *shlex.split("--decoder-layers 1 --decoder-hidden-size 2048 --decoder-out-embed-dim 2048"),
    *shlex.split("--decoder-lang-embed-dim 32 --optimizer adam --adam-betas '(0.9, 0.98)'"),
    *shlex.split("--weight-decay 1e-4 --lr 0.001 --lr-scheduler inverse_sqrt"),
    *("--warmup-updates", "1000", *LIMITS),
)


def train(program: Iterable[object], updates: int) -> dict[str, float]:
    """Run a training, and return its speed and its peak memory.

    The first log interval is a warm-up and is left out.

    Args:
        program: module and its arguments.
        updates: number of updates.

    Returns:
        Words and pairs per second, and the peak resident memory in MB.
    """
    with tempfile.TemporaryDirectory() as save_dir:
        command = [sys.executable, "-m", *program, "--cpu", "--max-update", updates]
        command += ["--disable-validation", "--no-save", "--save-dir", save_dir]
        command += ["--log-format", "json"]
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"fairseq-train failed:\n{output[-2000:]}")
    return speeds(output) | {"peak memory MB": usage.ru_maxrss / 1e3}


def speeds(log: str) -> dict[str, float]:
    """Return the words and pairs per second of a log in JSON, without its first interval."""
    intervals: list[dict[str, float]] = []
    for line in log.splitlines():
        if "train_inner" in line:
            values = json.loads(line[line.index("{") :])
            intervals.append({name: float(value) for name, value in values.items()})
    words = pairs = seconds = 0.0
    for before, interval in pairwise(intervals):
        updates = interval["num_updates"] - before["num_updates"]
        words += updates * interval["wpb"]
        pairs += updates * interval["bsz"]
        # The log also has the updates per second, but rounded to two digits.
        seconds += updates * interval["wpb"] / interval["wps"]
    return {"words per second": words / seconds, "pairs per second": pairs / seconds}


def ours(
    system: str, data: Path, updates: int, precision: str, more: Iterable[str]
) -> dict[str, float]:
    """Train one of our systems, with `more` options."""
    recipe, *options = SYSTEMS[system]
    program = ("fairseq_lxsr.cli.main", "train", data, "--recipe", recipe, *options)
    return train((*program, "--cpu-precision", precision, *more), updates)


def fairseq_laser(data: Path, updates: int) -> dict[str, float]:
    """Train fairseq's LASER on the first language pair of the folder, in both directions."""
    import fairseq
    from fairseq.data import data_utils
    from fairseq.data.indexed_dataset import IndexedDatasetBuilder

    pair = sorted(path.name.split(".")[1] for path in data.glob("train.*.idx"))[0]
    languages = pair.split("-")
    with tempfile.TemporaryDirectory() as folder:
        directions = []
        for number, (source, target) in enumerate(permutations(languages)):
            corpus = Path(folder, "corpus", f"{source}-{target}")
            corpus.mkdir(parents=True)
            for language in languages:
                sentences = data_utils.load_indexed_dataset(
                    str(data / f"train.{pair}.{language}"), None
                )
                builder = IndexedDatasetBuilder(f"{corpus}/train.{language}.bin")
                for sentence in sentences:
                    builder.add_item(sentence)
                builder.finalize(f"{corpus}/train.{language}.idx")
            direction = {
                "type": "translation",
                "id": number,
                "src": f"{corpus}/train.{source}",
                "tgt": f"{corpus}/train.{target}",
            }
            directions.append(direction)
        dictionary = str(data / f"dict.{languages[0]}.txt")
        config = {
            "src_vocab": dictionary,
            "tgt_vocab": dictionary,
            "train": directions,
            "valid": directions,
        }
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config))
        plugin = Path(fairseq.__file__).parent / "examples" / "laser" / "laser_src"
        return train(("fairseq_cli.train", path, "--user-dir", plugin, *FAIRSEQ_LASER_1), updates)


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path, help="data folder of fairseq")
    systems = (*SYSTEMS, FAIRSEQ_LASER)
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=systems,
        default=["lxsr_base"],
        metavar="NAME",
        help=f"any of {', '.join(systems)} (default: lxsr_base)",
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        default=PRECISIONS,
        help="types of the matrix products (default: both)",
    )
    parser.add_argument("--updates", type=int, default=120, help="updates of a run (default: 120)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each system and precision (default: 3)"
    )
    parser.add_argument(
        "--options",
        default="",
        metavar="'--X Y'",
        help="options of `lxsr train` for all of our systems",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    data = args.data.absolute()
    more = shlex.split(args.options)
    runs: dict = {}
    for _ in range(args.repeats):
        for precision, system in product(args.precisions, args.systems):
            if system != FAIRSEQ_LASER:
                result = ours(system, data, args.updates, precision, more)
            elif precision == "float32":
                result = fairseq_laser(data, args.updates)
            else:
                continue
            runs.setdefault(f"{system}, {precision}", []).append(result)
            rounded = {key: round(value) for key, value in result.items()}
            print(system, precision, rounded, file=sys.stderr)
    show(runs)
    results = {"updates": args.updates, "options": args.options, "machine": machine(), "runs": runs}
    write_results(args.output, results)


def show(runs: dict[str, list[dict[str, float]]]) -> None:
    """Print the medians of the speeds and the peak of the memory."""
    print(f"{'':32}{'words/s (min - max)':>24}{'pairs/s':>10}{'peak MB':>10}")
    for name, results in runs.items():
        words = [result["words per second"] for result in results]
        pairs = statistics.median(result["pairs per second"] for result in results)
        memory = max(result["peak memory MB"] for result in results)
        spread = f"{statistics.median(words):.0f} ({min(words):.0f} - {max(words):.0f})"
        print(f"{name:32}{spread:>24}{pairs:10.0f}{memory:10.0f}")


if __name__ == "__main__":
    main()
