"""Short pairs: words are linked, and runs of words whose links agree are cut out."""

from collections import Counter

import numpy as np
import pytest
import small_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.preparation import short_pairs
from fairseq_lxsr.text.data_folder import read_sources


def test_words_are_linked_where_each_is_the_nearest_of_the_other():
    cosines = np.array([[0.9, 0.1, 0.2], [0.6, 0.1, 0.7], [0.1, 0.2, 0.1]])
    assert short_pairs.link(cosines) == [0, 2, -1]


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
def test_marks_belong_to_their_letters(text, words):
    assert short_pairs.WORD.findall(text) == words


def test_of_equal_words_the_nearer_place_is_linked():
    cosines = np.array([[0.9, 0.0, 0.9], [0.0, 0.9, 0.0], [0.9, 0.0, 0.9]])
    assert short_pairs.link(cosines) == [0, 1, 2]


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


def test_phrases_are_those_of_the_definition():
    random, found = np.random.default_rng(1), 0
    for _ in range(300):
        n, m = random.integers(1, 9, size=2)
        links = np.where(random.random(n) < 0.8, np.resize(random.permutation(max(n, m)), n), -1)
        links[links >= m] = -1
        expected = list(by_definition(links.tolist(), 4))
        assert list(short_pairs.phrases(links.tolist(), 4)) == expected
        found += len(expected)
    assert found > 1000


def test_phrases_that_seldom_mean_something_else_are_kept():
    counts = Counter(
        {
            ("a", "x"): 8,
            ("a", "y"): 1,
            ("b", "x"): 3,
            ("b", "z"): 30,
            ("c", "w"): 1,
            ("OK", "ok"): 9,
        }
    )
    assert short_pairs.frequent(counts) == [("a", "x"), ("b", "z"), ("c", "w")]


def test_a_corpus_gets_short_pairs_and_words_that_are_not_held_out(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = {"train": ("red dog\n", "chien rouge\n"), "valid": ("Cat.\n", "Chat.\n")}
    texts["test"] = ("bird\n", "oiseau\n")
    for split, sides in texts.items():
        for language, text in zip(("en", "fr"), sides, strict=True):
            (corpus / f"{split}.{language}").write_text(text)
    phrases = Counter({("dog", "chien"): 1, ("cat", "minet"): 1, ("a bird", "oiseau"): 1})
    monkeypatch.setattr(short_pairs, "count_phrases", lambda *_: phrases)
    encoder = SentenceEncoder.from_pretrained(small_model.write_folder(tmp_path / "m"))
    output = tmp_path / "output"
    words = [("bird", "volaille"), ("tree", "arbre")]
    languages = ("en", "fr")
    assert short_pairs.write_with_short_pairs(encoder, corpus, languages, output, words) == 1
    assert (output / "train.fr").read_text().splitlines() == ["chien rouge", "chien", "arbre"]
    sizes = {"text": 1, "short": 1, "dictionary": 1}
    assert read_sources(output / "sources.json", 3) == sizes
    for split in ("valid", "test"):
        assert (output / f"{split}.en").read_text() == texts[split][0]
