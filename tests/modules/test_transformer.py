import math
from functools import partial

import numpy as np
import pytest
import token_batches
import torch
from dropout_calls import dropout_calls
from operations import Operations
from token_batches import PAD, assert_padding_and_batch_change_nothing, token_batch

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
    """Width 512, feed-forward width 1,024, two layers, 200 positions (section 3.1)."""
    vocab_size = 50_000
    width = 512
    encoder = TransformerSentenceEncoder(TransformerConfig(vocab_size, padding_idx=PAD))
    head = ReconstructionHead(width, width, vocab_size)

    parameters = [*encoder.parameters(), *head.parameters()]
    number_of_parameters = sum(parameter.numel() for parameter in parameters)

    def linear(inputs, outputs):
        bias = outputs
        return inputs * outputs + bias

    layer_norm = 2 * width
    embeddings = (vocab_size + 200) * width
    attention = linear(width, 3 * width) + linear(width, width)
    feed_forward = linear(width, 1024) + linear(1024, width)
    layer = attention + feed_forward + 2 * layer_norm
    expected_of_encoder = embeddings + layer_norm + 2 * layer
    bias_of_logits = vocab_size
    expected_of_head = linear(width, width) + layer_norm + bias_of_logits
    assert number_of_parameters == expected_of_encoder + expected_of_head
    # Table 1 of the paper has 30 M.
    assert number_of_parameters == pytest.approx(30e6, rel=0.01)


SIZES_TO_RESET = {
    "vocab_size": 2000,
    "embed_dim": 64,
    "ffn_embed_dim": 96,
    "num_layers": 3,
    "max_positions": 500,
}


def test_token_embeddings_start_with_a_standard_deviation_of_one_over_the_root_of_their_width():
    encoder = make_encoder(**SIZES_TO_RESET)
    assert encoder.embed_tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)


def test_reset_as_released_draws_embeddings_with_a_standard_deviation_of_one():
    encoder = make_encoder(**SIZES_TO_RESET)
    encoder.reset_as_released()
    assert encoder.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.02)
    assert encoder.embed_positions.weight.std().item() == pytest.approx(1, rel=0.02)
    assert not encoder.embed_tokens.weight[PAD].any()


def test_reset_as_released_gives_all_layers_the_same_weights():
    encoder = make_encoder(**SIZES_TO_RESET)
    encoder.reset_as_released()
    first, second, third = (layer.state_dict() for layer in encoder.layers)
    for name, value in first.items():
        assert torch.equal(second[name], value), name
        assert torch.equal(third[name], value), name


@pytest.mark.parametrize(
    ("linear", "inputs"),
    [("self_attn.in_proj", 64), ("self_attn.out_proj", 64), ("fc1", 64), ("fc2", 96)],
)
@pytest.mark.parametrize("parameter", ["weight", "bias"])
def test_reset_as_released_draws_linear_layers_from_the_uniform_distribution_of_torch(
    linear, inputs, parameter
):
    encoder = make_encoder(**SIZES_TO_RESET)

    encoder.reset_as_released()

    values = encoder.layers[0].state_dict()[f"{linear}.{parameter}"]
    # The largest of many values is near the limit.
    limit = inputs**-0.5
    assert 0.8 * limit < values.abs().max() <= limit


def test_layer_norm_eps_is_the_epsilon_of_every_layer_norm():
    encoder = make_encoder(layer_norm_eps=1e-12)
    head = ReconstructionHead(16, 16, 40, layer_norm_eps=1e-12)
    norms = []
    for module in [*encoder.modules(), *head.modules()]:
        if isinstance(module, torch.nn.LayerNorm):
            norms.append(module)
    # One for the embeddings, two in each of two layers, and one in the head.
    assert [norm.eps for norm in norms] == [1e-12] * (1 + 2 * 2 + 1)


def test_a_small_layer_norm_eps_normalises_small_states(tokens):
    encoder = make_encoder(layer_norm_eps=1e-12)
    default_encoder = make_encoder()
    # States so small that the default epsilon would dominate their variance.
    torch.nn.init.normal_(encoder.embed_tokens.weight, std=1e-6)
    torch.nn.init.normal_(encoder.embed_positions.weight, std=1e-6)
    default_encoder.load_state_dict(encoder.state_dict())

    with torch.no_grad():
        embeddings = embed(encoder, tokens)

        assert embeddings.norm(dim=1).min() > 1
        assert (embed(default_encoder, tokens) - embeddings).abs().max() > 0.1


def embed(encoder, tokens):
    """The embeddings of one batch."""
    [(embeddings, _)] = encoder(tokens)
    return embeddings


