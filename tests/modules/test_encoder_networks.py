"""What LASER's and T-LASER's encoders share: two batches at once, symbols around a sentence,
refused sizes.
"""

import pytest
import torch
from token_batches import PAD, make_encoder, padding_and_batch_change_nothing, token_batch

from fairseq_lxsr.errors import InputError

BOS, EOS = 0, 2


@pytest.mark.parametrize("name", ["laser", "tlaser"])
def test_two_batches_of_different_width_at_once(name):
    encoder, tokens = make_encoder(name, num_layers=2), token_batch()
    u, v = encoder.forward_both(tokens[1:3, :4], tokens)
    torch.testing.assert_close(u, encoder(tokens[1:3]), rtol=0, atol=5e-6)
    torch.testing.assert_close(v, encoder(tokens), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "options", "longer"),
    [
        ("laser", {"append_eos": True}, {}),
        ("laser", {"prepend_bos": True, "append_eos": True}, {}),
        ("tlaser", {"append_eos": True}, {"max_positions": 751}),
        (
            "tlaser",
            {"append_eos": True, "max_positions": 9},
            {"max_positions": 10},
        ),  # the longest sentence has 9
    ],
)
def test_symbols_around_a_sentence_are_read_like_pieces(name, options, longer):
    encoder, plain = (make_encoder(name, num_layers=2, **more) for more in (options, longer))
    tokens = token_batch()
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
        ("transformer", {"num_heads": 3}, "num_heads 3"),
        ("transformer", {"num_layers": -1}, "num_layers -1"),
        ("transformer", {"layer_norm_eps": 0.0}, "layer_norm_eps 0"),
        ("transformer", {"pooling": "max"}, "pooling 'max'"),
        (
            "transformer",
            {"order_coefficients": 1, "pooling": "mean_max"},
            "order_coefficients 1 .*mean_max",
        ),
    ],
)
def test_impossible_sizes_are_refused(name, sizes, message):
    with pytest.raises(InputError, match=message):
        make_encoder(name, **sizes)
