"""Checks of the folder that a run saves in: its lock, the disk space, and whether training is finished already."""

import atexit
import contextlib
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.locks import locked

LOCK = ".lock"
CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters

_held = contextlib.ExitStack()  # the lock of the run of this process
let_go = atexit.register(_held.close)


def hold(save_dir: Path) -> None:
    """Lock a folder against other runs until this process ends or starts another run.

    Raises:
        InputError: for a folder that another run has locked; it names that run.
    """
    let_go()
    _held.enter_context(locked(save_dir / LOCK, save_dir))


def reached(state: dict[str, Any], cfg: DictConfig) -> str | None:
    """Find the limit of training that a checkpoint has reached already; None where there is more to train.

    fairseq would do one more update, and write its checkpoints again.

    Args:
        state: the checkpoint that training resumes from.
        cfg: all groups of options.

    Returns:
        the option and its value.
    """
    extra, limits = state.get("extra_state") or {}, cfg.optimization
    history = state.get("optimizer_history") or [{}]
    counts = not cfg.checkpoint.reset_optimizer and state.get("last_optimizer_state") is not None
    updates = history[-1].get("num_updates", 0) if counts else 0
    next_epoch = 1 if cfg.checkpoint.reset_dataloader else extra.get("train_iterator", {}).get("epoch", 1)
    hours = extra.get("previous_training_time", 0) / 3600
    if 0 < limits.max_update <= updates:
        return f"--max-update {limits.max_update}"
    if 0 < limits.max_epoch < next_epoch:
        return f"--max-epoch {limits.max_epoch}"
    if 0 < limits.stop_time_hours < hours:
        return f"--stop-time-hours {limits.stop_time_hours:g}"
    return None


def check_space(save_dir: Path, num_values: int) -> None:
    """Check that the next checkpoint fits on the disk, three times (epoch, best, last).

    Args:
        save_dir: the folder of checkpoints.
        num_values: numbers in a checkpoint, of four bytes each: parameters, and what the optimizer keeps of each.

    Raises:
        InputError: where there is too little space.
    """
    if not save_dir.is_dir():
        return  # fairseq creates it on the node that saves
    needed, free = 3 * (4 * num_values + CHECKPOINT_OVERHEAD), shutil.disk_usage(save_dir).free
    if free < needed:
        raise InputError(
            f"{save_dir}: No space left on device for a checkpoint, {free / 1e6:,.1f} MB free; this model needs "
            f"{needed / 1e6:,.1f} MB: make room and go on, or choose another --save-dir (or --no-save)"
        )
