"""Datasets of made-up sentence pairs, and their batches."""

import numpy as np
import torch
from fairseq.data import ListDataset

from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.lightweight.parts.masking import Masking, MaskingVocabulary
from fairseq_lxsr.training.pairs import PairCorpus

PAD = 1
EOS = 2
MASK = 60


def corpus(name, pairs, seed=0, longest=12, empty=(), sources=None):
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        lengths = rng.integers(1, longest + 1, pairs)
        lengths[list(empty)] = 0
        sentences = [torch.tensor([*rng.integers(4, MASK, length), EOS]) for length in lengths]
        sides.append(ListDataset(sentences, lengths + 1))
    return PairCorpus(name, *sides, sources or {})


VOCABULARY = MaskingVocabulary(PAD, MASK, 4, *np.zeros((2, MASK + 1), dtype=bool))


def dataset(*corpora, parts=None, **options):
    """One piece of each pair is masked, unless `parts` says otherwise."""
    parts = [Masking("one", VOCABULARY)] if parts is None else parts
    return SentencePairDataset(
        corpora, parts, padding_idx=PAD, eos_idx=EOS, **({"max_positions": 200} | options)
    )


def batches_of(data, **limits):
    return [batch.tolist() for batch in data.batch_by_size(data.ordered_indices(), **limits)]


class Words:
    """The part of a fairseq dictionary that models use."""

    def __init__(self, size=MASK):
        self.size = size

    def __len__(self):
        return self.size

    def pad(self):
        return PAD

    def eos(self):
        return EOS

    def unk(self):
        return 3
