"""fairseq task `xling_sent`: sentence pairs of one or several language pairs, read from fairseq-preprocess folders."""

import argparse
import logging
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II

from fairseq_lxsr.checkpoint import DICTIONARY_HASH, check_resumable
from fairseq_lxsr.criterions import xling_sent_loss  # noqa: F401  --user-dir imports tasks and models only
from fairseq_lxsr.datasets.masking import MaskingVocabulary
from fairseq_lxsr.datasets.pairs import PairCorpus, SentencePairDataset
from fairseq_lxsr.datasets.subword_dropout import SubwordDropout
from fairseq_lxsr.errors import InputError, install_excepthook
from fairseq_lxsr.losses import OBJECTIVES
from fairseq_lxsr.modules.cpu import tune_cpu
from fairseq_lxsr.tasks._help import add_to_help
from fairseq_lxsr.text import MASK, hash_symbols, is_punctuation

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 128
CHECKPOINT_OVERHEAD = 100_000  # bytes of options and meters
MASKING_OF_OBJECTIVE = {"ugt": "one", "xtr": "one", "smlm": "one", "mlm": "tokens", "mlm_xtr": "tokens", "none": "none"}


@dataclass
class XlingSentConfig(FairseqDataclass):
    data: str = field(
        default="",
        metadata={"help": "folder that fairseq-preprocess wrote; several shards joined by ':', one an epoch in turn"},
    )
    lang_pairs: Optional[str] = field(
        default=None,
        metadata={"help": "language pairs, for example en-fr,en-de; without it every train.SRC-TGT of the folder"},
    )
    objective: ChoiceEnum((*OBJECTIVES, "none")) = field(  # type: ignore[valid-type]
        default="ugt",
        metadata={"help": "generative loss: what is masked and what is predicted from it; none leaves both out"},
    )
    max_positions: int = field(default=200, metadata={"help": "longest sentence, in pieces; the rest is cut off"})
    sampling_temperature: float = field(
        default=1.0,
        metadata={"help": "language pairs share an epoch by size^(1/temperature): 1 by size, 5 more evenly"},
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


@register_task("xling_sent", dataclass=XlingSentConfig)
class XlingSentTask(FairseqTask):
    """Batches of sentence pairs, each of one language pair, for `--criterion xling_sent_loss`."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq has no default and its --help shows none; with --max-tokens as well, both limits hold
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    @classmethod
    def setup_task(cls, cfg: XlingSentConfig, **kwargs) -> "XlingSentTask":
        tune_cpu()
        # fairseq saves its options as a Namespace and loads with weights_only; the class itself is harmless
        torch.serialization.add_safe_globals([argparse.Namespace])
        return cls(cfg)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        self.shards = [Path(path) for path in cfg.data.split(os.pathsep)]
        self.pairs = language_pairs(self.shards[0], cfg.lang_pairs)
        self.dictionary = joined_dictionary(self.shards[0], self.pairs)
        self.state.merge_state_dict({DICTIONARY_HASH: hash_symbols(self.dictionary.symbols)})
        punctuation = [is_punctuation(symbol) for symbol in self.dictionary.symbols]
        self.subword_dropout = self._make_subword_dropout()
        mask_idx = self.dictionary.add_symbol(MASK)
        self.vocabulary = MaskingVocabulary(
            padding_idx=self.dictionary.pad(),
            mask_idx=mask_idx,
            first_piece=self.dictionary.nspecial,
            is_punctuation=np.array([*punctuation, False]),
        )
        logger.info(f"{', '.join('-'.join(pair) for pair in self.pairs)}; dictionary of {len(self.dictionary):,}")

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
        corpora = [corpus for pair in self.pairs if (corpus := read_corpus(folder, split, *pair)) is not None]
        if not corpora:
            names = ", ".join(f"{split}.{'-'.join(pair)}" for pair in self.pairs)
            raise InputError(f"{folder}: has no {names}; expected the output of fairseq-preprocess")
        dataset = SentencePairDataset(
            corpora,
            self.vocabulary,
            eos_idx=self.dictionary.eos(),
            max_positions=self.cfg.max_positions,
            masking=MASKING_OF_OBJECTIVE[self.cfg.objective],
            seed=self.cfg.seed,
            shuffle=split == "train",
            temperature=self.cfg.sampling_temperature,
            subword_dropout=self.subword_dropout if split == "train" else None,
        )
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
                check_resumable(restored, len(self.dictionary), self.state.state_dict[DICTIONARY_HASH])
            self.num_parameters = sum(p.numel() for p in model.parameters())
            if not self.cfg.no_save:
                self.get_checkpoint_dict()
        return model

    def get_checkpoint_dict(self) -> dict:
        """fairseq asks before every checkpoint what the task adds to it: nothing, but there must be room for it."""
        check_space(Path(self.cfg.save_dir), self.num_parameters)
        return {}

    def max_positions(self) -> int:
        return self.cfg.max_positions


def language_pairs(folder: Path, wanted: str | None) -> list[tuple[str, str]]:
    """Pairs of languages from `--lang-pairs`, or from the names of the training files.

    Raises: InputError for a missing folder, a name that is no pair, or a language without a dictionary.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such data folder; make one with fairseq-preprocess or `lxsr prepare`")
    if wanted is None:
        names = sorted({path.name.split(".")[1] for path in folder.glob("train.*-*.*.idx")})
        if not names:
            raise InputError(f"{folder}: has no train.SRC-TGT.SRC.idx; expected the output of fairseq-preprocess")
    else:
        names = [name.strip() for name in wanted.split(",")]
    pairs = []
    for name in names:
        source, dash, target = name.partition("-")
        if not (source and dash and target):
            raise InputError(f"--lang-pairs: {name!r}; expected SRC-TGT, for example en-fr")
        for language in (source, target):
            if not (folder / f"dict.{language}.txt").is_file():
                known = ", ".join(sorted(path.name.split(".")[1] for path in folder.glob("dict.*.txt"))) or "none"
                raise InputError(
                    f"--lang-pairs {name}: {folder} has no dict.{language}.txt; the languages there are: {known}"
                )
        pairs.append((source, target))
    return pairs


def joined_dictionary(folder: Path, pairs: list[tuple[str, str]]) -> Dictionary:
    """The one dictionary of all languages.

    Raises: InputError where two languages have different ones.
    """
    languages = list(dict.fromkeys(language for pair in pairs for language in pair))
    first = folder / f"dict.{languages[0]}.txt"
    dictionary = Dictionary.load(str(first))
    for language in languages[1:]:
        other = folder / f"dict.{language}.txt"
        if Dictionary.load(str(other)).symbols != dictionary.symbols:
            raise InputError(
                f"{other}: differs from {first}; all languages share one dictionary, run fairseq-preprocess with "
                "--joined-dictionary (and the same --srcdict for every pair)"
            )
    return dictionary


def read_corpus(folder: Path, split: str, source: str, target: str) -> PairCorpus | None:
    """One split of one language pair, in whichever order fairseq-preprocess was told its languages."""
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = folder / f"{split}.{pair}"
        if not Path(f"{prefix}.{source}.idx").is_file():
            continue
        sides = [
            data_utils.load_indexed_dataset(f"{prefix}.{language}", dataset_impl=None) for language in (source, target)
        ]
        if sides[0] is None or sides[1] is None:
            missing = target if sides[1] is None else source
            raise InputError(f"{prefix}.{missing}.bin: no such file; run fairseq-preprocess again")
        if len(sides[0]) != len(sides[1]):
            raise InputError(
                f"{prefix}: {len(sides[0]):,} sentences in {source} and {len(sides[1]):,} in {target}; expected "
                "aligned text, run fairseq-preprocess on files of equal length"
            )
        if not len(sides[0]):
            raise InputError(f"{prefix}: no sentences; look at the text it was made from")
        for side, language in zip(sides, (source, target), strict=True):
            check_last_sentence(side, Path(f"{prefix}.{language}.bin"))
        return PairCorpus(f"{source}-{target}", *sides)
    return None


def check_last_sentence(side: FairseqDataset, path: Path) -> None:
    """Refuse a .bin file that ends before its index says."""
    try:
        side[len(side) - 1]
    except ValueError:
        raise InputError(f"{path}: cut off, {path.stat().st_size:,} bytes; run fairseq-preprocess again") from None


def check_space(save_dir: Path, num_parameters: int) -> None:
    """Refuse where the next checkpoint does not fit: parameters and two moments, three times (epoch, best, last)."""
    needed, free = 3 * (3 * 4 * num_parameters + CHECKPOINT_OVERHEAD), shutil.disk_usage(save_dir).free
    if free < needed:
        raise InputError(
            f"{save_dir}: No space left on device for a checkpoint, {free / 1e6:,.1f} MB free; this model needs "
            f"{needed / 1e6:,.1f} MB: make room and go on, or choose another --save-dir (or --no-save)"
        )


install_excepthook("fairseq_lxsr")
add_to_help()
