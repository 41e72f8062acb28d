"""Patches fairseq where this package needs different behaviour.

- Errors that the user can fix are reported in one line; fairseq and hydra print a traceback.
- fairseq-train --help lists the options of this package first.
- Threads that load batches end before Python does, and a worker's dummy batch is marked.
- Training resumes with another --update-freq, and hydra's warnings to programmers are hidden.
"""

import argparse
import atexit
import contextlib
import functools
import importlib.util
import math
import os
import queue
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from fairseq import options
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data import data_utils, iterators
from fairseq.data.iterators import (
    BackgroundConsumer,
    CountingIterator,
    EpochBatchIterator,
    GroupedIterator,
)
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import split_paths
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig
from omegaconf.errors import ConfigKeyError, InterpolationKeyError
from torch.multiprocessing.spawn import ProcessException

from fairseq_lxsr.encoder.checkpoint import newest_checkpoint
from fairseq_lxsr.errors import EXIT_STATUS, InputError, error_message, install_excepthook
from fairseq_lxsr.training.checks import MODELS_AND_CRITERION, RANGES, spelling

# Matches the errors of gloo, NCCL or fairseq-train in the remaining workers after one has died.
WORKER_DIED = (
    r"(?s).*(?:Connection (?:closed|reset) by peer|remote process exited|terminated with signal)"
)
WORKER_DIED_MESSAGE = (
    "another worker of this training run has ended; check its messages (without any, it probably "
    "ran out of memory), then repeat the command on all workers to continue from the last "
    "checkpoint"
)
# Matches the errors of torch on a GPU and on a CPU, and `TOO_LARGE`.
OUT_OF_MEMORY = r"(?s).*(?:out of memory|can't allocate memory|too large for the memory)"
OUT_OF_MEMORY_MESSAGE = (
    "the batches do not fit into the memory; use a smaller --batch-size or --max-tokens (with "
    "--update-freq, for as many pairs an update), --batch-size-valid, or a smaller model"
)
# Ends training. fairseq-train would skip a batch if the error said "out of memory".
TOO_LARGE = "all of the last {} batches are too large for the memory"
# Matches the messages of errors raised by fairseq's learning rate schedules.
SCHEDULE_ERROR = (
    r"(please specify steps or phase_ratio|phase ratios must .*|max_lr must be .*|"
    r"Pass-through schedule can .*)"
)
# For example: "xling_sent, lxsr* and xling_sent_loss, or xling_translation, ..."
COMBINATIONS = ", or ".join(
    f"{task}, {'* or '.join(models)}* and {criterion}"
    for task, (models, criterion) in MODELS_AND_CRITERION.items()
)
# Options known from other fairseq tasks and programs, and what to use instead.
SUGGESTIONS = {
    "--source-lang": "--lang-pairs en-fr",
    "--target-lang": "--lang-pairs en-fr",
    "--epochs": "--max-epoch",
    "--learning-rate": "--lr",
    "--gpu": "no option, because a GPU is used automatically",
}
# Checkpoint folders of the training runs in this process; the last one is the current one.
save_dirs: list[Path] = []


class Explanation(NamedTuple):
    """A one-line message that replaces an exception.

    Attributes:
        error_type: exception type.
        pattern: matches the beginning of the exception's text.
        message: the replacement. {0} and {1} are the groups of the pattern, and {recovery} explains
            how to continue after training has diverged.
    """

    error_type: type[Exception]
    pattern: str
    message: str


