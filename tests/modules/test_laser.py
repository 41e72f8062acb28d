from functools import partial

import pytest
import token_batches
import torch
from token_batches import PAD, padding_and_batch_change_nothing, token_batch
from torch import nn

from fairseq_lxsr.modules import laser, max_pool

make_encoder = partial(token_batches.make_encoder, "laser")


@pytest.fixture
def tokens():
    return token_batch()


def test_lstm_stays_in_float32_where_torch_has_none_in_bfloat16(monkeypatch):
    """Values and gradients, with the last states of a decoder in bfloat16."""
    monkeypatch.setattr(laser, "cpu_has_bfloat16_lstm", lambda: False)
    lstm, x = laser.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    states = torch.randn(2, 1, 2, 4).bfloat16().unbind()
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = lstm(x, states)
    expected, _ = lstm(x, tuple(state.float() for state in states))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(
        *(torch.autograd.grad(part.sum(), lstm.weight_hh_l0)[0] for part in (found, expected))
    )


def test_max_pool_of_negative_states_does_not_see_padding():
    states = torch.tensor(
        [[[-3.0, -1.0], [-2.0, -5.0], [0.0, 0.0]], [[1.0, -4.0], [9.0, 9.0], [9.0, 9.0]]]
    )
    is_token = torch.tensor([[True, True, False], [True, False, False]])
    assert max_pool(states, is_token).tolist() == [[-2.0, -1.0], [1.0, -4.0]]
    assert max_pool(states, torch.zeros_like(is_token)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("num_layers", [1, 3])
def test_padding_and_batch_never_change_an_embedding(tokens, num_layers):
    encoder = make_encoder(num_layers=num_layers)
    for layer in encoder.layers:  # all states negative: zeros of padding would win the maximum
        for direction in (layer.ahead, layer.back):
            direction.bias_ih_l0.data[10:15] -= 3
    assert encoder(tokens).max() < 0
    padding_and_batch_change_nothing(encoder, tokens)


def test_equals_a_packed_bidirectional_lstm_values_and_gradients(tokens):
    encoder = make_encoder(num_layers=2)
    reference = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
    for number, layer in enumerate(encoder.layers):
        for direction, suffix in ((layer.ahead, ""), (layer.back, "_reverse")):
            for name, value in direction.named_parameters():
                getattr(reference, name.replace("l0", f"l{number}") + suffix).data.copy_(value)
    lengths = tokens.ne(PAD).sum(1)
    embedded = encoder.embed_tokens(tokens)
    packed = nn.utils.rnn.pack_padded_sequence(
        embedded, lengths, batch_first=True, enforce_sorted=False
    )
    states, _ = nn.utils.rnn.pad_packed_sequence(
        reference(packed)[0], batch_first=True, padding_value=float("-inf")
    )
    expected, result = states.max(dim=1).values, encoder(tokens)
    torch.testing.assert_close(result, expected)
    weight = encoder.embed_tokens.weight
    gradients = [
        torch.autograd.grad(value.square().sum(), weight)[0] for value in (result, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_a_sentence_of_padding_only_gives_zeros(tokens):
    assert (make_encoder()(torch.full((1, 4), PAD)) == 0).all()
