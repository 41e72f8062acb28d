# ruff: noqa: RUF001 (letters of many scripts)
"""Text is read without what shows nothing."""

import sys
import unicodedata

import pytest

from fairseq_lxsr.characters import DEFAULT_IGNORABLE, INVISIBLE, visible
from fairseq_lxsr.files.lines import is_blank

regex = pytest.importorskip("regex")
hypothesis = pytest.importorskip("hypothesis")
LETTERS = [
    letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(letter) != "Cs"
]
IGNORABLE = regex.findall(r"\p{Default_Ignorable_Code_Point}", "".join(LETTERS))


def test_the_table_is_the_property_of_unicode():
    codes = [code for first, last in DEFAULT_IGNORABLE for code in range(first, last + 1)]
    assert list(map(chr, codes)) == IGNORABLE
    assert len(codes) > 4000


def test_a_word_is_read_without_any_of_them():
    for letter in [*IGNORABLE, "\u2800"]:
        for word in (
            "hy{}phen",
            "{}hyphen",
            "hyphen{}",
            "{0}hy{0}{0}phen{0}",
            "при{}вет",
            "日{}本",
            "한{}국",
            "{}",
        ):
            assert visible(word.format(letter)) == word.format(""), f"U+{ord(letter):04X} in {word}"
        assert is_blank(letter), f"U+{ord(letter):04X}"
        assert is_blank(f" {letter}\t{letter}")
    left_out = {*IGNORABLE, "\u2800"}
    others = " ".join(letter for letter in LETTERS if letter not in left_out)
    is_kept = visible(others) == others
    assert is_kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("می\u200cخواهم", None),  # Persian, "I want"
        ("می\u200c\u200fخواهم", "می\u200cخواهم"),  # with a mark of direction
        ("क\u094d\u200dष", None),  # Hindi: half ka, not a ligature
        (
            "ശ\u0d30\u0d4d\u200d",
            None,
        ),  # Malayalam: a final form, written as a silenced letter and a joiner
        ("ශ්\u200dරී", None),  # Sinhala
        ("র\u200d\u09cdয", None),  # Bengali: ra with ya after it
        ("می\u200c", "می"),
        ("sof\u200cfer \u200dx", "soffer x"),
        ("👩\u200d🚀 ❤\ufe0f", "👩🚀 ❤"),
        ("ภาษา\u200bไทย", "ภาษา ไทย"),  # words of Thai
        ("ខ្មែរ\u200b\u200b\u200bខ្មែរ", "ខ្មែរ  ខ្មែរ"),
        ("⠓⠊\u2800⠽⠕⠥", "⠓⠊ ⠽⠕⠥"),  # braille
        ("ᠮᠣᠩᠭᠣᠯ\u180eᠠ", "ᠮᠣᠩᠭᠣᠯᠠ"),  # Mongolian
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4"),  # a flag with tags
        ("no such letter", None),
    ],
)
def test_what_scripts_need_stays(text, expected):
    assert visible(text) == (text if expected is None else expected)


@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
@hypothesis.given(
    hypothesis.strategies.text(
        "a \u00ad\u200b\u200c\u200d\u2060\u2800م\u094dकกខ⠓\ufe0f", max_size=12
    )
)
def test_nothing_is_left_to_leave_out(text):
    assert visible(visible(text)) == visible(text)
    words = text.split(" ")
    assert " ".join(map(visible, words)) == visible(text)


def test_the_pattern_is_content_of_brackets():
    assert not set(INVISIBLE) & set("[]^\\&~|")