EXPLANATIONS = (
    # Errors raised before a task is built; fairseq's error for a missing --arch has no text.
    Explanation(
        RuntimeError, "$", f"--arch is required; use one that matches the task: {COMBINATIONS}"
    ),
    Explanation(
        ValueError,
        r"(\w+) is required!",
        "--{0} is required, for example: --optimizer adam",
    ),
    Explanation(
        ValueError,
        "Seed must be between",
        f"{spelling('common', 'seed')} is invalid; expected {RANGES['common']['seed']}",
    ),
    Explanation(
        ValueError,
        "Cannot combine --fp16 and --tpu",
        "--fp16 and --bf16 cannot be combined; use one of them, or --cpu-precision bfloat16 on a "
        "CPU",
    ),
    Explanation(
        AssertionError,
        "Must specify batch size",
        "--batch-size or --max-tokens is required, for example: --batch-size 128",
    ),
    Explanation(
        InterpolationKeyError,
        "Interpolation key '(?:task|criterion)\\.",
        f"--task, --arch and --criterion are incompatible; use {COMBINATIONS}",
    ),
    Explanation(
        ConfigCompositionException,
        r"Error merging override lr_scheduler\.total_num_update=null",
        "--lr-scheduler polynomial_decay requires --total-num-update; set it to the number of "
        "updates of the run, as in --max-update",
    ),
    Explanation(
        AssertionError,
        SCHEDULE_ERROR,
        "--lr-scheduler: {0}; use options that match the schedule, or polynomial_decay",
    ),
    Explanation(
        ValueError,
        r"(--finetune-from-model [^:]* not [^:]*together[^:]*)",
        "{0}; use one of them",
    ),
    Explanation(
        ImportError,
        r"(?s).*(pip install \w+)",
        "an option requires a package that is not installed; run {0}, or omit the option",
    ),
    Explanation(
        AssertionError,
        r"(Optimizer|Criterion) does not match.* (\S+) vs (\S+)$",
        "{0} is {2}, but the checkpoint was trained with {1}; use the same options, "
        "--reset-optimizer, or another --save-dir",
    ),
    Explanation(
        ValueError,
        r"Unsupported optimizer: (\S+)",
        "{0} does not support --memory-efficient-fp16 or --memory-efficient-bf16; "
        "use --fp16, --amp, or --optimizer adam",
    ),
    Explanation(
        FloatingPointError,
        "",
        "training diverged: the gradients are not finite; use a lower --lr, more "
        "--warmup-updates, or --clip-norm 1, and {recovery}",
    ),
    Explanation(
        AssertionError,
        r"world size is (\d+) but have (\d+) available devices",
        "--distributed-world-size {0} exceeds the {1} GPUs of this machine; to start workers on "
        "CPUs or on several machines, use torchrun (see docs/cluster.md)",
    ),
    Explanation(
        ConfigKeyError,
        r"Key '(.+)' not in '(.+)'",
        "option {0} is not one of {1}; expected an option of the group in which it is given: see "
        "docs/training-options.md",
    ),
    Explanation(RuntimeError, WORKER_DIED, WORKER_DIED_MESSAGE),
    Explanation(RuntimeError, OUT_OF_MEMORY, OUT_OF_MEMORY_MESSAGE),
    Explanation(ProcessException, OUT_OF_MEMORY, OUT_OF_MEMORY_MESSAGE),
    Explanation(ProcessException, WORKER_DIED, WORKER_DIED_MESSAGE),
)


def explain(error: BaseException) -> str | None:
    """Return a one-line message for an error, or None to show the traceback."""
    # After a FloatingPointError, fairseq searches for its origin, which may raise another error.
    cause = error
    if isinstance(error.__context__, FloatingPointError):
        cause = error.__context__
    for error_type, pattern, message in EXPLANATIONS:
        if not isinstance(cause, error_type):
            continue
        match = re.match(pattern, str(cause))
        if match:
            # Searching for a usable checkpoint is slow, so it is done only if needed.
            recovery = ""
            if "{recovery}" in message:
                recovery = _describe_recovery()
            return message.format(*match.groups(), recovery=recovery)
    return error_message(error)


def _describe_recovery() -> str:
    """Describe how to continue from the newest complete checkpoint with finite weights."""
    checkpoint = None
    if save_dirs:
        checkpoint = newest_checkpoint(save_dirs[-1], finite=True)
    if checkpoint is None:
        return "start again in another --save-dir"
    return f"continue from the last good checkpoint with --restore-file {checkpoint}"


def report_in_one_line() -> None:
    """Replace the tracebacks of errors that users can fix with one-line messages.

    Call this once, when the plugin is imported.
    """
    install_excepthook(
        "fairseq_lxsr",
        explain,
        "interrupted; the same command continues from the last checkpoint",
    )
    if HydraConfig.initialized():
        # With this setting, Hydra re-raises errors instead of printing its own traceback.
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")


# fairseq uses old functions of hydra, whose warnings fill a screen before any other message.
warnings.filterwarnings("ignore", category=UserWarning, module=r"hydra\.")
warnings.filterwarnings("ignore", r"\s*'config' is validated against ConfigStore", UserWarning)

# fairseq stores options as a Namespace. Loading this class with weights_only does not run any code.
torch.serialization.add_safe_globals([argparse.Namespace])


def load_on_all_workers(run_options: DictConfig) -> None:
    """Make every worker load the checkpoint itself, instead of receiving it from the first worker.

    By default, the first worker sends a pickled checkpoint, which torch rejects.
    """
    run_options.checkpoint.load_checkpoint_on_all_dp_ranks = True


