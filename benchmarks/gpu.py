"""Training and encoding on a GPU: whether the results are those of the CPU, and how fast it is.

python -m benchmarks.gpu --output benchmarks/speed/results/gpu.json  # four minutes on one GPU
python -m benchmarks.gpu --device cpu --small                        # every part, without a GPU

- losses: the loss and the norm of the gradient of the paper's model, in every precision, against
  the CPU's in float32;
- steps: pairs a second and peak memory of training steps at two batch sizes, with and without CUDA
  graphs; gpu_predicted.py predicts those without;
- encode: sentences a second and peak memory;
- vectors: embeddings against the CPU's, and whether they depend on the batch;
- objectives: the losses of every task and kind of loss for some updates, against the CPU's;
- precisions: fairseq-train with each option for precision, on the text of --data-bin; a run that
  was interrupted against one that was not, and a run against its repetition;
- speed: fairseq-train alone, with and without CUDA graphs.

A part that fails leaves its error in the results, and the others run. The exit status is 1 if a
part failed or a result differs from the CPU's, and 2 without a GPU.
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT, script
from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from benchmarks.speed.paper_step import FIRST, PADDING, PIECES, VOCABULARY, PaperStep
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.encoder.torch_network import NetworkCopies
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.packing import FlatPieces

# Type of the weights, and type of autocast.
PRECISIONS = {
    "float32": (torch.float32, None),
    "fp16": (torch.float16, None),
    "bf16": (torch.bfloat16, None),
    "amp float16": (torch.float32, torch.float16),
    "amp bfloat16": (torch.float32, torch.bfloat16),
}
# Largest relative differences of losses from the CPU's in float32.
TOLERANCES = {
    "float32": 1e-3,
    "fp16": 2e-2,
    "bf16": 5e-2,
    "amp float16": 2e-2,
    "amp bfloat16": 5e-2,
}
# Largest differences of embeddings of length one from the CPU's in float32.
VECTOR_TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}
# Options of fairseq-train for the part `precisions`.
RUNS = {
    "float32": (),
    "again": (),
    "tf32": ("--tf32",),
    "amp": ("--amp",),
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "graphs": ("--cuda-graphs",),
    "graphs amp": ("--cuda-graphs", "--amp"),
    "graphs bf16": ("--cuda-graphs", "--bf16"),
}
# Largest relative difference of the loss from that of float32 at the end.
LOSS_TOLERANCE = 0.03
GOLDEN = ROOT / "tests" / "golden" / "compatibility"
SMALL_MODEL = (
    *("--arch", "lxsr_tiny", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "16"),
    *("--encoder-attention-heads", "2", "--batch-size", "16", "--max-positions", "24"),
)
XLING_SENT = ("--task", "xling_sent", "--criterion", "xling_sent_loss", *SMALL_MODEL)
TRANSLATION = (
    *("--task", "xling_translation", "--criterion", "xling_translation_loss"),
    *("--max-positions", "24", "--max-tokens", "400", "--constraint", "norm"),
    # The device draws the negatives, so a GPU and a CPU draw others.
    *("--negative-weight", "0"),
)
CONTEXT = (
    *("--task", "sent_context", "--criterion", "sent_context_loss"),
    *("--arch", "context_transformer_tiny", "--encoder-embed-dim", "8"),
    *("--encoder-ffn-embed-dim", "16", "--encoder-attention-heads", "2", "--langs", "en,fr"),
    *("--max-positions", "40", "--batch-size", "16"),
)
# Maps each name of the part `objectives` to its fairseq-train options.
OBJECTIVES = {
    **{
        name: (*XLING_SENT, "--objective", name, "--encoder-layers", "2")
        for name in ("ugt", "xtr", "smlm", "mlm", "mlm_xtr")
    },
    "no layers": (*XLING_SENT, "--encoder-layers", "0", "--gated", "--order-coefficients", "1"),
    "hard negatives": (*XLING_SENT, "--objective", "none", "--hard-negatives", "both"),
    "matryoshka": (*XLING_SENT, "--matryoshka", "2,4"),
    "distillation": (*XLING_SENT, "--teacher-embeddings", "{teacher}"),
    "word dropout": (*XLING_SENT, "--word-dropout", "0.2", "--subword-dropout", "0.2"),
    "shuffled": (*XLING_SENT, "--batches", "shuffled"),
    "laser": (*TRANSLATION, "--arch", "laser_tiny"),
    "tlaser": (*TRANSLATION, "--arch", "tlaser_tiny"),
    "context": CONTEXT,
}
OBJECTIVE_UPDATES = 20
OBJECTIVE_TOLERANCE = 1e-3
# Processes at once. Each spends most of its time on the CPU.
TOGETHER = 8


@dataclass(frozen=True)
class Scale:
    """The size of the measurement.

    Attributes:
        batches: numbers of pairs of a batch.
        steps: number of timed steps per batch size.
        sentences: number of sentences to encode.
        updates: number of updates per run of fairseq-train.
        sizes: sizes of the model, as fields of `TransformerConfig`.
        options: fairseq-train options for a model of this size.
        objectives: names in `OBJECTIVES`.
    """

    batches: tuple[int, ...]
    steps: int
    sentences: int
    updates: int
    sizes: Mapping[str, Any]
    options: tuple[str, ...] = ()
    objectives: tuple[str, ...] = tuple(OBJECTIVES)


FULL = Scale(
    (128, 4096),
    20,
    100_000,
    200,
    {"vocab_size": VOCABULARY, "embed_dim": 512, "ffn_embed_dim": 1024},
)
SMALL = Scale(
    (4, 8),
    1,
    20,
    8,
    {"vocab_size": 60, "embed_dim": 32, "ffn_embed_dim": 64},
    ("--arch", "lxsr_tiny"),
    ("ugt", "context"),
)


@dataclass(frozen=True)
class Setting:
    """What the parts need to know.

    Attributes:
        device: cuda or cpu.
        scale: size of the measurement.
        data_bin: the training text.
        folder: a folder for checkpoints.
    """

    device: str
    scale: Scale
    data_bin: Path
    folder: Path

    @property
    def runs(self) -> dict[str, tuple[str, ...]]:
        """The runs of the part `precisions` that this device supports."""
        if self.device == "cpu":
            return {"float32": ("--cpu",), "again": ("--cpu",)}
        return RUNS


def losses(setting: Setting) -> dict[str, Any]:
    """Compare the loss and the norm of the gradient in each precision with the CPU's."""
    expected = measure_loss("cpu", "float32", setting.scale)
    results: dict[str, Any] = {"cpu": {"loss": expected[0], "norm": expected[1]}}
    for name, tolerance in TOLERANCES.items():
        loss, norm = measure_loss(setting.device, name, setting.scale)
        difference = max(
            abs(loss - expected[0]) / expected[0], abs(norm - expected[1]) / expected[1]
        )
        results[name] = {
            "loss": loss,
            "norm": norm,
            "difference": difference,
            "agrees": difference <= tolerance,
        }
    return results


