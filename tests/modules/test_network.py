"""The interface of the networks, and a new network in a module of its own."""

import sys

import numpy as np
import pytest
import torch

from fairseq_lxsr import modules
from fairseq_lxsr.modules import all_networks
from fairseq_lxsr.modules.packing import FlatPieces
from fairseq_lxsr.options import COMPUTE_DTYPES

# A network whose embedding is that of the first piece.
NETWORK = """
from dataclasses import dataclass

from torch import nn

from fairseq_lxsr.modules.network import SentenceNetwork
from fairseq_lxsr.modules.sizes import EncoderSize


@dataclass(frozen=True)
class FirstConfig(EncoderSize):
    embed_dim: int = 4
    num_layers: int = 0
    max_positions: int = 9

    @property
    def output_dim(self):
        return self.embed_dim


class FirstPiece(SentenceNetwork):
    name = "first"
    Config = FirstConfig
    dtypes = ("float32",)

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embed_dim)

    def forward(self, tokens):
        return self.embed_tokens(tokens[:, 0])
"""


@pytest.mark.parametrize("name", ["transformer", "laser", "tlaser"])
def test_every_network_has_the_attributes_of_the_interface(name):
    network = all_networks()[name]
    fields = set(network.Config.__dataclass_fields__)
    assert network.name == name
    assert set(network.dtypes) <= set(COMPUTE_DTYPES)
    assert set(network.options) <= fields
    assert {"vocab_size", "padding_idx", "embed_dim", "num_layers"} <= fields


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("transformer", {"num_heads": 2}), ("laser", {}), ("tlaser", {"num_heads": 2})],
    ids=["transformer", "laser", "tlaser"],
)
def test_every_network_embeds_its_batches_in_the_width_of_its_config(name, sizes):
    network = all_networks()[name]
    config = network.Config(vocab_size=20, padding_idx=1, embed_dim=8, **sizes)
    encoder = network(config).eval()
    # Two sentences, of three and of two pieces.
    pieces = FlatPieces(np.array([5, 6, 7, 8, 9]), np.array([0, 3]), np.array([3, 2]))

    embedded = []
    for sentences, inputs in encoder.batches(pieces, 4):
        vectors = encoder.embed_batch(*map(torch.from_numpy, inputs))
        assert vectors.shape == (len(sentences), config.output_dim)
        embedded += sentences.tolist()

    assert sorted(embedded) == [0, 1]


def test_a_module_in_the_folder_of_networks_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "first.py").write_text(NETWORK)
    monkeypatch.setattr(modules, "__path__", [*modules.__path__, str(tmp_path)])
    all_networks.cache_clear()
    try:
        network = all_networks()["first"]
        encoder = network(network.Config(vocab_size=20, padding_idx=1))
        # One sentence of two pieces; the network has a width of 4.
        assert encoder.embed_batch(torch.tensor([[3, 4]])).shape == (1, 4)
    finally:
        # Other tests must not find it.
        sys.modules.pop("fairseq_lxsr.modules.first")
        all_networks.cache_clear()
