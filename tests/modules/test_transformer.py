import math
from functools import partial

import numpy as np
import pytest
import token_batches
import torch
from dropout_calls import dropout_calls
from operations import Operations
from token_batches import PAD, padding_and_batch_change_nothing, token_batch

from fairseq_lxsr.modules import (
    ReconstructionHead,
    TransformerConfig,
    TransformerSentenceEncoder,
    mean_pool,
)
from fairseq_lxsr.modules.pooling import order_weights
from fairseq_lxsr.modules.transformer import SelfAttention

make_encoder = partial(token_batches.make_encoder, "transformer")


@pytest.fixture
def tokens():
    return token_batch()


def test_the_number_of_parameters_is_that_of_the_paper():
    # Table 1 has 30 M, of which the embeddings are 25.6 M.
    encoder = TransformerSentenceEncoder(TransformerConfig(vocab_size=50_000, padding_idx=PAD))
    head = ReconstructionHead(512, 512, 50_000)
    parameters = [*encoder.parameters(), *head.parameters()]
    assert sum(parameter.numel() for parameter in parameters) == 30_222_672
    assert encoder.embed_tokens.weight.numel() == 25_600_000


def test_reset_as_released_has_the_distributions_of_the_released_code():
    sizes = {
        "vocab_size": 2000,
        "embed_dim": 64,
        "ffn_embed_dim": 96,
        "num_layers": 3,
        "max_positions": 500,
    }
    encoder = make_encoder(**sizes)
    assert encoder.embed_tokens.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    encoder.reset_as_released()
    # All layers start with the same weights.
    first, second, third = (layer.state_dict() for layer in encoder.layers)
    for name, value in first.items():
        assert torch.equal(second[name], value), name
        assert torch.equal(third[name], value), name
    for table in (encoder.embed_tokens.weight, encoder.embed_positions.weight):
        assert table.std().item() == pytest.approx(1, rel=0.02)
    assert not encoder.embed_tokens.weight[PAD].any()
    for linear, fan_in in (
        ("self_attn.in_proj", 64),
        ("self_attn.out_proj", 64),
        ("fc1", 64),
        ("fc2", 96),
    ):
        for kind in ("weight", "bias"):
            limit = fan_in**-0.5
            assert 0.8 * limit < first[f"{linear}.{kind}"].abs().max() <= limit, linear


def test_layer_norm_eps_is_the_epsilon_of_every_layer_norm(tokens):
    encoder = make_encoder(layer_norm_eps=1e-12)
    norms = [module for module in encoder.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-12] * 5
    assert ReconstructionHead(16, 16, 40, 1e-12).layer_norm.eps == 1e-12
    with torch.no_grad():
        # So small that epsilon makes a difference.
        encoder.embed_tokens.weight *= 1e-5
        encoder.embed_positions.weight *= 1e-5
        small = encoder(tokens)[0][0]
        assert small.norm(dim=1).min() > 1
        plain = make_encoder()
        plain.load_state_dict(encoder.state_dict())
        assert (plain(tokens)[0][0] - small).abs().max() > 0.1


def embed(encoder, tokens):
    """The embeddings of one batch."""
    [(embeddings, _)] = encoder(tokens)
    return embeddings


def open_gates(encoder):
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.gates)
    return encoder


def test_gated_layers_start_as_the_mean_of_embeddings_and_can_learn_the_order(tokens):
    encoder = make_encoder(gated=True)
    weights = encoder.embed_tokens.weight
    sentence = tokens[:1]
    backwards = sentence.flip(1)
    # Embeddings are multiplied by the root of their width, 16.
    torch.testing.assert_close(embed(encoder, sentence)[0], 4 * weights[sentence[0]].mean(0))
    torch.testing.assert_close(embed(encoder, sentence), embed(encoder, backwards))
    embed(encoder, sentence).square().sum().backward()
    for layer in encoder.layers:
        assert layer.gates.grad.abs().min() > 0
    open_gates(encoder)
    assert not torch.allclose(embed(encoder, sentence), embed(encoder, backwards), atol=1e-3)


def test_a_gated_layer_equals_its_formula(tokens):
    encoder = open_gates(make_encoder(gated=True, num_layers=1))
    layer = encoder.layers[0]
    sentence = tokens[:1]
    mask = torch.ones(1, 1, 1, sentence.shape[1], dtype=torch.bool)
    positions = encoder.embed_positions.weight[: sentence.shape[1]]
    x = 4 * encoder.embed_tokens(sentence)
    x = x + layer.gates[0] * layer.self_attn(layer.self_attn_layer_norm(x) + positions, mask)
    hidden = torch.nn.functional.silu(layer.fc1(layer.final_layer_norm(x)))
    x = x + layer.gates[1] * layer.fc2(hidden)
    torch.testing.assert_close(embed(encoder, sentence)[0], x[0].mean(0), rtol=1e-5, atol=1e-5)


