"""The mean of the weights of checkpoints of one training, or with --rotate of several; a name given
twice counts twice.

python examples/pretrained/average.py CHECKPOINT... --output FOLDER/checkpoint_last.pt

Such means often find more than each of the models: Wortsman et al. 2022, "Model soups". Options and
text/ are those of the last checkpoint, so that `lxsr export folder` takes the result as it takes a
checkpoint. Trainings from different random weights need --rotate, which turns and scales the
embeddings of each onto those of the last.
"""

import argparse
import shutil
from pathlib import Path

import torch

from fairseq_lxsr.encoder.checkpoint import DICTIONARY_HASH, read_checkpoint
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.text.data_folder import TEXT_FOLDER
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE

# [V, D], and to the teacher's [T, D]
VECTORS, MAP = ("encoder.embed_tokens.weight", "teacher_map.weight")


def rotate(weights: dict[str, torch.Tensor], onto: dict[str, torch.Tensor]) -> None:
    """Turn and scale vectors onto others, by the orthogonal map with the least squared
    differences.
    """
    left, _, right = torch.linalg.svd(weights[VECTORS].T @ onto[VECTORS])
    turn, scale = left @ right, onto[VECTORS].norm() / weights[VECTORS].norm()
    weights[VECTORS] = weights[VECTORS] @ turn * scale
    if MAP in weights:
        weights[MAP] = weights[MAP] @ turn


def averaged(paths: list[Path], rotated: bool) -> dict:
    """Read the last checkpoint, with the mean of the weights of all; without what training would go
    on with.
    """
    *others, last = (read_checkpoint(path) for path in paths)
    last["extra_state"].pop("ema", None)  # of the last model alone
    onto = {name: weights.clone() for name, weights in last["model"].items()}
    for path, other in zip(paths, others, strict=False):
        if other["task_state"].get(DICTIONARY_HASH) != last["task_state"].get(DICTIONARY_HASH):
            raise InputError(f"{path}: has another dictionary than {paths[-1]}; expected one")
        for name, weights in onto.items():
            if name not in other["model"] or other["model"][name].shape != weights.shape:
                raise InputError(
                    f"{path}: {name} is missing or of another shape than in {paths[-1]}"
                )
        if rotated:
            rotate(other["model"], onto)
        for name, weights in last["model"].items():
            weights += other["model"][name]
    for weights in last["model"].values():
        weights /= len(paths)
    return last | {"last_optimizer_state": None}


def copy_text(checkpoint: Path, output: Path) -> None:
    """Copy the text/ beside a checkpoint to that beside another one, which must have no other
    dictionary.
    """
    text, copy = (path.parent.resolve() / TEXT_FOLDER for path in (checkpoint, output))
    if text.is_dir() and text != copy:
        own = copy / DICTIONARY_FILE
        if own.is_file() and own.read_bytes() != (text / DICTIONARY_FILE).read_bytes():
            raise InputError(
                f"{output}: beside it are checkpoints with another dictionary; expected another folder"
            )
        shutil.copytree(text, copy, dirs_exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="for models without layers, of different random weights",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="checkpoint to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("average.py"):
        checkpoint = averaged(args.checkpoints, args.rotate)
        copy_text(args.checkpoints[-1], args.output)
        with atomic_write(args.output, "wb") as stream:
            torch.save(checkpoint, stream)


if __name__ == "__main__":
    main()