def open_gates(encoder):
    """Set the gates of all layers, which are zero at first, to random values."""
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.gates)
    return encoder


def test_gated_layers_start_as_the_mean_of_the_scaled_token_embeddings(tokens):
    encoder = make_encoder(gated=True)
    sentence = tokens[:1]

    embedding = embed(encoder, sentence)[0]

    scale = encoder.config.embed_dim**0.5
    embeddings_of_pieces = encoder.embed_tokens.weight[sentence[0]]
    torch.testing.assert_close(embedding, scale * embeddings_of_pieces.mean(0))


def test_all_gates_have_a_gradient_at_the_start(tokens):
    encoder = make_encoder(gated=True)
    embed(encoder, tokens[:1]).square().sum().backward()
    for layer in encoder.layers:
        assert layer.gates.grad.abs().min() > 0


def test_the_order_of_pieces_changes_the_embedding_only_with_open_gates(tokens):
    encoder = make_encoder(gated=True)
    sentence = tokens[:1]
    backwards = sentence.flip(1)

    torch.testing.assert_close(embed(encoder, sentence), embed(encoder, backwards))

    open_gates(encoder)
    assert not torch.allclose(embed(encoder, sentence), embed(encoder, backwards), atol=1e-3)


def test_a_gated_layer_equals_its_formula(tokens):
    encoder = open_gates(make_encoder(gated=True, num_layers=1))
    sentence = tokens[:1]

    embedding = embed(encoder, sentence)[0]

    layer = encoder.layers[0]
    attends_to_all = torch.ones(1, 1, 1, sentence.shape[1], dtype=torch.bool)
    positions = encoder.embed_positions.weight[: sentence.shape[1]]
    x = encoder.config.embed_dim**0.5 * encoder.embed_tokens(sentence)
    normalised = layer.self_attn_layer_norm(x)
    x = x + layer.gates[0] * layer.self_attn(normalised + positions, attends_to_all)
    hidden = torch.nn.functional.silu(layer.fc1(layer.final_layer_norm(x)))
    x = x + layer.gates[1] * layer.fc2(hidden)
    torch.testing.assert_close(embedding, x[0].mean(0), rtol=1e-5, atol=1e-5)


def computes_states(operations):
    """Whether the result of an operation has a row for each piece of the five sentences.

    Such a result is [5, T, 16], with at least 4 pieces, whereas weighted sums are [5, 3, 16] at
    most.
    """
    for _, shape in operations.calls:
        if shape and len(shape) == 3 and shape[-1] == 16 and min(shape[:2]) > 3:
            return True
    return False


# The options of an encoder whose embeddings are weighted sums of token embeddings.
WEIGHTED_SUM = {"gated": True, "num_layers": 0, "dropout": 0.0}


@pytest.mark.parametrize("order_coefficients", [0, 2])
def test_embeddings_without_layers_or_dropout_are_computed_without_states(
    tokens, order_coefficients
):
    encoder = make_encoder(**WEIGHTED_SUM, order_coefficients=order_coefficients).train()
    with Operations() as operations:
        encoder.embed(tokens, tokens[:, :4])
    assert not computes_states(operations)


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.1}, {"num_layers": 1}, {"gated": False}],
    ids=["dropout", "layer", "normalised"],
)
def test_embeddings_with_dropout_layers_or_normalisation_are_computed_from_states(tokens, options):
    encoder = make_encoder(**WEIGHTED_SUM | options).train()
    with Operations() as operations:
        encoder.embed(tokens)
    assert computes_states(operations)


@pytest.mark.parametrize("order_coefficients", [0, 2])
def test_embeddings_without_states_have_the_values_and_gradients_of_pooled_states(
    tokens, order_coefficients
):
    """`embed` computes weighted sums, and `forward` pools states."""
    encoder = make_encoder(**WEIGHTED_SUM, order_coefficients=order_coefficients).train()
    if order_coefficients:
        torch.nn.init.normal_(encoder.order)
    shorter_tokens = tokens[:, :4]

    sums = encoder.embed(tokens, shorter_tokens)

    expected = [pooled for pooled, _ in encoder(tokens, shorter_tokens)]
    torch.testing.assert_close(list(sums), expected)
    weights = list(encoder.parameters())
    gradients = torch.autograd.grad(sum(part.square().sum() for part in sums), weights)
    expected_gradients = torch.autograd.grad(sum(part.square().sum() for part in expected), weights)
    torch.testing.assert_close(gradients, expected_gradients)


