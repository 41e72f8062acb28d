"""The base of all tasks: one dictionary, and checkpoints that are checked before fairseq opens them."""

import atexit
import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed.utils import is_master
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import nn

from fairseq_lxsr.encoder.checkpoint import ARCHITECTURE, DATA_HASH, DICTIONARY_HASH
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.modules.cpu import KEPT_UPDATES, give_back_memory, tune_cpu
from fairseq_lxsr.modules.network import shapes_only
from fairseq_lxsr.options import FileName, option
from fairseq_lxsr.text.data_folder import check_files, collect_text, keep_text, kept_text
from fairseq_lxsr.text.tokenizer import SENTENCEPIECE_FILE, TEXT_FILE, hash_symbols, read_dictionary
from fairseq_lxsr.training import console
from fairseq_lxsr.training.checks import check_run, spelling
from fairseq_lxsr.training.mends import load_on_all_workers, report_in_one_line, saving_to
from fairseq_lxsr.training.resume import NewRun, check_layers, check_resumable, reached, refuse_replacing

LAST = "checkpoint_last.pt"  # in --save-dir; fairseq takes any other --restore-file as a path

logger = logging.getLogger(__name__)
report_in_one_line()
console.begin()


@dataclass
class LxsrTaskConfig(FairseqDataclass):
    data: str = option("data folder; several shards joined by ':', one an epoch in turn", "")
    sentencepiece_model: Optional[str] = option(
        "SentencePiece model that the text was split with before fairseq-preprocess, kept with the checkpoints for "
        "`lxsr export` (default: sentencepiece.model of the data folder; text in words needs none)",
        None,
        FileName(),
    )
    seed: int = II("common.seed")
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    continue_once: Optional[str] = II("checkpoint.continue_once")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    reset_optimizer: bool = II("checkpoint.reset_optimizer")
    no_save: bool = II("checkpoint.no_save")


