# ruff: noqa: RUF001 (letters of many scripts)
"""Lower case has no capitals, and no combining marks that the text did not have."""

import sys
import unicodedata

import pytest

from fairseq_lxsr.preparation.clean import comparable
from fairseq_lxsr.text.case import lower
from fairseq_lxsr.text.tokenizer import TEXT_VERSION, TextOptions, normalise

ALL_CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1)]
# Without surrogates.
LETTERS = [letter for letter in ALL_CHARACTERS if unicodedata.category(letter) != "Cs"]


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
def test_lower_case_of_many_scripts(text, expected):
    assert lower(text) == expected
    assert normalise(text, TextOptions(lowercase=True, version=TEXT_VERSION)) == expected


def test_the_lower_case_of_a_letter_is_no_capital_and_no_mark():
    for letter in LETTERS:
        small = lower(letter)
        normal = unicodedata.normalize("NFKC", small)
        name = f"U+{ord(letter):04X}"
        assert normal == normal.lower(), name
        assert unicodedata.combining(small[-1]) == unicodedata.combining(letter), name
        # Python differs only for letters that NFKC changes, and for the Turkish capital.
        if small != letter.lower():
            assert unicodedata.normalize("NFKC", letter) != letter or letter == "İ", name


def test_texts_that_differ_in_case_are_duplicates():
    for letter in LETTERS:
        small = lower(letter)
        if small != letter:
            assert comparable(f"a{letter}b") == comparable(f"a{small}b"), f"U+{ord(letter):04X}"
    assert comparable("İZMİR hy\u00adphen") == comparable("izmir hyphen")
