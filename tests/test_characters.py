# ruff: noqa: RUF001 (letters of many scripts)
"""Invisible characters are removed from text, except where a script needs them."""

import sys
import unicodedata

import pytest

from fairseq_lxsr.characters import DEFAULT_IGNORABLE, INVISIBLE, visible
from fairseq_lxsr.files.lines import is_blank

regex = pytest.importorskip("regex")
hypothesis = pytest.importorskip("hypothesis")
# All characters but surrogates (Cs), which no text may contain.
CHARACTERS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) != "Cs"
]
# The package regex knows the properties of Unicode.
IGNORABLE = regex.findall(r"\p{Default_Ignorable_Code_Point}", "".join(CHARACTERS))
BRAILLE_BLANK = "\u2800"


def test_the_table_of_ignorable_characters_equals_the_property_of_unicode():
    characters = []
    for first, last in DEFAULT_IGNORABLE:
        characters += map(chr, range(first, last + 1))

    assert characters == IGNORABLE


@pytest.mark.parametrize(
    "word",
    [
        # Inside a word, at its beginning and at its end.
        "hy{}phen",
        "{}hyphen",
        "hyphen{}",
        # Several times.
        "{0}hy{0}{0}phen{0}",
        # In other scripts that need no invisible characters.
        "при{}вет",
        "日{}本",
        "한{}국",
    ],
)
def test_ignorable_characters_are_removed_from_a_word(word):
    for character in [*IGNORABLE, BRAILLE_BLANK]:
        assert visible(word.format(character)) == word.format(""), f"U+{ord(character):04X}"


def test_text_of_only_ignorable_characters_and_spaces_is_empty_and_counts_as_blank():
    for character in [*IGNORABLE, BRAILLE_BLANK]:
        code = f"U+{ord(character):04X}"
        assert visible(character) == "", code
        assert is_blank(character), code
        assert is_blank(f" {character}\t{character}"), code


def test_characters_that_are_not_ignorable_stay():
    ignorable = {*IGNORABLE, BRAILLE_BLANK}
    text = " ".join(character for character in CHARACTERS if character not in ignorable)

    # Comparing outside of assert avoids a report of a million characters.
    is_unchanged = visible(text) == text
    assert is_unchanged


# ZWNJ (U+200C) and ZWJ (U+200D) are joiners: they choose the shape of the letters next to them.
# U+200B is the zero-width space, U+2800 the empty cell of braille.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Persian, "I want", also with a mark of direction (U+200F), which is removed.
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("می\u200c\u200fخواهم", "می\u200cخواهم"),
        # Hindi: half ka, not a ligature.
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        # Malayalam: a final form, written as a letter with virama and a joiner.
        ("ശ\u0d30\u0d4d\u200d", "ശ\u0d30\u0d4d\u200d"),
        # Sinhala, and Bengali: ra with ya after it.
        ("ශ්\u200dරී", "ශ්\u200dරී"),
        ("র\u200d\u09cdয", "র\u200d\u09cdয"),
    ],
)
def test_joiners_stay_next_to_letters_that_they_shape(text, expected):
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # At the end of a word, in Latin script, and in emoji, joiners are not needed.
        ("می\u200c", "می"),
        ("sof\u200cfer \u200dx", "soffer x"),
        ("👩\u200d🚀 ❤\ufe0f", "👩🚀 ❤"),
        # The vowel separator of Mongolian.
        ("ᠮᠣᠩᠭᠣᠯ\u180eᠠ", "ᠮᠣᠩᠭᠣᠯᠠ"),
        # A flag with tags, which name the country.
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4"),
    ],
)
def test_joiners_and_other_invisible_characters_are_removed_where_no_script_needs_them(
    text, expected
):
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Thai and Khmer are written without spaces, and U+200B stands between their words. Of
        # three, the one in the middle has no letter next to it.
        ("ภาษา\u200bไทย", "ภาษา ไทย"),
        ("ខ្មែរ\u200b\u200b\u200bខ្មែរ", "ខ្មែរ  ខ្មែរ"),
        # Braille.
        ("⠓⠊\u2800⠽⠕⠥", "⠓⠊ ⠽⠕⠥"),
    ],
)
def test_invisible_word_boundaries_become_spaces(text, expected):
    assert visible(text) == expected


# Letters of scripts with and without joiners, and the invisible characters that are treated
# differently next to them.
MIXED_LETTERS = "a \u00ad\u200b\u200c\u200d\u2060\u2800م\u094dकกខ⠓\ufe0f"


@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
@hypothesis.given(hypothesis.strategies.text(MIXED_LETTERS, max_size=12))
def test_removing_invisible_characters_twice_changes_nothing_more(text):
    once = visible(text)

    assert visible(once) == once


@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
@hypothesis.given(hypothesis.strategies.text(MIXED_LETTERS, max_size=12))
def test_invisible_characters_are_removed_alike_from_a_text_and_from_its_words(text):
    words = text.split(" ")

    assert " ".join(map(visible, words)) == visible(text)


def test_no_invisible_character_is_special_in_brackets_of_a_regular_expression():
    """Otherwise f"[{INVISIBLE}]" would match something else."""
    special_in_brackets = set("[]^\\&~|")

    assert not set(INVISIBLE) & special_in_brackets
