"""BM25: words of many scripts, and passages that have them."""

import numpy as np
import pytest

from fairseq_lxsr.search.lexical import LexicalIndex, Postings, prefixes, words

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


def test_prefixes_join_forms_of_a_word():
    assert prefixes("Hundes Hunde") == ["hunde", "hunde"]
    assert prefixes("والكتاب كتاب") == ["كتاب", "كتاب"]
    assert prefixes("下雨了") == ["下雨", "雨了"]


def lexical_index(*parts):
    return LexicalIndex([Postings.build(passages) for passages in parts])


def test_passages_with_more_of_the_words_are_first():
    index = lexical_index(["cats and dogs", "It rains.", "A dog barks at dogs."])
    scores, rows = index.nearest(["dogs bark", "the rains", "snow", ""], k=4)
    assert rows.tolist() == [[0, 2, -1, -1], [1, -1, -1, -1], [-1] * 4, [-1] * 4]
    assert scores[0, 0] >= scores[0, 1] > 0
    assert not scores[rows < 0].any()


def test_the_library_scores_alike():
    import bm25s

    passages = ["a b c", "a a b", "c d", "e f g a"]
    reference = bm25s.BM25()
    reference.index([passage.split() for passage in passages], show_progress=False)
    scores, rows = lexical_index(passages).nearest(["a c"], k=3)
    expected = reference.get_scores(["a", "c"])
    np.testing.assert_allclose(scores[0], expected[rows[0]], rtol=1e-6)
    assert scores[0, 0] == pytest.approx(expected.max())


def test_a_collection_without_words():
    assert lexical_index(["", "!"]).nearest(["a"], k=2)[1].tolist() == [[-1, -1]]


def test_parts_weigh_terms_alike():
    passages = ["a b c d", "a b e f", "a c g h", "b i j k"]
    whole = lexical_index(passages)
    parts = lexical_index(passages[:3], passages[3:])
    for query in ("a", "b c", "c c k", "x"):
        expected_scores, expected_rows = whole.nearest([query], k=4)
        scores, rows = parts.nearest([query], k=4)
        assert rows.tolist() == expected_rows.tolist()
        # All passages have the same length, so that the mean length is the same in each part.
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)


def test_saved_postings_are_those_that_were_built(tmp_path):
    postings = Postings.build(["b a a", "a c", ""])
    postings.save(tmp_path)
    names = ("terms", "term-passages", "term-scores")
    opened = Postings(*(np.load(tmp_path / f"{name}.npy") for name in names), 3)
    for term in ("a", "b", "c", "d"):
        found = postings.range_of(term)
        assert opened.range_of(term) == found
    assert sorted(opened.passages[opened.range_of("a")].tolist()) == [0, 1]
    assert len(opened.passages[opened.range_of("c")]) == 1
    assert len(opened.passages[opened.range_of("d")]) == 0
