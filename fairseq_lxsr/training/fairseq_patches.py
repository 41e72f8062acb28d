"""Turns errors of fairseq that the user can fix into one line; fairseq and hydra print a
traceback.
"""

import argparse
import atexit
import contextlib
import importlib
import importlib.util
import os
import queue
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data.iterators import BackgroundConsumer, EpochBatchIterator
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.scoring import bleu
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig
from omegaconf.errors import InterpolationKeyError
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException

from fairseq_lxsr.encoder.checkpoint import newest_checkpoint
from fairseq_lxsr.errors import EXIT_STATUS, error_message, install_excepthook
from fairseq_lxsr.training import uncompiled
from fairseq_lxsr.training.checks import OF_TASK, RANGES, spelling

# what the other workers say when one dies, by gloo or NCCL, or fairseq-train where it has started
# the workers itself
DEAD = r"(?s).*(?:Connection (?:closed|reset) by peer|remote process exited|terminated with signal)"
OF_DEAD = (
    "another worker of this training has ended; look at its messages (a killed one has none: often too little memory), "
    "then give the same command on all workers, it goes on from the last checkpoint"
)
# what constructors of fairseq's schedules ask for
SCHEDULE = r"(please specify steps or phase_ratio|phase ratios must .*|max_lr must be .*|Pass-through schedule can .*)"
_TOGETHER = (
    f"{task}, {'* or '.join(archs)}* and {criterion}"
    for task, (archs, criterion) in OF_TASK.items()
)
WITH_TASK = ", or ".join(_TOGETHER)
# options of other tasks of fairseq, and of other programs
MEANT = {"--source-lang": "--lang-pairs en-fr", "--target-lang": "--lang-pairs en-fr"}
MEANT |= {"--epochs": "--max-epoch", "--learning-rate": "--lr", "--gpu": "nothing, a GPU is found"}
save_dirs: list[Path] = []  # the folders of checkpoints of the runs of this process
# type of the error, pattern of its message, replacement (with the groups of the pattern)
EXPLAINED: tuple[tuple[type[Exception], str, str], ...] = (
    # these are raised before a task is built; fairseq says nothing at all where there is no --arch
    (RuntimeError, "$", f"--arch is missing; expected a model of the task, {WITH_TASK}"),
    (ValueError, r"(\w+) is required!", "--{0} is missing; expected for example --optimizer adam"),
    (
        ValueError,
        "Seed must be between",
        f"{spelling('common', 'seed')}: expected {RANGES['common']['seed']}",
    ),
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
        f"--task, --arch and --criterion do not go together; expected {WITH_TASK}",
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
    (
        ValueError,
        r"(--finetune-from-model [^:]* not [^:]*together[^:]*)",
        "{0}; leave one of them out",
    ),
    (
        ImportError,
        r"(?s).*(pip install \w+)",
        "an option asks for what is not installed; leave it out, or {0}",
    ),
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
        "--clip-norm 1, and {good}",
    ),
    (RuntimeError, DEAD, OF_DEAD),
    (ProcessException, DEAD, OF_DEAD),
)


def explain(error: BaseException) -> str | None:
    """Find the message for an error; None for an error that keeps its traceback."""
    # fairseq searches for the first number that is not finite, and the search may fail with another
    # error
    cause = error.__context__ if isinstance(error.__context__, FloatingPointError) else error
    for kind, pattern, message in EXPLAINED:
        match = re.match(pattern, str(cause)) if isinstance(cause, kind) else None
        if match:
            return message.format(
                *match.groups(), good=_how_to_go_on() if "{good}" in message else ""
            )
    return error_message(error)


def _how_to_go_on() -> str:
    """Name the last good checkpoint: the newest one of this run that is whole and has only finite
    weights.
    """
    good = newest_checkpoint(save_dirs[-1], finite=True) if save_dirs else None
    return (
        f"go on from the last good checkpoint with --restore-file {good}"
        if good
        else "begin in another --save-dir"
    )


def report_in_one_line() -> None:
    """Call once, when the plugin is imported."""
    install_excepthook(
        "fairseq_lxsr", explain, "interrupted; the same command goes on from the last checkpoint"
    )
    if HydraConfig.initialized():
        os.environ.setdefault(
            "HYDRA_FULL_ERROR", "1"
        )  # hydra then re-raises errors without printing a traceback


# fairseq is installed without being built; it imports these when it cuts batches and blocks of its
# own data sets
for compiled in ("fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast"):
    try:
        importlib.import_module(compiled)
    except (ImportError, ValueError):  # ValueError: it was built for another numpy
        sys.modules[compiled] = uncompiled


def count_bleu_without_a_library() -> None:
    """Let fairseq-generate score by BLEU where fairseq has no compiled library for it."""
    no_word = (
        -999
    )  # in place of an unknown word of the reference, which no word matches, as in fairseq

    def begin(self: bleu.Scorer, cfg: bleu.BleuConfig) -> None:
        self.stat, self.pad, self.eos, self.unk = bleu.BleuStat(), cfg.pad, cfg.eos, cfg.unk

    def reset(self: bleu.Scorer, one_init: bool = False) -> None:
        self.stat = bleu.BleuStat()
        for name in (
            [f"{kind}{n}" for kind in ("match", "count") for n in (2, 3, 4)] if one_init else ()
        ):
            setattr(self.stat, name, 1)

    def add(self: bleu.Scorer, ref: Tensor, pred: Tensor) -> None:
        known = [no_word if number == self.unk else number for number in ref.view(-1).tolist()]
        for name, count in uncompiled.count_for_bleu(
            known, pred.view(-1).tolist(), self.pad, self.eos
        ).items():
            setattr(self.stat, name, getattr(self.stat, name) + count)

    bleu.Scorer.__init__, bleu.Scorer.reset, bleu.Scorer.add = begin, reset, add


