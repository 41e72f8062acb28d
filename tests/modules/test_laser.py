from functools import partial

import pytest
import token_batches
import torch
from token_batches import PAD, assert_padding_and_batch_change_nothing, token_batch
from torch import nn

from fairseq_lxsr.modules import laser, max_pool

make_encoder = partial(token_batches.make_encoder, "laser")


@pytest.fixture
def tokens():
    return token_batch()


def test_lstm_computes_in_float32_on_a_processor_without_bfloat16_lstm(monkeypatch):
    """The first states, from a decoder, are in bfloat16."""
    monkeypatch.setattr(laser, "cpu_has_bfloat16_lstm", lambda: False)
    lstm = laser.LSTM(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)
    hidden_state, cell_state = torch.randn(2, 1, 2, 4).bfloat16()

    with torch.autocast("cpu", torch.bfloat16):
        output, _ = lstm(x, (hidden_state, cell_state))

    expected, _ = lstm(x, (hidden_state.float(), cell_state.float()))
    assert output.dtype == torch.float32
    assert torch.equal(output, expected)
    (gradient,) = torch.autograd.grad(output.sum(), lstm.weight_hh_l0)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), lstm.weight_hh_l0)
    assert torch.equal(gradient, expected_gradient)


def test_max_pool_of_negative_states_ignores_padding():
    # Two sentences of two pieces and of one; the states of padding would be the maximum.
    states = torch.tensor(
        [[[-3.0, -1.0], [-2.0, -5.0], [0.0, 0.0]], [[1.0, -4.0], [9.0, 9.0], [9.0, 9.0]]]
    )
    is_token = torch.tensor([[True, True, False], [True, False, False]])
    assert max_pool(states, is_token).tolist() == [[-2.0, -1.0], [1.0, -4.0]]


def test_max_pool_of_padding_alone_is_zero():
    states = torch.ones(2, 3, 2)
    is_token = torch.zeros(2, 3, dtype=torch.bool)
    assert max_pool(states, is_token).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("num_layers", [1, 3])
def test_padding_and_batch_never_change_an_embedding(tokens, num_layers):
    encoder = make_encoder(num_layers=num_layers)
    # Make all states negative, so that zeros of padding would be the maximum: an LSTM has the
    # biases of four gates of 5 units, of which the third (10 to 14) decides the sign of a state.
    for layer in encoder.layers:
        for direction in (layer.ahead, layer.back):
            direction.bias_ih_l0.data[10:15] -= 3
    assert encoder(tokens).max() < 0

    assert_padding_and_batch_change_nothing(encoder, tokens)


def bidirectional_lstm_of_torch(encoder):
    """torch's LSTM with the two layers and the weights of the encoder."""
    lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
    for number, layer in enumerate(encoder.layers):
        for direction, suffix in ((layer.ahead, ""), (layer.back, "_reverse")):
            for name, value in direction.named_parameters():
                # Such as weight_ih_l0, which torch calls weight_ih_l1_reverse in the second layer.
                weight = getattr(lstm, name.replace("l0", f"l{number}") + suffix)
                weight.data.copy_(value)
    return lstm


def test_values_and_gradients_equal_a_packed_bidirectional_lstm(tokens):
    encoder = make_encoder(num_layers=2)

    embeddings = encoder(tokens)

    packed_pieces = nn.utils.rnn.pack_padded_sequence(
        encoder.embed_tokens(tokens), tokens.ne(PAD).sum(1), batch_first=True, enforce_sorted=False
    )
    packed_states, _ = bidirectional_lstm_of_torch(encoder)(packed_pieces)
    states, _ = nn.utils.rnn.pad_packed_sequence(
        packed_states, batch_first=True, padding_value=float("-inf")
    )
    expected = states.max(dim=1).values
    torch.testing.assert_close(embeddings, expected)
    table = encoder.embed_tokens.weight
    gradient = torch.autograd.grad(embeddings.square().sum(), table)
    expected_gradient = torch.autograd.grad(expected.square().sum(), table)
    torch.testing.assert_close(gradient, expected_gradient)


def test_the_embedding_of_padding_alone_is_zero():
    padding = torch.full((1, 4), PAD)
    assert (make_encoder()(padding) == 0).all()
