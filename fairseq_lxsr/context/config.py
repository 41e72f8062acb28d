"""Options of `lxsr train-context`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_lxsr.choices import CPU_PRECISIONS, DTYPES
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.languages import check_language
from fairseq_lxsr.ranges import FILE_NAME, FileName, at_least, below, check_fields, limited, positive

# the presets of models/context_transformer.py, which only fairseq can import
ARCHITECTURES = tuple(f"context_transformer_{name}" for name in ("base", "small", "static", "static_mean", "tiny"))


@dataclass(frozen=True)
class ContextConfig:
    """Options of both stages and all rounds; defaults are the values of Wang et al. where they state them.

    Args:
        documents: file or folder of each language.
        work: folder of all results.
        arch: a preset of context_transformer.
        valid_documents: number of documents of each language that are held out.
        shards: number of parts of the training data, each of whole documents; the first stage holds one at a time in
            memory.
        context: number of sentences before and after each.
        epochs: epochs of the first stage.
        both_samples: in the first stage every sentence twice in an epoch, in its place and replaced by another;
            without it once, one of the two at random.
        rounds: number of rounds of mining and regression.
        draw: m, sentences of either language in one draw.
        best: maximum number of pairs kept of a draw.
        pairs: pairs of a round.
        start_model: model folder of another encoder that mines the first round, or its name or address as in
            `pretrained.find_model`, for example of one trained on little parallel text; without it the model of the
            first stage does.
        gold: file of true pairs, `sentence<TAB>sentence`; with it the precision of the mined pairs is reported.
        batch_size: samples of an update.
        learning_rate: initial learning rate, which decreases linearly to zero in every stage and round.
    """

    documents: Mapping[str, str]
    work: str = limited("work/context", FILE_NAME)
    arch: str = limited("context_transformer_base", ARCHITECTURES)
    vocab_size: int = limited(16_000, at_least(1, 10_000_000))
    lowercase: bool = True
    split_han: bool = True
    valid_documents: int = limited(10, at_least(1))
    shards: int = limited(1, at_least(1, 512))
    context: int = limited(1, at_least(1))
    epochs: int = limited(1, at_least(1))
    both_samples: bool = False
    rounds: int = limited(3, at_least(0))
    draw: int = limited(10_000, at_least(1))
    best: int = limited(1_000, at_least(1))
    pairs: int = limited(100_000, at_least(1))
    start_model: str = limited("", FileName(optional=True))
    gold: str = limited("", FileName(optional=True))
    batch_size: int = limited(128, at_least(1))
    learning_rate: float = limited(1e-4, positive())
    dropout: float = limited(0.1, below(1))
    max_positions: int = limited(150, at_least(2))
    seed: int = limited(1, at_least(0))
    workers: int = limited(2, at_least(1, 1024))
    cpu_precision: str = limited("auto", CPU_PRECISIONS)
    encode_dtype: str = limited("float32", DTYPES)

    @property
    def text_options(self) -> dict[str, Any]:
        """Options of the training text, as `preparation.documents.prepare_documents` takes them."""
        names = ("documents", "work", "valid_documents", "seed", "workers", "shards")
        subwords = {name: getattr(self, name) for name in ("vocab_size", "lowercase", "split_han")}
        return {name: getattr(self, name) for name in names} | {"subwords": subwords}

    def __post_init__(self):
        check_fields(self)
        for language, source in self.documents.items():
            check_language(language)
            FILE_NAME.check(f"documents: {language}", source)
        if self.rounds and len(self.documents) < 2:
            raise InputError(f"documents: {', '.join(self.documents) or 'none'}; expected two languages or more")
        if not self.documents:
            raise InputError("documents: none; expected for example {en: en.txt, fr: fr.txt}")
        if os.pathsep in (work := os.path.abspath(self.work)):
            raise InputError(f"work: {work}; expected a path without {os.pathsep!r}, which separates shards")
