"""Sentences and pieces per second of encoding on a CPU: ours, sentence-transformers and ONNX
Runtime, the same weights.

python -m benchmarks.speed.encode MODEL TEXT... --output benchmarks/speed/results/encode.json

MODEL gives the tokenizer, and the weights where --width and --layers are those of the model;
otherwise they are random, which is as fast. Contestants take turns on the same sentences, of mixed
lengths; memory is measured in processes of its own. The share of the machine's matrix products:
floating point operations of the layers, over those of bare products of their shape in that time.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

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


def sized(folder: Path, width: int, layers: int, vocabulary: int, output: Path) -> Path:
    """The model folder, or one with its tokenizer and a random encoder of another size."""
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    config = encoder.model.config
    if (config.embed_dim, config.num_layers) == (width, layers):
        return folder
    size = {
        "embed_dim": width,
        "ffn_embed_dim": 2 * width,
        "num_heads": width // 64,
        "num_layers": layers,
    }
    other = TransformerSentenceEncoder(
        replace(config, vocab_size=max(vocabulary, config.vocab_size), **size)
    )
    dictionary = output.with_name(DICTIONARY_FILE)
    text = (folder / DICTIONARY_FILE).read_text(encoding="utf-8")
    dictionary.write_text(text + fillers(vocabulary - config.vocab_size), encoding="utf-8")
    save_folder(
        output, other, dictionary, folder / SENTENCEPIECE_FILE, encoder.tokenizer.options, {}
    )
    return output


def embed_alone(folder: Path, sentences: list[str], dtype: str) -> int:
    """Bytes that loading and encoding add to the peak of a process that has torch."""
    before = entry(os.getpid(), "status", "VmHWM")
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    encoder.encode(sentences, BATCH_SIZES["ours"], dtype=dtype)
    return entry(os.getpid(), "status", "VmHWM") - before


def layer_flops(config: TransformerConfig, lengths: np.ndarray) -> float:
    """Of the layers' products on unpadded sentences: projections, feed-forward, attention."""
    d, f = config.embed_dim, config.ffn_embed_dim
    per_piece = 2 * (4 * d * d + 2 * d * f)
    return config.num_layers * float(
        (lengths * per_piece + 4 * d * lengths.astype(float) ** 2).sum()
    )


