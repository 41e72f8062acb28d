"""Rows of several sentences: every sentence once, none overlapping, and the same embeddings as
padded batches give.
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
def test_every_sentence_lies_in_one_row_by_itself(name):
    lengths = LENGTHS[name]
    seen = []
    for rows in pack(lengths):
        assert (np.diff(rows.row) >= 0).all()
        taken = np.zeros((rows.count, rows.width), dtype=int)
        for sentence, row, place in zip(rows.sentences, rows.row, rows.place, strict=True):
            taken[row, place : place + lengths[sentence]] += 1
            assert place + lengths[sentence] <= rows.width
        assert taken.max() == 1
        assert taken.any(axis=1).all()
        longest = max(lengths[rows.sentences])
        assert rows.width == NARROW or rows.width // 2 < longest <= rows.width
        seen.extend(rows.sentences)
    assert sorted(seen) == np.flatnonzero(lengths).tolist()


def test_nearly_no_padding_and_nothing_to_pack():
    lengths = LENGTHS["mixed"]
    assert lengths.sum() / sum(rows.width * rows.count for rows in pack(lengths)) > 0.95
    assert pack(np.zeros(0, dtype=int)) == []
    assert pack(np.zeros(3, dtype=int)) == []


@pytest.mark.parametrize(("rows", "sentences"), [(1, 1), (3, 10), (100, 7), (100, 1000)])
def test_batches_are_the_whole(rows, sentences):
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
    for layer in model.layers if gated else ():
        torch.nn.init.normal_(layer.gates)
    rng = np.random.default_rng(2)
    sentences = [rng.integers(4, 50, length) for length in (3, 70, 1, 64, 12, 12, 65, 33)]
    lengths = np.array([len(sentence) for sentence in sentences])
    starts = lengths.cumsum() - lengths
    for rows in pack(lengths):
        inputs = row_inputs(rows, FlatPieces(np.concatenate(sentences), starts, lengths), 1)
        packed = model.forward_rows(*map(torch.from_numpy, inputs))
        for sentence, vector in zip(rows.sentences, packed, strict=True):
            alone = model(torch.from_numpy(sentences[sentence])[None])[0][0][0]
            torch.testing.assert_close(vector, alone, atol=1e-5, rtol=1e-5)
