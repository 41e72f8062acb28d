"""Time and memory of training by the number of layers: table 5 of Mao et al. 2021.

python -m benchmarks.speed.layers --output FILE.json

A step is ugt + align + sim with Adam, on random sentences of 15 pieces, and the numbers of layers
are those of the table. Each runs in a new process. On a GPU, the memory is the peak of the tensors;
on a CPU, it is that of the process. The paper measured 10,000 updates on a V100.
"""

import os
import sys
import time
from typing import Any

import torch

from benchmarks.machine import machine
from benchmarks.processes import entry
from benchmarks.script import alone, command_line, write_results
from benchmarks.speed.paper_step import PaperStep

LAYERS = [1, 2, 3, 4, 6]
UPDATES = 10_000
# Updates before the timed ones.
UNTIMED = 3


def measure(layers: int, args: Any) -> dict[str, float]:
    """Return the minutes of 10,000 updates and the peak of the memory in MB."""
    step = PaperStep(args.device, layers, args.pairs)

    def train(count: int) -> None:
        for _ in range(count):
            step.loss().backward()
            step.update()
        if args.device == "cuda":
            torch.cuda.synchronize()

    train(UNTIMED)
    start = time.perf_counter()
    train(args.updates)
    seconds = time.perf_counter() - start
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = entry(os.getpid(), "status", "VmHWM")
    return {"minutes": seconds / args.updates * UPDATES / 60, "MB": peak / 1e6}


def main() -> None:
    parser = command_line(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=device, help="default: a GPU if there is one"
    )
    parser.add_argument(
        "--layers", nargs="+", type=int, default=LAYERS, metavar="N", help="default: of the table"
    )
    for name, default, meaning in (
        ("--pairs", 128, "pairs of a batch"),
        ("--updates", 50, "timed updates"),
    ):
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{meaning} (default: {default})"
        )
    args = parser.parse_args()
    rows = {}
    for layers in args.layers:
        rows[layers] = alone(measure, layers, args)
        print(f"{layers} layers: {rows[layers]}", file=sys.stderr)
    results = {"machine": machine(), "device": args.device, "pairs": args.pairs, "layers": rows}
    write_results(args.output, results)


if __name__ == "__main__":
    main()
