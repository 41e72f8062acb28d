"""BM25: words of many scripts, and passages that have them."""

import numpy as np
import pytest

from fairseq_lxsr.search.lexical import LexicalIndex, words

pytest.importorskip("bm25s")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Der Hund bellt, 3 Straßen weiter.", ["der", "hund", "bellt", "3", "strassen", "weiter"]),
        ("下雨了", ["下雨", "雨了"]),
        ("雨", ["雨"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("x86下雨 abc", ["x86", "下雨", "abc"]),
        ("สวัสดี", ["สว", "วั", "ัส", "สด", "ดี"]),
        ("...", []),
    ],
)
def test_words(text, terms):
    assert words(text) == terms


def test_passages_with_more_of_the_words_are_first():
    index = LexicalIndex(["cats and dogs", "It rains.", "A dog barks at dogs."])
    scores, rows = index.nearest(["dogs bark", "the rains", "snow", ""], k=4)
    assert rows.tolist() == [[0, 2, -1, -1], [1, -1, -1, -1], [-1] * 4, [-1] * 4]
    assert scores[0, 0] >= scores[0, 1] > 0
    assert not scores[rows < 0].any()


def test_the_library_scores_alike():
    import bm25s

    passages = ["a b c", "a a b", "c d", "e f g a"]
    reference = bm25s.BM25()
    reference.index([passage.split() for passage in passages], show_progress=False)
    scores, rows = LexicalIndex(passages).nearest(["a c"], k=3)
    expected = reference.get_scores(["a", "c"])
    np.testing.assert_allclose(scores[0], expected[rows[0]], rtol=1e-6)
    assert scores[0, 0] == pytest.approx(expected.max())


def test_a_collection_without_words():
    assert LexicalIndex(["", "!"]).nearest(["a"], k=2)[1].tolist() == [[-1, -1]]
