"""Candidates in several languages: each is compared with others in its language."""

import numpy as np
import pytest

from fairseq_lxsr.embeddings import load
from fairseq_lxsr.search import CorpusIndex, segment_writer
from fairseq_lxsr.search.language_groups import LanguageGroups
from fairseq_lxsr.search.passages import PassageRanker

# The scores of four candidates for two queries.
VALUES = np.array([[0.5, 0.1, 0.9, 0.3], [-0.2, 0.4, -0.6, 0.0]])


# -- by hand


def test_languages_are_numbered_in_order_and_each_has_its_largest_value():
    # Candidates 1 and 3 are in language 17, candidates 0 and 2 in language 22.
    groups = LanguageGroups(np.array([22, 17, 22, 17]))

    assert len(groups) == 2
    assert groups.numbers.tolist() == [1, 0, 1, 0]
    assert groups.sizes.tolist() == [2, 2]
    assert groups.largest(VALUES).tolist() == [[0.3, 0.9], [0.4, -0.2]]
    assert groups.largest(VALUES[0]).tolist() == [0.3, 0.9]


def test_the_mean_of_each_language_without_a_prior_is_that_of_its_values():
    # Candidate 1 is in language 3, the others in language 5.
    groups = LanguageGroups(np.array([5, 3, 5, 5]))

    means = groups.means(VALUES[0], prior=0)

    np.testing.assert_allclose(means, [0.1, (0.5 + 0.9 + 0.3) / 3])


def test_the_mean_of_each_language_is_drawn_towards_the_mean_of_all():
    groups = LanguageGroups(np.array([5, 3, 5, 5]))
    mean_of_all = 0.45

    means = groups.means(VALUES[0], prior=2)
    means_of_queries = groups.means(VALUES, prior=2)

    # The mean of all counts as two more candidates of each language.
    expected = [
        (0.1 + 2 * mean_of_all) / (1 + 2),
        (0.5 + 0.9 + 0.3 + 2 * mean_of_all) / (3 + 2),
    ]
    np.testing.assert_allclose(means, expected)
    assert means_of_queries.shape == (2, 2)
    np.testing.assert_allclose(means_of_queries[0], expected)


def test_the_values_of_one_language_are_one_group_whose_mean_is_that_of_all():
    groups = LanguageGroups(np.full(4, 9))

    assert len(groups) == 1
    assert groups.largest(VALUES).tolist() == [[0.9], [0.4]]
    means = groups.means(VALUES, prior=7)
    np.testing.assert_allclose(means[:, 0], VALUES.mean(axis=1))


# -- rankings

ENGLISH = [
    "The museum is closed on Monday because of the holiday.",
    "Where is the station? It is on the other side of the river.",
    "When does the shop of the farmer open? Ask him in the morning.",
    "The price of the ticket for the bus is on the door of the bus.",
    "The teacher is in the garden with the children of the school.",
    "You can leave the keys of the car with the man at the door.",
    "The children play football on Sunday with the teacher.",
    "We wait for the bus at the corner.",
    "Does the swimming course begin in winter?",
    "He has not paid the waiter for the cup of tea.",
]
GERMAN = [
    "Das Schwimmbad schließt um neun Uhr, und im Winter ist es nicht geöffnet.",
    "Die Kinder sind mit dem Lehrer im Garten und spielen mit dem Hund.",
    "Der Zug nach Berlin ist nicht pünktlich, und wir warten auf dem Bahnsteig.",
    "Das Brot ist frisch, und die Milch ist im Kühlschrank.",
    "Wir haben die Rechnung für das Auto nicht bezahlt.",
    "Die Bibliothek leiht jedem Mitglied zehn Bücher für drei Wochen.",
]


@pytest.fixture(scope="module")
def encoder():
    return load("lxsr-static")


# English questions and the German sentences that answer them.
ANSWERS = {
    "When does the swimming pool close?": GERMAN[0],
    "Where do the children play with the dog?": GERMAN[1],
    "Where do we wait for the train?": GERMAN[2],
    "Who has not paid for the car?": GERMAN[4],
}


@pytest.fixture
def index(encoder, tmp_path):
    """An index of the sentences of both languages."""
    return CorpusIndex.build(tmp_path / "index", [*ENGLISH, *GERMAN], encoder)


@pytest.fixture
def unlabelled_languages(monkeypatch):
    """Build indexes as if no language were recognised."""
    monkeypatch.setattr(segment_writer, "guess_language", lambda text: "")


def test_the_answer_in_another_language_is_above_sentences_with_common_words(index):
    hits_of_queries = index.search(list(ANSWERS), k=1)

    assert len(set(index._stored.languages)) == 2
    assert [hits[0].text for hits in hits_of_queries] == list(ANSWERS.values())


@pytest.mark.usefixtures("unlabelled_languages")
def test_without_languages_sentences_with_common_words_are_above_the_answer(encoder, tmp_path):
    """This shows that the order of the test above is due to the languages."""
    index = CorpusIndex.build(tmp_path / "index", [*ENGLISH, *GERMAN], encoder)

    for hits in index.search(list(ANSWERS), k=1):
        assert hits[0].text in ENGLISH


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("When is the museum closed?", ENGLISH[0]),
        ("How many books can a member of the library take?", GERMAN[5]),
        ("Is the train to Berlin on time?", GERMAN[2]),
        ("Wann hat das Museum zu?", ENGLISH[0]),
        ("Was kostet die Fahrkarte für den Bus?", ENGLISH[3]),
        ("Wo spielen die Kinder mit dem Hund?", GERMAN[1]),
    ],
)
def test_the_answer_in_either_language_is_first(index, query, answer):
    assert index.search(query, k=1)[0].text == answer


def test_the_scores_of_sentences_in_one_language_do_not_depend_on_its_label(encoder):
    ranker = PassageRanker(encoder)
    windows = ranker.split_windows([[text] for text in ENGLISH])
    [query] = ranker.split_queries(["When is the museum closed?"])
    # Some cosines, all different.
    cosines = np.linspace(0.1, 0.6, len(ENGLISH))
    expected_scores, expected_sentences = ranker.score(query, windows, cosines)

    labels = np.full(len(ENGLISH), 11)
    scores, sentences = ranker.score(query, windows, cosines, labels)

    np.testing.assert_array_equal(scores, expected_scores)
    np.testing.assert_array_equal(sentences, expected_sentences)


def test_a_search_in_one_language_does_not_depend_on_its_being_recognised(
    encoder, tmp_path, request
):
    query = "When is the museum closed?"
    index = CorpusIndex.build(tmp_path / "index", ENGLISH, encoder)
    request.getfixturevalue("unlabelled_languages")
    unlabelled_index = CorpusIndex.build(tmp_path / "unlabelled", ENGLISH, encoder)
    # The number 0 stands for no language.
    assert unlabelled_index._stored.languages.tolist() == [0] * len(ENGLISH)

    assert unlabelled_index.search(query, k=9) == index.search(query, k=9)
