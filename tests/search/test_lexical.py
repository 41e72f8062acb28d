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
        pytest.param(
            "Der Hund bellt, 3 Straßen weiter.",
            ["der", "hund", "bellt", "3", "strassen", "weiter"],
            id="latin",
        ),
        # Scripts without spaces are cut into pairs of characters.
        pytest.param("下雨了", ["下雨", "雨了"], id="chinese"),
        pytest.param("雨", ["雨"], id="one character"),
        pytest.param("नमस्ते दुनिया", ["नमस्ते", "दुनिया"], id="devanagari"),
        pytest.param("x86下雨 abc", ["x86", "下雨", "abc"], id="mixed"),
        pytest.param("สวัสดี", ["สว", "วั", "ัส", "สด", "ดี"], id="thai"),
        pytest.param("...", [], id="punctuation"),
    ],
)
def test_words_of_many_scripts(text, terms):
    assert words(text) == terms


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("2024", "٢٠٢٤", id="arabic digits"),
        pytest.param("کتاب یک", "كتاب يك", id="persian letters"),
        pytest.param("أحمد", "احمد", id="hamza"),
        pytest.param("Καλημέρα", "ΚΑΛΗΜΕΡΑ", id="greek accents"),
        pytest.param("știință", "ştiinţă", id="romanian cedilla"),
        pytest.param("ещё", "еще", id="russian yo"),
        pytest.param("hoà", "hòa", id="vietnamese tone"),
        pytest.param("œuvre", "oeuvre", id="ligature"),
        pytest.param("شَرِكَة", "شركة", id="arabic vowels"),
        pytest.param("İzmir", "izmir", id="turkish i"),
    ],
)
def test_spellings_that_models_read_alike_are_the_same_words(first, second):
    assert prefixes(first) == prefixes(second)


def test_words_with_digits_are_not_cut_to_prefixes():
    terms = prefixes("Order 10432977, part X-4417b2")

    assert terms == ["order", "10432977", "part", "x", "4417b2"]


@pytest.mark.parametrize(
    ("query", "expected_documents"),
    [
        # The document with the accents of the query is first.
        ("trắng", [0, 1]),
        ("trang", [1, 0]),
        ("tuyet", [0]),
    ],
    ids=["accents", "no accents", "one document"],
)
def test_accents_may_be_left_out_in_queries_and_in_documents(query, expected_documents):
    documents = ["trắng như tuyết", "trang mười", "ngựa"]
    postings = Postings.build(documents, prefixes, accentless_terms)
    index = LexicalIndex([postings], prefixes, query_forms)

    matches = index.nearest(query, k=3)

    assert matches.documents.tolist() == expected_documents


def test_terms_without_accents_do_not_make_a_document_longer():
    postings = Postings.build(["trắng như tuyết"], prefixes, accentless_terms)

    # The three words, not also their three forms without accents.
    assert postings.totals.tolist() == [3]


def test_no_digit_of_any_script_lies_beyond_the_range_that_is_folded():
    for code in range(DIGITS_END, sys.maxunicode + 1):
        assert not chr(code).isdecimal()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Hundes Hunde", ["hunde", "hunde"]),
        # "and the book", "book".
        ("والكتاب كتاب", ["كتاب", "كتاب"]),
        ("下雨了", ["下雨", "雨了"]),
    ],
    ids=["german", "arabic", "chinese"],
)
def test_prefixes_are_the_same_for_forms_of_a_word_and_keep_pairs_of_characters(text, terms):
    assert prefixes(text) == terms


def lexical_index(passages):
    """An index of the words of the passages."""
    return LexicalIndex([Postings.build(passages)])


@pytest.fixture
def animals():
    return lexical_index(["cats and dogs", "It rains.", "A dog barks at dogs."])


