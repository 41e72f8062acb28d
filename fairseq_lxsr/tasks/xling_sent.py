"""fairseq task `xling_sent`: sentence pairs for the lightweight model, read from fairseq-preprocess folders."""

import argparse
from dataclasses import dataclass, field

import numpy as np
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from fairseq_lxsr.criterions import xling_sent_loss  # noqa: F401  --user-dir imports tasks and models only
from fairseq_lxsr.datasets.masked_pairs import SentencePairDataset
from fairseq_lxsr.datasets.masking import MaskingVocabulary
from fairseq_lxsr.datasets.pairs import PairCorpus
from fairseq_lxsr.errors import InputError, install_excepthook
from fairseq_lxsr.losses import OBJECTIVES
from fairseq_lxsr.tasks._help import add_to_help
from fairseq_lxsr.tasks._pairs import PairTask, PairTaskConfig
from fairseq_lxsr.text import MASK, WORD_START, is_punctuation

DEFAULT_BATCH_SIZE = 128
MASKING_OF_OBJECTIVE = {"ugt": "one", "xtr": "one", "smlm": "one", "mlm": "tokens", "mlm_xtr": "tokens", "none": "none"}


@dataclass
class XlingSentConfig(PairTaskConfig):
    objective: ChoiceEnum((*OBJECTIVES, "none")) = field(  # type: ignore[valid-type]
        default="ugt",
        metadata={"help": "generative loss: what is masked and what is predicted from it; none leaves both out"},
    )
    swap_negatives: bool = field(
        default=False,
        metadata={
            "help": "one more negative for each pair in the align loss: one of its sentences with two words exchanged, "
            "which teaches layers the order of words; half as much again to encode; with --objective none"
        },
    )


@register_task("xling_sent", dataclass=XlingSentConfig)
class XlingSentTask(PairTask):
    """Batches of sentence pairs, each of one language pair, for `--criterion xling_sent_loss`."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq has no default and its --help shows none; with --max-tokens as well, both limits hold
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        if cfg.swap_negatives and cfg.objective != "none":
            raise InputError(
                f"--swap-negatives with --objective {cfg.objective}, whose masks would tell them apart; expected none"
            )
        punctuation = [is_punctuation(symbol) for symbol in self.dictionary.symbols]
        mask_idx = self.dictionary.add_symbol(MASK)
        self.starts_word = np.array([symbol.startswith(WORD_START) for symbol in self.dictionary.symbols])
        self.vocabulary = MaskingVocabulary(
            padding_idx=self.dictionary.pad(),
            mask_idx=mask_idx,
            first_piece=self.dictionary.nspecial,
            is_punctuation=np.array([*punctuation, False]),
        )

    def make_dataset(
        self, pairs: list[tuple[str, str]], corpora: list[PairCorpus], options: dict
    ) -> SentencePairDataset:
        masking = MASKING_OF_OBJECTIVE[self.cfg.objective]
        starts_word = self.starts_word if self.cfg.swap_negatives else None
        return SentencePairDataset(corpora, self.vocabulary, masking=masking, starts_word=starts_word, **options)


install_excepthook("fairseq_lxsr")
add_to_help()
