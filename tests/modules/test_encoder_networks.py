"""Properties that the encoders share: two batches at once, symbols around a sentence, and sizes."""

import pytest
import torch
from token_batches import PAD, assert_padding_and_batch_change_nothing, make_encoder, token_batch

from fairseq_lxsr.errors import InputError

BOS = 0
EOS = 2


@pytest.mark.parametrize("name", ["laser", "tlaser"])
def test_two_batches_of_different_widths_are_encoded_at_once(name):
    encoder = make_encoder(name, num_layers=2)
    wide_batch = token_batch()
    # Its second and third sentence, of 1 and 4 pieces.
    narrow_batch = wide_batch[1:3, :4]

    u, v = encoder.forward_both(narrow_batch, wide_batch)

    torch.testing.assert_close(u, encoder(narrow_batch), rtol=0, atol=5e-6)
    torch.testing.assert_close(v, encoder(wide_batch), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "symbols", "sizes"),
    [
        ("laser", ["append_eos"], {}),
        ("laser", ["prepend_bos", "append_eos"], {}),
        # T-LASER has a largest number of pieces, by default 750, which EOS does not count for.
        ("tlaser", ["append_eos"], {"max_positions": 750}),
        # The longest sentence of the batch has 9 pieces.
        ("tlaser", ["append_eos"], {"max_positions": 9}),
    ],
    ids=["laser eos", "laser bos eos", "tlaser eos", "tlaser full"],
)
def test_symbols_around_a_sentence_are_read_like_pieces(name, symbols, sizes):
    options = dict.fromkeys(symbols, True)
    encoder = make_encoder(name, num_layers=2, **options, **sizes)
    tokens = token_batch()

    embeddings = encoder(tokens)

    # An encoder without the options, which has room for one more piece, reads the ids of EOS and
    # BOS as pieces.
    sizes_of_reference = {size: value + 1 for size, value in sizes.items()}
    reference = make_encoder(name, num_layers=2, **sizes_of_reference)
    tokens_with_symbols = torch.nn.functional.pad(tokens, (0, 1), value=PAD)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        tokens_with_symbols[row, length] = EOS
    if "prepend_bos" in symbols:
        bos_column = torch.full((5, 1), BOS)
        tokens_with_symbols = torch.cat((bos_column, tokens_with_symbols), dim=1)
    torch.testing.assert_close(embeddings, reference(tokens_with_symbols))


@pytest.mark.parametrize(
    ("name", "symbols"),
    [
        ("laser", ["append_eos"]),
        ("laser", ["prepend_bos", "append_eos"]),
        ("tlaser", ["append_eos"]),
    ],
    ids=["laser eos", "laser bos eos", "tlaser eos"],
)
def test_padding_and_batch_never_change_an_embedding_with_symbols(name, symbols):
    encoder = make_encoder(name, num_layers=2, **dict.fromkeys(symbols, True))
    assert_padding_and_batch_change_nothing(encoder, token_batch())


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        # Only the transformer may have no layers.
        ("laser", {"num_layers": 0}, "num_layers 0"),
        ("tlaser", {"num_layers": 0}, "num_layers 0"),
        # The width of 16 cannot be divided into three heads.
        ("tlaser", {"num_heads": 3}, "num_heads 3"),
        ("transformer", {"num_heads": 3}, "num_heads 3"),
        ("transformer", {"num_layers": -1}, "num_layers -1"),
        ("transformer", {"layer_norm_eps": 0.0}, "layer_norm_eps 0"),
        ("transformer", {"pooling": "max"}, "pooling 'max'"),
        # Each is fine alone: order coefficients belong to the mean.
        (
            "transformer",
            {"order_coefficients": 1, "pooling": "mean_max"},
            "order_coefficients 1 .*mean_max",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_impossible_sizes_are_refused_by_name(name, sizes, message):
    with pytest.raises(InputError, match=message):
        make_encoder(name, **sizes)
