"""What LASER's and T-LASER's encoders share: two batches at once, symbols around a sentence, refused sizes."""

import pytest
import torch
from token_batches import PAD, padding_and_batch_change_nothing, token_batch

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import all_networks

BOS, EOS = 0, 2
SIZES = {
    "laser": {"embed_dim": 6, "hidden_size": 5, "num_layers": 2},
    "tlaser": {"embed_dim": 16, "ffn_embed_dim": 32, "num_heads": 2, "num_layers": 2},
}


def make_encoder(name, **options):
    torch.manual_seed(0)
    network = all_networks()[name]
    return network(network.Config(40, PAD, **(SIZES[name] | options))).eval()


@pytest.mark.parametrize("name", SIZES)
def test_two_batches_of_different_width_at_once(name):
    encoder, tokens = make_encoder(name), token_batch()
    u, v = encoder.forward_both(tokens[1:3, :4], tokens)
    torch.testing.assert_close(u, encoder(tokens[1:3]), rtol=0, atol=5e-6)
    torch.testing.assert_close(v, encoder(tokens), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "options", "longer"),
    [
        ("laser", {"append_eos": True}, {}),
        ("laser", {"prepend_bos": True, "append_eos": True}, {}),
        ("tlaser", {"append_eos": True}, {"max_positions": 751}),
        ("tlaser", {"append_eos": True, "max_positions": 9}, {"max_positions": 10}),  # the longest sentence has 9
    ],
)
def test_symbols_around_a_sentence_are_read_like_pieces(name, options, longer):
    encoder, plain, tokens = make_encoder(name, **options), make_encoder(name, **longer), token_batch()
    framed = torch.nn.functional.pad(tokens, (0, 1), value=PAD)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        framed[row, length] = EOS
    if options.get("prepend_bos"):
        framed = torch.cat((torch.full((5, 1), BOS), framed), dim=1)
    torch.testing.assert_close(encoder(tokens), plain(framed))
    if options.get("max_positions") is None:
        padding_and_batch_change_nothing(encoder, tokens)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("laser", {"num_layers": 0}, "num_layers 0"),
        ("tlaser", {"num_layers": 0}, "num_layers 0"),
        ("tlaser", {"num_heads": 3}, "num_heads 3"),
    ],
)
def test_impossible_sizes_are_refused(name, sizes, message):
    with pytest.raises(InputError, match=message):
        make_encoder(name, **sizes)
