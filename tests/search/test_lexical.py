"""BM25: words of many scripts, and passages that have them."""

import math
import sys

import numpy as np
import pytest

from fairseq_lxsr.search import lexical
from fairseq_lxsr.search.lexical import (
    FEW_DOCUMENTS,
    LEXICAL_FILES,
    LexicalIndex,
    Postings,
    accentless_terms,
    hash_term,
    prefixes,
    query_forms,
    words,
)
from fairseq_lxsr.text.folding import DIGITS_END


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
def test_words_of_many_scripts(text, terms):
    assert words(text) == terms


def test_spellings_that_models_read_alike_are_the_same_words():
    spellings = (
        ("2024", "٢٠٢٤"),
        ("کتاب یک", "كتاب يك"),
        ("أحمد", "احمد"),
        ("Καλημέρα", "ΚΑΛΗΜΕΡΑ"),
        ("știință", "ştiinţă"),
        ("ещё", "еще"),
        ("hoà", "hòa"),
        ("œuvre", "oeuvre"),
        ("شَرِكَة", "شركة"),
        ("İzmir", "izmir"),
    )
    for first, second in spellings:
        assert prefixes(first) == prefixes(second), first


def test_words_with_digits_are_kept_whole():
    assert prefixes("Order 10432977, part X-4417b2") == ["order", "10432977", "part", "x", "4417b2"]


def test_accents_may_be_left_out_in_queries_and_in_documents():
    documents = ["trắng như tuyết", "trang mười", "ngựa"]
    postings = Postings.build(documents, prefixes, accentless_terms)
    index = LexicalIndex([postings], prefixes, query_forms)
    assert index.nearest("trắng", k=3).documents.tolist() == [0, 1]
    assert index.nearest("trang", k=3).documents.tolist() == [1, 0]
    assert index.nearest("tuyet", k=3).documents.tolist() == [0]


def test_terms_without_accents_do_not_make_a_document_longer():
    postings = Postings.build(["trắng như tuyết"], prefixes, accentless_terms)
    assert postings.totals.tolist() == [3]


def test_digits_of_all_scripts_lie_in_the_first_two_planes():
    for code in range(DIGITS_END, sys.maxunicode + 1):
        assert not chr(code).isdecimal()


def test_prefixes_join_forms_of_a_word():
    assert prefixes("Hundes Hunde") == ["hunde", "hunde"]
    assert prefixes("والكتاب كتاب") == ["كتاب", "كتاب"]
    assert prefixes("下雨了") == ["下雨", "雨了"]


def lexical_index(*parts):
    return LexicalIndex([Postings.build(passages) for passages in parts])


def test_passages_with_more_of_the_words_are_first():
    index = lexical_index(["cats and dogs", "It rains.", "A dog barks at dogs."])
    matches = index.nearest("dogs bark", k=4)
    assert matches.documents.tolist() == [0, 2]
    assert matches.scores[0] >= matches.scores[1] > 0
    assert index.nearest("the rains", k=4).documents.tolist() == [1]
    assert index.nearest("dogs rains", k=1).documents.tolist() == [1]
    for query in ("snow", "", "?"):
        assert len(index.nearest(query, k=4).documents) == 0


def test_shares_are_weights_of_terms():
    """The terms of a query that no document has count like terms of a single document."""
    index = lexical_index(["a b", "a c", "d"])

    def weight(frequency):
        return math.log(1 + (3 - frequency + 0.5) / (frequency + 0.5))

    # "a" is in two documents, "b" in one, "x" in none.
    total = weight(2) + weight(1) + weight(0)
    matches = index.nearest("a b x", k=3)
    assert matches.documents.tolist() == [0, 1]
    shares = [(weight(2) + weight(1)) / total, weight(2) / total]
    np.testing.assert_allclose(matches.shares, shares, rtol=1e-6)
    assert index.nearest("d d", k=1).shares.tolist() == [1]


def test_scores_are_those_of_the_library_bm25s():
    bm25s = pytest.importorskip("bm25s")
    passages = ["a b c", "a a b", "c d", "e f g a"]
    reference = bm25s.BM25()
    reference.index([passage.split() for passage in passages], show_progress=False)
    matches = lexical_index(passages).nearest("a c", k=3)
    # A score here is the mean over the terms, not the sum.
    expected = reference.get_scores(["a", "c"]) / 2
    np.testing.assert_allclose(matches.scores, expected[matches.documents], rtol=1e-6)
    assert matches.scores[0] == pytest.approx(expected.max())


