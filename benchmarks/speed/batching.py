"""What cutting into batches costs: in numpy, as fairseq is installed here, and by fairseq's Cython where it was built.

python -m benchmarks.speed.batching --output FILE.json

Lengths are made up (Poisson, 25 pieces in the mean, ordered as in an epoch that is sorted by length). `--max-tokens`
goes with a multiple of 8 sentences, as in fairseq; blocks are of 512 pieces and whole sentences. The tasks of this
project cut by a function of their own ("a task here"), which is measured beside them.
"""

from importlib import import_module
from types import ModuleType

import numpy as np

from benchmarks.machine import machine
from benchmarks.script import command_line, take_turns, write_results
from fairseq_lxsr.training import uncompiled
from fairseq_lxsr.training.dataset import cut_into_batches

BLOCK = 512


def built(name: str) -> ModuleType | None:
    """One of fairseq's Cython modules; None where it was not built for this Python and numpy."""
    try:
        found = import_module(f"fairseq.data.{name}")
    except (ImportError, ValueError):
        return None
    return None if found is uncompiled else found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sentences", type=int, default=1_000_000, metavar="N", help="default: 1,000,000")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[4096, 32768], metavar="N", help="of a batch")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    args = parser.parse_args()
    lengths = np.sort(np.random.default_rng(1).poisson(24, args.sentences) + 1)
    indices = np.arange(args.sentences)
    contestants = {}
    for name, module in {"numpy": uncompiled, "compiled": built("data_utils_fast")}.items():
        for limit in args.max_tokens if module else ():
            contestants[f"{name}, {limit} tokens"] = lambda cut=module, limit=limit: cut.batch_by_size_vec(
                indices, lengths, limit, -1, 8
            )
    for limit in args.max_tokens:
        contestants[f"a task here, {limit} tokens"] = lambda limit=limit: cut_into_batches(
            indices, lengths, None, limit
        )
    contestants["a task here, 1024 sentences"] = lambda: cut_into_batches(indices, lengths, 1024, None)
    for name, module in {"numpy": uncompiled, "compiled": built("token_block_utils_fast")}.items():
        if module:
            contestants[f"{name}, blocks"] = lambda cut=module: cut._get_block_to_dataset_index_fast(
                lengths, cut._get_slice_indices_fast(lengths, "complete", BLOCK, 1)
            )
    seconds = take_turns(contestants, args.repeats)
    write_results(args.output, {"machine": machine(), "sentences": args.sentences, "seconds": seconds})


if __name__ == "__main__":
    main()
