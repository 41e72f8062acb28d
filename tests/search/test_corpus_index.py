"""An index of a corpus: what a search returns."""

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex

VECTORS = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)


def encode(sentences):
    return np.stack([VECTORS[int(sentence.split()[1])] for sentence in sentences])


SENTENCES = [f"número {i} …" for i in range(400)]


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_a_sentence_of_the_index_is_its_own_first_hit(tmp_path, kind):
    # Sentences without a visible character are left out.
    sentences = iter(["", SENTENCES[0], " \u200b", "\u200e\u200c", *SENTENCES[1:]])
    CorpusIndex.build(tmp_path / "index", sentences, encode, "model", kind, plain=True)
    index = CorpusIndex.load(tmp_path / "index")
    assert (len(index), index.fingerprint) == (400, "model")
    hits = index.search([SENTENCES[7], SENTENCES[123]], encode, k=3)
    assert [row[0].sentence for row in hits] == [SENTENCES[7], SENTENCES[123]]
    assert hits[0][0].line == 10
    assert all(row[0].score >= row[1].score >= row[2].score for row in hits)


def test_repr_names_the_folder_kind_size_and_model(tmp_path):
    index = CorpusIndex.build(tmp_path / "notes", SENTENCES, encode, "model", plain=True)
    path = tmp_path / "notes"
    expected = f"<CorpusIndex {path}: flat index of 400 texts, one vector each, model model>"
    assert repr(index) == expected


def test_a_surrogate_in_the_text_is_stored_as_a_question_mark(tmp_path):
    texts = [*SENTENCES[:2], "número 5 \ud800"]
    index = CorpusIndex.build(tmp_path / "index", texts, encode, "model", plain=True)
    assert index.search(SENTENCES[5:6], encode, k=1)[0][0].sentence == "número 5 ?"


def test_queries_may_be_a_string_or_empty_and_k_may_exceed_the_index(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:3], encode, "model", plain=True)
    assert index.search("número 1", encode, k=1)[0].text == SENTENCES[1]
    assert index.search([], encode) == []
    assert len(index.search(SENTENCES[:1], encode, k=10)[0]) == 3


def test_queries_without_a_known_word_have_no_hits(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)

    def embed(queries):
        # A zero vector stands for a sentence without a known word.
        is_known = [["1" in query] for query in queries]
        return encode(queries) * is_known

    hits = index.search([SENTENCES[1], SENTENCES[2], SENTENCES[13]], embed, k=1)
    assert [[hit.text for hit in row] for row in hits] == [[SENTENCES[1]], [], [SENTENCES[13]]]
    assert index.search([SENTENCES[2]], embed) == [[]]
    assert index.search(SENTENCES[2], embed) == []


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("número 5", r"sentences.*str.*'número 5'"),
        ({"text": SENTENCES}, r"sentences.*dict.*'text'.*sentences\['text'\]"),
        (set(SENTENCES), r"sentences.*set.*sorted\(sentences\)"),
        (5, r"sentences.*int.*5"),
    ],
)
def test_sentences_that_are_not_a_sequence_of_strings_are_refused(tmp_path, sentences, message):
    with pytest.raises(InputError, match=message):
        CorpusIndex.build(tmp_path / "index", sentences, encode, "model", plain=True)
    assert list(tmp_path.iterdir()) == []
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)
    with pytest.raises(InputError, match=message):
        index.add(sentences)
    if not isinstance(sentences, str):
        with pytest.raises(InputError, match=message.replace("sentences", "queries")):
            index.search(sentences, encode)


def test_an_unknown_kind_is_refused_before_any_text_is_read(tmp_path):
    """`binary` is a kind of mining only."""

    def sentences():
        raise AssertionError
        yield

    with pytest.raises(InputError, match=r"'binary'.*flat, float16, int8$"):
        CorpusIndex.build(tmp_path / "index", sentences(), encode, "model", "binary")
    assert list(tmp_path.iterdir()) == []
