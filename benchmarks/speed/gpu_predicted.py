"""Predict time and memory of training on a GPU, from shapes alone and without a GPU.

python -m benchmarks.speed.gpu_predicted --output benchmarks/speed/results/gpu_predicted.json

The steps run on torch's device `meta` under CUDA's autocast (`meta_device`). torch's FLOP counter
counts the multiplications, and its memory tracker finds the peak memory; the bytes are those of the
tensors that each operation reads and writes. The time of an operation is the longest of three: its
FLOPs at a share of the published peak, its bytes at a share of the published bandwidth, and the
time in which eager PyTorch launches it. The memory is that of the tensors: the context of CUDA,
about half a gigabyte, and the fragmentation of the allocator come on top. `benchmarks/gpu.py`
measures the same on a GPU.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

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

# The sizes to predict: numbers of layers and pairs of a batch; updates of a training.
LAYERS = range(1, 7)
BATCHES = (128, 4096)
UPDATES = 10_000
# Assumptions: shares of the published ceilings that are reached, seconds to launch an operation.
SHARE_OF_PEAK = 0.5
SHARE_OF_BANDWIDTH = 0.8
LAUNCH = 10e-6
# Operations that move no data.
FREE = ("empty", "empty_like", "detach")


@dataclass(frozen=True)
class Gpu:
    """The ceilings of a GPU that NVIDIA publishes.

    Attributes:
        name: name of the GPU.
        source: document with the numbers.
        half: type of autocast on this GPU.
        half_flops: FLOP/s of dense products in that type.
        float_flops: FLOP/s in float32.
        bandwidth: bytes per second of the memory.
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


class Cost(NamedTuple):
    """The cost of an operation.

    Attributes:
        dtype: type of its first floating point tensor, an empty string if it has none.
        flops: floating point operations.
        bytes: bytes that it reads and writes.
    """

    dtype: str
    flops: float
    bytes: float


@dataclass
class Costs(TorchDispatchMode):
    """Records the cost of every operation that runs inside the context."""

    operations: list[Cost] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation and record its cost; views cost nothing."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view and func.overloadpacket.__name__ not in FREE:
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **kwargs, out_val=result) if count else 0
            self.operations.append(cost_of(flops, (args, kwargs, result)))
        return result

    def seconds(self, gpu: Gpu) -> float:
        """Predict the time of all operations, one after the other."""
        peak = {str(torch.bfloat16): gpu.half_flops}
        total = 0.0
        for cost in self.operations:
            computing = cost.flops / (SHARE_OF_PEAK * peak.get(cost.dtype, gpu.float_flops))
            moving = cost.bytes / (SHARE_OF_BANDWIDTH * gpu.bandwidth)
            total += max(computing, moving, LAUNCH)
        return total


def cost_of(flops: float, values: Any) -> Cost:
    """Return the cost of an operation on tensors, which may be nested."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    dtypes = (str(tensor.dtype) for tensor in tensors if tensor.is_floating_point())
    return Cost(next(dtypes, ""), flops, sum(map(size_of, tensors)))


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor, without those that it repeats."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    sizes = [size for size, stride in strides if stride]
    return int(np.prod(sizes, dtype=np.int64)) * tensor.element_size()


def run_step(step: PaperStep, dtype: torch.dtype | None) -> None:
    """Run a step under autocast to `dtype`; an operation that would make a GPU wait raises."""
    with without_waiting(), cuda_autocast(dtype):
        loss = step.loss()
    with without_waiting(), cuda_autocast(None):
        loss.backward()
    step.update()


def predict(layers: int, pairs: int, **sizes: int) -> dict[str, Any]:
    """Predict FLOPs, bytes and peak memory of a step, and from them the time on each GPU.

    Both half types cost the same.

    Args:
        layers: number of layers.
        pairs: number of pairs of a batch.
        sizes: further sizes, see `PaperStep`.
    """
    step = PaperStep("meta", layers, pairs, **sizes)
    costs = Costs()
    flops = FlopCounterMode(display=False)
    memory = MemTracker()
    # The first step allocates the state of the optimizer.
    run_step(step, torch.bfloat16)
    memory.track_external(step.model, step.optimizer)
    with memory, costs, flops:
        run_step(step, torch.bfloat16)
    peak = sum(kinds["Total"] for kinds in memory.get_tracker_snapshot("peak").values())
    prediction: dict[str, Any] = {
        "layers": layers,
        "batch": pairs,
        "TFLOP": flops.get_total_flops() / 1e12,
        "GB moved": sum(cost.bytes for cost in costs.operations) / 1e9,
        "operations": len(costs.operations),
        "peak GB": peak / 1e9,
    }
    for gpu in GPUS:
        seconds = costs.seconds(gpu)
        prediction[gpu.name] = {
            "ms": seconds * 1e3,
            f"minutes of {UPDATES:,} updates": seconds * UPDATES / 60,
        }
    return prediction


def predictions(
    layers: Iterable[int], batches: Iterable[int], **sizes: int
) -> list[dict[str, Any]]:
    """Predict all combinations of layers and batch sizes, the smallest batch first."""
    return [predict(count, pairs, **sizes) for pairs in batches for count in layers]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of benchmarks/notebook/performance.md."""
    gpu_heads = " | ".join(f"{gpu.name}: ms; min" for gpu in GPUS)
    print(f"| layers | B | TFLOP a step | GB | {gpu_heads} |")
    print("|---" * (4 + len(GPUS)) + "|")
    for row in rows:
        cells = [row["layers"], f"{row['batch']:,}", f"{row['TFLOP']:.2f}", f"{row['peak GB']:.1f}"]
        for gpu in GPUS:
            minutes = row[gpu.name][f"minutes of {UPDATES:,} updates"]
            cells.append(f"{row[gpu.name]['ms']:.0f}; {minutes:.1f}")
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    args = command_line(__doc__).parse_args()
    rows = predictions(LAYERS, BATCHES)
    show(rows)
    results = {
        "predicted": rows,
        "assumed": {
            "share of peak": SHARE_OF_PEAK,
            "share of bandwidth": SHARE_OF_BANDWIDTH,
            "seconds of a launch": LAUNCH,
        },
        "gpus": [asdict(gpu) for gpu in GPUS],
        "pieces": PIECES,
        "vocabulary": VOCABULARY,
        "machine": machine(),
    }
    write_results(args.output, results)


if __name__ == "__main__":
    main()
