"""Rows with several sentences: each sentence once, without overlaps, with the same embeddings as in
padded batches.
"""

import numpy as np
import pytest
import torch
from token_batches import PAD, make_encoder

from fairseq_lxsr.modules.packing import NARROW, FlatPieces, pack, row_inputs

MIXED_LENGTHS = np.random.default_rng(0).integers(0, 90, 500)
# Rows have 64, 128, 256 ... positions.
of_lengths = pytest.mark.parametrize(
    "lengths",
    [
        MIXED_LENGTHS,
        np.full(100, 13),
        # Sentences that just fit into a row, those that just do not, and an empty one.
        np.array([64, 65, 128, 129, 1, 63, 0, 200]),
        np.array([5]),
    ],
    ids=["mixed", "equal", "limits", "one"],
)


@of_lengths
def test_every_sentence_with_pieces_is_packed_once(lengths):
    packed_sentences = []
    for rows in pack(lengths):
        packed_sentences.extend(rows.sentences)
    assert sorted(packed_sentences) == np.flatnonzero(lengths).tolist()


@of_lengths
def test_sentences_lie_in_their_rows_without_overlaps(lengths):
    for rows in pack(lengths):
        # How many sentences use each position.
        uses = np.zeros((rows.count, rows.width), dtype=int)
        for sentence, row, start in zip(rows.sentences, rows.row, rows.place, strict=True):
            end = start + lengths[sentence]
            assert end <= rows.width
            uses[row, start:end] += 1
        assert uses.max() == 1
        assert uses.any(axis=1).all(), "a row is empty"


@of_lengths
def test_sentences_are_in_the_order_of_their_rows(lengths):
    for rows in pack(lengths):
        assert rows.row.tolist() == sorted(rows.row)


@of_lengths
def test_rows_have_the_smallest_width_that_holds_their_longest_sentence(lengths):
    """A width is NARROW times a power of two."""
    for rows in pack(lengths):
        longest = max(lengths[rows.sentences])
        assert longest <= rows.width
        assert rows.width == NARROW or longest > rows.width // 2


def test_less_than_5_percent_of_the_positions_are_padding():
    positions = sum(rows.width * rows.count for rows in pack(MIXED_LENGTHS))
    assert MIXED_LENGTHS.sum() / positions > 0.95


@pytest.mark.parametrize("sentences", [0, 3])
def test_sentences_without_pieces_have_no_rows(sentences):
    assert pack(np.zeros(sentences, dtype=int)) == []


# Batches of single sentences, limited by rows, limited by sentences, and all in one batch.
@pytest.mark.parametrize(("max_rows", "max_sentences"), [(1, 1), (3, 10), (100, 7), (100, 1000)])
def test_batches_have_all_rows_and_at_most_the_given_sizes(max_rows, max_sentences):
    # No sentence is longer than the narrowest row, so all rows have one width.
    (rows,) = pack(np.random.default_rng(1).integers(1, 40, 200))

    batches = list(rows.batches(max_rows, max_sentences))

    sentences = np.concatenate([batch.sentences for batch in batches])
    assert sentences.tolist() == rows.sentences.tolist()
    assert sum(batch.count for batch in batches) == rows.count
    for batch in batches:
        assert batch.count <= max_rows
        # A row is not divided, even if it has more sentences.
        assert len(batch.sentences) <= max_sentences or batch.count == 1
        assert set(batch.row) == set(range(batch.count))


@pytest.mark.parametrize("order_coefficients", [0, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_layers", [0, 2])
def test_rows_give_the_embeddings_of_padded_batches(num_layers, gated, order_coefficients):
    sizes = {"vocab_size": 50, "num_layers": num_layers, "max_positions": 70}
    model = make_encoder("transformer", **sizes, gated=gated, order_coefficients=order_coefficients)
    if order_coefficients:
        torch.nn.init.normal_(model.order)
    if gated:
        for layer in model.layers:
            torch.nn.init.normal_(layer.gates)
    rng = np.random.default_rng(2)
    # Some share a row of 64 positions, 64 fills one, and 65 and 70 need wider ones.
    lengths = np.array([3, 70, 1, 64, 12, 12, 65, 33])
    sentences = [rng.integers(4, 50, length) for length in lengths]
    starts = lengths.cumsum() - lengths
    pieces = FlatPieces(np.concatenate(sentences), starts, lengths)

    for rows in pack(lengths):
        inputs = row_inputs(rows, pieces, padding=PAD)
        embeddings = model.forward_rows(*map(torch.from_numpy, inputs))

        # Each sentence alone, in a batch without padding.
        for number, embedding in zip(rows.sentences, embeddings, strict=True):
            [(expected, _)] = model(torch.from_numpy(sentences[number])[None])
            torch.testing.assert_close(embedding, expected[0], atol=1e-5, rtol=1e-5)
