"""The mean of the weights of checkpoints of one training, or with --rotate of several trainings.

python examples/pretrained/average.py CHECKPOINT... --output FOLDER/checkpoint_last.pt

A checkpoint that is given twice counts twice. Such means are often better than each of the models:
Wortsman et al. 2022, "Model soups". Options and text/ are those of the last checkpoint, so that
`lxsr export folder` reads the result like a checkpoint. Trainings from different random weights
need --rotate, which rotates and scales the embeddings of each onto those of the last.
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

# The vectors of the word pieces [V, D], and the map to the teacher's embeddings [T, D].
VECTORS = "encoder.embed_tokens.weight"
MAP = "teacher_map.weight"


def rotate(weights: dict[str, torch.Tensor], onto: dict[str, torch.Tensor]) -> None:
    """Rotate and scale vectors onto others, in place, by least squares."""
    left, _, right = torch.linalg.svd(weights[VECTORS].T @ onto[VECTORS])
    rotation = left @ right
    scale = onto[VECTORS].norm() / weights[VECTORS].norm()
    weights[VECTORS] = weights[VECTORS] @ rotation * scale
    if MAP in weights:
        weights[MAP] = weights[MAP] @ rotation


def averaged(paths: list[Path], rotated: bool) -> dict:
    """Return the last checkpoint with the mean of all weights.

    The state of the optimizer is left out, because training cannot continue from a mean.

    Args:
        paths: the checkpoints.
        rotated: whether to rotate the embeddings of each onto those of the last.
    """
    last = read_checkpoint(paths[-1])
    # This is the average of the last training alone.
    last["extra_state"].pop("ema", None)
    onto = {name: weights.clone() for name, weights in last["model"].items()}
    for path in paths[:-1]:
        checkpoint = read_checkpoint(path)
        check_compatible(checkpoint, path, last, paths[-1])
        if rotated:
            rotate(checkpoint["model"], onto)
        for name, weights in last["model"].items():
            weights += checkpoint["model"][name]
    for weights in last["model"].values():
        weights /= len(paths)
    return last | {"last_optimizer_state": None}


def check_compatible(checkpoint: dict, path: Path, last: dict, last_path: Path) -> None:
    """Raise an error if a checkpoint has another dictionary or other weights than the last one."""
    dictionaries = [state["task_state"].get(DICTIONARY_HASH) for state in (checkpoint, last)]
    if dictionaries[0] != dictionaries[1]:
        raise InputError(f"{path}: the dictionary differs from that of {last_path}")
    for name, weights in last["model"].items():
        if name not in checkpoint["model"] or checkpoint["model"][name].shape != weights.shape:
            raise InputError(f"{path}: {name} is missing or has another shape than in {last_path}")


def copy_text(checkpoint: Path, output: Path) -> None:
    """Copy the folder text/ next to a checkpoint to the folder of another checkpoint.

    The other folder may have a text/ already, which must have the same dictionary.
    """
    text = checkpoint.parent.resolve() / TEXT_FOLDER
    copy = output.parent.resolve() / TEXT_FOLDER
    if not text.is_dir() or text == copy:
        return
    present = copy / DICTIONARY_FILE
    if present.is_file() and present.read_bytes() != (text / DICTIONARY_FILE).read_bytes():
        raise InputError(
            f"{output}: its folder has checkpoints with another dictionary; expected another folder"
        )
    shutil.copytree(text, copy, dirs_exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkpoints", type=Path, nargs="+", metavar="CHECKPOINT", help="checkpoints to average"
    )
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="rotate the embeddings: for models without layers from different random weights",
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