def slow_cosine_coefficients(states, length, count):
    """Coefficients 1 to `count` of one sentence, one coefficient and one piece at a time."""
    coefficients = []
    for number in range(1, count + 1):
        total = torch.zeros_like(states[0])
        for position in range(length):
            total += math.cos(math.pi * number * (position + 0.5) / length) * states[position]
        coefficients.append(total / length)
    return torch.stack(coefficients)


def test_padding_has_no_weight_in_cosine_coefficients(tokens):
    is_token = tokens.ne(PAD)
    weights = order_weights(is_token, 3)
    assert not weights[:, ~is_token].any()


def test_the_first_of_the_cosine_coefficients_is_the_mean(tokens):
    states = torch.randn(*tokens.shape, 6)
    is_token = tokens.ne(PAD)
    first_weights = order_weights(is_token, 3)[0]
    first_coefficient = torch.einsum("bt,btd->bd", first_weights, states)
    torch.testing.assert_close(first_coefficient, mean_pool(states, is_token))


def test_cosine_coefficients_equal_the_slow_reference(tokens):
    states = torch.randn(*tokens.shape, 6)
    is_token = tokens.ne(PAD)

    # Without the first, the mean.
    weights = order_weights(is_token, 3)[1:]
    coefficients = torch.einsum("kbt,btd->bkd", weights, states)

    expected = []
    for sentence, length in zip(states, is_token.sum(dim=1).tolist(), strict=True):
        expected.append(slow_cosine_coefficients(sentence, length, 3))
    torch.testing.assert_close(coefficients, torch.stack(expected))


def test_cosine_coefficients_of_constant_states_are_zero():
    """All but the first, the mean: their weights sum to zero."""
    five_pieces = torch.ones(1, 5, dtype=torch.bool)
    weights = order_weights(five_pieces, 4)[1:]
    torch.testing.assert_close(weights.sum(dim=2), torch.zeros(4, 1))


def test_order_coefficients_have_a_gradient_at_the_start(tokens):
    encoder = make_encoder(gated=True, num_layers=0, order_coefficients=2)
    embed(encoder, tokens[:1]).square().sum().backward()
    assert encoder.order.grad.abs().min() > 0


def test_the_order_of_pieces_changes_the_embedding_only_with_trained_order_coefficients(tokens):
    encoder = make_encoder(gated=True, num_layers=0, order_coefficients=2)
    sentence = tokens[:1]
    backwards = sentence.flip(1)

    # The coefficients are zero at first.
    torch.testing.assert_close(embed(encoder, sentence), embed(encoder, backwards))

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
    assert_padding_and_batch_change_nothing(partial(embed, encoder), tokens)


def test_batches_of_different_lengths_are_encoded_in_one_call(tokens):
    encoder = make_encoder()
    # The second and the third sentence, of 1 and 4 pieces.
    shorter_batch = tokens[1:3, :4]

    (embeddings, _), (shorter_embeddings, shorter_states) = encoder(tokens, shorter_batch)

    torch.testing.assert_close(embeddings, embed(encoder, tokens))
    torch.testing.assert_close(shorter_embeddings, embeddings[1:3], rtol=0, atol=5e-6)
    assert shorter_states.shape == (2, 4, 16)


def test_a_layer_equals_the_formula_of_the_textbook_head_by_head(tokens):
    encoder = make_encoder(num_layers=1)
    sentence = tokens[:1]

    embedding = embed(encoder, sentence)[0]

    layer = encoder.layers[0]
    positions = encoder.embed_positions.weight[: sentence.shape[1]]
    x = encoder.layer_norm(encoder.embed_tokens(sentence) + positions)[0]
    query, key, value = layer.self_attn.in_proj(x).chunk(3, dim=-1)
    heads = []
    # Two heads share the width of 16.
    head_width = 8
    for part in (slice(0, 8), slice(8, 16)):
        weights = (query[:, part] @ key[:, part].T / head_width**0.5).softmax(-1)
        heads.append(weights @ value[:, part])
    x = layer.self_attn_layer_norm(x + layer.self_attn.out_proj(torch.cat(heads, dim=-1)))
    hidden = layer.fc1(x)
    x = layer.final_layer_norm(x + layer.fc2(hidden * torch.sigmoid(hidden)))
    torch.testing.assert_close(embedding, x.mean(0), rtol=1e-5, atol=1e-6)


def test_an_encoder_without_layers_gives_the_mean_of_normalised_embeddings(tokens):
    encoder = make_encoder(num_layers=0)

    embeddings = embed(encoder, tokens)

    # The third sentence has four pieces.
    x = encoder.embed_tokens(tokens[2, :4]) + encoder.embed_positions.weight[:4]
    expected = torch.nn.functional.layer_norm(x, (16,)).mean(0)
    torch.testing.assert_close(embeddings[2], expected, rtol=1e-5, atol=1e-6)


