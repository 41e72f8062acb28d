"""Speed and memory of encoding on a CPU: ours, sentence-transformers and ONNX Runtime.

python -m benchmarks.speed.encode MODEL TEXT... --output benchmarks/speed/results/encode.json

All contestants have the same weights: those of MODEL if --width and --layers are those of MODEL,
otherwise random ones, which are as fast. MODEL gives the tokenizer. Contestants take turns on the
same sentences of mixed lengths; memory is measured in separate processes. "of products" is the
number of floating point operations of the layers, relative to what bare matrix products of the same
shape compute in the same time.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.corpora import fillers
from benchmarks.machine import machine
from benchmarks.processes import entry
from benchmarks.script import alone, command_line, take_turns, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.export import export_onnx, export_sentence_transformers
from fairseq_lxsr.export.onnx import INPUT, MODEL_FILE, OUTPUT
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE, SENTENCEPIECE_FILE

OUR_DTYPES = ("float32", "bfloat16", "int8")
BATCH_SIZES = {"ours": 256, "sentence-transformers": 64, "ONNX Runtime": 64}
# Sentences that are encoded before the measurement, so that threads start and memory is allocated.
WARM_UP = 500
# Rows of the bare matrix product, and how often it is computed.
PRODUCT_ROWS = 4096
PRODUCT_REPEATS = 20
MEBIBYTE = 2**20

Encode = Callable[[list[str]], object]


def sized(folder: Path, width: int, layers: int, vocabulary: int, output: Path) -> Path:
    """Return the model folder, or one with its tokenizer and random weights of another size."""
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    config = encoder.model.config
    if (config.embed_dim, config.num_layers) == (width, layers):
        return folder
    size = replace(
        config,
        vocab_size=max(vocabulary, config.vocab_size),
        embed_dim=width,
        ffn_embed_dim=2 * width,
        num_heads=width // 64,
        num_layers=layers,
    )
    network = TransformerSentenceEncoder(size)
    dictionary = output.with_name(DICTIONARY_FILE)
    text = (folder / DICTIONARY_FILE).read_text(encoding="utf-8")
    dictionary.write_text(text + fillers(vocabulary - config.vocab_size), encoding="utf-8")
    options = encoder.tokenizer.options
    save_folder(output, network, dictionary, folder / SENTENCEPIECE_FILE, options, {})
    return output


def peak_memory(folder: Path, sentences: list[str], dtype: str) -> int:
    """Return the bytes by which encoding raises the peak of a process that has imported torch."""
    before = entry(os.getpid(), "status", "VmHWM")
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    encoder.encode(sentences, BATCH_SIZES["ours"], dtype=dtype)
    return entry(os.getpid(), "status", "VmHWM") - before


def layer_flops(config: TransformerConfig, lengths: np.ndarray) -> float:
    """Return the floating point operations of the layers' products on sentences without padding.

    Args:
        config: sizes of the network.
        lengths: number of pieces of each sentence [N].
    """
    width = config.embed_dim
    projections = 2 * (4 * width * width + 2 * width * config.ffn_embed_dim)
    attention = 4 * width * lengths.astype(float) ** 2
    return config.num_layers * float((lengths * projections + attention).sum())


def product_speed(config: TransformerConfig, dtype: torch.dtype) -> float:
    """Return the floating point operations per second of a bare product of the layers' shape.

    The fastest of several is returned.
    """
    rows = torch.randn(PRODUCT_ROWS, config.embed_dim).to(dtype)
    weight = torch.randn(config.embed_dim, config.ffn_embed_dim).to(dtype)
    out = torch.empty(len(rows), config.ffn_embed_dim, dtype=dtype)
    best = float("inf")
    for _ in range(PRODUCT_REPEATS):
        start = time.perf_counter()
        torch.mm(rows, weight, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * len(rows) * config.embed_dim * config.ffn_embed_dim / best


def onnx_runner(encoder: SentenceEncoder, folder: Path) -> Encode:
    """Return a function that runs ONNX Runtime as a careful user does.

    It sorts the sentences by length into batches and uses our tokenizer.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / MODEL_FILE), providers=["CPUExecutionProvider"]
    )
    longest = encoder.model.config.max_positions
    padding = encoder.model.config.padding_idx
    batch_size = BATCH_SIZES["ONNX Runtime"]

    def run(sentences: list[str]) -> None:
        ids = [row[:longest] for row in encoder.tokenizer.encode(sentences)]
        ids.sort(key=len, reverse=True)
        for start in range(0, len(ids), batch_size):
            batch = ids[start : start + batch_size]
            tokens = np.full((len(batch), max(1, len(batch[0]))), padding)
            for row, values in enumerate(batch):
                tokens[row, : len(values)] = values
            session.run([OUTPUT], {INPUT: tokens})

    return run


