"""fairseq task `xling_translation`: trains LASER and T-LASER on translation."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.tasks import register_task

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.modules.sizes import POSITIONS
from fairseq_lxsr.options import option, positive
from fairseq_lxsr.training.corpora import language_pairs
from fairseq_lxsr.training.laser.dataset import TranslationDataset
from fairseq_lxsr.training.pair_task import PairTask, PairTaskConfig
from fairseq_lxsr.training.pairs import PairCorpus

DEFAULT_MAX_TOKENS = 4096


@dataclass
class XlingTranslationConfig(PairTaskConfig):
    lang_pairs: Optional[str] = option(
        "comma-separated directions to train, such as de-en,en-de (default: both directions "
        "of every train.SRC-TGT in the data folder)",
        None,
    )
    max_positions: int = option(
        "maximum number of pieces in a sentence; longer sentences are truncated", 750, POSITIONS
    )
    sampling_temperature: float = option(
        "sampling temperature: an epoch samples each direction in proportion to "
        "size^(1/temperature); 1 keeps the proportions of the text, 5 makes them more equal, and "
        "inf makes them equal",
        float("inf"),
        positive(infinite=True),
    )
    target_bos: bool = option(
        "train the decoder to predict an additional <s> before each target sentence", False
    )


@register_task("xling_translation", dataclass=XlingTranslationConfig)
class XlingTranslationTask(PairTask):
    """Builds batches for `xling_translation_loss` and fairseq-generate, each from one direction."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        parser.set_defaults(max_tokens=DEFAULT_MAX_TOKENS)

    def __init__(self, cfg: XlingTranslationConfig):
        super().__init__(cfg)
        # fairseq-generate replaces these languages with those of the checkpoint, to keep their
        # indices.
        self.languages = sorted({target for _, target in self.pairs})

    def choose_pairs(self, folder: Path) -> list[tuple[str, str]]:
        if self.cfg.lang_pairs is not None:
            return language_pairs(folder, self.cfg.lang_pairs)
        directions = set()
        for source, target in language_pairs(folder, None):
            directions |= {(source, target), (target, source)}
        return sorted(directions)

    def make_dataset(
        self,
        corpora: dict[tuple[str, str], PairCorpus],
        split: str,
        epoch: int,
        options: dict[str, Any],
    ) -> TranslationDataset:
        for source, target in corpora:
            if target not in self.languages:
                raise InputError(
                    f"--lang-pairs {source}-{target}: unknown target language {target}; choose "
                    f"from {listed(self.languages)}"
                )
        numbers = [self.languages.index(target) for _, target in corpora]
        start = [self.dictionary.bos()] if self.cfg.target_bos else []
        options = options | {"padding_idx": self.dictionary.pad(), "target_start": start}
        return TranslationDataset(list(corpora.values()), numbers, **options)

    def max_positions(self) -> tuple[int, int]:
        return self.longest, self.longest
