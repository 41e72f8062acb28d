from collections import Counter

import pytest

from preprocess.clean import (
    clean,
    comparable,
    count_words,
    lengths_differ,
    mostly_not_letters,
    one_to_one,
    strip_message,
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("_Open file...", "Open file"),
        ("Save &As", "Save As"),
        ("cannot open '%s': %s\n", "cannot open"),
        ("%d of %d files copied", "of files copied"),
        ("<b>Warning:</b> %(name)s &amp; more", "Warning: & more"),
        ("use ${HOME} or {0}", "use or"),
        ("開く(_O)", "開く"),
        ("a snake_case name", "a snake_case name"),
        ("100% sure of it", "100% sure of it"),
        ("\\tone\\ntwo", "one two"),
    ],
)
def test_message_to_words(message, words):
    assert strip_message(message) == words


def test_words_of_scripts_without_blanks_are_characters():
    assert count_words("two words") == 2
    assert count_words("日本語 abc") == 4


@pytest.mark.parametrize(("pair", "expected"), [(("a b c", "a b c d e f g h i"), False), (("a b c", "a " * 10), True)])
def test_length_ratio(pair, expected):
    assert lengths_differ(pair) is expected


def test_letters():
    assert mostly_not_letters(("0x1f 0x2e --", "some words here"))
    assert not mostly_not_letters(("some words here", "quelques mots ici"))
    assert mostly_not_letters(("", "words"))


def test_each_filter_counts_what_it_drops():
    dropped = Counter()
    pairs = [
        ("one two three", "un deux trois"),
        ("one", "un"),
        ("one two three", "one two three!"),
        ("one two three", "un " * 20),
        ("1 2 3 4", "5 6 7 8"),
    ]
    assert list(clean(pairs, dropped)) == pairs[:1]
    assert dropped == {"length": 1, "identical": 1, "length ratio": 1, "letters": 1}


def test_one_to_one_compares_without_case_punctuation_and_digits():
    dropped = Counter()
    pairs = [("Open 3 files", "ouvrir"), ("open 5 FILES!", "autre"), ("close", "Ouvrir."), ("close", "fermer")]
    assert list(one_to_one(pairs, dropped)) == [pairs[0], pairs[3]]
    assert dropped["repeated side"] == 2
    assert comparable("Ｏｐｅｎ 12,") == "open 00"