def test_a_collection_without_words_has_no_matches():
    assert len(lexical_index(["", "!"]).nearest("a", k=2).documents) == 0


def test_parts_and_deleted_documents_change_no_score():
    passages = ["a b c d", "a b e f g", "a c", "b i j k"]
    languages = np.array([0, 1, 0, 1])
    # The last document of the first part is deleted.
    parts = [Postings.build([*passages[:3], "a c k"]), Postings.build(passages[3:])]
    is_alive = np.arange(5) != 3
    for labels, edited_labels in ((None, None), (languages, np.array([0, 1, 0, 2, 1]))):
        expected = LexicalIndex([Postings.build(passages)], languages=labels)
        index = LexicalIndex(parts, is_alive=is_alive, languages=edited_labels)
        for query in ("a", "b c", "c c k", "x"):
            expected_matches = expected.nearest(query, k=4)
            matches = index.nearest(query, k=4)
            documents = np.where(matches.documents == 4, 3, matches.documents)
            np.testing.assert_array_equal(documents, expected_matches.documents)
            np.testing.assert_array_equal(matches.scores, expected_matches.scores)
            np.testing.assert_array_equal(matches.shares, expected_matches.shares)


def test_labels_of_one_language_change_no_score():
    passages = ["a b c d", "a b e f g", "a c", "b i j k"]
    expected = lexical_index(passages).nearest("a b k x", k=4)
    for label in (0, 17):
        languages = np.full(4, label)
        matches = LexicalIndex([Postings.build(passages)], languages=languages).nearest(
            "a b k x", k=4
        )
        np.testing.assert_array_equal(matches.documents, expected.documents)
        np.testing.assert_allclose(matches.scores, expected.scores, rtol=1e-6)
        np.testing.assert_allclose(matches.shares, expected.shares, rtol=1e-6)


def test_a_word_has_the_weight_that_it_has_in_its_language(monkeypatch):
    """A frequent word of one language is rare in a collection of several languages."""
    english = [f"the word{number}" for number in range(40)]
    french = [f"autre{number} mot" for number in range(360)]
    languages = np.repeat([3, 8], [40, 360])
    english_only = lexical_index(english).nearest("the", k=1).scores[0]
    postings = [Postings.build([*english, *french])]
    unlabelled = LexicalIndex(postings).nearest("the", k=1).scores[0]
    assert unlabelled > 20 * english_only
    labelled = LexicalIndex(postings, languages=languages).nearest("the", k=1).scores[0]
    # The share of "the" among 40 English documents and 5 average ones.
    share = (40 + FEW_DOCUMENTS * 0.1) / (40 + FEW_DOCUMENTS)
    half = 0.5 / 400
    weight = math.log(1 + (1 - share + half) / (share + half))
    assert labelled == pytest.approx(weight * unlabelled / math.log(1 + 360.5 / 40.5), rel=1e-5)
    assert labelled < unlabelled / 10
    monkeypatch.setattr(lexical, "FEW_DOCUMENTS", 1e-9)
    exact = LexicalIndex(postings, languages=languages).nearest("the", k=1).scores[0]
    assert exact == pytest.approx(english_only, abs=0.01)


def test_a_rare_word_of_a_mixed_collection_stays_rare():
    english = ["the zzyzx", *(f"the word{number}" for number in range(39))]
    french = [f"autre{number} mot" for number in range(360)]
    languages = np.repeat([3, 8], [40, 360])
    index = LexicalIndex([Postings.build([*english, *french])], languages=languages)
    matches = index.nearest("the zzyzx", k=2)
    assert matches.documents[0] == 0
    assert matches.scores[0] > 5 * matches.scores[1]


def test_postings_are_saved_and_loaded(tmp_path):
    postings = Postings.build(["b a a", "a c", ""])
    postings.save(tmp_path)
    opened = Postings(*(np.load(tmp_path / name) for name in LEXICAL_FILES))
    for term in ("a", "b", "c", "d"):
        assert opened.range_of(hash_term(term)) == postings.range_of(hash_term(term))
    places = opened.range_of(hash_term("a"))
    assert opened.documents[places].tolist() == [0, 1]
    assert opened.counts[places].tolist() == [2, 1]
    assert len(opened.documents[opened.range_of(hash_term("c"))]) == 1
    assert len(opened.documents[opened.range_of(hash_term("d"))]) == 0
    assert opened.totals.tolist() == [3, 2, 0]
