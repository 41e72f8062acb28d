"""examples/phrases: words are linked, and runs of words whose links agree are cut out."""

from collections import Counter

import numpy as np
import pytest
from conftest import ROOT, load_script


@pytest.fixture(scope="module")
def example():
    return load_script(ROOT / "examples" / "phrases" / "phrases.py")


def test_words_are_linked_where_each_is_the_nearest_of_the_other(example):
    cosines = np.array([[0.9, 0.1, 0.2], [0.6, 0.1, 0.7], [0.1, 0.2, 0.1]])
    assert example.link(cosines) == [0, 2, -1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("l\u2019eau, d'or", ["l\u2019", "eau", "d'", "or"]),
        ("de\u0301ja\u0300 vu", ["de\u0301ja\u0300", "vu"]),  # decomposed
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("\u2764\ufe0f love", ["love"]),  # a mark without a letter
        ("क्\u200dष", ["क्\u200dष"]),
    ],
)
def test_marks_belong_to_their_letters(example, text, words):
    assert example.WORD.findall(text) == words


def test_of_equal_words_the_nearer_place_is_linked(example):
    cosines = np.array([[0.9, 0.0, 0.9], [0.0, 0.9, 0.0], [0.9, 0.0, 0.9]])
    assert example.link(cosines) == [0, 1, 2]


def by_definition(links, most):
    """All runs of words, with the shortest run of the other side that has all their links."""
    for first in range(len(links)):
        for last in range(first, min(len(links), first + most)):
            inside = [target for target in links[first : last + 1] if target >= 0]
            if not inside or min(links[first], links[last]) < 0 or max(inside) - min(inside) > most:
                continue
            back = [
                source
                for source, target in enumerate(links)
                if min(inside) <= target <= max(inside)
            ]
            if first <= min(back) and max(back) <= last:
                yield slice(first, last + 1), slice(min(inside), max(inside) + 1)


def test_phrases_are_those_of_the_definition(example):
    random, found = np.random.default_rng(1), 0
    for _ in range(300):
        n, m = random.integers(1, 9, size=2)
        links = np.where(random.random(n) < 0.8, np.resize(random.permutation(max(n, m)), n), -1)
        links[links >= m] = -1
        expected = list(by_definition(links.tolist(), 4))
        assert list(example.phrases(links.tolist(), 4)) == expected
        found += len(expected)
    assert found > 1000


def test_frequent_phrases_that_seldom_mean_something_else_are_kept(example):
    found = Counter(
        {
            ("a", "x"): 8,
            ("a", "y"): 1,
            ("b", "x"): 3,
            ("b", "z"): 30,
            ("c", "w"): 1,
            ("OK", "ok"): 9,
        }
    )
    assert example.frequent(found, 2) == [("a", "x"), ("b", "z")]
    assert ("c", "w") in example.frequent(found, 1)
