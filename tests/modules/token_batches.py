"""Small encoders, a batch of sentences, and a check that every encoder must pass."""

import torch
import torch.nn.functional as F

from fairseq_lxsr.modules import all_networks

PAD = 1
SIZES = {
    "laser": {"embed_dim": 6, "hidden_size": 5},
    "tlaser": {"embed_dim": 16, "ffn_embed_dim": 32, "num_heads": 2},
    "transformer": {"embed_dim": 16, "ffn_embed_dim": 32, "num_heads": 2},
}


def make_encoder(name: str, **options):
    """A network with the sizes above and random weights, always the same, in evaluation mode."""
    torch.manual_seed(0)
    network = all_networks()[name]
    sizes = {"vocab_size": 40, "padding_idx": PAD} | SIZES[name] | options
    return network(network.Config(**sizes)).eval()


def token_batch() -> torch.Tensor:
    """Ids [5, 9] of sentences of 9, 1, 4, 7 and 2 pieces, padded at the end."""
    ids = torch.randint(4, 40, (5, 9), generator=torch.Generator().manual_seed(3))
    for row, length in enumerate((9, 1, 4, 7, 2)):
        ids[row, length:] = PAD
    return ids


def assert_padding_and_batch_change_nothing(encode, tokens: torch.Tensor) -> None:
    """Check that wider padding, single sentences and another order give the same embeddings."""
    expected = encode(tokens)
    padded = encode(F.pad(tokens, (0, 20), value=PAD))
    torch.testing.assert_close(padded, expected, rtol=0, atol=5e-6)
    for row in range(len(tokens)):
        length = int(tokens[row].ne(PAD).sum())
        single = encode(tokens[row : row + 1, :length])
        torch.testing.assert_close(single[0], expected[row], rtol=0, atol=5e-6)
    order = torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(encode(tokens[order]), expected[order], rtol=0, atol=5e-6)
