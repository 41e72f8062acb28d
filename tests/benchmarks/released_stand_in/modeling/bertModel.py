"""Stands in for the released lightweight model: its weight names, and its loss by torch alone.

The encoder is that of this package, so a test without the released code can run a comparison.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from benchmarks.released.model import (
    DICTIONARY_WEIGHTS,
    POSITIONS,
    pairs_of_names,
    swap_padding,
    swap_rows,
)
from fairseq_lxsr.modules import ReconstructionHead, TransformerConfig, TransformerSentenceEncoder

PADDING = 1


class Loss(nn.Module):
    """UGT with align and sim as the released code computes them, in the names of this package."""

    def __init__(self, vocab_size, config):
        super().__init__()
        sizes = TransformerConfig(
            vocab_size,
            PADDING,
            embed_dim=config.token_dim,
            ffn_embed_dim=config.ffn_dim,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            max_positions=config.max_seq_len,
            dropout=0.0,
            layer_norm_eps=1e-12,
        )
        self.encoder = TransformerSentenceEncoder(sizes)
        self.head = ReconstructionHead(config.token_dim, config.token_dim, vocab_size, 1e-12)

    def forward(self, sides, masked, is_source):
        u, v = (self.encoder(side)[0][0] for side in sides)
        total = self.generative(u, sides[1], masked, is_source)
        total = total + self.generative(v, sides[0], masked, ~is_source)
        pairs = torch.arange(len(u))
        total = total + 2 * (F.cross_entropy(u @ v.T, pairs) + F.cross_entropy(v @ u.T, pairs))
        difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)
        return total - 2 * torch.cos(difference * math.pi / 2).log().sum()

    def generative(self, states, translations, masked, is_masked):
        q = torch.zeros(len(states), self.head.bias.shape[0])
        for row, translation in enumerate(translations):
            pieces = translation[translation != PADDING]
            share = 1.0
            if is_masked[row]:
                q[row, masked[row]] = 0.5
                share = 0.5
            q[row].index_fill_(0, pieces, share / len(pieces))
        logits = self.head(states, self.encoder.embed_tokens.weight)
        return F.kl_div(logits.log_softmax(dim=1), q, reduction="batchmean")


class BilingualModel(nn.Module):
    """The loss with weights under the names of the released code."""

    def __init__(self, vocab_size, config):
        super().__init__()
        # In a tuple, so that its weights are not registered.
        self.loss = (Loss(vocab_size, config),)
        initial = self.loss[0].state_dict()
        self.sources = dict(pairs_of_names(initial))
        for name, parts in self.sources.items():
            # A row more for the position of padding.
            value = initial[name]
            if name == POSITIONS:
                value = torch.cat((value[:1], value))
            for part, rows in zip(parts, value.chunk(len(parts)), strict=True):
                self.add(part, nn.Parameter(rows.clone()))

    def add(self, path, parameter):
        *modules, name = path.split(".")
        module = self
        for part in modules:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.register_parameter(name, parameter)

    def forward(self, ids1, length1, ids2, length2, masked, side):
        parameters = dict(self.named_parameters())
        weights = {}
        for name, parts in self.sources.items():
            value = torch.cat([parameters[part] for part in parts])
            if name in DICTIONARY_WEIGHTS:
                value = swap_rows(value)
            if name == POSITIONS:
                value = value[1:]
            weights[name] = value
        sides = (swap_padding(ids1), swap_padding(ids2))
        arguments = (sides, swap_padding(masked), side == 1)
        return functional_call(self.loss[0], weights, arguments), None