def measure_loss(device: str, precision: str, scale: Scale) -> tuple[float, float]:
    """Return the loss of a pair, and the norm of its gradient, without dropout."""
    step = PaperStep(device, pairs=scale.batches[0], dropout=0.0, **scale.sizes)
    step.model.to(PRECISIONS[precision][0])
    loss = forward_backward(step, device, precision)
    # The loss is a sum over the pairs, because the gradients of a mean are too small for float16.
    norms = [part.grad.float().norm() for part in step.model.parameters() if part.grad is not None]
    return loss / step.pairs, float(torch.stack(norms).norm()) / step.pairs


def forward_backward(step: PaperStep, device: str, precision: str) -> float:
    """Compute the gradients of a batch, and return its loss."""
    dtype = PRECISIONS[precision][1]
    with torch.autocast(device, dtype, enabled=dtype is not None):
        loss = step.loss()
    loss.backward()
    return float(loss.detach())


def steps(setting: Setting) -> list[dict[str, Any]]:
    """Measure pairs a second and peak memory of training steps with Adam."""
    results = []
    graphs = (False, True) if setting.device == "cuda" else (False,)
    for pairs, name, is_graphed in itertools.product(setting.scale.batches, PRECISIONS, graphs):
        row: dict[str, Any] = {"batch": pairs, "precision": name, "graphs": is_graphed}
        try:
            row |= time_steps(setting, pairs, name, is_graphed)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        report(f"batch {pairs}, {name}, graphs {is_graphed}", row)
        results.append(row)
    return results


