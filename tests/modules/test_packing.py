"""Rows with several sentences: each sentence once, without overlaps, with the same embeddings as in
padded batches.
"""

import numpy as np
import pytest
import torch
from token_batches import make_encoder

from fairseq_lxsr.modules.packing import NARROW, FlatPieces, pack, row_inputs

LENGTHS = {
    "mixed": np.random.default_rng(0).integers(0, 90, 500),
    "one length": np.full(100, 13),
    "just fits, just not": np.array([64, 65, 128, 129, 1, 63, 0, 200]),
    "one": np.array([5]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_every_sentence_is_in_one_row_without_overlaps(name):
    lengths = LENGTHS[name]
    sentences = []
    for rows in pack(lengths):
        assert (np.diff(rows.row) >= 0).all()
        counts = np.zeros((rows.count, rows.width), dtype=int)
        for sentence, row, start in zip(rows.sentences, rows.row, rows.place, strict=True):
            end = start + lengths[sentence]
            counts[row, start:end] += 1
            assert end <= rows.width
        assert counts.max() == 1
        assert counts.any(axis=1).all()
        longest = max(lengths[rows.sentences])
        assert rows.width == NARROW or rows.width // 2 < longest <= rows.width
        sentences.extend(rows.sentences)
    assert sorted(sentences) == np.flatnonzero(lengths).tolist()


def test_less_than_5_percent_of_rows_is_padding():
    lengths = LENGTHS["mixed"]
    size = sum(rows.width * rows.count for rows in pack(lengths))
    assert lengths.sum() / size > 0.95


def test_empty_sentences_have_no_rows():
    assert pack(np.zeros(0, dtype=int)) == []
    assert pack(np.zeros(3, dtype=int)) == []


@pytest.mark.parametrize(("rows", "sentences"), [(1, 1), (3, 10), (100, 7), (100, 1000)])
def test_batches_have_all_rows_and_at_most_the_given_sizes(rows, sentences):
    (whole,) = pack(np.random.default_rng(1).integers(1, 40, 200))
    parts = list(whole.batches(rows, sentences))
    assert np.concatenate([part.sentences for part in parts]).tolist() == whole.sentences.tolist()
    assert sum(part.count for part in parts) == whole.count
    for part in parts:
        assert part.count <= rows
        assert len(part.sentences) <= sentences or part.count == 1
        assert set(part.row) == set(range(part.count))


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
    sentences = [rng.integers(4, 50, length) for length in (3, 70, 1, 64, 12, 12, 65, 33)]
    lengths = np.array([len(sentence) for sentence in sentences])
    starts = lengths.cumsum() - lengths
    pieces = FlatPieces(np.concatenate(sentences), starts, lengths)
    for rows in pack(lengths):
        inputs = row_inputs(rows, pieces, 1)
        embeddings = model.forward_rows(*map(torch.from_numpy, inputs))
        for number, embedding in zip(rows.sentences, embeddings, strict=True):
            [(expected, _)] = model(torch.from_numpy(sentences[number])[None])
            torch.testing.assert_close(embedding, expected[0], atol=1e-5, rtol=1e-5)