def test_the_embedding_of_padding_has_no_gradient(tokens):
    encoder = make_encoder()
    embed(encoder, tokens).square().sum().backward()
    gradient = encoder.embed_tokens.weight.grad
    assert gradient[PAD].abs().max() == 0
    # That of a piece of the text has one.
    assert gradient[int(tokens[0, 0])].abs().max() > 0


def test_the_embedding_of_a_sentence_without_pieces_is_zero():
    two_empty_sentences = torch.full((2, 3), PAD)
    [(embeddings, states)] = make_encoder()(two_empty_sentences)
    assert torch.equal(embeddings, torch.zeros(2, 16))
    # A softmax without any position would give NaN.
    assert torch.isfinite(states).all()


def test_the_mean_of_half_precision_states_is_computed_in_float32():
    # The sum of the states is 90,000; the largest number in float16 is 65,504.
    states = torch.full((1, 300, 4), 300.0, dtype=torch.float16)
    mean = mean_pool(states, torch.ones(1, 300, dtype=torch.bool))
    assert mean.tolist() == [[300.0, 300.0, 300.0, 300.0]]


def test_the_reconstruction_head_gives_a_logit_for_each_embedding_and_trains_it():
    vocab_size = 40
    head = ReconstructionHead(16, 16, vocab_size)
    embeddings = torch.randn(vocab_size, 16, requires_grad=True)

    logits = head(torch.randn(3, 16), embeddings)

    assert logits.shape == (3, vocab_size)
    logits.sum().backward()
    assert embeddings.grad.abs().max() > 0


@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
def test_mean_max_pooling_gives_the_mean_and_the_maximum(tokens, is_packed):
    width = 16
    encoder = make_encoder(pooling="mean_max")
    embed_tokens = embed_as_one_row if is_packed else embed

    embeddings = embed_tokens(encoder, tokens)

    assert encoder.config.output_dim == 2 * width
    # The same weights, with mean pooling.
    [(means, states)] = make_encoder()(tokens)
    torch.testing.assert_close(embeddings[:, :width], means, rtol=0, atol=5e-6)
    for row, length in enumerate(tokens.ne(PAD).sum(1)):
        maximum = states[row, :length].max(dim=0).values
        torch.testing.assert_close(embeddings[row, width:], maximum, rtol=0, atol=5e-6)


def embed_as_one_row(encoder, tokens):
    """Embeddings of sentences that share one row, as `SentenceEncoder` packs them."""
    is_token = tokens.ne(PAD)
    lengths = is_token.sum(1)
    starts = lengths.cumsum(0) - lengths
    sentence = torch.arange(len(tokens)).repeat_interleave(lengths)
    position = torch.arange(int(lengths.sum())) - starts[sentence]
    pieces = torch.arange(len(position))
    with torch.inference_mode():
        return encoder.forward_rows(
            tokens[is_token][None], position[None], sentence[None], pieces, starts
        )


def encoder_of_unequal_lengths(options):
    """An encoder for up to 60 pieces, all of whose weights are random."""
    encoder = make_encoder(max_positions=60, **options)
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return encoder