def time_steps(setting: Setting, pairs: int, precision: str, is_graphed: bool) -> dict[str, Any]:
    """Time training steps, after some that are not timed."""
    step = PaperStep(setting.device, pairs=pairs, **setting.scale.sizes)
    step.model.to(PRECISIONS[precision][0])
    if is_graphed:
        step.use_graphs()

    def train(count: int) -> None:
        for _ in range(count):
            forward_backward(step, setting.device, precision)
            step.update()

    train(3)
    seconds, memory = timed(lambda: train(setting.scale.steps), setting.device)
    return {"pairs per second": setting.scale.steps * pairs / seconds, "peak GB": memory}


def timed(run: Callable[[], object], device: str) -> tuple[float, float | None]:
    """Return the seconds until the device is done, and the peak of its memory in GB.

    A CPU has no memory of its own.
    """
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start, None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() / 1e9


def random_pieces(scale: Scale) -> FlatPieces:
    """Return random sentences of 1 to 29 pieces."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 2 * PIECES, scale.sentences)
    ids = rng.integers(FIRST, scale.sizes["vocab_size"], lengths.sum())
    return FlatPieces(ids, lengths.cumsum() - lengths, lengths)


def encode(setting: Setting) -> dict[str, Any]:
    """Measure sentences a second from ids to embeddings in each precision."""
    config = TransformerConfig(padding_idx=PADDING, **setting.scale.sizes)
    copies = NetworkCopies(TransformerSentenceEncoder(config), setting.device)
    pieces = random_pieces(setting.scale)
    results = {}
    for dtype in VECTOR_TOLERANCES:

        def embed(dtype: str = dtype) -> None:
            for _ in copies.embed(pieces, 256, None, dtype):
                pass

        embed()
        seconds, memory = timed(embed, setting.device)
        results[dtype] = {"sentences per second": len(pieces.starts) / seconds, "peak GB": memory}
        report(f"encoding, {dtype}", results[dtype])
    return results


def vectors(setting: Setting) -> dict[str, Any]:
    """Compare embeddings of two networks with layers with the CPU's, and with other batches."""
    few = Scale((), 0, min(2000, setting.scale.sentences), 0, setting.scale.sizes)
    pieces = random_pieces(few)
    results = {}
    networks: dict[str, dict[str, Any]] = {
        "layers": {},
        "gated layers, order": {"gated": True, "order_coefficients": 2},
    }
    for name, options in networks.items():
        torch.manual_seed(1)
        config = TransformerConfig(padding_idx=PADDING, **setting.scale.sizes, **options)
        network = TransformerSentenceEncoder(config)
        for weight_name, weight in network.named_parameters():
            # Gates of zero would hide the layers.
            if weight_name.endswith(".gates"):
                torch.nn.init.normal_(weight, std=0.3)
        expected = unit_vectors(NetworkCopies(network, "cpu"), pieces, 256, "float32")
        copies = NetworkCopies(network, setting.device)
        for dtype, tolerance in VECTOR_TOLERANCES.items():
            embedded = unit_vectors(copies, pieces, 256, dtype)
            difference = float(np.abs(embedded - expected).max())
            row = {"difference": difference, "agrees": difference <= tolerance}
            if dtype == "float32":
                small = unit_vectors(copies, pieces, 1, dtype)
                row["difference of small batches"] = float(np.abs(embedded - small).max())
                row["equal again"] = np.array_equal(
                    embedded, unit_vectors(copies, pieces, 256, dtype)
                )
            results[f"{name}, {dtype}"] = row
            report(f"vectors, {name}, {dtype}", row)
    return results


def unit_vectors(
    copies: NetworkCopies, pieces: FlatPieces, batch_size: int, dtype: str
) -> np.ndarray:
    """Embed N sentences in their order, as unit vectors [N, D]."""
    embedded: np.ndarray | None = None
    for sentences, rows in copies.embed(pieces, batch_size, None, dtype):
        if embedded is None:
            embedded = np.empty((len(pieces.starts), rows.shape[1]), dtype=np.float32)
        embedded[sentences] = rows
    assert embedded is not None
    return embedded / np.linalg.norm(embedded, axis=1, keepdims=True)