# fairseq's original function.
parse_args_and_arch = options.parse_args_and_arch


@functools.wraps(parse_args_and_arch)
def parse_for_gpu(*args: Any, **kwargs: Any) -> Any:
    """Parse the command line, list this plugin's options on --help, and allow --bf16 on a GPU.

    fairseq turns --bf16 into --bf16 --tpu, although its trainer supports bfloat16 on GPUs.

    Raises:
        InputError: if --profile is used without a GPU, because fairseq's profiler requires one.
    """
    if {"-h", "--help"} & set(sys.argv):
        print_options()
    parsed = parse_args_and_arch(*args, **kwargs)
    namespace = parsed[0] if isinstance(parsed, tuple) else parsed
    has_tpu = importlib.util.find_spec("torch_xla") is not None
    has_gpu = torch.cuda.is_available() and not getattr(namespace, "cpu", False)
    if getattr(namespace, "bf16", False) and has_gpu and not has_tpu:
        namespace.tpu = False
    if getattr(namespace, "profile", False) and not has_gpu:
        raise InputError("--profile requires a GPU, because it records GPU work; omit the option")
    return parsed


options.parse_args_and_arch = parse_for_gpu


def refuse_unread_validation_text(cfg: DictConfig) -> None:
    """Reject validation text in the data folder that would not be read, such as valid1.

    fairseq itself compares file names with split names, so it also rejects text that would be read.

    Args:
        cfg: options of the training run.

    Raises:
        InputError: if a split in the folder is not in --valid-subset.
    """
    if cfg.dataset.ignore_unused_valid_subsets or cfg.dataset.combine_valid_subsets:
        return
    splits: set[str] = set()
    for folder in split_paths(cfg.task.get("data") or ""):
        for path in Path(folder).glob("valid[0-9]*.idx"):
            splits.add(path.name.partition(".")[0])
    unread = sorted(splits - set(cfg.dataset.valid_subset.split(",")))
    if unread:
        subset = ",".join([cfg.dataset.valid_subset, *unread])
        raise InputError(
            f"{cfg.task.data} contains validation text ({', '.join(unread)}) that would not "
            f"be read; use {spelling('dataset', 'valid_subset')} {subset} to read it, or "
            f"{spelling('dataset', 'ignore_unused_valid_subsets')}"
        )


data_utils.raise_if_valid_subsets_unintentionally_ignored = refuse_unread_validation_text


def add_preset_to_hydra(arch: str, config: type) -> None:
    """Register a preset under its --arch name for fairseq-hydra-train.

    fairseq-hydra-train only finds defaults in dataclasses that are registered as models.
    """
    MODEL_DATACLASS_REGISTRY[arch] = config
    ARCH_MODEL_NAME_REGISTRY[arch] = arch
    ConfigStore.instance().store(
        name=arch, group="model", node=config(_name=arch), provider="fairseq"
    )


def configs_of_package(registry: dict[str, type]) -> dict[str, type]:
    """Map names to this package's configs in a fairseq registry, without presets."""
    configs = {}
    for name, config in registry.items():
        # Preset classes are created at run time, in another module.
        if config.__module__.startswith("fairseq_lxsr."):
            configs[name] = config
    return configs


# argparse's original function, for the parsers of other programs in the same process.
print_usage_and_error = argparse.ArgumentParser.error


def refuse_option(self: argparse.ArgumentParser, message: str) -> NoReturn:
    """Exit fairseq-train with a one-line message that suggests the correct option.

    argparse itself would print pages of usage before its message.
    """
    # Without --user-dir, the parser belongs to another program.
    if "--user-dir" not in self._option_string_actions:
        print_usage_and_error(self, message)
    choice = re.fullmatch(r"(.*invalid choice: '?([^' ]*)'?) \(choose from (.*)\)", message)
    if choice:
        problem, value, choices = choice.groups()
        close = get_close_matches(value, re.findall(r"[\w.-]+", choices), 1)
        expected = close[0] if close else f"one of {choices}"
        message = f"{problem}; expected {expected}"
    elif message.startswith("unrecognized arguments"):
        for option in re.findall(r"--[\w-]+", message):
            message += _suggest(option, self._option_string_actions)
    self.exit(EXIT_STATUS, f"fairseq-train: error: {message}\n")


# Least similarity of an option that is suggested for an unknown one.
SIMILAR = 0.8