def computes_states(operations):
    """Whether an operation had a row for each piece, [B, T, 16], not only for each sum, [B, 3, 16]."""
    for _, shape in operations.calls:
        if shape and len(shape) == 3 and shape[-1] == 16 and min(shape[:2]) > 3:
            return True
    return False


BAG = {"gated": True, "num_layers": 0, "dropout": 0.0}


@pytest.mark.parametrize("order_coefficients", [0, 2])
def test_without_layers_or_dropout_weighted_sums_give_the_same_values_and_gradients(
    tokens, order_coefficients
):
    encoder = make_encoder(**BAG, order_coefficients=order_coefficients).train()
    shorter_tokens = tokens[:, :4]
    if order_coefficients:
        torch.nn.init.normal_(encoder.order)

    with Operations() as operations:
        sums = encoder.embed(tokens, shorter_tokens)

    assert not computes_states(operations)
    expected = [pooled for pooled, _ in encoder(tokens, shorter_tokens)]
    torch.testing.assert_close(list(sums), expected)
    weights = list(encoder.parameters())
    gradients = torch.autograd.grad(sum(part.square().sum() for part in sums), weights)
    expected_gradients = torch.autograd.grad(sum(part.square().sum() for part in expected), weights)
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"num_layers": 1}, {"gated": False}])
def test_states_are_computed_with_dropout_layers_or_normalisation(tokens, options):
    with Operations() as operations:
        make_encoder(**BAG | options).train().embed(tokens)
    assert computes_states(operations)


def slow_cosine_pool(states, length, count):
    """One coefficient, one piece at a time."""
    coefficients = []
    for number in range(1, count + 1):
        total = torch.zeros_like(states[0])
        for position in range(length):
            total += math.cos(math.pi * number * (position + 0.5) / length) * states[position]
        coefficients.append(total / length)
    return torch.stack(coefficients)


def test_cosine_coefficients_equal_the_slow_reference(tokens):
    states = torch.randn(*tokens.shape, 6)
    is_token = tokens.ne(PAD)
    weights = order_weights(is_token, 3)
    assert not weights[:, ~is_token].any()
    mean, *coefficients = torch.einsum("kbt,btd->kbd", weights, states)
    torch.testing.assert_close(mean, mean_pool(states, is_token))
    expected = []
    for row, length in zip(states, is_token.sum(dim=1).tolist(), strict=True):
        expected.append(slow_cosine_pool(row, length, 3))
    torch.testing.assert_close(torch.stack(coefficients, dim=1), torch.stack(expected))


def test_cosine_coefficients_of_constant_states_are_zero():
    weights = order_weights(torch.ones(1, 5, dtype=torch.bool), 4)[1:]
    torch.testing.assert_close(weights.sum(dim=2), torch.zeros(4, 1))


def test_order_coefficients_start_at_zero_and_can_learn_the_order(tokens):
    encoder = make_encoder(gated=True, num_layers=0, order_coefficients=2)
    sentence = tokens[:1]
    backwards = sentence.flip(1)
    torch.testing.assert_close(embed(encoder, sentence), embed(encoder, backwards))
    embed(encoder, sentence).square().sum().backward()
    assert encoder.order.grad.abs().min() > 0
    torch.nn.init.normal_(encoder.order)
    assert not torch.allclose(embed(encoder, sentence), embed(encoder, backwards), atol=1e-3)


