"""An index of a corpus: what a search returns."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex

VECTORS = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)


def encode(sentences):
    """Stands for a model: the vector of "número N …" is row N of VECTORS."""
    return np.stack([VECTORS[int(sentence.split()[1])] for sentence in sentences])


SENTENCES = [f"número {i} …" for i in range(400)]


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_a_sentence_of_the_index_is_its_own_first_hit_and_hits_are_best_first(tmp_path, kind):
    CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind, plain=True)
    index = CorpusIndex.load(tmp_path / "index")

    hits_of_queries = index.search([SENTENCES[7], SENTENCES[123]], encode, k=3)

    assert [hits[0].sentence for hits in hits_of_queries] == [SENTENCES[7], SENTENCES[123]]
    for first, second, third in hits_of_queries:
        assert first.score >= second.score >= third.score


def test_lines_without_a_visible_character_are_left_out_of_an_index_and_counted(tmp_path):
    # Three such lines: an empty one, a space and a zero width space, and two control characters.
    lines = iter(["", SENTENCES[0], " \u200b", "\u200e\u200c", *SENTENCES[1:]])

    index = CorpusIndex.build(tmp_path / "index", lines, encode, "model", plain=True)

    assert len(index) == len(SENTENCES)
    [[hit]] = index.search([SENTENCES[7]], encode, k=1)
    assert hit.line == 7 + 3


def test_a_loaded_index_has_the_fingerprint_of_its_model(tmp_path):
    CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)

    assert CorpusIndex.load(tmp_path / "index").fingerprint == "model"


def test_repr_names_the_folder_kind_size_and_model(tmp_path):
    index = CorpusIndex.build(tmp_path / "notes", SENTENCES, encode, "model", plain=True)
    path = tmp_path / "notes"
    expected = f"<CorpusIndex {path}: flat index of 400 texts, one vector each, model model>"
    assert repr(index) == expected


def test_a_surrogate_in_the_text_is_stored_as_a_question_mark(tmp_path):
    """It cannot be written in UTF-8."""
    texts = [*SENTENCES[:2], "número 5 \ud800"]
    index = CorpusIndex.build(tmp_path / "index", texts, encode, "model", plain=True)

    [[hit]] = index.search([SENTENCES[5]], encode, k=1)

    assert hit.sentence == "número 5 ?"


@pytest.fixture
def small_index(tmp_path):
    """An index of the first three sentences."""
    return CorpusIndex.build(tmp_path / "index", SENTENCES[:3], encode, "model", plain=True)


def test_a_query_that_is_a_string_has_a_list_of_hits(small_index):
    [hit] = small_index.search("número 1", encode, k=1)

    assert hit.text == SENTENCES[1]


def test_a_search_of_no_queries_has_no_hits(small_index):
    assert small_index.search([], encode) == []


def test_a_search_for_more_hits_than_sentences_returns_all(small_index):
    [hits] = small_index.search(SENTENCES[:1], encode, k=10)

    assert len(hits) == 3


def encode_known(queries):
    """As `encode`, but with zero vectors for "número 2 …", which stands for an unknown word."""
    is_known = [[query != SENTENCES[2]] for query in queries]
    return encode(queries) * is_known


def test_queries_without_a_known_word_have_no_hits_beside_others_that_have(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)
    queries = [SENTENCES[1], SENTENCES[2], SENTENCES[13]]

    hits_of_queries = index.search(queries, encode_known, k=1)

    texts = [[hit.text for hit in hits] for hits in hits_of_queries]
    assert texts == [[SENTENCES[1]], [], [SENTENCES[13]]]


def test_a_single_query_without_a_known_word_has_no_hits(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)

    assert index.search([SENTENCES[2]], encode_known) == [[]]
    assert index.search(SENTENCES[2], encode_known) == []


NO_SEQUENCES = {
    "string": ("número 5", r"sentences.*str.*'número 5'"),
    "dict": ({"text": SENTENCES}, r"sentences.*dict.*'text'.*sentences\['text'\]"),
    "set": (set(SENTENCES), r"sentences.*set.*sorted\(sentences\)"),
    "number": (5, r"sentences.*int.*5"),
}


@pytest.mark.parametrize("case", NO_SEQUENCES)
def test_sentences_that_are_no_sequence_of_strings_are_not_indexed_and_nothing_is_written(
    tmp_path, case
):
    sentences, message = NO_SEQUENCES[case]

    with pytest.raises(InputError, match=message):
        CorpusIndex.build(tmp_path / "index", sentences, encode, "model", plain=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", NO_SEQUENCES)
def test_sentences_that_are_no_sequence_of_strings_are_not_added(small_index, case):
    sentences, message = NO_SEQUENCES[case]

    with pytest.raises(InputError, match=message):
        small_index.add(sentences)


@pytest.mark.parametrize("case", ["dict", "set", "number"])
def test_queries_that_are_neither_a_string_nor_a_sequence_of_strings_are_refused(small_index, case):
    queries, message = NO_SEQUENCES[case]

    with pytest.raises(InputError, match=message.replace("sentences", "queries")):
        small_index.search(queries, encode)


def test_an_unknown_kind_is_refused_before_any_text_is_read_or_written(tmp_path):
    """`binary` is a kind of mining only."""

    def sentences_that_must_not_be_read():
        raise AssertionError
        yield

    with pytest.raises(InputError, match=r"'binary'.*flat, float16, int8$"):
        CorpusIndex.build(
            tmp_path / "index", sentences_that_must_not_be_read(), encode, "model", "binary"
        )
    assert list(tmp_path.iterdir()) == []
