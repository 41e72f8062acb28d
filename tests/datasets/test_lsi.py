import numpy as np
import pytest
import torch

from fairseq_lxsr.datasets.lsi import left_singular_vectors, lsi_embeddings, occurrences
from fairseq_lxsr.datasets.pairs import PairCorpus

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


def test_a_word_lies_nearest_to_its_translation():
    table = lsi_embeddings([corpus(800)], V, dim=24)
    unit = torch.nn.functional.normalize(table, dim=1)
    similarities = unit[FIRST : FIRST + WORDS] @ unit[FIRST + WORDS : FIRST + 2 * WORDS].T
    assert similarities.argmax(dim=1).tolist() == list(range(WORDS))


def test_scale_and_pieces_that_never_or_always_occur():
    table = lsi_embeddings([corpus(800)], V, dim=24)
    assert table.shape == (V, 24)
    assert table.dtype == torch.float32
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


def test_pairs_of_all_corpora_are_documents_and_a_draw_of_them_is_enough():
    parts = [corpus(30, seed=1), corpus(20, seed=2)]
    pieces, documents = occurrences(parts, 100, seed=1)
    assert documents.max() == 49
    expected = set(parts[1].source[3].tolist()) | set(parts[1].target[3].tolist())
    assert set(pieces[documents == 33]) == expected
    _, drawn = occurrences(parts, 10, seed=1)
    assert np.unique(drawn).tolist() == list(range(10))
