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


def test_parameters_of_the_paper():
    # 30 M (Table 1), 25.6 M of them the embedding
    encoder = TransformerSentenceEncoder(TransformerConfig(vocab_size=50_000, padding_idx=PAD))
    head = ReconstructionHead(512, 512, 50_000)
    count = sum(p.numel() for module in (encoder, head) for p in module.parameters())
    assert count == 30_222_672
    assert encoder.embed_tokens.weight.numel() == 25_600_000


def test_initial_weights_of_the_released_code():
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
    first, *others = [layer.state_dict() for layer in encoder.layers]
    for name, value in first.items():
        assert all(torch.equal(value, other[name]) for other in others), name
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


def test_epsilon_is_that_of_every_layer_norm(tokens):
    encoder = make_encoder(layer_norm_eps=1e-12)
    norms = [module for module in encoder.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-12] * 5
    assert ReconstructionHead(16, 16, 40, 1e-12).layer_norm.eps == 1e-12
    with torch.no_grad():
        encoder.embed_tokens.weight *= 1e-5  # so small that epsilon matters
        encoder.embed_positions.weight *= 1e-5
        small = encoder(tokens)[0][0]
        assert small.norm(dim=1).min() > 1
        plain = make_encoder()
        plain.load_state_dict(encoder.state_dict())
        assert (plain(tokens)[0][0] - small).abs().max() > 0.1


def open_gates(encoder):
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.gates)
    return encoder


def test_gated_layers_start_as_the_mean_of_embeddings_and_then_see_order(tokens):
    encoder = make_encoder(gated=True)
    weights = encoder.embed_tokens.weight
    sentence, turned = tokens[:1], tokens[:1].flip(1)
    # the root of 16
    torch.testing.assert_close(encoder(sentence)[0][0][0], 4 * weights[sentence[0]].mean(0))
    torch.testing.assert_close(encoder(sentence)[0][0], encoder(turned)[0][0])
    encoder(sentence)[0][0].square().sum().backward()
    assert all(layer.gates.grad.abs().min() > 0 for layer in encoder.layers)
    open_gates(encoder)
    assert not torch.allclose(encoder(sentence)[0][0], encoder(turned)[0][0], atol=1e-3)


def test_gated_layer_equals_its_formula(tokens):
    encoder = open_gates(make_encoder(gated=True, num_layers=1))
    layer, sentence = encoder.layers[0], tokens[:1]
    x = 4 * encoder.embed_tokens(sentence)
    everywhere = torch.ones(1, 1, 1, sentence.shape[1], dtype=torch.bool)
    positions = encoder.embed_positions.weight[: sentence.shape[1]]
    x = x + layer.gates[0] * layer.self_attn(layer.self_attn_layer_norm(x) + positions, everywhere)
    x = x + layer.gates[1] * layer.fc2(
        torch.nn.functional.silu(layer.fc1(layer.final_layer_norm(x)))
    )
    torch.testing.assert_close(encoder(sentence)[0][0][0], x[0].mean(0), rtol=1e-5, atol=1e-5)


def makes_states(operations):
    """Whether anything had a row for each piece, [B, T, 16], not only for each sum, [B, 3, 16]."""
    return any(
        shape and len(shape) == 3 and shape[-1] == 16 and min(shape[:2]) > 3
        for _, shape in operations.calls
    )


@pytest.mark.parametrize("order_coefficients", [0, 2])
def test_without_layers_or_noise_nothing_but_a_bag_is_computed_and_it_is_the_same(
    tokens, order_coefficients
):
    options = {
        "gated": True,
        "num_layers": 0,
        "dropout": 0.0,
        "order_coefficients": order_coefficients,
    }
    encoder, other = make_encoder(**options).train(), tokens[:, :4]
    if order_coefficients:
        torch.nn.init.normal_(encoder.order)
    with Operations() as operations:
        bags = encoder.embed(tokens, other)
    assert not makes_states(operations)
    slow = [pooled for pooled, _ in encoder(tokens, other)]
    for a, b in zip(bags, slow, strict=True):
        torch.testing.assert_close(a, b)
    weights = list(encoder.parameters())
    fast, expected = (
        torch.autograd.grad(sum(u.square().sum() for u in us), weights) for us in (bags, slow)
    )
    for a, b in zip(fast, expected, strict=True):
        torch.testing.assert_close(a, b)
    for changed in ({"dropout": 0.1}, {"num_layers": 1}, {"gated": False}):
        with Operations() as operations:
            make_encoder(**options | changed).train().embed(tokens)
        assert makes_states(operations)


def slow_cosine_pool(states, length, count):
    """One coefficient, one piece at a time."""
    places, numbers = range(length), range(1, count + 1)
    return torch.stack(
        [
            sum(math.cos(math.pi * k * (t + 0.5) / length) * states[t] for t in places) / length
            for k in numbers
        ]
    )