@pytest.mark.parametrize("order_coefficients", [0, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_layers", [0, 1, 2, 6])
def test_padding_and_batch_never_change_an_embedding(tokens, num_layers, gated, order_coefficients):
    sizes = {"num_layers": num_layers, "order_coefficients": order_coefficients}
    encoder = make_encoder(gated=gated, **sizes)
    if order_coefficients:
        torch.nn.init.normal_(encoder.order, std=0.1)
    if gated:
        open_gates(encoder)
    padding_and_batch_change_nothing(partial(embed, encoder), tokens)


def test_batches_of_different_lengths_are_encoded_in_one_call(tokens):
    encoder = make_encoder()
    (first, _), (second, states) = encoder(tokens, tokens[1:3, :4])
    torch.testing.assert_close(first, embed(encoder, tokens))
    torch.testing.assert_close(second, first[1:3], rtol=0, atol=5e-6)
    assert states.shape == (2, 4, 16)


def test_a_layer_equals_attention_written_out(tokens):
    """The formula of the textbook, head by head."""
    encoder = make_encoder(num_layers=1)
    layer = encoder.layers[0]
    sentence = tokens[:1]
    positions = encoder.embed_positions.weight[: sentence.shape[1]]
    x = encoder.layer_norm(encoder.embed_tokens(sentence) + positions)[0]
    query, key, value = layer.self_attn.in_proj(x).chunk(3, dim=-1)
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        weights = (query[:, part] @ key[:, part].T / 8**0.5).softmax(-1)
        heads.append(weights @ value[:, part])
    x = layer.self_attn_layer_norm(x + layer.self_attn.out_proj(torch.cat(heads, dim=-1)))
    hidden = layer.fc1(x)
    x = layer.final_layer_norm(x + layer.fc2(hidden * torch.sigmoid(hidden)))
    torch.testing.assert_close(embed(encoder, sentence)[0], x.mean(0), rtol=1e-5, atol=1e-6)


def test_an_encoder_without_layers_gives_the_mean_of_normalised_embeddings(tokens):
    encoder = make_encoder(num_layers=0)
    x = encoder.embed_tokens(tokens[2, :4]) + encoder.embed_positions.weight[:4]
    expected = torch.nn.functional.layer_norm(x, (16,)).mean(0)
    torch.testing.assert_close(embed(encoder, tokens)[2], expected, rtol=1e-5, atol=1e-6)


def test_padding_has_no_gradient(tokens):
    encoder = make_encoder()
    embed(encoder, tokens).square().sum().backward()
    assert encoder.embed_tokens.weight.grad[PAD].abs().max() == 0
    assert encoder.embed_tokens.weight.grad[int(tokens[0, 0])].abs().max() > 0


def test_the_embedding_of_a_sentence_without_pieces_is_zero():
    [(embeddings, states)] = make_encoder()(torch.full((2, 3), PAD))
    assert embeddings.tolist() == torch.zeros(2, 16).tolist()
    assert torch.isfinite(states).all()


def test_the_mean_is_computed_in_float32():
    # The sum of the states is beyond float16.
    states = torch.full((1, 300, 4), 300.0, dtype=torch.float16)
    assert mean_pool(states, torch.ones(1, 300, dtype=torch.bool)).tolist() == [[300.0] * 4]


def test_the_reconstruction_head_uses_the_embeddings_as_its_weights():
    head = ReconstructionHead(16, 16, 40)
    embeddings = torch.randn(40, 16, requires_grad=True)
    logits = head(torch.randn(3, 16), embeddings)
    assert logits.shape == (3, 40)
    logits.sum().backward()
    assert embeddings.grad is not None


@pytest.mark.parametrize("rows", [False, True])
def test_mean_max_pooling_gives_the_mean_and_the_maximum(tokens, rows):
    encoder = make_encoder(pooling="mean_max")
    assert encoder.config.output_dim == 32
    [(mean, states)] = make_encoder()(tokens)
    embeddings = embed_by_rows(encoder, tokens) if rows else embed(encoder, tokens)
    torch.testing.assert_close(embeddings[:, :16], mean, rtol=0, atol=5e-6)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        maximum = states[row, :length].max(dim=0).values
        torch.testing.assert_close(embeddings[row, 16:], maximum, rtol=0, atol=5e-6)


def embed_by_rows(encoder, tokens):
    """All sentences in one row, as `SentenceEncoder` packs them."""
    real = tokens.ne(PAD)
    lengths = real.sum(1)
    starts = lengths.cumsum(0) - lengths
    sentence = torch.arange(len(tokens)).repeat_interleave(lengths)
    position = torch.arange(int(lengths.sum())) - starts[sentence]
    pieces = torch.arange(len(position))
    with torch.inference_mode():
        return encoder.forward_rows(
            tokens[real][None], position[None], sentence[None], pieces, starts
        )


@pytest.mark.parametrize("options", [{}, {"gated": True, "order_coefficients": 2}])
def test_rows_of_many_lengths_are_embedded_by_length(options, monkeypatch):
    encoder = make_encoder(max_positions=60, **options)
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    generator = np.random.default_rng(0)
    batches = []
    for longest in (60, 40):
        lengths = generator.integers(0, 9, 70)
        # A long sentence and an empty one.
        lengths[0] = longest
        lengths[1] = 0
        is_token = np.arange(longest) < lengths[:, None]
        ids = np.where(is_token, generator.integers(4, 40, is_token.shape), PAD)
        batches.append(torch.from_numpy(ids))
    widths = []
    compute_states = encoder._states

    def record_width(x, *arguments):
        widths.append(x.shape[1])
        return compute_states(x, *arguments)

    monkeypatch.setattr(encoder, "_states", record_width)
    with Operations() as operations:
        embeddings = encoder.embed(*batches)
    assert "aten::item" not in {name for name, _ in operations.calls}
    assert min(widths) < 5 < max(widths) == 60

    expected = [pooled for pooled, _ in encoder(*batches)]
    assert [len(part) for part in embeddings] == [70, 70]
    torch.testing.assert_close(list(embeddings), expected, rtol=1e-4, atol=1e-5)
    parameters = list(encoder.parameters())
    loss = sum((part * part.cos()).sum() for part in embeddings)
    expected_loss = sum((part * part.cos()).sum() for part in expected)
    gradients = torch.autograd.grad(loss, parameters)
    expected_gradients = torch.autograd.grad(expected_loss, parameters)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_dropout_is_applied_to_embeddings_branches_and_activations(gated):
    encoder = make_encoder(num_layers=2, gated=gated).train()
    assert dropout_calls(encoder, lambda: encoder(torch.full((3, 5), 7))) == {
        "dropout": 1,
        "layers.0.dropout": 2,
        "layers.0.activation_dropout": 1,
        "layers.1.dropout": 2,
        "layers.1.activation_dropout": 1,
    }


def test_attention_weights_are_dropped_in_training_and_keep_the_mean():
    torch.manual_seed(0)
    config = TransformerConfig(
        40, PAD, embed_dim=16, ffn_embed_dim=32, num_heads=2, attention_dropout=0.5
    )
    attention = SelfAttention(config)
    x = torch.randn(1, 6, 16)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    expected = attention.eval()(x, mask)
    samples = torch.stack([attention.train()(x, mask) for _ in range(2000)])
    assert samples.std(dim=0).min() > 0.01
    torch.testing.assert_close(samples.mean(dim=0), expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("options", [{}, {"gated": True, "order_coefficients": 1}])
def test_batches_encoded_together_have_the_result_of_each_alone(options):
    """A GPU encodes the two sides of a batch together."""
    encoder = make_encoder(**options).eval()
    wide = token_batch()
    narrow = wide[:2, :-1]
    together = encoder._forward_together((narrow, wide))
    for (embeddings, states), tokens in zip(together, (narrow, wide), strict=True):
        ((expected, expected_states),) = encoder(tokens)
        torch.testing.assert_close(embeddings, expected)
        is_token = tokens.ne(PAD)
        torch.testing.assert_close(states[is_token], expected_states[is_token])


def with_zero_branches(encoder):
    for layer in encoder.layers:
        layer.zero_branches()
    return encoder


def branch_projections(encoder):
    projections = []
    for layer in encoder.layers:
        projections += [layer.self_attn.out_proj, layer.fc2]
    return projections


def assert_projections_have_gradients(encoder, embeddings):
    (embeddings * torch.randn(embeddings.shape)).sum().backward()
    for projection in branch_projections(encoder):
        assert projection.weight.grad.abs().max() > 1e-4


@pytest.mark.parametrize("released", [False, True])
def test_a_layer_with_zero_branches_only_normalises_twice(tokens, released):
    encoder = make_encoder(num_layers=2)
    without_layers = make_encoder(num_layers=0)
    if released:
        encoder.reset_as_released()
        without_layers.load_state_dict(encoder.state_dict(), strict=False)
    with_zero_branches(encoder)
    [(embeddings, states)] = encoder(tokens)
    [(plain, expected)] = without_layers(tokens)
    for _ in range(4):
        expected = torch.nn.functional.layer_norm(expected, [16])
    is_piece = tokens.ne(PAD)
    torch.testing.assert_close(states[is_piece], expected[is_piece], rtol=1e-5, atol=1e-6)
    # The input is already normalized, so that only the epsilon of the norms remains.
    torch.testing.assert_close(embeddings, plain, rtol=1e-3, atol=1e-4)
    assert_projections_have_gradients(encoder, embeddings)


def test_gated_layers_with_zero_branches_change_nothing_and_have_open_gates(tokens):
    encoder = with_zero_branches(make_encoder(gated=True))
    [(embeddings, states)] = encoder(tokens)
    [(plain, expected)] = make_encoder(gated=True, num_layers=0)(tokens)
    assert torch.equal(states, expected)
    assert torch.equal(embeddings, plain)
    (embeddings * torch.randn(embeddings.shape)).sum().backward()
    # With gates of zero, too, neither of the two would ever have a gradient.
    assert all(part.weight.grad.abs().max() > 1e-4 for part in branch_projections(encoder))