def product_speed(config: TransformerConfig, dtype: torch.dtype, repeats: int = 20) -> float:
    """Floating point operations per second of a bare product as the layers have it, the best of
    several.
    """
    rows = torch.randn(4096, config.embed_dim).to(dtype)
    weight = torch.randn(config.embed_dim, config.ffn_embed_dim).to(dtype)
    out = torch.empty(len(rows), config.ffn_embed_dim, dtype=dtype)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(rows, weight, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * len(rows) * config.embed_dim * config.ffn_embed_dim / best


def onnx_runner(encoder: SentenceEncoder, folder: Path) -> Callable[[list[str]], object]:
    """ONNX Runtime as a careful user drives it: batches of similar length, our tokenizer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / MODEL_FILE), providers=["CPUExecutionProvider"]
    )
    longest, padding = encoder.model.config.max_positions, encoder.model.config.padding_idx

    def run(sentences: list[str]) -> None:
        ids = sorted(
            (row[:longest] for row in encoder.tokenizer.encode(sentences)), key=len, reverse=True
        )
        for start in range(0, len(ids), BATCH_SIZES["ONNX Runtime"]):
            batch = ids[start : start + BATCH_SIZES["ONNX Runtime"]]
            tokens = np.full((len(batch), max(1, len(batch[0]))), padding)
            for row, values in enumerate(batch):
                tokens[row, : len(values)] = values
            session.run([OUTPUT], {INPUT: tokens})

    return run


def contestants(
    encoder: SentenceEncoder, folder: Path, dtypes: Sequence[str]
) -> dict[str, Callable[[list[str]], object]]:
    from sentence_transformers import SentenceTransformer

    export_sentence_transformers(encoder, folder / "st")
    theirs = SentenceTransformer(str(folder / "st"), device="cpu", trust_remote_code=True)
    for name, int8 in (("onnx", False), ("onnx8", True)):
        export_onnx(encoder, folder / name, int8=int8)
    return {
        **{
            f"ours, {dtype}": partial(encoder.encode, batch_size=BATCH_SIZES["ours"], dtype=dtype)
            for dtype in dtypes
        },
        "sentence-transformers": lambda sentences: theirs.encode(
            sentences, batch_size=BATCH_SIZES["sentence-transformers"]
        ),
        "ONNX Runtime, float32": onnx_runner(encoder, folder / "onnx"),
        "ONNX Runtime, int8": onnx_runner(encoder, folder / "onnx8"),
    }


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("text", nargs="+", help="files, one sentence a line")
    parser.add_argument(
        "--sentences",
        type=int,
        default=20_000,
        help="spread evenly over the files (default: 20,000)",
    )
    parser.add_argument("--width", type=int, default=512, help="default: 512")
    parser.add_argument("--layers", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=50_000,
        help="of a random encoder, at least (default: 50,000)",
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="do not measure memory, in processes of their own"
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=OUR_DTYPES, choices=OUR_DTYPES, help="of ours (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="default: 3")
    return parser.parse_args()


def show(results: dict) -> None:
    """Print the speeds beside sentence-transformers and beside the matrix products of the layers
    alone.
    """
    sentences, pieces = results["sentences"], results["pieces"]
    print(
        f"{sentences:,} sentences, {pieces:,} pieces, width {results['width']}, {results['layers']} layers"
    )
    print(f"{'':24}{'sentences/s':>12}{'pieces/s':>12}{'of st':>8}{'of products':>13}")
    medians = {name: statistics.median(found) for name, found in results["seconds"].items()}
    for name, median in medians.items():
        peak = results["product flops per second"]["bfloat16" if "bfloat16" in name else "float32"]
        share = "" if "int8" in name else f"{100 * results['layer flops'] / median / peak:.0f} %"
        row = f"{sentences / median:12.0f}{pieces / median:12.0f}{medians['sentence-transformers'] / median:8.2f}"
        print(f"{name:24}{row}{share:>13}")
    memory = [
        f"{dtype} {size / 2**20:.0f} MiB"
        for dtype, size in results["peak bytes beyond torch"].items()
    ]
    print("peak memory beyond torch:", ", ".join(memory))


def main() -> None:
    args = parse_options()
    lines = [line for line in chain.from_iterable(map(read_lines, args.text)) if line.strip()]
    sentences = [
        lines[i]
        for i in np.linspace(0, len(lines) - 1, min(len(lines), args.sentences)).astype(int)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = sized(
            args.model, args.width, args.layers, args.vocabulary, Path(temporary) / "model"
        )
        dtypes = () if args.no_memory else args.dtypes
        memory = {dtype: alone(embed_alone, folder, sentences, dtype) for dtype in dtypes}
        encoder = SentenceEncoder.from_pretrained(folder, "cpu")
        config = encoder.model.config
        lengths = encoder.tokenizer.encode_flat(sentences)[1].clip(max=config.max_positions)
        runs = contestants(encoder, Path(temporary), args.dtypes)
        for run in runs.values():  # a short one first: threads start, memory is fetched
            run(sentences[:500])
        seconds = take_turns(
            {name: partial(run, sentences) for name, run in runs.items()}, args.repeats
        )
    peak = {
        dtype: product_speed(config, getattr(torch, dtype)) for dtype in ("float32", "bfloat16")
    }
    results = {
        "machine": machine(),
        "sentences": len(sentences),
        "pieces": int(lengths.sum()),
        "width": config.embed_dim,
        "layers": config.num_layers,
        "layer flops": layer_flops(config, lengths),
        "product flops per second": peak,
        "seconds": seconds,
        "peak bytes beyond torch": memory,
    }
    show(results)
    write_results(args.output, results)


if __name__ == "__main__":
    main()
