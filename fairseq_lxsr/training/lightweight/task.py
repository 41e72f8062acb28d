"""fairseq task `xling_sent`: builds batches of sentence pairs for the lightweight model."""

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import (
    TASK_CLASS_NAMES,
    TASK_DATACLASS_REGISTRY,
    TASK_REGISTRY,
    register_task,
)
from torch import Tensor, nn

from fairseq_lxsr.encoder.checkpoint import FROM_DTYPE, FROM_LANG_PAIRS
from fairseq_lxsr.encoder.starting_model import (
    open_starting_model,
    stored_dtype,
    trained_pairs,
)
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import SentenceNetwork
from fairseq_lxsr.options import FileName, at_least, below, option
from fairseq_lxsr.training.dataset import Part
from fairseq_lxsr.training.fairseq_patches import mark_dummy_batches
from fairseq_lxsr.training.lightweight.criterion import XlingSentLoss
from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.lightweight.graphs import PAD_MULTIPLE, GraphedCriterion
from fairseq_lxsr.training.lightweight.lsi import lsi_embeddings
from fairseq_lxsr.training.lightweight.near import NearPairs
from fairseq_lxsr.training.lightweight.parts.masking import WordDropout, add_mask
from fairseq_lxsr.training.lightweight.parts.teacher import (
    embedding_folders,
    missing_teacher,
    read_teacher,
)
from fairseq_lxsr.training.lightweight.start import start_from
from fairseq_lxsr.training.lightweight.terms import Setting, Split, all_terms, build_terms
from fairseq_lxsr.training.lightweight.terms.term import TASK
from fairseq_lxsr.training.pair_task import PairTask, PairTaskConfig
from fairseq_lxsr.training.pairs import PairCorpus
from fairseq_lxsr.vectors.rows import FloatArray

logger = logging.getLogger(__name__)

CRITERION = "xling_sent_loss"
BATCHES = ("length", "shuffled", "near")
DEFAULT_BATCH_SIZE = 128
# Number of similar pairs per group.
NEAR_SIZE = 32