def objectives(setting: Setting) -> dict[str, Any]:
    """Compare the losses of every kind of training with the CPU's, without dropout."""
    teacher = setting.folder / "teacher"
    write_teacher(teacher)
    devices = ("cpu",) if setting.device == "cpu" else ("cpu", setting.device)

    def losses_of(name_and_device: tuple[str, str]) -> list[float]:
        name, device = name_and_device
        data = GOLDEN / ("documents" if name == "context" else "data")
        options = [option.format(teacher=teacher) for option in OBJECTIVES[name]]
        log = fairseq_train(
            *(data, *options, "--dropout", "0", "--optimizer", "adam", "--lr", "0.01"),
            *("--max-update", OBJECTIVE_UPDATES, "--log-interval", "1", "--no-save"),
            *("--seed", "1", *(("--cpu",) if device == "cpu" else ())),
        )
        return logged(log, "loss")

    cases = list(itertools.product(setting.scale.objectives, devices))
    curves = dict(zip(cases, together(losses_of, cases), strict=True))
    results = {}
    for name in setting.scale.objectives:
        expected = np.array(curves[name, "cpu"])
        values = np.array(curves[name, devices[-1]])
        difference = float((np.abs(values - expected) / np.abs(expected)).max())
        results[name] = {
            "last loss": float(values[-1]),
            "updates": len(values),
            "difference": difference,
            "agrees": difference <= OBJECTIVE_TOLERANCE,
        }
        report(f"objective {name}", results[name])
    return results


def write_teacher(folder: Path) -> None:
    """Write random embeddings of the training text of the golden runs."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    folder.mkdir()
    rng = np.random.default_rng(1)
    for split in ("train", "valid"):
        for index in sorted((GOLDEN / "data").glob(f"{split}.*.idx")):
            count = len(MMapIndexedDataset(str(index.with_suffix(""))))
            values = rng.standard_normal((count, 6), dtype=np.float32)
            np.save(folder / f"{index.stem}.npy", values)


def precisions(setting: Setting) -> dict[str, Any]:
    """Train in each precision; compare losses, an interrupted run, and a repetition."""
    runs: dict[str, Sequence[str]] = dict(setting.runs)
    # This run stops after half of the updates, and is then resumed.
    runs["interrupted"] = setting.runs["float32"]
    if "graphs" in runs:
        runs["graphs interrupted"] = setting.runs["graphs"]

    def run(name: str) -> dict[str, Any]:
        updates = [setting.scale.updates]
        if name.endswith("interrupted"):
            updates = [setting.scale.updates // 2, setting.scale.updates]
        save_dir = setting.folder / name.replace(" ", "-")
        curve: list[float] = []
        for count in updates:
            log = train_paper(setting, save_dir, runs[name], count)
            curve += logged(log, "loss")
        return {
            "losses": curve,
            "loss scales": logged(log, "loss_scale"),
            "resumed": "Loaded checkpoint" in log,
            "weights": weights_digest(save_dir / "checkpoint_last.pt"),
        }

    names = list(runs)
    results = dict(zip(names, together(run, names), strict=True))
    last = np.mean(results["float32"]["losses"][-5:])
    for result in results.values():
        difference = abs(float(np.mean(result["losses"][-5:]) / last - 1))
        result["difference"] = difference
        result["agrees"] = difference <= LOSS_TOLERANCE
    for name, reference in (
        ("again", "float32"),
        ("interrupted", "float32"),
        ("graphs interrupted", "graphs"),
    ):
        if name in results:
            equal = results[name]["weights"] == results[reference]["weights"]
            results[name][f"weights equal {reference}"] = equal
    for name, result in results.items():
        shown = {key: value for key, value in result.items() if key != "weights"}
        report(f"precision {name}", shown | {"losses": result["losses"][::5]})
    return results


def train_paper(
    setting: Setting, save_dir: Path, flags: Sequence[str], updates: int, *options: object
) -> str:
    """Run fairseq-train with `--recipe paper`, and return its log."""
    return script.train(
        *(setting.data_bin, "--recipe", "paper", *flags, "--max-update", updates),
        *("--batch-size", setting.scale.batches[0], "--save-dir", save_dir),
        *("--disable-validation", "--log-format", "json", "--log-interval", 4),
        # A schedule that does not depend on the number of updates.
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 50),
        *setting.scale.options,
        *options,
    )


def weights_digest(checkpoint: Path) -> str:
    """Return a hash of the weights of a checkpoint."""
    digest = hashlib.sha256()
    for name, value in sorted(read_checkpoint(checkpoint)["model"].items()):
        digest.update(name.encode())
        digest.update(value.float().numpy().tobytes())
    return digest.hexdigest()[:16]


def speed(setting: Setting) -> dict[str, Any]:
    """Measure pairs a second of fairseq-train, one run after the other."""
    results: dict[str, Any] = {}
    for name in ("float32", "graphs", "bf16", "graphs bf16"):
        if name not in setting.runs:
            continue
        updates = 3 * setting.scale.updates
        save_dir = setting.folder / f"speed-{name.replace(' ', '-')}"
        log = train_paper(setting, save_dir, setting.runs[name], updates, "--no-save")
        # The first updates load kernels and capture graphs.
        rates = logged(log, "ups")
        rate = float(np.median(rates[len(rates) // 2 :]))
        results[name] = {"pairs per second": rate * setting.scale.batches[0]}
        report(f"fairseq-train alone, {name}", results[name])
    return results


def fairseq_train(*options: object) -> str:
    """Run fairseq-train with this plugin, and return its log."""
    command = [
        *(sys.executable, "-m", "fairseq_cli.train", *map(str, options)),
        *("--user-dir", str(ROOT / "fairseq_lxsr"), "--disable-validation", "--log-format", "json"),
    ]
    done = script.run(*command)
    return done.stdout + done.stderr


def logged(log: str, name: str) -> list[float]:
    """Return the values that fairseq-train has logged under a name."""
    lines = re.findall(r"train_inner \| (\{.*\})", log)
    return [float(line[name]) for line in map(json.loads, lines) if name in line]


def together(function: Callable, arguments: Sequence[Any]) -> list[Any]:
    """Call a function that starts processes for each argument, several at once."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(function, arguments))