def batch_of_unequal_lengths(longest, seed):
    """Ids [70, longest]: 68 sentences of up to 8 pieces, an empty one, and one of `longest`."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 9, 70)
    lengths[0] = longest
    lengths[1] = 0
    is_token = np.arange(longest) < lengths[:, None]
    ids = np.where(is_token, generator.integers(4, 40, is_token.shape), PAD)
    return torch.from_numpy(ids)


WITH_AND_WITHOUT_GATES = pytest.mark.parametrize(
    "options", [{}, {"gated": True, "order_coefficients": 2}], ids=["plain", "gated"]
)


@WITH_AND_WITHOUT_GATES
def test_sentences_of_unequal_lengths_are_embedded_in_groups_of_similar_length(
    options, monkeypatch
):
    encoder = encoder_of_unequal_lengths(options)
    batch = batch_of_unequal_lengths(longest=60, seed=0)
    group_widths = []
    compute_states = encoder._states

    def compute_states_and_record_width(x, *arguments):
        group_widths.append(x.shape[1])
        return compute_states(x, *arguments)

    monkeypatch.setattr(encoder, "_states", compute_states_and_record_width)
    with Operations() as operations:
        encoder.embed(batch)

    # The shortest sentences are in a narrow group, without the padding of the longest.
    assert min(group_widths) < 5
    assert max(group_widths) == 60
    # Reading single numbers of a tensor would be slow.
    assert "aten::item" not in {name for name, _ in operations.calls}


@WITH_AND_WITHOUT_GATES
def test_embeddings_in_groups_have_the_values_and_gradients_of_padded_batches(options):
    encoder = encoder_of_unequal_lengths(options)
    batches = [
        batch_of_unequal_lengths(longest=60, seed=0),
        batch_of_unequal_lengths(longest=40, seed=1),
    ]

    embeddings = encoder.embed(*batches)

    expected = [pooled for pooled, _ in encoder(*batches)]
    torch.testing.assert_close(list(embeddings), expected, rtol=1e-4, atol=1e-5)
    # Any function whose gradient differs from value to value.
    loss = sum((part * part.cos()).sum() for part in embeddings)
    expected_loss = sum((part * part.cos()).sum() for part in expected)
    parameters = list(encoder.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    expected_gradients = torch.autograd.grad(expected_loss, parameters)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_dropout_is_applied_to_embeddings_branches_and_activations(gated):
    encoder = make_encoder(num_layers=2, gated=gated).train()
    tokens = torch.full((3, 5), 7)

    calls = dropout_calls(encoder, lambda: encoder(tokens))

    # Each layer has two branches, attention and feed-forward, and one activation.
    assert calls == {
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
    attends_to_all = torch.ones(1, 1, 6, 6, dtype=torch.bool)

    samples = torch.stack([attention.train()(x, attends_to_all) for _ in range(2000)])

    # Every value differs from call to call, and its mean is that without dropout.
    assert samples.std(dim=0).min() > 0.01
    expected = attention.eval()(x, attends_to_all)
    torch.testing.assert_close(samples.mean(dim=0), expected, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "options", [{}, {"gated": True, "order_coefficients": 1}], ids=["plain", "gated"]
)
def test_batches_encoded_together_have_the_result_of_each_alone(options):
    """A GPU encodes the two sides of a batch together."""
    encoder = make_encoder(**options)
    wide_batch = token_batch()
    narrow_batch = wide_batch[1:3, :4]
    batches = (narrow_batch, wide_batch)

    results = encoder._forward_together(batches)

    for (embeddings, states), tokens in zip(results, batches, strict=True):
        [(expected, expected_states)] = encoder(tokens)
        torch.testing.assert_close(embeddings, expected)
        is_token = tokens.ne(PAD)
        torch.testing.assert_close(states[is_token], expected_states[is_token])


def with_zero_branches(encoder):
    """The encoder, whose layers have branches (attention and feed-forward) that compute zero."""
    for layer in encoder.layers:
        layer.zero_branches()
    return encoder


@pytest.mark.parametrize("is_reset", [False, True], ids=["default", "released"])
def test_a_layer_with_zero_branches_only_normalises_twice(tokens, is_reset):
    encoder = make_encoder(num_layers=2)
    encoder_without_layers = make_encoder(num_layers=0)
    if is_reset:
        encoder.reset_as_released()
        encoder_without_layers.load_state_dict(encoder.state_dict(), strict=False)

    [(embeddings, states)] = with_zero_branches(encoder)(tokens)

    [(expected_embeddings, expected_states)] = encoder_without_layers(tokens)
    # Two layers.
    for _ in range(2 * 2):
        expected_states = torch.nn.functional.layer_norm(expected_states, [16])
    is_piece = tokens.ne(PAD)
    torch.testing.assert_close(states[is_piece], expected_states[is_piece], rtol=1e-5, atol=1e-6)
    # States that are normalised again change only because of the epsilon.
    torch.testing.assert_close(embeddings, expected_embeddings, rtol=1e-3, atol=1e-4)


def test_gated_layers_with_zero_branches_change_nothing(tokens):
    encoder = with_zero_branches(make_encoder(gated=True))
    [(embeddings, states)] = encoder(tokens)
    [(expected_embeddings, expected_states)] = make_encoder(gated=True, num_layers=0)(tokens)
    assert torch.equal(states, expected_states)
    assert torch.equal(embeddings, expected_embeddings)


@pytest.mark.parametrize(
    ("gated", "is_reset"),
    [(False, False), (False, True), (True, False)],
    ids=["default", "released", "gated"],
)
def test_zero_branches_have_gradients(tokens, gated, is_reset):
    """Gated layers open their gates for it: with gates of zero, neither would have a gradient."""
    encoder = make_encoder(gated=gated)
    if is_reset:
        encoder.reset_as_released()
    embeddings = embed(with_zero_branches(encoder), tokens)

    (embeddings * torch.randn(embeddings.shape)).sum().backward()

    for layer in encoder.layers:
        for projection in (layer.self_attn.out_proj, layer.fc2):
            assert projection.weight.grad.abs().max() > 1e-4
