"""Time and memory of training on a GPU, predicted from shapes: nothing is computed, and no GPU is
needed.

python -m benchmarks.speed.gpu_predicted --output benchmarks/speed/results/gpu_predicted.json

The steps run on torch's device `meta` with CUDA's autocast (`meta_device`). Multiplications are
counted by torch's FLOP counter, the peak of the memory by its memory tracker, bytes by the tensors
that each operation reads and writes. An operation takes the longest of three times: its FLOPs at a
share of the published peak, its bytes at a share of the published bandwidth, and what eager PyTorch
takes to launch it. The memory is that of the tensors: the context of CUDA, about half a gigabyte,
and the fragments of the allocator come on top. `benchmarks/gpu.py` measures the same on a GPU.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from benchmarks.speed.meta_device import cuda_autocast, without_waiting
from benchmarks.speed.paper_step import PIECES, VOCABULARY, PaperStep

LAYERS, BATCHES, UPDATES = range(1, 7), (128, 4096), 10_000
# assumed: shares of the ceilings, seconds of an operation
OF_PEAK, OF_BANDWIDTH, LAUNCH = (0.5, 0.8, 10e-6)


@dataclass(frozen=True)
class Gpu:
    """Ceilings that NVIDIA publishes.

    Args:
        name: name of the GPU.
        source: where they stand.
        half: type of autocast there.
        half_flops: FLOP/s of products in that type, dense.
        float_flops: FLOP/s in float32.
        bandwidth: bytes a second of the memory.
    """

    name: str
    source: str
    half: str
    half_flops: float
    float_flops: float
    bandwidth: float


GPUS = (
    Gpu("V100", "NVIDIA V100 data sheet, SXM2", "float16", 125e12, 15.7e12, 0.9e12),
    Gpu("H100", "NVIDIA H100 data sheet, SXM5", "bfloat16", 989.5e12, 67e12, 3.35e12),
)


@dataclass
class Costs(TorchDispatchMode):
    """FLOPs and bytes of every operation that runs inside."""

    operations: list[tuple[str, float, float]] = field(default_factory=list)  # type, FLOPs, bytes

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation and note it; views cost nothing."""
        result = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket.__name__ in ("empty", "empty_like", "detach"):
            return result
        count = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        tensors = [
            value for value in tree_leaves((args, kwargs, result)) if isinstance(value, Tensor)
        ]
        kind = next((str(value.dtype) for value in tensors if value.is_floating_point()), "")
        self.operations.append((kind, flops, sum(moved(value) for value in tensors)))
        return result

    def seconds(self, gpu: Gpu) -> float:
        """Predict the time of all operations, one after the other."""
        peak = {str(torch.bfloat16): gpu.half_flops}
        return sum(
            max(
                flops / (OF_PEAK * peak.get(kind, gpu.float_flops)),
                size / (OF_BANDWIDTH * gpu.bandwidth),
                LAUNCH,
            )
            for kind, flops, size in self.operations
        )


def moved(value: Tensor) -> int:
    """Bytes of a tensor, without what it repeats."""
    sizes = (size for size, stride in zip(value.shape, value.stride(), strict=True) if stride)
    return int(np.prod(list(sizes), dtype=np.int64)) * value.element_size()


def run_step(step: PaperStep, dtype: torch.dtype | None) -> None:
    """Run a step under autocast to `dtype`; whatever would make a GPU wait raises an error."""
    with without_waiting(), cuda_autocast(dtype):
        loss = step.loss()
    with without_waiting(), cuda_autocast(None):
        loss.backward()
    step.update()


def predict(layers: int, pairs: int, **sizes: int) -> dict[str, Any]:
    """FLOPs, bytes and peak memory of a step, and from them the time on each GPU; both half types
    take as much.
    """
    step = PaperStep("meta", layers, pairs, **sizes)
    costs, flops, memory = Costs(), FlopCounterMode(display=False), MemTracker()
    run_step(step, torch.bfloat16)  # makes the moments of the optimizer
    memory.track_external(step.model, step.optimizer)
    with memory, costs, flops:
        run_step(step, torch.bfloat16)
    peak = sum(kinds["Total"] for kinds in memory.get_tracker_snapshot("peak").values())
    found: dict[str, Any] = {
        "layers": layers,
        "batch": pairs,
        "TFLOP": flops.get_total_flops() / 1e12,
        "GB moved": sum(size for *_, size in costs.operations) / 1e9,
        "operations": len(costs.operations),
        "peak GB": peak / 1e9,
    }
    for gpu in GPUS:
        seconds = costs.seconds(gpu)
        found[gpu.name] = {
            "ms": seconds * 1e3,
            f"minutes of {UPDATES:,} updates": seconds * UPDATES / 60,
        }
    return found


def predictions(
    layers: Iterable[int], batches: Iterable[int], **sizes: int
) -> list[dict[str, Any]]:
    """Predict every size, the smallest first."""
    return [predict(count, pairs, **sizes) for pairs in batches for count in layers]


def main() -> None:
    parser = command_line(__doc__)
    args = parser.parse_args()
    rows = predictions(LAYERS, BATCHES)
    show(rows)
    assumed = {
        "share of peak": OF_PEAK,
        "share of bandwidth": OF_BANDWIDTH,
        "seconds of a launch": LAUNCH,
    }
    gpus = [asdict(gpu) for gpu in GPUS]
    results = {
        "predicted": rows,
        "assumed": assumed,
        "gpus": gpus,
        "pieces": PIECES,
        "vocabulary": VOCABULARY,
    }
    write_results(args.output, results | {"machine": machine()})


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of benchmarks/notebook/performance.md."""
    print(
        "| layers | B | TFLOP a step | GB | "
        + " | ".join(f"{gpu.name}: ms; min" for gpu in GPUS)
        + " |"
    )
    print("|---" * (4 + len(GPUS)) + "|")
    for row in rows:
        cells = [row["layers"], f"{row['batch']:,}", f"{row['TFLOP']:.2f}", f"{row['peak GB']:.1f}"]
        for gpu in GPUS:
            minutes = row[gpu.name][f"minutes of {UPDATES:,} updates"]
            cells.append(f"{row[gpu.name]['ms']:.0f}; {minutes:.1f}")
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
