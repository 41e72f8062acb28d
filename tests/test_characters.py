# ruff: noqa: RUF001 (letters of many scripts)
"""Invisible characters are removed from text, except where a script needs them."""

import sys
import unicodedata

import pytest

from fairseq_lxsr.characters import DEFAULT_IGNORABLE, INVISIBLE, visible
from fairseq_lxsr.files.lines import is_blank

regex = pytest.importorskip("regex")
hypothesis = pytest.importorskip("hypothesis")
CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1)]
CHARACTERS = [character for character in CHARACTERS if unicodedata.category(character) != "Cs"]
IGNORABLE = regex.findall(r"\p{Default_Ignorable_Code_Point}", "".join(CHARACTERS))
BRAILLE_BLANK = "\u2800"


def test_the_table_equals_the_property_of_unicode():
    characters = []
    for first, last in DEFAULT_IGNORABLE:
        characters += map(chr, range(first, last + 1))
    assert characters == IGNORABLE
    assert len(characters) > 4000


def test_ignorable_characters_are_removed_from_a_word():
    words = (
        "hy{}phen",
        "{}hyphen",
        "hyphen{}",
        "{0}hy{0}{0}phen{0}",
        "при{}вет",
        "日{}本",
        "한{}국",
        "{}",
    )
    for character in [*IGNORABLE, BRAILLE_BLANK]:
        code = f"U+{ord(character):04X}"
        for word in words:
            assert visible(word.format(character)) == word.format(""), f"{code} in {word}"
        assert is_blank(character), code
        assert is_blank(f" {character}\t{character}"), code


def test_all_other_characters_stay():
    removed = {*IGNORABLE, BRAILLE_BLANK}
    text = " ".join(character for character in CHARACTERS if character not in removed)
    # Comparing outside of assert avoids a report of a million characters.
    is_unchanged = visible(text) == text
    assert is_unchanged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Persian, "I want", also with a mark of direction.
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("می\u200c\u200fخواهم", "می\u200cخواهم"),
        # Hindi: half ka, not a ligature.
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        # Malayalam: a final form, written as a letter with virama and a joiner.
        ("ശ\u0d30\u0d4d\u200d", "ശ\u0d30\u0d4d\u200d"),
        # Sinhala, and Bengali: ra with ya after it.
        ("ශ්\u200dරී", "ශ්\u200dරී"),
        ("র\u200d\u09cdয", "র\u200d\u09cdয"),
        # At the end of a word, in Latin script, and in emoji, joiners are not needed.
        ("می\u200c", "می"),
        ("sof\u200cfer \u200dx", "soffer x"),
        ("👩\u200d🚀 ❤\ufe0f", "👩🚀 ❤"),
        # Word boundaries of Thai and Khmer, and of braille.
        ("ภาษา\u200bไทย", "ภาษา ไทย"),
        ("ខ្មែរ\u200b\u200b\u200bខ្មែរ", "ខ្មែរ  ខ្មែរ"),
        ("⠓⠊\u2800⠽⠕⠥", "⠓⠊ ⠽⠕⠥"),
        # The vowel separator of Mongolian.
        ("ᠮᠣᠩᠭᠣᠯ\u180eᠠ", "ᠮᠣᠩᠭᠣᠯᠠ"),
        # A flag with tags.
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4"),
        ("no such letter", "no such letter"),
    ],
)
def test_joiners_and_word_boundaries_stay_where_a_script_needs_them(text, expected):
    assert visible(text) == expected


@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
@hypothesis.given(
    hypothesis.strategies.text(
        "a \u00ad\u200b\u200c\u200d\u2060\u2800م\u094dकกខ⠓\ufe0f", max_size=12
    )
)
def test_removing_twice_or_word_by_word_gives_the_same_text(text):
    assert visible(visible(text)) == visible(text)
    words = text.split(" ")
    assert " ".join(map(visible, words)) == visible(text)


def test_invisible_characters_can_be_written_in_brackets_of_a_regular_expression():
    assert not set(INVISIBLE) & set("[]^\\&~|")