def test_cosine_coefficients_equal_the_slow_reference(tokens):
    states, is_token = torch.randn(*tokens.shape, 6), tokens.ne(PAD)
    weights = order_weights(is_token, 3)
    assert not weights[:, ~is_token].any()
    mean, *result = torch.einsum("kbt,btd->kbd", weights, states)
    torch.testing.assert_close(mean, mean_pool(states, is_token))
    lengths = is_token.sum(dim=1).tolist()
    expected = torch.stack(
        [slow_cosine_pool(row, length, 3) for row, length in zip(states, lengths, strict=True)]
    )
    torch.testing.assert_close(torch.stack(result, dim=1), expected)
    # what does not change has none
    constant = order_weights(torch.ones(1, 5, dtype=torch.bool), 4)[1:]
    torch.testing.assert_close(constant.sum(dim=2), torch.zeros(4, 1))


def test_order_counts_from_nothing_on(tokens):
    encoder = make_encoder(gated=True, num_layers=0, order_coefficients=2)
    sentence, turned = tokens[:1], tokens[:1].flip(1)
    torch.testing.assert_close(encoder(sentence)[0][0], encoder(turned)[0][0])
    encoder(sentence)[0][0].square().sum().backward()
    assert encoder.order.grad.abs().min() > 0
    torch.nn.init.normal_(encoder.order)
    assert not torch.allclose(encoder(sentence)[0][0], encoder(turned)[0][0], atol=1e-3)


