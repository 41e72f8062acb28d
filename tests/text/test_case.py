# ruff: noqa: RUF001 (letters of many scripts)
"""Lower case leaves no mark and no capital that a model in lower case does not know."""

import sys
import unicodedata

import pytest

from fairseq_lxsr.preparation.clean import comparable
from fairseq_lxsr.text.case import lower
from fairseq_lxsr.text.tokenizer import TextOptions, normalise

LETTERS = [
    letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(letter) != "Cs"
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("İSTANBUL", "istanbul"),
        ("I\u0307zmir", "izmir"),  # İ in two characters
        ("ISPARTA ı", "isparta ı"),
        (
            "Ĩ Į\u0301 i\u0307\u0301 į\u0307\u0301 i\u0328\u0307\u0303",
            "ĩ į\u0301 i\u0301 į\u0301 i\u0328\u0303",
        ),
        ("І\u0307 Ј\u0307", "і ј"),  # Cyrillic
        ("Ȧ a\u0307 Ż", "ȧ a\u0307 ż"),
        ("STRASSE STRAẞE Straße", "strasse straße straße"),
        ("ΟΔΟΣ ΣΑΣ", "οδος σας"),
        ("ℕ №5 ℃ ™ 𝓗𝓮𝓵𝓵𝓸 𝐀 🄰 ㎅ ᴬ", "n no5 °c tm h𝓮𝓵𝓵𝓸 a a kb a"),
        ("Å K Ω Ｆ Ⅳ €", "å k ω ｆ ⅳ €"),
        ("Déjà VU", "déjà vu"),
    ],
)
def test_by_hand(text, expected):
    assert lower(text) == expected
    assert normalise(text, TextOptions(lowercase=True, version=3)) == expected


def test_no_letter_becomes_a_mark_or_stays_a_capital():
    for letter in LETTERS:
        small, normal = lower(letter), unicodedata.normalize("NFKC", lower(letter))
        assert normal == normal.lower(), f"U+{ord(letter):04X}"
        assert unicodedata.combining(small[-1]) == unicodedata.combining(letter), (
            f"U+{ord(letter):04X}"
        )
        if lower(letter) != letter.lower():
            assert unicodedata.normalize("NFKC", letter) != letter or letter == "İ"


def test_what_is_equal_in_lower_case_is_a_duplicate():
    for letter in filter(lambda letter: lower(letter) != letter, LETTERS):
        assert comparable(f"a{letter}b") == comparable(f"a{lower(letter)}b"), f"U+{ord(letter):04X}"
    assert comparable("İZMİR hy\u00adphen") == comparable("izmir hyphen")
