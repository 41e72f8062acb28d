"""Training, resuming and encoding on a GPU: speed, peak memory, and whether the losses are those of
the CPU.

python -m benchmarks.gpu --output benchmarks/speed/results/gpu.json  # five minutes on one GPU
python -m benchmarks.gpu --device cpu --small                       # every part of it, small,
without a GPU

- losses: loss and norm of the gradient of the paper's model, in every precision, against the CPU's
  in float32;
- steps: pairs a second and peak memory of such steps at two batch sizes, which gpu_predicted.py
  predicts;
- fairseq-train: 8 updates with --fp16 and --amp, and 8 more from the checkpoint;
- encoding: sentences a second and peak memory.

It ends with status 1 where a loss is another than on the CPU, or training did not go on, and with
status 2 where there is no GPU.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import script
from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from benchmarks.speed.paper_step import FIRST, PADDING, PIECES, VOCABULARY, PaperStep
from fairseq_lxsr.encoder.torch_network import NetworkCopies
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.packing import FlatPieces

# type of the weights, type of autocast
PRECISIONS = {
    "float32": (torch.float32, None),
    "fp16": (torch.float16, None),
    "bf16": (torch.bfloat16, None),
    "amp float16": (torch.float32, torch.float16),
    "amp bfloat16": (torch.float32, torch.bfloat16),
}
# relative
TOLERANCES = {
    "float32": 1e-3,
    "fp16": 2e-2,
    "bf16": 5e-2,
    "amp float16": 2e-2,
    "amp bfloat16": 5e-2,
}
FLAGS = ("--fp16", "--amp")  # of fairseq-train on a GPU; it takes --bf16 for TPUs
UPDATES = 8  # of each run of fairseq-train


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Args:
        batches: pairs of a batch.
        steps: steps timed at each batch size.
        sentences: sentences to encode.
        sizes: those of the encoder.
    """

    batches: tuple[int, ...]
    steps: int
    sentences: int
    sizes: Mapping[str, Any]


FULL = Scale(
    (128, 4096), 20, 100_000, {"vocab_size": VOCABULARY, "embed_dim": 512, "ffn_embed_dim": 1024}
)
SMALL = Scale((4, 8), 1, 20, {"vocab_size": 60, "embed_dim": 32, "ffn_embed_dim": 64})


def losses(device: str, scale: Scale) -> dict[str, Any]:
    """Loss and norm of the gradient in each precision, and their relative differences from the
    CPU's.
    """
    expected, found = measured("cpu", "float32", scale), {}
    for name in PRECISIONS:
        values = measured(device, name, scale)
        worst = max(abs(value - true) / true for value, true in zip(values, expected, strict=True))
        found[name] = {
            "loss": values[0],
            "norm": values[1],
            "difference": worst,
            "agrees": worst <= TOLERANCES[name],
        }
    return {"cpu": {"loss": expected[0], "norm": expected[1]}, **found}


def measured(device: str, precision: str, scale: Scale) -> tuple[float, float]:
    """Loss of a pair, and the norm of its gradient, without dropout."""
    step = PaperStep(device, pairs=scale.batches[0], dropout=0.0, **scale.sizes)
    step.model.to(PRECISIONS[precision][0])
    loss = forward_backward(step, device, precision)
    # the loss is scaled, as --fp16 does: gradients of a mean are too small for float16
    norms = [part.grad.float().norm() for part in step.model.parameters() if part.grad is not None]
    return loss / step.pairs, float(torch.stack(norms).norm()) / step.pairs


def forward_backward(step: PaperStep, device: str, precision: str) -> float:
    dtype = PRECISIONS[precision][1]
    with torch.autocast(device, dtype, enabled=dtype is not None):
        loss = step.loss()
    loss.backward()
    return float(loss.detach())


def steps(device: str, scale: Scale) -> list[dict[str, Any]]:
    """Pairs a second and peak memory of training steps with Adam, after two that are not timed."""
    found = []
    for pairs in scale.batches:
        for name, (dtype, _) in PRECISIONS.items():
            step = PaperStep(device, pairs=pairs, **scale.sizes)
            step.model.to(dtype)

            def some(count: int, step: PaperStep = step, name: str = name) -> None:
                for _ in range(count):
                    forward_backward(step, device, name)
                    step.update()

            some(2)
            seconds, memory = timed(lambda some=some: some(scale.steps), device)  # type: ignore[misc]
            speed = {"pairs per second": scale.steps * pairs / seconds, "peak GB": memory}
            found.append({"batch": pairs, "precision": name} | speed)
            report(f"batch {pairs}, {name}", speed)
    return found


