"""What every task of this plugin does: one dictionary, checkpoints that are checked before fairseq opens them."""

import argparse
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import II

from fairseq_lxsr.checkpoint import DICTIONARY_HASH, check_resumable
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.cpu import tune_cpu
from fairseq_lxsr.tasks import _loading  # noqa: F401  ends loading threads at exit
from fairseq_lxsr.text import hash_symbols

LAST = "checkpoint_last.pt"  # in --save-dir; fairseq takes any other --restore-file as it is
CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters


@dataclass
class LxsrTaskConfig(FairseqDataclass):
    data: str = field(
        default="",
        metadata={"help": "data folder; several shards joined by ':', one an epoch in turn"},
    )
    persistent_workers: bool = field(
        default=False,
        metadata={
            "help": "leave data loading processes running when their epoch is over; ending them late takes seconds"
        },
    )
    seed: int = II("common.seed")
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    reset_optimizer: bool = II("checkpoint.reset_optimizer")
    no_save: bool = II("checkpoint.no_save")


class LxsrTask(FairseqTask):
    """Sub-classes read the data."""

    @classmethod
    def setup_task(cls, cfg: LxsrTaskConfig, **kwargs) -> "LxsrTask":
        tune_cpu()
        # fairseq saves its options as a Namespace and loads with weights_only; the class itself is harmless
        torch.serialization.add_safe_globals([argparse.Namespace])
        return cls(cfg)

    def __init__(self, cfg: LxsrTaskConfig):
        super().__init__(cfg)
        self.shards = [Path(path) for path in cfg.data.split(os.pathsep)]
        self.dictionary = self.read_dictionary(self.shards[0])
        self.state.merge_state_dict({DICTIONARY_HASH: hash_symbols(self.dictionary.symbols)})

    def read_dictionary(self, folder: Path) -> Dictionary:
        """The one dictionary of all languages."""
        raise NotImplementedError

    def folder_of(self, split: str, epoch: int) -> Path:
        """The shard whose turn it is; other splits than train lie in the first."""
        return self.shards[(epoch - 1) % len(self.shards)] if split == "train" else self.shards[0]

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    target_dictionary = source_dictionary

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            start = self.starting_checkpoint()
            if start is not None:
                path, resumes = start
                found = len(self.dictionary), self.state.state_dict, model.state_dict()
                check_resumable(path, self.cfg._name, *found, exact=resumes and not self.cfg.reset_optimizer)
            self.num_parameters = sum(p.numel() for p in model.parameters())
            if not self.cfg.no_save:
                self.get_checkpoint_dict()
        return model

    def starting_checkpoint(self) -> tuple[Path, bool] | None:
        """What fairseq goes on from: --restore-file, the default's where it is there, or --finetune-from-model.

        Returns: the file, and whether training is resumed, with the optimizer's state; None for a new model.
        """
        if self.cfg.restore_file != LAST:
            return Path(self.cfg.restore_file), True
        last = Path(self.cfg.save_dir) / LAST
        if last.exists():
            return last, True
        return (Path(self.cfg.finetune_from_model), False) if self.cfg.finetune_from_model else None

    def get_checkpoint_dict(self) -> dict:
        """fairseq asks before every checkpoint what the task adds to it: nothing, but there must be room for it."""
        check_space(Path(self.cfg.save_dir), self.num_parameters)
        return {}


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
