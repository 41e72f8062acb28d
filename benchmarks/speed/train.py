"""Words per second and peak memory of training through fairseq-train, on a CPU.

python -m benchmarks.speed.train DATA_BIN --updates 80 --output benchmarks/speed/results/train.json
python -m benchmarks.speed.train DATA_BIN --systems laser_1 laser_6 ... --repeats 1 --updates 5
--precisions bfloat16
    --output benchmarks/speed/results/train_laser_family.json      # and with --updates 4
    --precisions float32

DATA_BIN is a folder of `lxsr prepare`; the papers' size is --vocab-size 50000. Systems and
precisions take turns, so that a noisy machine is noisy for all of them; each repeat is a process of
its own. `fairseq_laser_lstm` is LASER_1 as fairseq's examples/laser has it, on the same text and
with the same batches by tokens, in float32 (it has no other on a CPU). Words are pieces of the
target, of both sides for the lightweight model.
"""

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
SYSTEMS = {
    "lxsr_base": ("paper", "--log-interval", "10"),
    "laser_1": ("laser_1", *TRANSLATION),
    "laser_6": ("laser_6", *TRANSLATION),
    "claser_6": ("claser_6", *TRANSLATION),
    "tlaser": ("tlaser", *TRANSLATION),
    "ctlaser": ("ctlaser", *TRANSLATION),
}  # a recipe of `lxsr recipes` and options
FAIRSEQ_LASER = "fairseq_laser_lstm"
FAIRSEQ_LASER_1 = (
    *(
        "--task",
        "laser",
        "--arch",
        "laser_lstm",
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
    ),
    *("0.1", "--encoder-bidirectional", "--encoder-layers", "1", "--encoder-hidden-size", "512"),
    *("--encoder-embed-dim", "320", "--decoder-embed-dim", "1024", "--decoder-layers", "1"),
    *(
        "--decoder-hidden-size",
        "2048",
        "--decoder-out-embed-dim",
        "2048",
        "--decoder-lang-embed-dim",
        "32",
    ),
    *(
        "--optimizer",
        "adam",
        "--adam-betas",
        "(0.9, 0.98)",
        "--weight-decay",
        "1e-4",
        "--lr",
        "0.001",
    ),
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "1000", *LIMITS),
)


def train(program: Iterable[object], updates: int) -> dict[str, float]:
    """One run of a module with its arguments; the first log interval is warm-up and left out.

    Returns: words and pairs per second, peak resident memory in MB.
    """
    with tempfile.TemporaryDirectory() as save_dir:
        command = [
            *(
                sys.executable,
                "-m",
                *program,
                "--cpu",
                "--max-update",
                updates,
                "--disable-validation",
                "--no-save",
            ),
            *("--save-dir", save_dir, "--log-format", "json"),
        ]
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
    lines = [
        json.loads(line[line.index("{") :]) for line in output.splitlines() if "train_inner" in line
    ]
    numbers = [{name: float(value) for name, value in line.items()} for line in lines]
    counts = [line["num_updates"] - before["num_updates"] for before, line in pairwise(numbers)]
    timed = numbers[1:]
    # not by `ups`, which is rounded to two digits
    seconds = sum(
        count * line["wpb"] / line["wps"] for count, line in zip(counts, timed, strict=True)
    )
    return {
        "words per second": sum(
            count * line["wpb"] for count, line in zip(counts, timed, strict=True)
        )
        / seconds,
        "pairs per second": sum(
            count * line["bsz"] for count, line in zip(counts, timed, strict=True)
        )
        / seconds,
        "peak memory MB": usage.ru_maxrss / 1e3,
    }


def ours(
    system: str, data: Path, updates: int, precision: str, more: Iterable[str]
) -> dict[str, float]:
    recipe, *options = SYSTEMS[system]
    program = (
        "fairseq_lxsr.cli.main",
        "train",
        data,
        "--recipe",
        recipe,
        *options,
        "--cpu-precision",
        precision,
    )
    return train((*program, *more), updates)


def fairseq_laser(data: Path, updates: int) -> dict[str, float]:
    """fairseq's own LASER on the first language pair of the folder, both directions."""
    import fairseq
    from fairseq.data import data_utils
    from fairseq.data.indexed_dataset import IndexedDatasetBuilder

    pair = sorted(path.name.split(".")[1] for path in data.glob("train.*.idx"))[0]
    languages = pair.split("-")
    with tempfile.TemporaryDirectory() as folder:
        for source, target in permutations(languages):
            Path(folder, "corpus", f"{source}-{target}").mkdir(parents=True)
            for language in languages:
                prefix = Path(folder, "corpus", f"{source}-{target}", f"train.{language}")
                builder = IndexedDatasetBuilder(f"{prefix}.bin")
                for sentence in data_utils.load_indexed_dataset(
                    str(data / f"train.{pair}.{language}"), None
                ):
                    builder.add_item(sentence)
                builder.finalize(f"{prefix}.idx")
        config = {
            f"{side}_vocab": str(data / f"dict.{languages[0]}.txt") for side in ("src", "tgt")
        }
        directions = [
            {
                "type": "translation",
                "id": number,
                "src": f"{folder}/corpus/{source}-{target}/train.{source}",
                "tgt": f"{folder}/corpus/{source}-{target}/train.{target}",
            }
            for number, (source, target) in enumerate(permutations(languages))
        ]
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config | {"train": directions, "valid": directions}))
        plugin = Path(fairseq.__file__).parent / "examples" / "laser" / "laser_src"
        return train(("fairseq_cli.train", path, "--user-dir", plugin, *FAIRSEQ_LASER_1), updates)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path, help="fairseq data folder")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=(*SYSTEMS, FAIRSEQ_LASER),
        default=["lxsr_base"],
        metavar="NAME",
        help=f"of {', '.join((*SYSTEMS, FAIRSEQ_LASER))} (default: lxsr_base)",
    )
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="default: both"
    )
    parser.add_argument("--updates", type=int, default=120, help="updates of a run (default: 120)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument(
        "--options", default="", metavar="'--X Y'", help="of `lxsr train`, for all systems of ours"
    )
    args = parser.parse_args()
    data = args.data.absolute()
    runs: dict = {}
    for _ in range(args.repeats):
        for precision, system in product(args.precisions, args.systems):
            if system == FAIRSEQ_LASER and precision != "float32":
                continue
            if system == FAIRSEQ_LASER:
                result = fairseq_laser(data, args.updates)
            else:
                result = ours(system, data, args.updates, precision, shlex.split(args.options))
            runs.setdefault(f"{system}, {precision}", []).append(result)
            print(
                system,
                precision,
                {key: round(value) for key, value in result.items()},
                file=sys.stderr,
            )
    show(runs)
    results = {"updates": args.updates, "options": args.options, "machine": machine(), "runs": runs}
    write_results(args.output, results)


def show(runs: dict[str, list[dict[str, float]]]) -> None:
    print(f"{'':32}{'words/s (min - max)':>24}{'pairs/s':>10}{'peak MB':>10}")
    for name, results in runs.items():
        words = [result["words per second"] for result in results]
        pairs = statistics.median(result["pairs per second"] for result in results)
        memory = max(result["peak memory MB"] for result in results)
        spread = f"{statistics.median(words):.0f} ({min(words):.0f} - {max(words):.0f})"
        print(f"{name:32}{spread:>24}{pairs:10.0f}{memory:10.0f}")


if __name__ == "__main__":
    main()