if importlib.util.find_spec("fairseq.libbleu") is None:
    count_bleu_without_a_library()

# fairseq saves its options as a Namespace and loads with weights_only; loading this class runs no
# code
torch.serialization.add_safe_globals([argparse.Namespace])


def load_on_all_workers(options: DictConfig) -> None:
    """Let every worker read a checkpoint: the first sends it with pickle, in a form that torch
    refuses to read.
    """
    options.checkpoint.load_checkpoint_on_all_dp_ranks = True


def add_preset_to_hydra(arch: str, config: type) -> None:
    """Let fairseq-hydra-train find a preset: it reads defaults from dataclasses only, by the name
    of the model.
    """
    MODEL_DATACLASS_REGISTRY[arch] = config
    ARCH_MODEL_NAME_REGISTRY[arch] = arch
    ConfigStore.instance().store(
        name=arch, group="model", node=config(_name=arch), provider="fairseq"
    )


def ours(registry: dict[str, type]) -> dict[str, type]:
    """The configs of this package in a registry of fairseq, by name; presets, which are made, are
    in none.
    """
    return {
        name: config
        for name, config in registry.items()
        if config.__module__.startswith("fairseq_lxsr.")
    }


def refuse_option(self: argparse.ArgumentParser, message: str) -> NoReturn:
    """End fairseq-train with one line where argparse prints pages of usage before it, and name what
    may be meant.
    """
    if "--user-dir" not in self._option_string_actions:  # another program in this process
        usage_and_error(self, message)
    choice = re.fullmatch(r"(.*invalid choice: '?([^' ]*)'?) \(choose from (.*)\)", message)
    options = (
        re.findall(r"--[\w-]+", message) if message.startswith("unrecognized arguments") else []
    )
    if choice:
        meant = get_close_matches(choice[2], re.findall(r"[\w.-]+", choice[3]), 1)
        message = f"{choice[1]}; expected {meant[0] if meant else f'one of {choice[3]}'}"
    for option in options:
        meant = (
            [MEANT[option]]
            if option in MEANT
            else get_close_matches(option, self._option_string_actions, 1)
        )
        message += f"; {option}: expected {meant[0]}" if meant else ""
    self.exit(EXIT_STATUS, f"fairseq-train: error: {message}\n")


usage_and_error = argparse.ArgumentParser.error
argparse.ArgumentParser.error = refuse_option  # type: ignore[method-assign]


def add_to_help() -> None:
    """Call once, when the plugin is imported; does nothing unless the command line asks for
    help.
    """
    if {"-h", "--help"} & set(sys.argv):
        print_options()


def print_options() -> None:
    """Print every option of this plugin with its help and default, before those of fairseq.

    The chosen task comes first, and in each task its own options, before those that others have
    too.
    """
    tasks = sorted(ours(TASK_DATACLASS_REGISTRY).items(), key=lambda item: item[0] not in sys.argv)
    names = Counter(field.name for _, config in tasks for field in fields(config))
    shared = {name for name, count in names.items() if count > 1}
    groups = {
        **{f"--task {name}": config for name, config in tasks},
        # with the defaults of the first preset
        **{
            f"--arch {', '.join(ARCH_MODEL_INV_REGISTRY[name])}": config
            for name, config in ours(MODEL_DATACLASS_REGISTRY).items()
        },
        **{
            f"--criterion {name}": config
            for name, config in ours(CRITERION_DATACLASS_REGISTRY).items()
        },
        **{
            f"--optimizer {name}": config
            for name, config in ours(OPTIMIZER_DATACLASS_REGISTRY).items()
        },
    }
    for title, config in groups.items():
        # one parser each: several groups have options of the same names
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


PATIENCE = 10  # seconds for all threads together; one that takes longer is left to Python


@atexit.register
def end_loading_threads() -> None:
    """Stop every thread that loads batches, and wait for it.

    They are daemons: if Python ends one inside of torch, the process aborts with SIGABRT although
    all work is done.
    """
    deadline = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # it stops after its current batch
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get_nowait()  # it may be blocked by a full queue
                thread.join(0.01)


class MarkedIterator(EpochBatchIterator):
    """The iterator of fairseq, whose `first_batch` is what the trainer keeps for such a worker."""

    @property
    def first_batch(self) -> Any:
        return super().first_batch | {"is_dummy": True}


def mark_dummy(iterator: EpochBatchIterator) -> EpochBatchIterator:
    """Mark the dummy batch of an iterator that fairseq has built; it builds no other class."""
    iterator.__class__ = MarkedIterator
    return iterator


def step(self: AMPOptimizer) -> None:
    """Update the weights by the gradients that `clip_grad_norm` has unscaled; not where one is not
    finite.
    """
    self.scaler.step(self.optimizer)
    self.scaler.update()


AMPOptimizer.step = step
