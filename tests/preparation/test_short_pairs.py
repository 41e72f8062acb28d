"""Short pairs: words are linked, and runs of words whose links agree are cut out."""

from collections import Counter

import numpy as np
import pytest
import small_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.preparation import short_pairs
from fairseq_lxsr.text.data_folder import read_sources


# By source word: the number of the linked target word, or -1.
def test_two_words_are_linked_if_each_is_nearest_to_the_other():
    cosines = np.array(
        [
            [0.9, 0.1, 0.2],
            [0.6, 0.1, 0.7],
            # This word and the second one are nearest to each other, but not near enough.
            [0.1, 0.2, 0.1],
        ]
    )

    assert short_pairs.link(cosines) == [0, 2, -1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("l\u2019eau, d'or", ["l\u2019", "eau", "d'", "or"]),
        # Decomposed letters.
        ("de\u0301ja\u0300 vu", ["de\u0301ja\u0300", "vu"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        # A mark without a letter.
        ("\u2764\ufe0f love", ["love"]),
        ("क्\u200dष", ["क्\u200dष"]),
    ],
)
def test_marks_belong_to_their_letters(text, words):
    assert short_pairs.WORD.findall(text) == words


def test_repeated_words_are_linked_in_order():
    # The first and the last word are the same, on both sides.
    cosines = np.array([[0.9, 0.0, 0.9], [0.0, 0.9, 0.0], [0.9, 0.0, 0.9]])

    assert short_pairs.link(cosines) == [0, 1, 2]


def phrases_by_definition(links, longest):
    """All runs of words, with the shortest run of the other side that has all their links."""
    for first in range(len(links)):
        for last in range(first, min(len(links), first + longest)):
            targets = [target for target in links[first : last + 1] if target >= 0]
            if not targets or links[first] < 0 or links[last] < 0:
                continue
            if max(targets) - min(targets) > longest:
                continue
            sources = []
            for source, target in enumerate(links):
                if min(targets) <= target <= max(targets):
                    sources.append(source)
            if first <= min(sources) and max(sources) <= last:
                yield slice(first, last + 1), slice(min(targets), max(targets) + 1)


def test_phrases_equal_a_search_by_the_definition():
    rng = np.random.default_rng(1)
    number_of_phrases = 0
    for _ in range(300):
        source_length, target_length = rng.integers(1, 9, size=2)
        targets = rng.permutation(max(source_length, target_length))
        links = np.resize(targets, source_length)
        links[rng.random(source_length) >= 0.8] = -1
        links[links >= target_length] = -1

        expected = list(phrases_by_definition(links.tolist(), 4))

        assert list(short_pairs.phrases(links.tolist())) == expected
        number_of_phrases += len(expected)
    assert number_of_phrases > 1000


def test_phrases_that_rarely_have_other_translations_are_frequent():
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


def test_short_pairs_without_held_out_text_are_added_to_a_corpus(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = {
        "train": ("red dog\n", "chien rouge\n"),
        "valid": ("Cat.\n", "Chat.\n"),
        "test": ("bird\n", "oiseau\n"),
    }
    for split, (english, french) in texts.items():
        (corpus / f"{split}.en").write_text(english)
        (corpus / f"{split}.fr").write_text(french)
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
