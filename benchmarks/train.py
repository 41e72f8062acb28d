"""Pairs per second and peak memory of training through fairseq-train, on a CPU.

python benchmarks/train.py DATA_BIN --output benchmarks/results/train.json

DATA_BIN is a folder of `lxsr prepare`; the paper's size is --vocab-size 50000. Precisions take turns, so that a noisy
machine is noisy for all of them; each repeat is a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

ROOT = Path(__file__).parent.parent
LOG_INTERVAL = 10
PRECISIONS = ("float32", "bfloat16")


def train(data: Path, arch: str, updates: int, precision: str) -> dict[str, float]:
    """One run; the first log interval is warm-up and left out.

    Returns: pairs and word pieces per second, peak resident memory in MB.
    """
    with tempfile.TemporaryDirectory() as save_dir:
        command = [
            *(sys.executable, "-m", "fairseq_cli.train", data, "--user-dir", "fairseq_lxsr", "--task", "xling_sent"),
            *("--arch", arch, "--criterion", "xling_sent_loss", "--cpu", "--cpu-precision", precision),
            *("--optimizer", "adam", "--lr", 0.001, "--weight-decay", 1e-5, "--lr-scheduler", "inverse_sqrt"),
            *("--warmup-updates", 1000, "--batch-size", 128, "--max-update", updates, "--disable-validation"),
            *("--no-save", "--save-dir", save_dir, "--log-format", "json", "--log-interval", LOG_INTERVAL),
        ]
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"fairseq-train failed:\n{output[-2000:]}")
    lines = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "train_inner" in line]
    measured = [{name: float(line[name]) for name in ("ups", "bsz", "wpb")} for line in lines[1:]]
    seconds = sum(1 / line["ups"] for line in measured)
    return {
        "pairs per second": sum(line["bsz"] for line in measured) / seconds,
        "pieces per second": sum(line["wpb"] for line in measured) / seconds,
        "peak memory MB": usage.ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="fairseq data folder")
    parser.add_argument("--arch", default="lxsr_base", help="preset (default: lxsr_base)")
    parser.add_argument("--updates", type=int, default=120, help="updates of a run (default: 120)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each precision (default: 3)")
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {precision: [] for precision in PRECISIONS}
    for _ in range(args.repeats):
        for precision in PRECISIONS:
            runs[precision].append(train(args.data.absolute(), args.arch, args.updates, precision))
            print(precision, {key: round(value) for key, value in runs[precision][-1].items()}, file=sys.stderr)
    print(f"{'':24}{'pairs/s (min - max)':>24}{'pieces/s':>12}{'peak MB':>10}")
    for name, results in runs.items():
        pairs, pieces, memory = ([result[key] for result in results] for key in results[0])
        spread = f"{statistics.median(pairs):.0f} ({min(pairs):.0f} - {max(pairs):.0f})"
        print(f"{name:24}{spread:>24}{statistics.median(pieces):12.0f}{max(memory):10.0f}")
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(
            json.dumps({"arch": args.arch, "updates": args.updates, "machine": machine(), "runs": runs}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
