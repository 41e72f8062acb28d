"""fairseq task `xling_sent`: batches of sentence pairs for the lightweight model."""

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_lxsr.encoder.checkpoint import FROM_LANG_PAIRS
from fairseq_lxsr.encoder.starting_model import open_start, pairs_of
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.options import FileName, at_least, below, option
from fairseq_lxsr.training.fairseq_patches import mark_dummy_batches, print_options_on_help
from fairseq_lxsr.training.lightweight.criterion import XlingSentLoss
from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.lightweight.lsi import lsi_embeddings
from fairseq_lxsr.training.lightweight.near import NearPairs
from fairseq_lxsr.training.lightweight.parts.masking import WordDropout, add_mask
from fairseq_lxsr.training.lightweight.parts.teacher import (
    embedding_folders,
    read_teacher,
    teacher_files,
)
from fairseq_lxsr.training.lightweight.start import start_from
from fairseq_lxsr.training.lightweight.terms import Setting, Split, all_terms, build_terms
from fairseq_lxsr.training.pair_task import PairTask, PairTaskConfig
from fairseq_lxsr.training.pairs import PairCorpus
from fairseq_lxsr.vectors.rows import FloatArray

logger = logging.getLogger(__name__)

CRITERION = "xling_sent_loss"
BATCHES = ("length", "shuffled", "near")
DEFAULT_BATCH_SIZE = 128
NEAR_SIZE = 32  # pairs of a group of near ones


