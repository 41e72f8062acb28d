"""fairseq task `xling_sent`: sentence pairs for the lightweight model, read from fairseq-preprocess folders."""

import argparse
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from fairseq_lxsr.criterions import xling_sent_loss  # noqa: F401  --user-dir imports tasks and models only
from fairseq_lxsr.datasets.hard_negatives import HARD_NEGATIVES, HardNegatives
from fairseq_lxsr.datasets.lsi import lsi_embeddings
from fairseq_lxsr.datasets.masked_pairs import SentencePairDataset
from fairseq_lxsr.datasets.masking import MaskingVocabulary
from fairseq_lxsr.datasets.pairs import PairCorpus
from fairseq_lxsr.datasets.teacher import TeacherEmbeddings, read_teacher, teacher_files
from fairseq_lxsr.errors import InputError, install_excepthook
from fairseq_lxsr.losses import OBJECTIVES
from fairseq_lxsr.tasks._help import add_to_help
from fairseq_lxsr.tasks._pairs import PairTask, PairTaskConfig
from fairseq_lxsr.text import MASK, WORD_START, is_punctuation

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 128
MASKING_OF_OBJECTIVE = {"ugt": "one", "xtr": "one", "smlm": "one", "mlm": "tokens", "mlm_xtr": "tokens", "none": "none"}


@dataclass
class XlingSentConfig(PairTaskConfig):
    objective: ChoiceEnum((*OBJECTIVES, "none")) = field(  # type: ignore[valid-type]
        default="ugt",
        metadata={"help": "generative loss: what is masked and what is predicted from it; none leaves both out"},
    )
    hard_negatives: ChoiceEnum(("none", *HARD_NEGATIVES)) = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "one more negative for each pair in the align loss, one of its sentences a little changed: swap, "
            "two words exchanged, which teaches layers the order of words; edit, a word left out, replaced or added; "
            "both, half of each; half as much again to encode; with --objective none"
        },
    )
    word_dropout: float = field(
        default=0.0,
        metadata={
            "help": "probability with which the encoder does not see a piece of the training text, anew every epoch"
        },
    )
    init_embeddings: ChoiceEnum(("random", "lsi")) = field(  # type: ignore[valid-type]
        default="random",
        metadata={
            "help": "first embeddings of a new model: random, or lsi, from which pieces occur in the same pairs of the "
            "training text (its first shard), 11 seconds for 100,000 pairs; a checkpoint to go on from wins"
        },
    )
    mask_same_text: bool = field(
        default=False,
        metadata={"help": "sentences of a batch with the text of the true translation are no negatives in align"},
    )
    teacher_embeddings: Optional[str] = field(
        default=None,
        metadata={
            "help": "folder with a teacher's embeddings of the training text, to learn from by --distill-loss: "
            "train.SRC-TGT.LANG.npy, of either language or both, a row for each sentence"
        },
    )


@register_task("xling_sent", dataclass=XlingSentConfig)
class XlingSentTask(PairTask):
    """Batches of sentence pairs, each of one language pair, for `--criterion xling_sent_loss`."""

    teacher_dim: int | None = None  # width of a teacher's embeddings, where there is one

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq has no default and its --help shows none; with --max-tokens as well, both limits hold
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        if cfg.hard_negatives != "none" and cfg.objective != "none":
            raise InputError(
                f"--hard-negatives {cfg.hard_negatives} with --objective {cfg.objective}, whose masks would tell them "
                "apart; expected none"
            )
        if not 0 <= cfg.word_dropout < 1:
            raise InputError(f"--word-dropout {cfg.word_dropout}; expected 0 up to 1, for example 0.1")
        if cfg.word_dropout and cfg.objective == "mlm":
            raise InputError(
                f"--word-dropout {cfg.word_dropout} with --objective mlm, which predicts pieces from their own states; "
                "expected another objective"
            )
        if cfg.teacher_embeddings is not None:
            first = read_teacher(self.teacher_folder("train", 1), "train", self.pairs[0])
            self.teacher_dim = first.width if first else 0
        punctuation = [is_punctuation(symbol) for symbol in self.dictionary.symbols]
        mask_idx = self.dictionary.add_symbol(MASK)
        starts_word = np.array([symbol.startswith(WORD_START) for symbol in self.dictionary.symbols])
        self.hard_negatives = None if cfg.hard_negatives == "none" else HardNegatives(cfg.hard_negatives, starts_word)
        self.vocabulary = MaskingVocabulary(
            padding_idx=self.dictionary.pad(),
            mask_idx=mask_idx,
            first_piece=self.dictionary.nspecial,
            is_punctuation=np.array([*punctuation, False]),
        )

    def build_model(self, cfg, from_checkpoint: bool = False):
        model = super().build_model(cfg, from_checkpoint)
        if self.cfg.init_embeddings == "lsi" and not from_checkpoint and self.starting_checkpoint() is None:
            weight, start = model.encoder.embed_tokens.weight, time.perf_counter()
            corpora = list(self.read_corpora("train", epoch=1).values())
            vocab_size, dim = weight.shape
            table = lsi_embeddings(corpora, vocab_size, dim, self.cfg.seed)
            with torch.no_grad():
                weight.copy_(torch.where(table.any(dim=1, keepdim=True), table, weight))
            logger.info(f"latent semantic indexing of the training text: {time.perf_counter() - start:.0f} seconds")
        return model

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> SentencePairDataset:
        return SentencePairDataset(
            list(corpora.values()),
            self.vocabulary,
            masking=MASKING_OF_OBJECTIVE[self.cfg.objective],
            hard_negatives=self.hard_negatives,
            word_dropout=self.cfg.word_dropout if split == "train" else 0,
            number_texts=self.cfg.mask_same_text,
            teachers=self.read_teachers(split, epoch, corpora),
            **options,
        )

    def teacher_folder(self, split: str, epoch: int) -> Path:
        """As `folder_of`: with the text in shards, a folder for each shard."""
        folders = (self.cfg.teacher_embeddings or "").split(os.pathsep)
        if len(folders) not in (1, len(self.shards)):
            raise InputError(
                f"--teacher-embeddings: {len(folders)} folders; expected {len(self.shards)}, as of the text"
            )
        return Path(folders[(epoch - 1) % len(folders) if split == "train" else 0])

    def read_teachers(
        self, split: str, epoch: int, corpora: dict[tuple[str, str], PairCorpus]
    ) -> list[TeacherEmbeddings] | None:
        """Of every language pair; None without a teacher, and for other splits than train where one has none."""
        if self.cfg.teacher_embeddings is None:
            return None
        folder = self.teacher_folder(split, epoch)
        found = {pair: read_teacher(folder, split, pair, len(corpus.source)) for pair, corpus in corpora.items()}
        missing = [pair for pair, teacher in found.items() if teacher is None]
        if missing and split == "train":
            raise InputError(f"{folder}: has no {teacher_files(split, missing[0])}; make them with `lxsr embed`")
        teachers = [teacher for teacher in found.values() if teacher is not None]
        if any(teacher.width != self.teacher_dim for teacher in teachers):
            raise InputError(
                f"{folder}: {split} has embeddings of other widths than {self.teacher_dim}; expected one width"
            )
        if missing:
            name = teacher_files(split, missing[0])[0]
            logger.warning(f"{folder}: has no {name}; the loss of {split} leaves distillation out")
        return None if missing else teachers


install_excepthook("fairseq_lxsr")
add_to_help()