class FrozenPieces:
    """Freezes all weights of an encoder except the embeddings of new pieces.

    The frozen weights are restored after each update. Zero gradients would not suffice, because
    weight decay and the optimizer's moments would still change the weights.

    Args:
        model: the model, which may be wrapped for several workers.
        count: number of pieces at the start of the dictionary whose embeddings are frozen.
    """

    def __init__(self, model: nn.Module, count: int):
        network = next(module for module in model.modules() if isinstance(module, SentenceNetwork))
        table = network.embed_tokens.weight
        weights = [weight for weight in network.parameters() if weight is not table]
        frozen = [table.detach()[:count], *(weight.detach() for weight in weights)]
        self._values: list[tuple[Tensor, Tensor]] = [(weight, weight.clone()) for weight in frozen]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the frozen weights to their initial values."""
        for weight, value in self._values:
            weight.copy_(value)


def near_folders(cfg: Any, shards: Sequence[Path], pairs: Sequence[tuple[str, str]]) -> list[Path]:
    """Return the folders with the embeddings for --batches near.

    There is one folder per shard, or one for all shards. The list is empty unless --batches is
    near.

    Raises:
        InputError: if only one of --batches near and --near-embeddings is given.
    """
    is_near = str(cfg.batches) == "near"
    if cfg.near_embeddings and not is_near:
        raise InputError(
            f"--near-embeddings has no effect with --batches {cfg.batches}; use --batches near"
        )
    if not is_near:
        return []
    if not cfg.near_embeddings:
        raise InputError(
            "--batches near requires --near-embeddings; create the embeddings with `lxsr embed` "
            "and a trained model"
        )
    return embedding_folders("--near-embeddings", cfg.near_embeddings, shards, pairs)


def near_pairs(
    cfg: Any, folder: Path, corpora: Mapping[tuple[str, str], PairCorpus]
) -> list[NearPairs]:
    """Read the embeddings of the training text, and prepare the groups of similar pairs.

    Raises:
        InputError: if the folder lacks the embeddings of a language pair.
    """
    near = []
    for pair, corpus in corpora.items():
        count = len(corpus.source)
        embeddings = read_teacher(folder, "train", pair, count)
        if embeddings is None:
            raise missing_teacher(folder, pair)
        near.append(NearPairs(embeddings, count, NEAR_SIZE, cfg.seed))
    return near


@dataclass
class XlingSentConfig(*(term.Options for term in all_terms()), PairTaskConfig):  # type: ignore[misc]
    """Options for the training text and batches, and the options of every loss term."""

    word_dropout: float = option(
        "probability of dropping each piece of the training text from the input; the pieces are "
        "drawn again every epoch",
        0.0,
        below(1),
    )
    batches: ChoiceEnum(BATCHES) = option(  # type: ignore[valid-type]
        "how to batch pairs, which determines the negatives: length (pairs of similar length, to "
        "reduce padding), shuffled (random pairs, as in the released code), near (groups of pairs "
        "with similar --near-embeddings, as hard negatives)",
        "length",
    )
    near_embeddings: Optional[str] = option(
        "for --batches near: folder with embeddings of the training text, train.SRC-TGT.LANG.npy "
        "for one language or both, one row per sentence",
        None,
    )
    drop_last: bool = option(
        "drop the last batch of each language pair in an epoch unless it has --batch-size pairs",
        False,
    )
    init_embeddings: ChoiceEnum(("random", "lsi")) = option(  # type: ignore[valid-type]
        "initial embeddings of a new model: random, or lsi (latent semantic indexing of the "
        "pieces in the first shard of the training text; takes 11 seconds for 100,000 pairs); "
        "ignored if training continues from a checkpoint",
        "random",
    )
    from_model: Optional[str] = option(
        "initialize training from a model without layers (a model folder, or a packaged model): "
        "keep its embeddings, and compute embeddings of new pieces by regression; `lxsr "
        "train --from` sets this option and the matching sizes",
        None,
        FileName(),
    )
    frozen_pieces: int = option(
        "freeze all weights except the embeddings of the pieces after the first N dictionary "
        "entries, so that text made up of old pieces keeps its embeddings when a language is "
        "added (see --from-model); subword dropout does not split the first N pieces",
        0,
        at_least(0),
    )
    cuda_graphs: bool = option(
        "on a single GPU, run the forward and the backward pass as one CUDA graph each, which "
        "makes training with small batches several times faster; batches are padded to a "
        "multiple of 8 pieces",
        False,
    )


@register_task(TASK, dataclass=XlingSentConfig)
class XlingSentTask(PairTask):
    """Builds batches of sentence pairs for the lightweight model, each from one language pair."""

    @classmethod
    def add_options(cls, options: type) -> None:
        """Add the options of a term that is defined outside of this package.

        Args:
            options: dataclass of the term's options.

        Raises:
            InputError: if an option of this name exists already.
        """
        config = TASK_DATACLASS_REGISTRY[TASK]
        names = {field.name for field in fields(config)}
        for field in fields(options):
            if field.name in names - {"_name"}:
                raise InputError(
                    f"{options.__module__}.{options.__name__}: an option {field.name} exists "
                    "already; choose another name"
                )
        # fairseq cannot change the options of a registered task, so the task is registered again.
        del TASK_REGISTRY[TASK]
        TASK_CLASS_NAMES.remove(cls.__name__)
        wider: type = dataclass(type(config.__name__, (options, config), {}))
        register_task(TASK, dataclass=wider)(cls)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        # fairseq itself has no default for this option. If --max-tokens is also given, both limits
        # apply.
        parser.set_defaults(batch_size=DEFAULT_BATCH_SIZE)

    def __init__(self, cfg: XlingSentConfig):
        super().__init__(cfg)
        self.vocabulary = add_mask(self.dictionary)
        self.setting = Setting(self.vocabulary, self.pairs, self.shards)
        self.terms = build_terms(cfg, self.setting)
        for term in self.terms:
            self.state.merge_state_dict(term.state)
        weighted = [f"{term.weight:g} {term.name}" for term in self.terms if term.weight]
        logger.info(f"loss: {' + '.join(weighted)}")
        self.near_folders = near_folders(cfg, self.shards, self.pairs)
        self._frozen: FrozenPieces | None = None
        self._graphed: GraphedCriterion | None = None

    def split_probability(self) -> FloatArray:
        probability = super().split_probability()
        # Subword dropout would change the exported embeddings of frozen pieces.
        probability[: self.cfg.frozen_pieces] = 0
        # The embeddings of --from-model were exported, so they already include their subword parts.
        if self.cfg.from_model:
            probability[:] = 0
        return probability

    def train_step(
        self, sample, model, criterion, optimizer, update_num: int, ignore_grad: bool = False
    ) -> tuple:
        """Compute the gradients of a batch. CUDA graphs are used if --cuda-graphs is set."""
        if self.cfg.cuda_graphs:
            if self._graphed is None:
                self._graphed = GraphedCriterion(model, criterion)
            criterion = self._graphed
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def check_graphs(self) -> None:
        """Reject options that --cuda-graphs does not support."""
        options = self.run_options
        if not self.cfg.cuda_graphs or options is None:
            return
        if not self.has_gpu:
            raise InputError("--cuda-graphs requires a GPU; drop the option")
        workers = options.distributed_training.distributed_world_size
        if workers > 1:
            raise InputError(
                f"--cuda-graphs does not support {workers} workers; use one worker, or drop "
                "--cuda-graphs"
            )
        update_freq = list(options.optimization.update_freq)
        if update_freq != [1]:
            listed = ",".join(map(str, update_freq))
            raise InputError(f"--cuda-graphs does not support --update-freq {listed}; use 1")
        if str(self.cfg.objective) == "mlm":
            raise InputError(
                "--cuda-graphs does not support --objective mlm, because the number of masked "
                "pieces varies between batches; use another objective, or drop --cuda-graphs"
            )

    def optimizer_step(self, optimizer, model, update_num: int) -> None:
        """Update the weights, and restore the frozen ones."""
        # Create this object here, because fairseq loads a checkpoint just before the first update.
        if self.cfg.frozen_pieces and self._frozen is None:
            self._frozen = FrozenPieces(model, self.cfg.frozen_pieces)
        super().optimizer_step(optimizer, model, update_num)
        if self._frozen is not None:
            self._frozen.restore()

    def check_frozen(self) -> None:
        """Reject --frozen-pieces if it would freeze random embeddings, or all embeddings."""
        count = self.cfg.frozen_pieces
        if count >= self.num_symbols:
            raise InputError(
                f"--frozen-pieces {count:,} would freeze all {self.num_symbols:,} dictionary "
                "entries; specify the number of old entries"
            )
        if count and self.starting_checkpoint() is None and not self.cfg.from_model:
            raise InputError(
                f"--frozen-pieces {count:,} requires a trained model; add --from-model or "
                "--finetune-from-model"
            )
        options = self.run_options
        if not count or options is None:
            return
        for name in ("fp16", "bf16"):
            if options.common[name]:
                # Otherwise the weights would be rounded to 16 bits before training starts.
                raise InputError(
                    f"--frozen-pieces {count:,} does not support --{name}, which rounds the frozen "
                    "embeddings; use --amp or float32"
                )

    def build_generator(self, *args, **kwargs) -> NoReturn:
        """Reject fairseq-generate, fairseq-interactive and fairseq-eval-lm."""
        raise InputError(
            "--task xling_sent does not support programs that generate or score text; use "
            "fairseq-validate, or `lxsr export folder` and `lxsr embed`, which encode sentences"
        )

    eval_lm_dataloader = build_generator

    def build_model(self, cfg, from_checkpoint: bool = False):
        if not from_checkpoint:
            self.check_frozen()
            self.check_graphs()
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and self.starting_checkpoint() is None:
            self.initialise(model)
        return model

    def initialise(self, model: Any) -> None:
        """Initialize the embeddings of a new model according to the options."""
        start = time.perf_counter()
        if self.cfg.from_model:
            self._start_from_model(model)
            step = f"embeddings from {self.cfg.from_model}, and new pieces by regression"
        elif self.cfg.init_embeddings == "lsi":
            self._start_from_lsi(model)
            step = "latent semantic indexing of the training text"
        else:
            return
        logger.info(f"{step}: {time.perf_counter() - start:.0f} seconds")

    def _start_from_model(self, model: Any) -> None:
        encoder = open_starting_model(self.cfg.from_model)
        symbols = self.dictionary.symbols[: self.num_symbols]
        corpora = list(self.read_corpora("train", epoch=1).values())
        start_from(encoder, model.encoder, symbols, corpora)
        # `lxsr export folder` reads both values.
        self.state.merge_state_dict(
            {FROM_LANG_PAIRS: trained_pairs(encoder), FROM_DTYPE: stored_dtype(encoder)}
        )

    def _start_from_lsi(self, model: Any) -> None:
        weight = model.encoder.embed_tokens.weight
        corpora = list(self.read_corpora("train", epoch=1).values())
        vocab_size, dim = weight.shape
        table = lsi_embeddings(corpora, vocab_size, dim, self.cfg.seed)
        # Pieces that do not occur keep their random embeddings.
        with torch.no_grad():
            weight.copy_(torch.where(table.any(dim=1, keepdim=True), table, weight))

    def build_criterion(self, cfg, from_checkpoint: bool = False):
        # Criterions of other plugins need no loss terms.
        if cfg._name != CRITERION:
            return super().build_criterion(cfg, from_checkpoint)
        criterion = XlingSentLoss(self)
        self.check_metric(criterion.metrics)
        return criterion

    def get_batch_iterator(self, *args, **kwargs):
        iterator = mark_dummy_batches(super().get_batch_iterator(*args, **kwargs))
        self.check_negatives(iterator.frozen_batches)
        return iterator

    def check_negatives(self, batches: Sequence[Sequence[int]]) -> None:
        """Reject batches that all have a single pair, and warn if many have.

        The other pairs of a batch are the negatives of the align loss and of the accuracy.
        """
        has_negatives = self.cfg.hard_negatives != "none"
        if self.cfg.gather_negatives:
            has_negatives |= torch.distributed.is_initialized()
        if not self.cfg.align_weight or has_negatives:
            return
        num_single = sum(len(batch) == 1 for batch in batches)
        advice = "use a larger --batch-size or --max-tokens, or --hard-negatives"
        if len(batches) > 1 and num_single == len(batches):
            raise InputError(
                "every batch has a single pair, so the align loss has no negatives and learns "
                f"nothing; {advice}, or --align-weight 0"
            )
        # An epoch may end with a single pair.
        if num_single > 1:
            logger.warning(
                f"{num_single:,} of {len(batches):,} batches have a single pair, from which the "
                f"align loss learns nothing; {advice}"
            )

    def make_dataset(
        self, corpora: dict[tuple[str, str], PairCorpus], split: str, epoch: int, options: dict
    ) -> SentencePairDataset:
        text = Split(split, epoch, corpora)
        is_training = split == "train"
        parts: list[Part] = []
        for term in self.terms:
            parts += term.parts(text)
        if self.cfg.word_dropout and is_training:
            parts.append(WordDropout(self.cfg.word_dropout, self.vocabulary))
        if self.near_folders and is_training:
            start = time.perf_counter()
            folder = self.near_folders[(epoch - 1) % len(self.near_folders)]
            options["near"] = near_pairs(self.cfg, folder, corpora)
            logger.info(f"grouping near pairs: {time.perf_counter() - start:.0f} seconds")
        options |= {
            "by_length": str(self.cfg.batches) != "shuffled",
            "drop_last": self.cfg.drop_last and is_training,
        }
        if self.cfg.cuda_graphs and is_training:
            options["pad_multiple"] = PAD_MULTIPLE
        return SentencePairDataset(
            list(corpora.values()), parts, padding_idx=self.vocabulary.padding_idx, **options
        )
