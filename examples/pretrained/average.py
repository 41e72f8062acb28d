"""The mean of the weights of checkpoints that were trained one from the other; a name given twice counts twice.

python examples/pretrained/average.py CHECKPOINT... --output FOLDER/checkpoint_last.pt

Such means often find more than each of theirs: Wortsman et al. 2022, "Model soups". Options and text/ are those of the
last checkpoint, so that `lxsr export folder` takes the result as it takes a checkpoint.
"""

import argparse
import shutil
from pathlib import Path

import torch

from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.text.data_folder import TEXT_FOLDER


def averaged(paths: list[Path]) -> dict:
    """Read the last checkpoint, with the mean of the weights of all; without what training would go on with."""
    *others, last = (read_checkpoint(path) for path in paths)
    for path, other in zip(paths, others, strict=False):
        for name, weights in last["model"].items():
            if name not in other["model"] or other["model"][name].shape != weights.shape:
                raise InputError(f"{path}: {name} is missing or of another shape than in {paths[-1]}")
            weights += other["model"][name]
    for weights in last["model"].values():
        weights /= len(paths)
    return last | {"last_optimizer_state": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="checkpoint to write")
    args = parser.parse_args()
    with exit_on_input_error("average.py"):
        checkpoint = averaged(args.checkpoints)
        text = args.checkpoints[-1].parent / TEXT_FOLDER
        if text.is_dir() and args.output.parent.resolve() != args.checkpoints[-1].parent.resolve():
            shutil.copytree(text, args.output.parent / TEXT_FOLDER, dirs_exist_ok=True)
        with atomic_write(args.output, "wb") as stream:
            torch.save(checkpoint, stream)


if __name__ == "__main__":
    main()