def timed(run: Callable[[], object], device: str) -> tuple[float, float | None]:
    """Seconds until the device is done, and the peak of its memory in GB; a CPU has none of its
    own.
    """
    gpu = device != "cpu"
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if gpu else None


def train(device: str, scale: Scale) -> dict[str, Any]:
    """fairseq-train in each precision: an update count, a second run from the checkpoint, and what
    it logs.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder, "data"), scale)
        for flag in FLAGS if device != "cpu" else ("--cpu",):
            save_dir = Path(folder, flag.strip("-"))
            first, second = (
                fairseq_train(data, save_dir, flag, scale, number * UPDATES) for number in (1, 2)
            )
            resumed = (
                first["num_updates"] == UPDATES
                and second["num_updates"] == 2 * UPDATES
                and second["resumed"]
            )
            found[flag] = {"first": first, "second": second, "resumed": resumed}
            report(
                f"fairseq-train {flag}",
                {"resumed": resumed, "pairs per second": second["pairs per second"]},
            )
    return found


def fairseq_train(
    data: Path, save_dir: Path, flag: str, scale: Scale, updates: int
) -> dict[str, Any]:
    """One run of `--recipe paper`, which goes on from its checkpoint where there is one."""
    small = ("--arch", "lxsr_tiny") if scale is SMALL else ()
    log = script.train(
        *(
            data,
            "--recipe",
            "paper",
            flag,
            "--max-update",
            updates,
            "--batch-size",
            scale.batches[0],
        ),
        *("--save-dir", save_dir, "--disable-validation", "--log-format", "json"),
        *("--log-interval", UPDATES // 2, *small),
    )
    last = json.loads(re.findall(r"train_inner \| (\{.*\})", log)[-1])
    return {
        "num_updates": int(last["num_updates"]),
        "loss": float(last["loss"]),
        "pairs per second": float(last["wps"]) * float(last["bsz"]) / float(last["wpb"]),
        "resumed": "Loaded checkpoint" in log,
    }


def write_data(folder: Path, scale: Scale) -> Path:
    """A data folder of random sentences, as fairseq-preprocess writes it."""
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

    folder.mkdir(parents=True)
    rng, eos = np.random.default_rng(1), 2
    for language in ("en", "fr"):
        symbols = "".join(
            f"piece{number} 1\n" for number in range(scale.sizes["vocab_size"] - FIRST)
        )
        (folder / f"dict.{language}.txt").write_text(symbols)
        prefix = folder / f"train.en-fr.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
        for _ in range(2 * UPDATES * scale.batches[0]):
            pieces = rng.integers(FIRST, scale.sizes["vocab_size"], PIECES)
            builder.add_item(torch.from_numpy(np.append(pieces, eos)))
        builder.finalize(f"{prefix}.idx")
    return folder


def encode(device: str, scale: Scale) -> dict[str, Any]:
    """Sentences a second from ids to vectors in each precision, and the peak of the memory."""
    config = TransformerConfig(padding_idx=PADDING, **scale.sizes)
    copies = NetworkCopies(TransformerSentenceEncoder(config), device)
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 2 * PIECES, scale.sentences)
    ids = rng.integers(FIRST, scale.sizes["vocab_size"], lengths.sum())
    pieces = FlatPieces(ids, lengths.cumsum() - lengths, lengths)
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):

        def embed(dtype: str = dtype) -> None:
            for _ in copies.embed(pieces, 256, None, dtype):
                pass

        embed()
        seconds, memory = timed(embed, device)
        found[dtype] = {"sentences per second": scale.sentences / seconds, "peak GB": memory}
        report(f"encoding, {dtype}", found[dtype])
    return found


def report(name: str, values: dict[str, Any]) -> None:
    print(
        name,
        {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in values.items()
        },
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--small", action="store_true", help="every part, as small as it can be")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: error: no GPU; expected one, or --device cpu --small", file=sys.stderr)
        sys.exit(2)
    scale = SMALL if args.small else FULL
    results: dict[str, Any] = {"machine": machine(), "losses": losses(args.device, scale)}
    for name, values in results["losses"].items():
        report(f"loss, {name}", values)
    for part in (steps, encode, train):
        results[part.__name__] = part(args.device, scale)
        write_results(args.output, results)  # of each part: what ends it early loses the rest alone
    with contextlib.suppress(KeyError):
        failed = [name for name in PRECISIONS if not results["losses"][name]["agrees"]]
        failed += [flag for flag, runs in results["train"].items() if not runs["resumed"]]
        if failed:
            sys.exit(f"gpu.py: {', '.join(failed)}: not as on the CPU, or not resumed")


if __name__ == "__main__":
    main()
