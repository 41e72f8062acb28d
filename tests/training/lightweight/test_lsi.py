import numpy as np
import pytest
import torch

from fairseq_lxsr.training.lightweight.lsi import left_singular_vectors, lsi_embeddings, occurrences
from fairseq_lxsr.training.pairs import PairCorpus

EOS, FIRST, WORDS = 2, 4, 30
V = FIRST + 2 * WORDS + 1  # words of two languages, one piece that never occurs


def corpus(pairs: int, seed: int = 1) -> PairCorpus:
    """Word w of the source is word w of the target, in any order."""
    rng = np.random.default_rng(seed)
    sides = ([], [])
    for _ in range(pairs):
        words = rng.choice(WORDS, rng.integers(2, 7), replace=False)
        for side, offset in zip(sides, (FIRST, FIRST + WORDS), strict=True):
            side.append(torch.tensor([*rng.permutation(words) + offset, EOS]))
    return PairCorpus("x-y", *sides)


def test_a_word_lies_nearest_to_its_translation_in_a_table_of_one_scale():
    table = lsi_embeddings([corpus(800)], V, dim=24)
    assert (table.shape, table.dtype) == ((V, 24), torch.float32)
    unit = torch.nn.functional.normalize(table, dim=1)
    similarities = unit[FIRST : FIRST + WORDS] @ unit[FIRST + WORDS : FIRST + 2 * WORDS].T
    assert similarities.argmax(dim=1).tolist() == list(range(WORDS))
    assert table[FIRST : FIRST + 2 * WORDS].std() == pytest.approx(24**-0.5, rel=0.05)
    assert not table[V - 1].any()
    assert not table[EOS].any()  # tells no document from another
    for pairs in (1, 5):  # fewer documents than units
        assert lsi_embeddings([corpus(pairs)], V, dim=100).isfinite().all()


def test_the_singular_vectors_are_those_of_the_whole_decomposition():
    dense = torch.from_numpy(np.random.default_rng(1).random((40, 90)) < 0.1).float()
    found = left_singular_vectors(dense.to_sparse_coo(), 5, seed=1)
    expected = torch.linalg.svd(dense).U[:, :5]
    torch.testing.assert_close((found.T @ expected).abs(), torch.eye(5), atol=1e-3, rtol=0)


def test_singular_values_that_decrease_slowly():
    """Those beyond the sample of the range would blur the first ones without iterations."""
    dense = torch.from_numpy(np.random.default_rng(1).random((300, 600)) < 0.05).float()
    dense[:10] *= 3  # whose directions stand out a little
    found = left_singular_vectors(dense.to_sparse_coo(), 5, seed=1)
    expected = torch.linalg.svd(dense).U[:, :5]
    assert torch.linalg.norm(found.T @ expected) ** 2 / 5 > 0.98  # share of the space that is found


def test_the_table_is_that_of_the_formula_with_whole_matrices():
    """Documents of length one, rows divided by the square root of their norms, times the weights of
    the pieces.
    """
    text = corpus(200)
    dense = torch.zeros(V, 200, dtype=torch.double)
    for number in range(200):
        dense[torch.cat((text.source[number], text.target[number])), number] = 1
    idf = (200 / dense.sum(dim=1).clamp_min(1)).log()
    dense = idf[:, None] * dense
    dense = dense / dense.norm(dim=0)
    root = dense.norm(dim=1).sqrt().clamp_min(1e-6)[:, None]
    expected = torch.linalg.svd(dense / root).U[:, :6] * idf[:, None] / root
    found = lsi_embeddings([text], V, dim=6)
    there = [*range(FIRST, V - 1)]
    ratio = found[there].double().norm() / expected[there].norm()
    torch.testing.assert_close(
        found[there].double().abs(), (ratio * expected[there]).abs(), atol=2e-3, rtol=0.02
    )


def test_pairs_of_all_corpora_are_documents_and_a_draw_of_them_is_enough():
    parts = [corpus(30, seed=1), corpus(20, seed=2)]
    pieces, documents = occurrences(parts, 100, seed=1)
    assert documents.max() == 49
    expected = set(parts[1].source[3].tolist()) | set(parts[1].target[3].tolist())
    assert set(pieces[documents == 33]) == expected
    _, drawn = occurrences(parts, 10, seed=1)
    assert np.unique(drawn).tolist() == list(range(10))