@pytest.mark.parametrize(
    ("query", "k", "expected_documents"),
    [
        # Two passages have "dogs".
        pytest.param("dogs bark", 4, [0, 2], id="some passages"),
        pytest.param("the rains", 4, [1], id="one passage"),
        # "rains" is rarer than "dogs".
        pytest.param("dogs rains", 1, [1], id="rarest word"),
        pytest.param("snow", 4, [], id="unknown word"),
        pytest.param("", 4, [], id="no word"),
        pytest.param("?", 4, [], id="punctuation"),
    ],
)
def test_the_passages_with_words_of_the_query_are_found(animals, query, k, expected_documents):
    matches = animals.nearest(query, k)

    assert matches.documents.tolist() == expected_documents


def test_scores_of_passages_are_positive_and_best_first(animals):
    first, second = animals.nearest("dogs bark", k=4).scores

    assert first >= second > 0


def test_the_share_of_a_passage_is_the_weight_of_its_terms_in_that_of_all_terms_of_the_query():
    """The terms of a query that no document has count like terms of a single document."""
    index = lexical_index(["a b", "a c", "d"])

    def weight(frequency):
        """The weight of BM25 for a term in so many of the three documents."""
        return math.log(1 + (3 - frequency + 0.5) / (frequency + 0.5))

    matches = index.nearest("a b x", k=3)

    # "a" is in two documents, "b" in one, "x" in none.
    total = weight(2) + weight(1) + weight(0)
    assert matches.documents.tolist() == [0, 1]
    expected_shares = [(weight(2) + weight(1)) / total, weight(2) / total]
    np.testing.assert_allclose(matches.shares, expected_shares, rtol=1e-6)


def test_the_share_of_a_passage_with_all_terms_is_one_even_if_a_term_is_repeated():
    index = lexical_index(["a b", "a c", "d"])

    assert index.nearest("d d", k=1).shares.tolist() == [1]


def test_scores_are_those_of_the_library_bm25s_divided_by_the_number_of_terms():
    bm25s = pytest.importorskip("bm25s")
    passages = ["a b c", "a a b", "c d", "e f g a"]
    reference = bm25s.BM25()
    reference.index([passage.split() for passage in passages], show_progress=False)

    matches = lexical_index(passages).nearest("a c", k=3)

    expected_scores = reference.get_scores(["a", "c"]) / 2
    np.testing.assert_allclose(matches.scores, expected_scores[matches.documents], rtol=1e-6)
    assert matches.scores[0] == pytest.approx(expected_scores.max())


def test_a_collection_without_words_has_no_matches():
    matches = lexical_index(["", "!"]).nearest("a", k=2)

    assert len(matches.documents) == 0


@pytest.mark.parametrize("query", ["a", "b c", "c c k", "x"])
@pytest.mark.parametrize("has_languages", [False, True], ids=["plain", "languages"])
def test_parts_and_deleted_documents_change_no_score(query, has_languages):
    passages = ["a b c d", "a b e f g", "a c", "b i j k"]
    # The same passages in two parts, with another document at the end of the first, number 3, that
    # is deleted.
    parts = [Postings.build([*passages[:3], "a c k"]), Postings.build(passages[3:])]
    is_alive = np.array([True, True, True, False, True])
    languages = None
    languages_of_parts = None
    if has_languages:
        languages = np.array([0, 1, 0, 1])
        languages_of_parts = np.array([0, 1, 0, 2, 1])
    whole = LexicalIndex([Postings.build(passages)], languages=languages)
    edited = LexicalIndex(parts, is_alive=is_alive, languages=languages_of_parts)

    matches = edited.nearest(query, k=4)

    # The last passage is document 4 of the edited index, and 3 of the other.
    documents = np.where(matches.documents == 4, 3, matches.documents)
    expected = whole.nearest(query, k=4)
    np.testing.assert_array_equal(documents, expected.documents)
    np.testing.assert_array_equal(matches.scores, expected.scores)
    np.testing.assert_array_equal(matches.shares, expected.shares)


@pytest.mark.parametrize("label", [0, 17], ids=["unknown", "known"])
def test_the_same_language_for_all_passages_changes_no_score(label):
    passages = ["a b c d", "a b e f g", "a c", "b i j k"]
    expected = lexical_index(passages).nearest("a b k x", k=4)
    index = LexicalIndex([Postings.build(passages)], languages=np.full(4, label))

    matches = index.nearest("a b k x", k=4)

    np.testing.assert_array_equal(matches.documents, expected.documents)
    np.testing.assert_allclose(matches.scores, expected.scores, rtol=1e-6)
    np.testing.assert_allclose(matches.shares, expected.shares, rtol=1e-6)


