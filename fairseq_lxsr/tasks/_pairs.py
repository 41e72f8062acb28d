"""What the tasks that train on sentence pairs share."""

import argparse
import logging
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import II

from fairseq_lxsr.checkpoint import DICTIONARY_HASH, check_resumable
from fairseq_lxsr.datasets.pairs import PairCorpus, PairDataset
from fairseq_lxsr.datasets.subword_dropout import SubwordDropout
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules.cpu import tune_cpu
from fairseq_lxsr.tasks._corpora import joined_dictionary, language_pairs, read_corpus
from fairseq_lxsr.text import hash_symbols

logger = logging.getLogger(__name__)

CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters


@dataclass
class PairTaskConfig(FairseqDataclass):
    data: str = field(
        default="",
        metadata={"help": "folder that fairseq-preprocess wrote; several shards joined by ':', one an epoch in turn"},
    )
    lang_pairs: Optional[str] = field(
        default=None,
        metadata={"help": "language pairs, for example en-fr,en-de; without it every train.SRC-TGT of the folder"},
    )
    max_positions: int = field(default=200, metadata={"help": "longest sentence, in pieces; the rest is cut off"})
    sampling_temperature: float = field(
        default=1.0,
        metadata={
            "help": "language pairs share an epoch by size^(1/temperature): 1 by size, 5 more evenly, inf evenly"
        },
    )
    subword_dropout: float = field(
        default=0.0,
        metadata={"help": "probability with which a piece of the training text is replaced by the two it is made of"},
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
    no_save: bool = II("checkpoint.no_save")


class PairTask(FairseqTask):
    """Reads aligned text of one joined dictionary; sub-classes say what a batch is made of."""

    @classmethod
    def setup_task(cls, cfg: PairTaskConfig, **kwargs) -> "PairTask":
        tune_cpu()
        # fairseq saves its options as a Namespace and loads with weights_only; the class itself is harmless
        torch.serialization.add_safe_globals([argparse.Namespace])
        return cls(cfg)

    def __init__(self, cfg: PairTaskConfig):
        super().__init__(cfg)
        self.shards = [Path(path) for path in cfg.data.split(os.pathsep)]
        self.pairs = self.choose_pairs(self.shards[0])
        self.dictionary = joined_dictionary(self.shards[0], self.pairs)
        self.state.merge_state_dict({DICTIONARY_HASH: hash_symbols(self.dictionary.symbols)})
        self.subword_dropout = self._make_subword_dropout()
        logger.info(f"{', '.join('-'.join(pair) for pair in self.pairs)}; dictionary of {len(self.dictionary):,}")

    def choose_pairs(self, folder: Path) -> list[tuple[str, str]]:
        """Source and target language of the pairs to train on."""
        return language_pairs(folder, self.cfg.lang_pairs)

    def make_dataset(self, pairs: list[tuple[str, str]], corpora: list[PairCorpus], options: dict) -> PairDataset:
        """The dataset of one split, of the pairs that have it; `options` are those of `PairDataset`."""
        raise NotImplementedError

    def _make_subword_dropout(self) -> SubwordDropout | None:
        probability = self.cfg.subword_dropout
        if not 0 <= probability < 1:
            raise InputError(f"--subword-dropout {probability}; expected 0 up to 1, for example 0.1")
        if not probability:
            return None
        return SubwordDropout(self.dictionary.symbols, self.dictionary.nspecial, probability, self.cfg.seed)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    target_dictionary = source_dictionary

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Read `split` of every language pair that has it, of the shard whose turn it is."""
        folder = self.shards[(epoch - 1) % len(self.shards)] if split == "train" else self.shards[0]
        found = {pair: corpus for pair in self.pairs if (corpus := read_corpus(folder, split, *pair)) is not None}
        if not found:
            names = ", ".join(f"{split}.{'-'.join(pair)}" for pair in self.pairs)
            raise InputError(f"{folder}: has no {names}; expected the output of fairseq-preprocess")
        options: dict[str, Any] = {
            "eos_idx": self.dictionary.eos(),
            "max_positions": self.cfg.max_positions,
            "seed": self.cfg.seed,
            "shuffle": split == "train",
            "temperature": self.cfg.sampling_temperature,
            "subword_dropout": self.subword_dropout if split == "train" else None,
        }
        dataset = self.make_dataset(list(found), list(found.values()), options)
        if dataset.num_empty == len(dataset):
            raise InputError(f"{folder}: every pair of {split} has an empty side; look at the text it was made from")
        logger.info(
            f"{split}: {len(dataset):,} pairs, {dataset.num_empty:,} skipped (empty side), "
            f"{dataset.num_cut:,} cut at {self.cfg.max_positions} pieces"
        )
        self.datasets[split] = dataset

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            restored = Path(self.cfg.restore_file)
            if restored.name == self.cfg.restore_file:
                restored = Path(self.cfg.save_dir) / restored
            if restored.exists():
                check_resumable(restored, len(self.dictionary), self.state.state_dict)
            self.num_parameters = sum(p.numel() for p in model.parameters())
            if not self.cfg.no_save:
                self.get_checkpoint_dict()
        return model

    def get_checkpoint_dict(self) -> dict:
        """fairseq asks before every checkpoint what the task adds to it: nothing, but there must be room for it."""
        check_space(Path(self.cfg.save_dir), self.num_parameters)
        return {}

    def max_positions(self) -> int | tuple[int, int]:
        return self.cfg.max_positions


def check_space(save_dir: Path, num_parameters: int) -> None:
    """Refuse where the next checkpoint does not fit: parameters and two moments, three times (epoch, best, last)."""
    needed, free = 3 * (3 * 4 * num_parameters + CHECKPOINT_OVERHEAD), shutil.disk_usage(save_dir).free
    if free < needed:
        raise InputError(
            f"{save_dir}: No space left on device for a checkpoint, {free / 1e6:,.1f} MB free; this model needs "
            f"{needed / 1e6:,.1f} MB: make room and go on, or choose another --save-dir (or --no-save)"
        )
