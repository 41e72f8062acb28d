"""The time to cut an epoch into batches: numpy, fairseq's compiled modules, and our tasks.

python -m benchmarks.speed.batching --output FILE.json

The lengths are generated: Poisson with a mean of 25 pieces, in the order of an epoch that is sorted
by length. `--max-tokens` is combined with a multiple of 8 sentences, as in fairseq; blocks have 512
pieces and complete sentences. fairseq's compiled modules are included if they were built. "a task
here" is the function that the tasks of this project use to form batches.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.script import command_line, take_turns, write_results
from fairseq_lxsr.training import uncompiled
from fairseq_lxsr.training.dataset import cut_into_batches

# Word pieces of a block.
BLOCK = 512


def implementations(name: str) -> dict[str, Any]:
    """Return the numpy module, and fairseq's compiled one if it was built for this Python."""
    modules: dict[str, Any] = {"numpy": uncompiled}
    with contextlib.suppress(ImportError, ValueError):
        modules["compiled"] = import_module(f"fairseq.data.{name}")
    return modules


def cut_blocks(module: Any, lengths: np.ndarray) -> np.ndarray:
    """Cut sentences into blocks, and return the sentences of each block."""
    blocks = module._get_slice_indices_fast(lengths, "complete", BLOCK, 1)
    return module._get_block_to_dataset_index_fast(lengths, blocks)


def contestants(lengths: np.ndarray, limits: Sequence[int]) -> dict[str, Callable[[], object]]:
    """Return the functions to time.

    Args:
        lengths: number of pieces of each sentence [N].
        limits: largest numbers of tokens of a batch.
    """
    indices = np.arange(len(lengths))
    functions: dict[str, Callable[[], object]] = {}
    for limit in limits:
        for name, module in implementations("data_utils_fast").items():
            cut = partial(module.batch_by_size_vec, indices, lengths, limit, -1, 8)
            functions[f"{name}, {limit} tokens"] = cut
        cut = partial(cut_into_batches, indices, lengths, None, limit)
        functions[f"a task here, {limit} tokens"] = cut
    functions["a task here, 1024 sentences"] = partial(
        cut_into_batches, indices, lengths, 1024, None
    )
    for name, module in implementations("token_block_utils_fast").items():
        functions[f"{name}, blocks"] = partial(cut_blocks, module, lengths)
    return functions


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--sentences",
        type=int,
        default=1_000_000,
        metavar="N",
        help="number of sentences (default: 1,000,000)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        nargs="+",
        default=[4096, 32768],
        metavar="N",
        help="tokens of a batch (default: 4096 32768)",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="number of repeats (default: 3)"
    )
    args = parser.parse_args()
    lengths = np.sort(np.random.default_rng(1).poisson(24, args.sentences) + 1)
    seconds = take_turns(contestants(lengths, args.max_tokens), args.repeats)
    results = {"machine": machine(), "sentences": args.sentences, "seconds": seconds}
    write_results(args.output, results)


if __name__ == "__main__":
    main()
