"""Turns errors of fairseq that the user can fix into one line; fairseq and hydra print a traceback."""

import os
import re

from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf.errors import InterpolationKeyError
from torch.multiprocessing.spawn import ProcessException

from fairseq_lxsr.errors import install_excepthook, one_line
from fairseq_lxsr.tasks._checks import OF_TASK, RANGES, spelling

# what the other workers say when one dies, by gloo or NCCL, or fairseq-train where it has started the workers itself
DEAD = r"(?s).*(?:Connection (?:closed|reset) by peer|remote process exited|terminated with signal)"
OF_DEAD = (
    "another worker of this training has ended; look at its messages (a killed one has none: often too little memory), "
    "then give the same command on all workers, it goes on from the last checkpoint"
)
# what constructors of fairseq's schedules ask for
SCHEDULE = r"(please specify steps or phase_ratio|phase ratios must .*|max_lr must be .*|Pass-through schedule can .*)"
# type of the error, pattern of its message, replacement (with the groups of the pattern)
EXPLAINED: tuple[tuple[type[Exception], str, str], ...] = (
    # these are raised before a task is built
    (ValueError, "Seed must be between", f"{spelling('common', 'seed')}: expected {RANGES['common']['seed']}"),
    (
        ValueError,
        "Cannot combine --fp16 and --tpu",
        "--fp16 with --bf16; expected one of them, on a CPU --cpu-precision bfloat16",
    ),
    (
        AssertionError,
        "Must specify batch size",
        "neither --batch-size nor --max-tokens; expected one of them, for example --batch-size 128",
    ),
    (
        InterpolationKeyError,
        "Interpolation key '(?:task|criterion)\\.",
        "--task, --arch and --criterion do not go together; expected "
        + ", or ".join(
            f"{task}, {'* or '.join(archs)}* and {criterion}" for task, (archs, criterion) in OF_TASK.items()
        ),
    ),
    (
        ConfigCompositionException,
        r"Error merging override lr_scheduler\.total_num_update=null",
        "--lr-scheduler polynomial_decay without --total-num-update; expected the updates of the run, as --max-update",
    ),
    (
        AssertionError,
        SCHEDULE,
        "--lr-scheduler: {0}; expected options of the schedule that fit it, or polynomial_decay",
    ),
    (ValueError, r"(--finetune-from-model [^:]* not [^:]*together[^:]*)", "{0}; leave one of them out"),
    (ImportError, r"(?s).*(pip install \w+)", "an option asks for what is not installed; leave it out, or {0}"),
    (
        AssertionError,
        r"(Optimizer|Criterion) does not match.* (\S+) vs (\S+)$",
        "{0} of the checkpoint: {1}, and now {2}; give the same options, or --reset-optimizer, or another --save-dir",
    ),
    (
        ValueError,
        r"Unsupported optimizer: (\S+)",
        "--memory-efficient-fp16 or --memory-efficient-bf16 with {0}, which has no such form; expected --fp16, --amp, "
        "or --optimizer adam",
    ),
    (
        FloatingPointError,
        "",
        "training diverged, the gradients are not finite any more; expected a lower --lr, more --warmup-updates, or "
        "--clip-norm 1, and begin in another --save-dir or go on from the last checkpoint",
    ),
    (RuntimeError, DEAD, OF_DEAD),
    (ProcessException, DEAD, OF_DEAD),
)


def explain(error: BaseException) -> str | None:
    """Find the message for an error; None for an error that keeps its traceback."""
    # fairseq searches for the first number that is not finite, and the search may fail with another error
    cause = error.__context__ if isinstance(error.__context__, FloatingPointError) else error
    for kind, pattern, message in EXPLAINED:
        match = re.match(pattern, str(cause)) if isinstance(cause, kind) else None
        if match:
            return message.format(*match.groups())
    return one_line(error)


def report_in_one_line() -> None:
    """Call once, when the plugin is imported."""
    install_excepthook("fairseq_lxsr", explain)
    if HydraConfig.initialized():
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # hydra then re-raises errors without printing a traceback
