"""BM25: words of many scripts, and passages that have them."""

import numpy as np
import pytest

from fairseq_lxsr.search.lexical import LEXICAL_FILES, LexicalIndex, Postings, prefixes, words


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
    bm25s = pytest.importorskip("bm25s")
    passages = ["a b c", "a a b", "c d", "e f g a"]
    reference = bm25s.BM25()
    reference.index([passage.split() for passage in passages], show_progress=False)
    scores, rows = lexical_index(passages).nearest(["a c"], k=3)
    expected = reference.get_scores(["a", "c"])
    np.testing.assert_allclose(scores[0], expected[rows[0]], rtol=1e-6)
    assert scores[0, 0] == pytest.approx(expected.max())


def test_a_collection_without_words():
    assert lexical_index(["", "!"]).nearest(["a"], k=2)[1].tolist() == [[-1, -1]]


def test_parts_and_deleted_documents_change_no_score():
    passages = ["a b c d", "a b e f g", "a c", "b i j k"]
    expected = lexical_index(passages)
    # The last document of the first part is deleted.
    parts = [Postings.build([*passages[:3], "a c k"]), Postings.build(passages[3:])]
    index = LexicalIndex(parts, is_alive=np.arange(5) != 3)
    for query in ("a", "b c", "c c k", "x"):
        expected_scores, expected_rows = expected.nearest([query], k=4)
        scores, rows = index.nearest([query], k=4)
        rows[rows == 4] = 3
        assert rows.tolist() == expected_rows.tolist()
        np.testing.assert_array_equal(scores, expected_scores)


def test_saved_postings_are_those_that_were_built(tmp_path):
    postings = Postings.build(["b a a", "a c", ""])
    postings.save(tmp_path)
    opened = Postings(*(np.load(tmp_path / name) for name in LEXICAL_FILES))
    for term in ("a", "b", "c", "d"):
        assert opened.range_of(term) == postings.range_of(term)
    places = opened.range_of("a")
    assert opened.documents[places].tolist() == [0, 1]
    assert opened.counts[places].tolist() == [2, 1]
    assert len(opened.documents[opened.range_of("c")]) == 1
    assert len(opened.documents[opened.range_of("d")]) == 0
    assert opened.totals.tolist() == [3, 2, 0]
