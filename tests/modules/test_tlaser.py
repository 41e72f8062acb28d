import math
from functools import partial

import pytest
import token_batches
import torch
from token_batches import PAD, assert_padding_and_batch_change_nothing, token_batch

from fairseq_lxsr.modules.tlaser import sinusoidal_positions

make_encoder = partial(token_batches.make_encoder, "tlaser")
# Rounding errors of gradients of sums over a few sentences are smaller.
ABOVE_ROUNDING = 1e-4


@pytest.fixture
def tokens():
    return token_batch()


@pytest.mark.parametrize("num_layers", [1, 3])
def test_padding_and_batch_never_change_an_embedding(tokens, num_layers):
    """The tag is always at the first position."""
    assert_padding_and_batch_change_nothing(make_encoder(num_layers=num_layers), tokens)


def slow_forward(encoder, sentence):
    """The textbook: all positions in all layers, head by head; the tag is selected at the end."""
    dim = encoder.config.embed_dim
    heads = encoder.config.num_heads
    width = dim // heads
    x = torch.cat((encoder.tag[None], encoder.embed_tokens(sentence))) * dim**0.5
    x = x + encoder.positions[: len(x)]
    for layer in encoder.layers:
        normal = layer.self_attn_layer_norm(x)
        q = layer.self_attn.q_proj(normal)
        k, v = layer.self_attn.kv_proj(normal).chunk(2, dim=-1)
        values = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            weights = (q[:, part] @ k[:, part].T / width**0.5).softmax(-1)
            values.append(weights @ v[:, part])
        x = x + layer.self_attn.out_proj(torch.cat(values, dim=-1))
        x = x + layer.fc2(layer.fc1(layer.final_layer_norm(x)).relu())
    return encoder.layer_norm(x[0])


@pytest.mark.parametrize("training", [False, True])
def test_values_and_gradients_equal_the_textbook(tokens, training):
    encoder = make_encoder(num_layers=3, dropout=0.0).train(training)

    embeddings = encoder(tokens)

    expected = torch.stack([slow_forward(encoder, row[row.ne(PAD)]) for row in tokens])
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-5)
    # Parameters of the beginning and the end, without those whose gradient is zero except for
    # rounding, such as the bias of keys, which does not change a softmax.
    parameters = [
        encoder.tag,
        encoder.embed_tokens.weight,
        encoder.layers[0].fc1.weight,
        encoder.layers[2].fc2.weight,
    ]
    # Random weights of the sum, so that every value has a gradient of its own.
    weights = torch.randn(embeddings.shape)
    gradients = torch.autograd.grad((embeddings * weights).sum(), parameters)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-5)


def test_the_last_layer_computes_only_the_tag(tokens):
    encoder = make_encoder(num_layers=2)
    shapes = []
    for norm in (encoder.layers[-1].final_layer_norm, encoder.layer_norm):
        norm.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape)))

    encoder(tokens)

    # Five sentences of one position, not 1 + 9, in a width of 16.
    assert shapes == [(5, 1, 16), (5, 1, 16)]


def test_the_order_of_pieces_changes_the_embedding(tokens):
    encoder = make_encoder()
    sentence = tokens[:1]
    backwards = sentence.flip(1)

    difference = (encoder(sentence) - encoder(backwards)).abs().max()

    # Far more than rounding, for values around one.
    assert difference > 1e-3


def test_positions_equal_those_worked_out_by_hand():
    positions = sinusoidal_positions(2, 4)
    # With 4 dimensions, the frequencies are 1 and 1 / 10,000: their sines, then their cosines.
    frequency = 1 / 10_000
    expected = torch.tensor(
        [
            [0, 0, 1, 1],
            [math.sin(1), math.sin(frequency), math.cos(1), math.cos(frequency)],
        ]
    )
    torch.testing.assert_close(positions, expected, atol=1e-6, rtol=0)


def test_with_zero_branches_every_embedding_is_that_of_the_tag(tokens):
    encoder = make_encoder(num_layers=2)
    for layer in encoder.layers:
        layer.zero_branches()

    embeddings = encoder(tokens)

    scale = encoder.config.embed_dim**0.5
    embedding_of_tag = encoder.layer_norm(scale * encoder.tag + encoder.positions[0])
    torch.testing.assert_close(embeddings, embedding_of_tag.expand(len(tokens), -1))


def test_zero_branches_have_gradients(tokens):
    """So training can change the last projections of both branches, which are zero at first."""
    encoder = make_encoder(num_layers=2)
    for layer in encoder.layers:
        layer.zero_branches()
    embeddings = encoder(tokens)

    # Random weights of the sum, because the sum of a normalized vector itself never changes.
    (embeddings * torch.randn(embeddings.shape)).sum().backward()

    for layer in encoder.layers:
        for projection in (layer.self_attn.out_proj, layer.fc2):
            assert projection.weight.grad.abs().max() > ABOVE_ROUNDING