def write_random_data(folder: Path, scale: Scale) -> Path:
    """Write a data folder of random sentences, as fairseq-preprocess does."""
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    eos = 2
    for language in ("en", "fr"):
        symbols = "".join(
            f"piece{number} 1\n" for number in range(scale.sizes["vocab_size"] - FIRST)
        )
        (folder / f"dict.{language}.txt").write_text(symbols)
        prefix = folder / f"train.en-fr.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
        for _ in range(scale.updates * scale.batches[0]):
            pieces = rng.integers(FIRST, scale.sizes["vocab_size"], PIECES)
            builder.add_item(torch.from_numpy(np.append(pieces, eos)))
        builder.finalize(f"{prefix}.idx")
    return folder


def report(name: str, values: Mapping[str, Any]) -> None:
    """Print results, rounded."""
    print(
        name, json.loads(json.dumps(values), parse_float=lambda text: float(f"{float(text):.4g}"))
    )
    sys.stdout.flush()


PARTS: dict[str, Callable[[Setting], Any]] = {
    part.__name__: part for part in (losses, steps, encode, vectors, objectives, precisions, speed)
}


def run_parts(names: Sequence[str], setting: Setting, output: Path | None) -> dict[str, Any]:
    """Run the parts, and write the results after each of them."""
    results: dict[str, Any] = {"machine": machine()}
    for name in names:
        start = time.perf_counter()
        try:
            results[name] = PARTS[name](setting)
        # A command that fails ends with SystemExit.
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{name}: {time.perf_counter() - start:.0f} seconds", flush=True)
        write_results(output, results)
    return results


def failures(results: Any, place: str = "") -> list[str]:
    """Return the places of errors, and of values that differ from the CPU's."""
    if isinstance(results, list):
        results = dict(enumerate(results))
    if not isinstance(results, dict):
        return []
    places = []
    if "error" in results or results.get("agrees") is False:
        places.append(place)
    for name, value in results.items():
        places += failures(value, f"{place}/{name}" if place else str(name))
    return places


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--small", action="store_true", help="every part, as small as it can be")
    parser.add_argument(
        "--data-bin", type=Path, help="training text, default: made-up sentences of random pieces"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run, default: all"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: error: no GPU; expected one, or --device cpu --small", file=sys.stderr)
        sys.exit(2)
    scale = SMALL if args.small else FULL
    with tempfile.TemporaryDirectory() as folder:
        data_bin = args.data_bin or write_random_data(Path(folder, "data"), scale)
        setting = Setting(args.device, scale, data_bin, Path(folder))
        results = run_parts(args.only, setting, args.output)
    failed = failures(results)
    if failed:
        sys.exit(f"gpu.py: {', '.join(failed)}: failed, or not as on the CPU")


if __name__ == "__main__":
    main()
