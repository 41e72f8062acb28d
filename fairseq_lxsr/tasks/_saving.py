"""The folder that a run saves in: who may, whether there is room, and whether its training is over already."""

import atexit
import contextlib
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import locked

LOCK = ".lock"
CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters

_held = contextlib.ExitStack()  # the lock of the run of this process
let_go = atexit.register(_held.close)


def hold(save_dir: Path) -> None:
    """No other run saves here until this process ends, or begins another run.

    Raises:
        InputError: saying who saves here already.
    """
    let_go()
    _held.enter_context(locked(save_dir / LOCK, save_dir))


def reached(state: dict[str, Any], cfg: DictConfig) -> str | None:
    """The limit that a run which goes on from a checkpoint has reached already; None where there is more to train.

    fairseq would make one update more, and write its checkpoints again.

    Args:
        state: the checkpoint.
        cfg: all groups of options.
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


def check_space(save_dir: Path, num_parameters: int) -> None:
    """Refuse where the next checkpoint does not fit: parameters and two moments, three times (epoch, best, last)."""
    if not save_dir.is_dir():
        return  # fairseq makes it on the node that saves
    needed, free = 3 * (3 * 4 * num_parameters + CHECKPOINT_OVERHEAD), shutil.disk_usage(save_dir).free
    if free < needed:
        raise InputError(
            f"{save_dir}: No space left on device for a checkpoint, {free / 1e6:,.1f} MB free; this model needs "
            f"{needed / 1e6:,.1f} MB: make room and go on, or choose another --save-dir (or --no-save)"
        )