def contestants(encoder: SentenceEncoder, folder: Path, dtypes: Sequence[str]) -> dict[str, Encode]:
    """Return the functions to time; the exported models are written to a folder."""
    from sentence_transformers import SentenceTransformer

    export_sentence_transformers(encoder, folder / "st")
    peer = SentenceTransformer(str(folder / "st"), device="cpu", trust_remote_code=True)
    export_onnx(encoder, folder / "onnx", int8=False)
    export_onnx(encoder, folder / "onnx8", int8=True)
    functions: dict[str, Encode] = {}
    for dtype in dtypes:
        functions[f"ours, {dtype}"] = partial(
            encoder.encode, batch_size=BATCH_SIZES["ours"], dtype=dtype
        )
    functions["sentence-transformers"] = partial(
        peer.encode, batch_size=BATCH_SIZES["sentence-transformers"]
    )
    functions["ONNX Runtime, float32"] = onnx_runner(encoder, folder / "onnx")
    functions["ONNX Runtime, int8"] = onnx_runner(encoder, folder / "onnx8")
    return functions


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("text", nargs="+", help="text files with one sentence per line")
    parser.add_argument(
        "--sentences",
        type=int,
        default=20_000,
        help="number of sentences, spread evenly over the files (default: 20,000)",
    )
    parser.add_argument(
        "--width", type=int, default=512, help="width of the embeddings (default: 512)"
    )
    parser.add_argument("--layers", type=int, default=2, help="number of layers (default: 2)")
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=50_000,
        help="least size of the dictionary of a random encoder (default: 50,000)",
    )
    parser.add_argument("--no-memory", action="store_true", help="do not measure the memory")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=OUR_DTYPES,
        choices=OUR_DTYPES,
        help="types of our encoder (default: all)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of repeats (default: 3)")
    return parser.parse_args()


def show(results: dict) -> None:
    """Print the speeds, relative to sentence-transformers and to bare matrix products."""
    sentences = results["sentences"]
    pieces = results["pieces"]
    size = f"width {results['width']}, {results['layers']} layers"
    print(f"{sentences:,} sentences, {pieces:,} pieces, {size}")
    print(f"{'':24}{'sentences/s':>12}{'pieces/s':>12}{'of st':>8}{'of products':>13}")
    medians = {name: statistics.median(seconds) for name, seconds in results["seconds"].items()}
    for name, median in medians.items():
        relative = medians["sentence-transformers"] / median
        share = share_of_products(results, name, median)
        speeds = f"{sentences / median:12.0f}{pieces / median:12.0f}"
        print(f"{name:24}{speeds}{relative:8.2f}{share:>13}")
    memory = [
        f"{dtype} {size / MEBIBYTE:.0f} MiB"
        for dtype, size in results["peak bytes beyond torch"].items()
    ]
    print("peak memory beyond torch:", ", ".join(memory))


def share_of_products(results: dict, contestant: str, seconds: float) -> str:
    """Return the speed of a contestant in percent of bare products; an empty string for int8."""
    if "int8" in contestant:
        return ""
    dtype = "bfloat16" if "bfloat16" in contestant else "float32"
    product_speeds = results["product flops per second"]
    return f"{100 * results['layer flops'] / seconds / product_speeds[dtype]:.0f} %"


def chosen_sentences(files: Sequence[str], count: int) -> list[str]:
    """Return at most `count` sentences, spread evenly over some files."""
    lines = [line for file in files for line in read_lines(file) if line.strip()]
    rows = np.linspace(0, len(lines) - 1, min(len(lines), count)).astype(int)
    return [lines[row] for row in rows]


def measure(args: argparse.Namespace, sentences: list[str], work: Path) -> dict[str, Any]:
    """Measure speed and memory; all files are written to a folder."""
    folder = sized(args.model, args.width, args.layers, args.vocabulary, work / "model")
    memory: dict[str, int] = {}
    if not args.no_memory:
        for dtype in args.dtypes:
            memory[dtype] = alone(peak_memory, folder, sentences, dtype)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    config = encoder.model.config
    lengths = encoder.tokenizer.encode_flat(sentences)[1].clip(max=config.max_positions)
    functions = contestants(encoder, work, args.dtypes)
    for encode in functions.values():
        encode(sentences[:WARM_UP])
    runs = {name: partial(encode, sentences) for name, encode in functions.items()}
    seconds = take_turns(runs, args.repeats)
    return {
        "machine": machine(),
        "sentences": len(sentences),
        "pieces": int(lengths.sum()),
        "width": config.embed_dim,
        "layers": config.num_layers,
        "layer flops": layer_flops(config, lengths),
        "product flops per second": {
            "float32": product_speed(config, torch.float32),
            "bfloat16": product_speed(config, torch.bfloat16),
        },
        "seconds": seconds,
        "peak bytes beyond torch": memory,
    }


def main() -> None:
    args = parse_options()
    sentences = chosen_sentences(args.text, args.sentences)
    with tempfile.TemporaryDirectory() as work:
        results = measure(args, sentences, Path(work))
    show(results)
    write_results(args.output, results)


if __name__ == "__main__":
    main()