class LxsrTask(FairseqTask):
    """Base class of the tasks; sub-classes read the data."""

    @classmethod
    def setup_task(cls, cfg: LxsrTaskConfig, from_checkpoint: bool = False, **kwargs) -> "LxsrTask":
        if not from_checkpoint:
            console.begin()
            check_run(cfg)
        tune_cpu()
        return cls(cfg)

    def __init__(self, cfg: LxsrTaskConfig):
        super().__init__(cfg)
        self.shards = [Path(path) for path in cfg.data.split(os.pathsep)]
        self.dictionary = self.read_dictionary(self.shards[0])
        self.num_symbols = len(self.dictionary)  # symbols that the data was made with; a task may add <mask>
        text = [check_files(shard) for shard in self.shards]
        data = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()
        self.state.merge_state_dict({DICTIONARY_HASH: hash_symbols(self.dictionary.symbols), DATA_HASH: data})
        self.check_shards()

    def check_shards(self) -> None:
        """Refuse shards with another dictionary than the first, whose ids mean other pieces."""
        for path in (path for shard in self.shards[1:] for path in sorted(shard.glob("dict*.txt"))):
            if read_dictionary(path) != self.dictionary.symbols:
                raise InputError(
                    f"{path}: another dictionary than that of {self.shards[0]}; expected shards of one dictionary "
                    "(fairseq-preprocess --srcdict)"
                )

    def read_dictionary(self, folder: Path) -> Dictionary:
        """Read the dictionary, which all languages share."""
        raise NotImplementedError

    def folder_of(self, split: str, epoch: int) -> Path:
        """Folder of the shard of this epoch; splits other than train are in the first shard."""
        return self.shards[(epoch - 1) % len(self.shards)] if split == "train" else self.shards[0]

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    target_dictionary = source_dictionary

    def build_model(self, cfg, from_checkpoint: bool = False):
        if from_checkpoint:
            return super().build_model(cfg, from_checkpoint)
        options = self.cfg._get_parent()  # options of the whole run; None for a task that is built alone
        saves = options is not None and not self.cfg.no_save and is_master(options.distributed_training)
        if saves:
            hold(Path(self.cfg.save_dir))
        console.keep_log(Path(self.cfg.save_dir) if saves else None)
        if options is not None:
            console.set_run(options)
            load_on_all_workers(options)
        if saves:
            self.check_text()
        check_memory(lambda: super(LxsrTask, self).build_model(cfg))
        model = super().build_model(cfg)
        start = self.starting_checkpoint()
        if saves and not (start and start[1]):
            refuse_replacing(Path(self.cfg.save_dir))
        if start is not None:
            path, resumes = start
            resumes_optimizer = resumes and not self.cfg.reset_optimizer
            same_place = resumes_optimizer and options is not None and not options.checkpoint.reset_dataloader
            check_resumable(path, NewRun.of(self, model, resumes_optimizer, same_place))
            check_layers(path, model)
            if saves:
                self.keep_text()  # also of a training that is finished
            limit = reached(path, options) if resumes and options is not None else None
            if limit:
                logger.info(f"{path}: finished, {limit} is reached; nothing to do, give more to go on from it")
                sys.exit()
        for module in model.modules():
            if isinstance(module, SentenceNetwork):
                self.state.merge_state_dict({ARCHITECTURE: module.name})
        self.num_parameters = sum(p.numel() for p in model.parameters())
        if not self.cfg.no_save:
            self.get_checkpoint_dict()
        if saves:
            self.keep_text()
        return model

    def keep_text(self) -> None:
        """Keep what `lxsr export` needs beside the checkpoints."""
        keep_text(self.shards[0], Path(self.cfg.save_dir), self.sentencepiece_model)

    @property
    def sentencepiece_model(self) -> str | Path | None:
        """The SentencePiece model that the user names, or has named before in this --save-dir for this dictionary."""
        if self.cfg.sentencepiece_model or (self.shards[0] / SENTENCEPIECE_FILE).is_file():
            return self.cfg.sentencepiece_model
        kept = kept_text(Path(self.cfg.save_dir) / LAST, hash_symbols(self.dictionary.symbols[: self.num_symbols]))
        return next((path for path in (folder / SENTENCEPIECE_FILE for folder in kept) if path.is_file()), None)

    def check_text(self) -> None:
        """Say before training begins what `lxsr export` would miss beside the checkpoints."""
        folder = self.shards[0]
        text = collect_text(folder, self.sentencepiece_model)
        if not (folder / TEXT_FILE).is_file():
            case = "lower-cased text" if json.loads(text[TEXT_FILE])["lowercase"] else "text in upper and lower case"
            logger.info(f"{folder}: has no {TEXT_FILE}; its dictionary is that of {case}, which the model will expect")
        if SENTENCEPIECE_FILE not in text:
            logger.warning(
                f"{folder}: has no {SENTENCEPIECE_FILE}, which `lxsr export folder` will ask for; name it now with "
                "--sentencepiece-model, and it is kept with the checkpoints"
            )

    def build_criterion(self, cfg, from_checkpoint: bool = False):
        criterion = super().build_criterion(cfg, from_checkpoint)
        self.check_metric(getattr(criterion, "metrics", ()))
        return criterion

    def get_batch_iterator(self, *args, **kwargs):
        give_back_memory()  # the processes that load batches are forked next
        iterator = super().get_batch_iterator(*args, **kwargs)
        iterator.persistent_workers = False  # those of an epoch that is over would take seconds to end later
        return iterator

    def optimizer_step(self, optimizer, model, update_num: int) -> None:
        super().optimizer_step(optimizer, model, update_num)
        console.stepped(update_num + 1)
        if update_num % KEPT_UPDATES == 0:
            give_back_memory()

    def post_validate(self, model, stats: dict[str, Any], agg) -> None:
        """Check the metric of the best checkpoint again; fairseq calls this after every validation.

        Criterions of others do not tell their metrics before, and data without a teacher lack that of distillation.
        """
        self.check_metric(stats)

    def check_metric(self, metrics: Collection[str]) -> None:
        """Check that the metric of the best checkpoint is among those of validation; none are told: no check."""
        options = self.cfg._get_parent()
        metric = options.checkpoint.best_checkpoint_metric if options is not None else "loss"
        if metrics and metric not in metrics:
            name = spelling("checkpoint", "best_checkpoint_metric")
            raise InputError(f"{name} {metric}; expected one of {', '.join(metrics)}, as validation has them")
        if options is not None and options.checkpoint.maximize_best_checkpoint_metric != metric.startswith("acc"):
            how = "with" if metric.startswith("acc") else "without"
            raise InputError(f"--best-checkpoint-metric {metric}; expected it {how} --maximize-best-checkpoint-metric")

    def starting_checkpoint(self) -> tuple[Path, bool] | None:
        """Find the checkpoint that fairseq starts from: --restore-file, --continue-once or --finetune-from-model.

        The default of --restore-file counts only if that file exists, and the others only if it does not. Beside the
        file stands whether training is resumed with the optimizer's state.
        """
        if self.cfg.restore_file != LAST:
            return Path(self.cfg.restore_file), True
        last = Path(self.cfg.save_dir) / LAST
        if last.exists():
            return last, True
        if self.cfg.continue_once:
            return Path(self.cfg.continue_once), True
        return (Path(self.cfg.finetune_from_model), False) if self.cfg.finetune_from_model else None

    def get_checkpoint_dict(self) -> dict:
        """Check the disk space; fairseq calls this before every checkpoint to ask what the task adds to it: nothing."""
        options = self.cfg._get_parent()
        copies = 3  # the parameters and two moments
        if options is not None:
            copies += bool(getattr(options.optimizer, "amsgrad", False)) + options.ema.store_ema
        check_space(Path(self.cfg.save_dir), copies * self.num_parameters)
        return {}


LOCK = ".lock"
CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters

_held = contextlib.ExitStack()  # the lock of the run of this process
let_go = atexit.register(_held.close)


def hold(save_dir: Path) -> None:
    """Lock a folder against other runs until this process ends or starts another run."""
    let_go()
    saving_to.append(save_dir)
    _held.enter_context(locked(save_dir / LOCK, save_dir))


def check_space(save_dir: Path, num_values: int) -> None:
    """Check that the next checkpoint of so many numbers fits on the disk, three times (epoch, best, last)."""
    if not save_dir.is_dir():
        return  # fairseq creates it on the node that saves
    needed, free = 3 * (4 * num_values + CHECKPOINT_OVERHEAD), shutil.disk_usage(save_dir).free
    if free < needed:
        raise InputError(
            f"{save_dir}: No space left on device for a checkpoint, {free / 1e6:,.1f} MB free; this model needs "
            f"{needed / 1e6:,.1f} MB: make room and go on, or choose another --save-dir (or --no-save)"
        )


def check_memory(build: Callable[[], nn.Module]) -> None:
    """Refuse a model that this machine cannot hold; it is built on torch's device without memory."""
    numbers = 0
    with contextlib.suppress(NotImplementedError, RuntimeError), shapes_only():
        model = build()  # one that cannot be made without memory passes
        numbers = sum(part.numel() for part in itertools.chain(model.parameters(), model.buffers()))
    needed, there = 2 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"a model of {numbers:,} numbers needs {needed / 1e9:,.1f} GB for weights and gradients, this machine has "
            f"{there / 1e9:,.1f} GB; expected smaller widths, fewer layers, positions or dictionary entries"
        )
