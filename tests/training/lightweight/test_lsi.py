"""Embeddings that start from latent semantic indexing of the sentence pairs."""

import numpy as np
import pytest
import torch

from fairseq_lxsr.training.lightweight.lsi import left_singular_vectors, lsi_embeddings, occurrences
from fairseq_lxsr.training.pairs import PairCorpus

EOS = 2
# The pieces are 30 words of the source, their translations, and one piece that never occurs.
NUM_WORDS = 30
SOURCE_WORDS = list(range(4, 34))
TARGET_WORDS = list(range(34, 64))
VOCAB_SIZE = 65


def corpus(num_pairs: int, seed: int = 1) -> PairCorpus:
    """Pairs of translated words, in any order on both sides."""
    rng = np.random.default_rng(seed)
    source = []
    target = []
    for _ in range(num_pairs):
        words = rng.choice(NUM_WORDS, rng.integers(2, 7), replace=False)
        source.append(torch.tensor([*rng.permutation(words) + SOURCE_WORDS[0], EOS]))
        target.append(torch.tensor([*rng.permutation(words) + TARGET_WORDS[0], EOS]))
    return PairCorpus("x-y", source, target)


def test_the_table_is_float32_with_a_row_for_each_piece():
    table = lsi_embeddings([corpus(800)], VOCAB_SIZE, dim=24)
    assert table.shape == (VOCAB_SIZE, 24)
    assert table.dtype == torch.float32


def test_the_nearest_word_of_the_target_is_the_translation():
    table = lsi_embeddings([corpus(800)], VOCAB_SIZE, dim=24)
    units = torch.nn.functional.normalize(table, dim=1)
    similarities = units[SOURCE_WORDS] @ units[TARGET_WORDS].T
    assert similarities.argmax(dim=1).tolist() == list(range(NUM_WORDS))


def test_rows_of_words_have_the_deviation_of_random_embeddings():
    width = 24
    table = lsi_embeddings([corpus(800)], VOCAB_SIZE, dim=width)
    assert table[SOURCE_WORDS + TARGET_WORDS].std() == pytest.approx(width**-0.5, rel=0.05)


def test_rows_of_pieces_in_all_documents_or_in_none_are_zero():
    table = lsi_embeddings([corpus(800)], VOCAB_SIZE, dim=24)
    # EOS is in all documents, the last piece in none.
    assert not table[EOS].any()
    assert not table[VOCAB_SIZE - 1].any()


@pytest.mark.parametrize("num_pairs", [1, 5])
def test_fewer_documents_than_dimensions_give_finite_rows(num_pairs):
    assert lsi_embeddings([corpus(num_pairs)], VOCAB_SIZE, dim=100).isfinite().all()


def test_the_singular_vectors_are_those_of_the_whole_decomposition():
    dense = torch.from_numpy(np.random.default_rng(1).random((40, 90)) < 0.1).float()
    vectors = left_singular_vectors(dense.to_sparse_coo(), 5, seed=1)
    expected = torch.linalg.svd(dense).U[:, :5]
    torch.testing.assert_close((vectors.T @ expected).abs(), torch.eye(5), atol=1e-3, rtol=0)


def test_singular_vectors_are_precise_if_the_singular_values_decrease_slowly():
    """Without iterations, later vectors would be mixed with the first ones."""
    dense = torch.from_numpy(np.random.default_rng(1).random((300, 600)) < 0.05).float()
    dense[:10] *= 3
    vectors = left_singular_vectors(dense.to_sparse_coo(), 5, seed=1)
    expected = torch.linalg.svd(dense).U[:, :5]
    share_of_subspace = torch.linalg.norm(vectors.T @ expected) ** 2 / 5
    assert share_of_subspace > 0.98


def test_the_table_is_the_formula_with_whole_matrices():
    text = corpus(200)
    dense = torch.zeros(VOCAB_SIZE, 200, dtype=torch.double)
    for number in range(200):
        dense[torch.cat((text.source[number], text.target[number])), number] = 1
    idf = (200 / dense.sum(dim=1).clamp_min(1)).log()
    dense = idf[:, None] * dense
    # Documents have length one, and rows are divided by the square roots of their norms.
    dense = dense / dense.norm(dim=0)
    root = dense.norm(dim=1).sqrt().clamp_min(1e-6)[:, None]
    words = SOURCE_WORDS + TARGET_WORDS
    expected = (torch.linalg.svd(dense / root).U[:, :6] * idf[:, None] / root)[words]
    rows = lsi_embeddings([text], VOCAB_SIZE, dim=6)[words].double()
    expected *= rows.norm() / expected.norm()
    torch.testing.assert_close(rows.abs(), expected.abs(), atol=2e-3, rtol=0.02)


def test_documents_are_the_pairs_of_all_corpora():
    first, second = corpus(30, seed=1), corpus(20, seed=2)
    pieces, documents = occurrences([first, second], 100, seed=1)
    assert documents.max() == 30 + 20 - 1
    # Document 33 is pair 3 of the second corpus.
    expected = {*second.source[3].tolist(), *second.target[3].tolist()}
    assert set(pieces[documents == 33]) == expected


def test_no_more_documents_than_the_limit_are_drawn():
    corpora = [corpus(30, seed=1), corpus(20, seed=2)]
    _, documents = occurrences(corpora, 10, seed=1)
    assert np.unique(documents).tolist() == list(range(10))