# All of 40 English documents have the word "the", and none of 360 French documents.
ENGLISH = [f"the word{number}" for number in range(40)]
FRENCH = [f"autre{number} mot" for number in range(360)]
LANGUAGES = np.repeat([3, 8], [40, 360])


def score_of_the(passages, languages=None):
    """The score of the best passage for the query "the"."""
    index = LexicalIndex([Postings.build(passages)], languages=languages)
    return index.nearest("the", k=1).scores[0]


def test_a_frequent_word_of_one_language_has_a_low_weight_among_several_languages():
    """It is rare in the whole collection."""
    in_english_alone = score_of_the(ENGLISH)
    unlabelled = score_of_the([*ENGLISH, *FRENCH])
    labelled = score_of_the([*ENGLISH, *FRENCH], LANGUAGES)

    assert unlabelled > 20 * in_english_alone
    assert labelled < unlabelled / 10


def test_the_weight_of_a_word_in_a_language_is_that_of_its_share_of_documents_there():
    unlabelled = score_of_the([*ENGLISH, *FRENCH])

    labelled = score_of_the([*ENGLISH, *FRENCH], LANGUAGES)

    # A few average documents, of which a tenth have "the", are added to the 40 English ones.
    share = (40 + FEW_DOCUMENTS * 0.1) / (40 + FEW_DOCUMENTS)
    # BM25 adds half a document to both counts, here among 400.
    half = 0.5 / 400
    weight = math.log(1 + (1 - share + half) / (share + half))
    unlabelled_weight = math.log(1 + (360 + 0.5) / (40 + 0.5))
    assert labelled == pytest.approx(weight * unlabelled / unlabelled_weight, rel=1e-5)


def test_without_average_documents_the_weight_of_a_word_is_that_in_its_language_alone(monkeypatch):
    monkeypatch.setattr(lexical, "FEW_DOCUMENTS", 1e-9)

    labelled = score_of_the([*ENGLISH, *FRENCH], LANGUAGES)

    assert labelled == pytest.approx(score_of_the(ENGLISH), abs=0.01)


def test_a_rare_word_counts_more_than_a_frequent_one_of_its_language():
    english = ["the zzyzx", *ENGLISH[1:]]
    index = LexicalIndex([Postings.build([*english, *FRENCH])], languages=LANGUAGES)

    matches = index.nearest("the zzyzx", k=2)

    # The second has only the frequent word.
    assert matches.documents[0] == 0
    assert matches.scores[0] > 5 * matches.scores[1]


@pytest.fixture
def saved_and_loaded(tmp_path):
    """The postings of three documents, and what is loaded after they are saved."""
    postings = Postings.build(["b a a", "a c", ""])
    postings.save(tmp_path)
    return postings, Postings(*(np.load(tmp_path / name) for name in LEXICAL_FILES))


def test_loaded_postings_have_the_places_of_each_term(saved_and_loaded):
    postings, loaded = saved_and_loaded

    # No document has "d".
    for term in ("a", "b", "c", "d"):
        assert loaded.range_of(hash_term(term)) == postings.range_of(hash_term(term))


@pytest.mark.parametrize(
    ("term", "documents", "counts"),
    [("a", [0, 1], [2, 1]), ("c", [1], [1]), ("d", [], [])],
    ids=["two documents", "one document", "none"],
)
def test_loaded_postings_have_the_documents_of_a_term_and_its_counts(
    saved_and_loaded, term, documents, counts
):
    _, loaded = saved_and_loaded

    places = loaded.range_of(hash_term(term))

    assert loaded.documents[places].tolist() == documents
    assert loaded.counts[places].tolist() == counts


def test_loaded_postings_have_the_number_of_terms_of_each_document(saved_and_loaded):
    _, loaded = saved_and_loaded

    assert loaded.totals.tolist() == [3, 2, 0]