@pytest.mark.parametrize("order_coefficients", [0, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_layers", [0, 1, 2, 6])
def test_padding_and_batch_never_change_an_embedding(tokens, num_layers, gated, order_coefficients):
    encoder = make_encoder(
        num_layers=num_layers, gated=gated, order_coefficients=order_coefficients
    )
    if order_coefficients:
        torch.nn.init.normal_(encoder.order, std=0.1)
    if gated:
        open_gates(encoder)
    padding_and_batch_change_nothing(lambda batch: encoder(batch)[0][0], tokens)


def test_batches_of_different_length_in_one_call(tokens):
    encoder = make_encoder()
    (first, _), (second, states) = encoder(tokens, tokens[1:3, :4])
    torch.testing.assert_close(first, encoder(tokens)[0][0])
    torch.testing.assert_close(second, first[1:3], rtol=0, atol=5e-6)
    assert states.shape == (2, 4, 16)


def test_layer_equals_attention_written_out(tokens):
    """One layer against the textbook formula, head by head, without
    scaled_dot_product_attention.
    """
    encoder = make_encoder(num_layers=1)
    layer, sentence = encoder.layers[0], tokens[:1]
    x = encoder.layer_norm(
        encoder.embed_tokens(sentence) + encoder.embed_positions.weight[: sentence.shape[1]]
    )[0]
    query, key, value = layer.self_attn.in_proj(x).chunk(3, dim=-1)
    heads = []
    for part in range(2):
        q, k, v = (matrix[:, part * 8 : part * 8 + 8] for matrix in (query, key, value))
        heads.append((q @ k.T / 8**0.5).softmax(-1) @ v)
    x = layer.self_attn_layer_norm(x + layer.self_attn.out_proj(torch.cat(heads, dim=-1)))
    hidden = layer.fc1(x)
    x = layer.final_layer_norm(x + layer.fc2(hidden * torch.sigmoid(hidden)))
    torch.testing.assert_close(encoder(sentence)[0][0][0], x.mean(0), rtol=1e-5, atol=1e-6)


def test_no_layers_is_the_mean_of_normalised_embeddings(tokens):
    encoder = make_encoder(num_layers=0)
    x = encoder.embed_tokens(tokens[2, :4]) + encoder.embed_positions.weight[:4]
    expected = torch.nn.functional.layer_norm(x, (16,)).mean(0)
    torch.testing.assert_close(encoder(tokens)[0][0][2], expected, rtol=1e-5, atol=1e-6)


def test_gradients_do_not_reach_padding_and_a_sentence_without_pieces_is_zero_not_nan(tokens):
    encoder = make_encoder()
    encoder(tokens)[0][0].square().sum().backward()
    assert encoder.embed_tokens.weight.grad[PAD].abs().max() == 0
    assert encoder.embed_tokens.weight.grad[int(tokens[0, 0])].abs().max() > 0
    [(embeddings, states)] = encoder(torch.full((2, 3), PAD))
    assert embeddings.tolist() == torch.zeros(2, 16).tolist()
    assert torch.isfinite(states).all()


def test_mean_is_taken_in_float32():
    states = torch.full((1, 300, 4), 300.0, dtype=torch.float16)  # their sum is beyond float16
    assert mean_pool(states, torch.ones(1, 300, dtype=torch.bool)).tolist() == [[300.0] * 4]


def test_head_shares_the_embeddings():
    head, embeddings = ReconstructionHead(16, 16, 40), torch.randn(40, 16, requires_grad=True)
    logits = head(torch.randn(3, 16), embeddings)
    assert logits.shape == (3, 40)
    logits.sum().backward()
    assert embeddings.grad is not None


@pytest.mark.parametrize("rows", [False, True])
def test_mean_and_maximum_side_by_side(tokens, rows):
    mean, both = make_encoder(), make_encoder(pooling="mean_max")
    [(expected, states)] = mean(tokens)
    embeddings = by_rows(both, tokens) if rows else both(tokens)[0][0]
    assert both.config.output_dim == 32
    torch.testing.assert_close(embeddings[:, :16], expected, rtol=0, atol=5e-6)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        maximum = states[row, :length].max(dim=0).values
        torch.testing.assert_close(embeddings[row, 16:], maximum, rtol=0, atol=5e-6)


def by_rows(encoder, tokens):
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
        lengths[:2] = longest, 0  # one long row, one that is empty
        is_token = np.arange(longest) < lengths[:, None]
        batches.append(
            torch.from_numpy(np.where(is_token, generator.integers(4, 40, is_token.shape), PAD))
        )
    widths = []
    monkeypatch.setattr(
        encoder, "_states", lambda x, *rest: widths.append(x.shape[1]) or states(x, *rest)
    )
    states = type(encoder)._states.__get__(encoder)
    with Operations() as operations:
        fast = encoder.embed(*batches)
    assert "aten::item" not in {name for name, _ in operations.calls}
    assert min(widths) < 5 < max(widths) == 60
    slow = [pooled for pooled, _ in encoder(*batches)]
    gradients = []
    for pooled in (fast, slow):
        assert [len(part) for part in pooled] == [70, 70]
        encoder.zero_grad()
        sum((part * part.cos()).sum() for part in pooled).backward()
        gradients.append([weight.grad.clone() for weight in encoder.parameters()])
    for a, b in zip(fast + gradients[0], slow + gradients[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_where_values_are_dropped(gated):
    encoder = make_encoder(num_layers=2, gated=gated).train()
    parts = {"dropout": 2, "activation_dropout": 1}
    expected = {
        f"layers.{layer}.{name}": count for layer in (0, 1) for name, count in parts.items()
    }
    assert dropout_calls(encoder, lambda: encoder(torch.full((3, 5), 7))) == {
        "dropout": 1,
        **expected,
    }


def test_attention_weights_are_dropped_in_training_and_keep_the_mean():
    torch.manual_seed(0)
    config = TransformerConfig(
        40, PAD, embed_dim=16, ffn_embed_dim=32, num_heads=2, attention_dropout=0.5
    )
    attention, x, attends = (
        SelfAttention(config),
        torch.randn(1, 6, 16),
        torch.ones(1, 1, 6, 6, dtype=torch.bool),
    )
    whole = attention.eval()(x, attends)
    drawn = torch.stack([attention.train()(x, attends) for _ in range(2000)])
    assert drawn.std(dim=0).min() > 0.01
    torch.testing.assert_close(drawn.mean(dim=0), whole, atol=0.05, rtol=0)


@pytest.mark.parametrize("options", [{}, {"gated": True, "order_coefficients": 1}])
def test_a_gpu_encodes_all_batches_together_with_the_same_result(options):
    encoder = make_encoder(**options).eval()
    short, long = token_batch()[:2], token_batch()
    narrow = short[:, : short.shape[1] - 1]
    together = encoder._forward_together((narrow, long))
    for (embeddings, states), tokens in zip(together, (narrow, long), strict=True):
        ((expected, expected_states),) = encoder(tokens)
        torch.testing.assert_close(embeddings, expected)
        is_token = tokens.ne(PAD)
        torch.testing.assert_close(states[is_token], expected_states[is_token])


def with_zero_branches(encoder):
    for layer in encoder.layers:
        layer.zero_branches()
    return encoder


def branch_projections(encoder):
    return [part for layer in encoder.layers for part in (layer.self_attn.out_proj, layer.fc2)]


@pytest.mark.parametrize("released", [False, True])
def test_zero_branches_leave_of_a_layer_its_two_norms(tokens, released):
    encoder, without = (make_encoder(num_layers=count) for count in (2, 0))
    if released:
        encoder.reset_as_released()
        without.load_state_dict({name: encoder.state_dict()[name] for name in without.state_dict()})
    with_zero_branches(encoder)
    [(embeddings, states)], [(plain, expected)] = encoder(tokens), without(tokens)
    for _ in range(4):
        expected = torch.nn.functional.layer_norm(expected, [16])
    is_piece = tokens.ne(PAD)
    torch.testing.assert_close(states[is_piece], expected[is_piece], rtol=1e-5, atol=1e-6)
    # The input is already normalized, so that only the epsilon of the norms remains.
    torch.testing.assert_close(embeddings, plain, rtol=1e-3, atol=1e-4)
    (embeddings * torch.randn(embeddings.shape)).sum().backward()
    assert all(part.weight.grad.abs().max() > 1e-4 for part in branch_projections(encoder))


def test_gated_zero_branches_change_nothing_and_have_open_gates(tokens):
    encoder = with_zero_branches(make_encoder(gated=True))
    [(embeddings, states)] = encoder(tokens)
    [(plain, expected)] = make_encoder(gated=True, num_layers=0)(tokens)
    assert torch.equal(states, expected)
    assert torch.equal(embeddings, plain)
    (embeddings * torch.randn(embeddings.shape)).sum().backward()
    # With gates of zero, too, neither of the two would ever have a gradient.
    assert all(part.weight.grad.abs().max() > 1e-4 for part in branch_projections(encoder))
