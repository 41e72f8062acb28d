"""Properties that the encoders share: two batches at once, symbols around a sentence, and sizes."""

import pytest
import torch
from token_batches import PAD, make_encoder, padding_and_batch_change_nothing, token_batch

from fairseq_lxsr.errors import InputError

BOS = 0
EOS = 2


@pytest.mark.parametrize("name", ["laser", "tlaser"])
def test_two_batches_of_different_widths_are_encoded_at_once(name):
    encoder = make_encoder(name, num_layers=2)
    tokens = token_batch()
    u, v = encoder.forward_both(tokens[1:3, :4], tokens)
    torch.testing.assert_close(u, encoder(tokens[1:3]), rtol=0, atol=5e-6)
    torch.testing.assert_close(v, encoder(tokens), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "options", "plain_options"),
    [
        ("laser", {"append_eos": True}, {}),
        ("laser", {"prepend_bos": True, "append_eos": True}, {}),
        ("tlaser", {"append_eos": True}, {"max_positions": 751}),
        # The longest sentence has 9 pieces.
        ("tlaser", {"append_eos": True, "max_positions": 9}, {"max_positions": 10}),
    ],
)
def test_symbols_around_a_sentence_are_read_like_pieces(name, options, plain_options):
    encoder = make_encoder(name, num_layers=2, **options)
    plain = make_encoder(name, num_layers=2, **plain_options)
    tokens = token_batch()
    with_symbols = torch.nn.functional.pad(tokens, (0, 1), value=PAD)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        with_symbols[row, length] = EOS
    if options.get("prepend_bos"):
        with_symbols = torch.cat((torch.full((5, 1), BOS), with_symbols), dim=1)
    torch.testing.assert_close(encoder(tokens), plain(with_symbols))
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
