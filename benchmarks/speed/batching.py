"""What cutting into batches costs: in numpy, as fairseq is installed here, and by fairseq's Cython
where it was built.

python -m benchmarks.speed.batching --output FILE.json

Lengths are made up (Poisson, 25 pieces in the mean, ordered as in an epoch that is sorted by
length). `--max-tokens` goes with a multiple of 8 sentences, as in fairseq; blocks are of 512 pieces
and whole sentences. The tasks of this project cut by a function of their own ("a task here"), which
is measured beside them.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.script import command_line, take_turns, write_results
from fairseq_lxsr.training import uncompiled
from fairseq_lxsr.training.dataset import cut_into_batches

BLOCK = 512


def found(name: str) -> dict[str, Any]:
    """numpy, and the Cython module of fairseq where it was built for this Python and numpy."""
    modules: dict[str, Any] = {"numpy": uncompiled}
    with contextlib.suppress(ImportError, ValueError):
        modules["compiled"] = import_module(f"fairseq.data.{name}")
    return modules


def cut_blocks(module: Any, lengths: np.ndarray) -> np.ndarray:
    """Cut into blocks, and find the sentences of each."""
    blocks = module._get_slice_indices_fast(lengths, "complete", BLOCK, 1)
    return module._get_block_to_dataset_index_fast(lengths, blocks)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--sentences", type=int, default=1_000_000, metavar="N", help="default: 1,000,000"
    )
    parser.add_argument(
        "--max-tokens", type=int, nargs="+", default=[4096, 32768], metavar="N", help="of a batch"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    args = parser.parse_args()
    lengths = np.sort(np.random.default_rng(1).poisson(24, args.sentences) + 1)
    indices = np.arange(args.sentences)
    contestants: dict[str, Callable[[], object]] = {}
    for limit in args.max_tokens:
        for name, module in found("data_utils_fast").items():
            cut = partial(module.batch_by_size_vec, indices, lengths, limit, -1, 8)
            contestants[f"{name}, {limit} tokens"] = cut
        contestants[f"a task here, {limit} tokens"] = partial(
            cut_into_batches, indices, lengths, None, limit
        )
    contestants["a task here, 1024 sentences"] = partial(
        cut_into_batches, indices, lengths, 1024, None
    )
    for name, module in found("token_block_utils_fast").items():
        contestants[f"{name}, blocks"] = partial(cut_blocks, module, lengths)
    seconds = take_turns(contestants, args.repeats)
    write_results(
        args.output, {"machine": machine(), "sentences": args.sentences, "seconds": seconds}
    )


if __name__ == "__main__":
    main()
