"""fairseq task `xling_sent`: sentence pairs for the lightweight model, read from fairseq-preprocess folders."""

import argparse
import logging
import time
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from omegaconf import OmegaConf

from fairseq_lxsr.criterions.xling_sent_loss import XlingSentLoss
from fairseq_lxsr.datasets.lsi import lsi_embeddings
from fairseq_lxsr.datasets.masking import WordDropout
from fairseq_lxsr.datasets.pairs import BATCHES, PairCorpus
from fairseq_lxsr.datasets.sentence_pairs import SentencePairDataset
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.ranges import at_least, below
from fairseq_lxsr.segmentations import FloatArray
from fairseq_lxsr.tasks._corpora import add_mask
from fairseq_lxsr.tasks._dummy import mark_dummy
from fairseq_lxsr.tasks._frozen import FrozenPieces
from fairseq_lxsr.tasks._help import add_to_help
from fairseq_lxsr.tasks._near import NearOptions, near_folders, near_pairs
from fairseq_lxsr.tasks._pairs import PairTask, PairTaskConfig
from fairseq_lxsr.terms import Setting, Split, all_terms, build_terms

logger = logging.getLogger(__name__)

CRITERION = "xling_sent_loss"
DEFAULT_BATCH_SIZE = 128


@dataclass
class XlingSentConfig(*(term.Options for term in all_terms()), NearOptions, PairTaskConfig):  # type: ignore[misc]
    """Options of the text, and the options of every term of the loss."""

    word_dropout: float = field(
        default=0.0,
        metadata={
            "help": "probability with which the encoder does not see a piece of the training text, anew every epoch",
            "range": below(1),
        },
    )
    batches: ChoiceEnum(BATCHES) = field(  # type: ignore[valid-type]
        default="length",
        metadata={
            "help": "pairs of a batch, which are each other's negatives: length, pairs of similar length, with little "
            "padding; shuffled, any pairs (the released code); near, groups of pairs that are near each other by "
            "--near-embeddings, hard negatives of each other"
        },
    )
    drop_last: bool = field(
        default=False,
        metadata={
            "help": "leave out the last batch of an epoch of each language pair unless it has --batch-size pairs"
        },
    )
    init_embeddings: ChoiceEnum(("random", "lsi")) = field(  # type: ignore[valid-type]
        default="random",
        metadata={
            "help": "first embeddings of a new model: random, or lsi, from which pieces occur in the same pairs of the "
            "training text (its first shard), 11 seconds for 100,000 pairs; a checkpoint to go on from wins"
        },
    )
    frozen_pieces: int = field(
        default=0,
        metadata={
            "help": "train only the embeddings of pieces after so many first entries of the dictionary: text of these "
            "alone keeps its vectors when a language is added, see --finetune-from-model; subword dropout spares them",
            "range": at_least(0),
        },
    )


@register_task("xling_sent", dataclass=XlingSentConfig)
class XlingSentTask(PairTask):
    """Makes batches of sentence pairs, each of one language pair, for `--criterion xling_sent_loss`."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq has no default and its --help shows none; with --max-tokens as well, both limits hold
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        self.vocabulary = add_mask(self.dictionary)
        self.setting = Setting(self.vocabulary, self.pairs, self.shards)
        self.terms = build_terms(cfg, self.setting)
        self.near_folders = near_folders(cfg, self.shards, self.pairs)
        self._frozen: FrozenPieces | None = None

    def split_probability(self) -> FloatArray:
        probability = super().split_probability()
        probability[: self.cfg.frozen_pieces] = 0  # the exported rows of these would be others
        return probability

    def optimizer_step(self, optimizer, model, update_num: int) -> None:
        """Update the weights; fairseq has loaded its checkpoint before the first call."""
        if self.cfg.frozen_pieces and self._frozen is None:
            self._frozen = FrozenPieces(model, self.cfg.frozen_pieces)
        super().optimizer_step(optimizer, model, update_num)
        if self._frozen is not None:
            self._frozen.put_back()

    def check_frozen(self) -> None:
        """Refuse to keep random embeddings, and to keep all of them.

        Raises:
            InputError: naming the number of pieces and what was expected.
        """
        count = self.cfg.frozen_pieces
        if count >= self.num_symbols:
            raise InputError(
                f"--frozen-pieces {count:,}: the dictionary has {self.num_symbols:,} entries, so nothing would learn; "
                "expected the number of old entries"
            )
        if count and self.starting_checkpoint() is None:
            raise InputError(
                f"--frozen-pieces {count:,} without a checkpoint to go on from, whose pieces it keeps; expected "
                "--finetune-from-model too"
            )

    def build_model(self, cfg, from_checkpoint: bool = False):
        if not from_checkpoint:
            self.check_frozen()
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

    def build_criterion(self, cfg, from_checkpoint: bool = False):
        if cfg._name != CRITERION:  # of another plugin
            return super().build_criterion(cfg, from_checkpoint)
        older = {name: value for name, value in cfg.items() if name in self.cfg and name != "_name"}
        if older:  # checkpoints of version 0.1 keep the options of the loss with the criterion
            self.terms = build_terms(OmegaConf.merge(self.cfg, older), self.setting)
        criterion = XlingSentLoss(self)
        self.check_metric(criterion.metrics)
        return criterion

    def get_batch_iterator(self, *args, **kwargs):
        return mark_dummy(super().get_batch_iterator(*args, **kwargs))

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> SentencePairDataset:
        text = Split(split, epoch, corpora)
        parts = [part for term in self.terms for part in term.parts(text)]
        if self.cfg.word_dropout and split == "train":
            parts.append(WordDropout(self.cfg.word_dropout, self.vocabulary))
        if self.near_folders and split == "train":
            start, folder = time.perf_counter(), self.near_folders[(epoch - 1) % len(self.near_folders)]
            options["near"] = near_pairs(self.cfg, folder, corpora)
            logger.info(f"cells of near pairs: {time.perf_counter() - start:.0f} seconds")
        options |= {"batches": str(self.cfg.batches), "drop_last": self.cfg.drop_last and split == "train"}
        return SentencePairDataset(list(corpora.values()), parts, padding_idx=self.vocabulary.padding_idx, **options)


add_to_help()