class FrozenPieces:
    """Remembers the encoder except for the rows of new pieces, and puts it back after each update.

    Rows are put back, not left without gradient: weight decay and the moments of an optimizer move
    rows without one. The first `count` pieces of the dictionary are kept. The model may be wrapped
    for several workers.
    """

    def __init__(self, model: nn.Module, count: int):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        table = network.embed_tokens.weight
        weights = [weight for weight in network.parameters() if weight is not table]
        places = [table.detach()[:count], *(weight.detach() for weight in weights)]
        self._kept: list[tuple[Tensor, Tensor]] = [(place, place.clone()) for place in places]

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the kept weights the values that they had at the beginning."""
        for place, value in self._kept:
            place.copy_(value)


def near_folders(cfg: Any, shards: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[Path]:
    """Check options that need each other, and return the folders of the embeddings, none without
    near batches.
    """
    is_near = str(cfg.batches) == "near"
    if cfg.near_embeddings and not is_near:
        raise InputError(f"--near-embeddings with --batches {cfg.batches}; expected --batches near")
    if not is_near:
        return []
    if not cfg.near_embeddings:
        raise InputError(
            "--batches near without --near-embeddings; make them with `lxsr embed` by a trained model"
        )
    return embedding_folders("--near-embeddings", cfg.near_embeddings, shards, pairs)


def near_pairs(
    cfg: Any, folder: Path, corpora: Mapping[tuple[str, str], PairCorpus]
) -> list[NearPairs]:
    """Read the embeddings of the training text, and make cells of each corpus."""
    found = []
    for pair, corpus in corpora.items():
        count = len(corpus.source)
        embeddings = read_teacher(folder, "train", pair, count)
        if embeddings is None:
            raise InputError(
                f"{folder}: has no {teacher_files('train', pair)}; make them with `lxsr embed`"
            )
        found.append(NearPairs(embeddings, count, NEAR_SIZE, cfg.seed))
    return found


@dataclass
class XlingSentConfig(*(term.Options for term in all_terms()), PairTaskConfig):  # type: ignore[misc]
    """Options of the text, and the options of every term of the loss."""

    word_dropout: float = option(
        "probability with which the encoder does not see a piece of the training text, anew every epoch",
        0.0,
        below(1),
    )
    batches: ChoiceEnum(BATCHES) = option(  # type: ignore[valid-type]
        "pairs of a batch, which are each other's negatives: length, pairs of similar length, with little "
        "padding; shuffled, any pairs (the released code); near, groups of pairs that are near each other by "
        "--near-embeddings, hard negatives of each other",
        "length",
    )
    near_embeddings: Optional[str] = option(
        "of --batches near: folder with a model's embeddings of the training text, train.SRC-TGT.LANG.npy, "
        "of either language or both, a row for each sentence",
        None,
    )
    drop_last: bool = option(
        "leave out the last batch of an epoch of each language pair unless it has --batch-size pairs",
        False,
    )
    init_embeddings: ChoiceEnum(("random", "lsi")) = option(  # type: ignore[valid-type]
        "first embeddings of a new model: random, or lsi, from which pieces occur in the same pairs of the "
        "training text (its first shard), 11 seconds for 100,000 pairs; a checkpoint to go on from wins",
        "random",
    )
    from_model: Optional[str] = option(
        "model folder, or a model of this package, without layers: a new training begins with its rows, and with rows "
        "by regression for pieces that it lacks; `lxsr train --from` gives this and the sizes that go with it",
        None,
        FileName(),
    )
    frozen_pieces: int = option(
        "train only the embeddings of pieces after so many first entries of the dictionary: text of these "
        "alone keeps its vectors when a language is added, see --from-model; subword dropout spares them",
        0,
        at_least(0),
    )


@register_task("xling_sent", dataclass=XlingSentConfig)
class XlingSentTask(PairTask):
    """Makes batches of sentence pairs, each of one language pair, for `--criterion
    xling_sent_loss`.
    """

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq has no default and its --help shows none; with --max-tokens as well, both limits
        # hold
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        self.vocabulary = add_mask(self.dictionary)
        self.setting = Setting(self.vocabulary, self.pairs, self.shards)
        self.terms = build_terms(cfg, self.setting)
        for one in self.terms:
            self.state.merge_state_dict(one.state)
        self.near_folders = near_folders(cfg, self.shards, self.pairs)
        self._frozen: FrozenPieces | None = None

    def split_probability(self) -> FloatArray:
        probability = super().split_probability()
        probability[: self.cfg.frozen_pieces] = 0  # the exported rows of these would be others
        if self.cfg.from_model:  # they are as exported already
            probability[:] = 0
        return probability

    def optimizer_step(self, optimizer, model, update_num: int) -> None:
        """Update the weights; fairseq has loaded its checkpoint before the first call."""
        if self.cfg.frozen_pieces and self._frozen is None:
            self._frozen = FrozenPieces(model, self.cfg.frozen_pieces)
        super().optimizer_step(optimizer, model, update_num)
        if self._frozen is not None:
            self._frozen.put_back()

    def check_frozen(self) -> None:
        """Refuse to keep random embeddings, and to keep all of them."""
        count = self.cfg.frozen_pieces
        if count >= self.num_symbols:
            raise InputError(
                f"--frozen-pieces {count:,}: the dictionary has {self.num_symbols:,} entries, so nothing would learn; "
                "expected the number of old entries"
            )
        if count and self.starting_checkpoint() is None and not self.cfg.from_model:
            raise InputError(
                f"--frozen-pieces {count:,} without a checkpoint to go on from, whose pieces it keeps; expected "
                "--from-model or --finetune-from-model too"
            )

    def build_model(self, cfg, from_checkpoint: bool = False):
        if not from_checkpoint:
            self.check_frozen()
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and self.starting_checkpoint() is None:
            self.initialise(model)
        return model

    def initialise(self, model: Any) -> None:
        """Give a new model the rows that the options ask for."""
        start = time.perf_counter()
        if self.cfg.from_model:
            name, symbols = self.cfg.from_model, self.dictionary.symbols[: self.num_symbols]
            encoder = open_start(name)
            start_from(
                encoder, model.encoder, symbols, list(self.read_corpora("train", epoch=1).values())
            )
            self.state.merge_state_dict({FROM_LANG_PAIRS: pairs_of(encoder)})
            what = f"rows of {name}, and by regression those of new pieces"
        elif self.cfg.init_embeddings == "lsi":
            weight = model.encoder.embed_tokens.weight
            corpora = list(self.read_corpora("train", epoch=1).values())
            vocab_size, dim = weight.shape
            table = lsi_embeddings(corpora, vocab_size, dim, self.cfg.seed)
            with torch.no_grad():
                weight.copy_(torch.where(table.any(dim=1, keepdim=True), table, weight))
            what = "latent semantic indexing of the training text"
        else:
            return
        logger.info(f"{what}: {time.perf_counter() - start:.0f} seconds")

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
        return mark_dummy_batches(super().get_batch_iterator(*args, **kwargs))

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> SentencePairDataset:
        text = Split(split, epoch, corpora)
        parts = [part for term in self.terms for part in term.parts(text)]
        if self.cfg.word_dropout and split == "train":
            parts.append(WordDropout(self.cfg.word_dropout, self.vocabulary))
        if self.near_folders and split == "train":
            start, folder = (
                time.perf_counter(),
                self.near_folders[(epoch - 1) % len(self.near_folders)],
            )
            options["near"] = near_pairs(self.cfg, folder, corpora)
            logger.info(f"cells of near pairs: {time.perf_counter() - start:.0f} seconds")
        options |= {
            "by_length": str(self.cfg.batches) != "shuffled",
            "drop_last": self.cfg.drop_last and split == "train",
        }
        return SentencePairDataset(
            list(corpora.values()), parts, padding_idx=self.vocabulary.padding_idx, **options
        )


print_options_on_help()