def _suggest(option: str, options: Iterable[str]) -> str:
    """Return `; --option: expected --other`, or an empty string if no option is similar."""
    if option in SUGGESTIONS:
        return f"; {option}: expected {SUGGESTIONS[option]}"
    close = get_close_matches(option, options, 1, SIMILAR)
    if close:
        return f"; {option}: expected {close[0]}"
    if option.endswith("-weight"):
        return f"; {option}: if the loss is your own, give its folder with --user-dir"
    return ""


argparse.ArgumentParser.error = refuse_option  # type: ignore[method-assign]


def print_options() -> None:
    """Print all options of this plugin, with helps and defaults, before fairseq's own options.

    The selected task comes first. Each task lists its specific options before the shared ones.
    """
    tasks = sorted(
        configs_of_package(TASK_DATACLASS_REGISTRY).items(),
        key=lambda item: item[0] not in sys.argv,
    )
    counts = Counter(field.name for _, config in tasks for field in fields(config))
    shared = {name for name, count in counts.items() if count > 1}
    groups = {f"--task {name}": config for name, config in tasks}
    for name, config in configs_of_package(MODEL_DATACLASS_REGISTRY).items():
        # Show the defaults of the first preset.
        groups[f"--arch {', '.join(ARCH_MODEL_INV_REGISTRY[name])}"] = config
    for name, config in configs_of_package(CRITERION_DATACLASS_REGISTRY).items():
        groups[f"--criterion {name}"] = config
    for name, config in configs_of_package(OPTIMIZER_DATACLASS_REGISTRY).items():
        groups[f"--optimizer {name}"] = config
    for title, config in groups.items():
        # Each group needs its own parser, because option names repeat across groups.
        parser = argparse.ArgumentParser(
            add_help=False,
            usage=argparse.SUPPRESS,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        group = parser.add_argument_group(title)
        gen_parser_from_dataclass(group, config())
        group._group_actions.sort(key=lambda action: action.dest in shared)
        print()
        parser.print_help()


@atexit.register
def end_loading_threads(timeout: float = 10) -> None:
    """Stop all threads that load batches, and wait for them to finish.

    The threads are daemons. If Python ends one of them inside torch, the process aborts with
    SIGABRT although all work is done.

    Args:
        timeout: total number of seconds to wait. Slower threads are left to Python.
    """
    deadline = time.monotonic() + timeout
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            # Make the thread stop after its current batch.
            thread._max_len = 0
            while thread.is_alive() and time.monotonic() < deadline:
                # The thread may be blocked on a full queue.
                with contextlib.suppress(queue.Empty):
                    thread._queue.get_nowait()
                thread.join(0.01)


class MarkedIterator(EpochBatchIterator):
    """A fairseq iterator that marks `first_batch`, which the trainer uses as its dummy batch.

    The trainer gives the dummy batch to workers that have run out of batches.
    """

    @property
    def first_batch(self) -> Any:
        return super().first_batch | {"is_dummy": True}


def mark_dummy_batches(iterator: EpochBatchIterator) -> EpochBatchIterator:
    """Make an existing fairseq iterator mark its dummy batch."""
    # fairseq has no option for the iterator class, so the class is changed afterwards.
    iterator.__class__ = MarkedIterator
    return iterator


class ResumedGroups(GroupedIterator):
    """Groups the batches of an update, in an epoch that may have begun with another --update-freq.

    fairseq counts all groups of the epoch instead of those that are left, and then loses the last
    batches, repeats the epoch, or fails.

    Args:
        iterable: the batches of the epoch; `iterable.n` of them have been used.
        chunk_size: number of batches in a group.
        skip_remainder_batch: whether to omit a last group that is smaller.
    """

    def __init__(
        self, iterable: CountingIterator, chunk_size: int, skip_remainder_batch: bool = False
    ):
        num_left = len(iterable) - iterable.n
        if skip_remainder_batch:
            num_left -= num_left % chunk_size
            iterable.take(iterable.n + num_left)
        if not num_left:
            raise InputError(
                f"--skip-remainder-batch leaves no update in this epoch, which has fewer than "
                f"--update-freq {chunk_size} batches left; use a smaller --update-freq, drop "
                "--skip-remainder-batch, or begin a new epoch with --reset-dataloader"
            )
        super().__init__(iterable, chunk_size)
        self.total = self.n + math.ceil(num_left / chunk_size)


iterators.GroupedIterator = ResumedGroups


def step_if_finite(self: AMPOptimizer) -> None:
    """Update the weights with unscaled gradients, unless a gradient is not finite.

    `clip_grad_norm` has already unscaled the gradients.
    """
    self.scaler.step(self.optimizer)
    self.scaler.update()


AMPOptimizer.step = step_if_finite
