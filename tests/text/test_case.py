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
        pytest.param("Déjà VU", "déjà vu", id="Latin"),
        pytest.param("ΟΔΟΣ ΣΑΣ", "οδος σας", id="Greek final sigma"),
        pytest.param("STRASSE STRAẞE Straße", "strasse straße straße", id="German sharp s"),
        # U+0307 is a dot above. Python's lower() gives i with a second dot for the Turkish İ.
        pytest.param("İSTANBUL", "istanbul", id="Turkish capital with dot"),
        pytest.param("I\u0307zmir", "izmir", id="Turkish capital in two characters"),
        pytest.param("ISPARTA ı", "isparta ı", id="Turkish letter without dot"),
        pytest.param("І\u0307 Ј\u0307", "і ј", id="Cyrillic capitals with dot"),
        # Lithuanian may write a second dot (U+0307) between an i and its accent (U+0301, U+0303),
        # also after an ogonek (U+0328). It is removed, as the capitals have none.
        pytest.param("i\u0307\u0301 į\u0307\u0301", "i\u0301 į\u0301", id="Lithuanian dots"),
        pytest.param("i\u0328\u0307\u0303", "i\u0328\u0303", id="Lithuanian dot after ogonek"),
        pytest.param("Ĩ Į\u0301", "ĩ į\u0301", id="Lithuanian without dots"),
        # These dots stay: a and z have no dot of their own, so it is the only one.
        pytest.param("Ȧ a\u0307 Ż", "ȧ a\u0307 ż", id="dots above letters without one"),
        # These capitals have no lower case in Unicode; that of their plain letters is taken.
        pytest.param("ℕ №5 ℃ ™ 🄰 ㎅ ᴬ", "n no5 °c tm a kb a", id="symbols"),
        pytest.param("𝓗𝓮𝓵𝓵𝓸 𝐀", "h𝓮𝓵𝓵𝓸 a", id="mathematical letters"),
        # Unicode has a lower case for full-width letters and Roman numerals. The euro has no case.
        pytest.param("Å K Ω Ｆ Ⅳ €", "å k ω ｆ ⅳ €", id="other signs"),
    ],
)
def test_lower_case_of_many_scripts(text, expected):
    lowered = lower(text)
    normalised = normalise(text, TextOptions(lowercase=True, version=TEXT_VERSION))

    assert lowered == expected
    assert normalised == expected


def test_the_lower_case_of_a_letter_has_no_capitals_and_no_added_marks():
    for letter in LETTERS:
        small = lower(letter)

        # SentencePiece applies NFKC afterwards, which must not bring back a capital.
        normal = unicodedata.normalize("NFKC", small)
        name = f"U+{ord(letter):04X}"
        assert normal == normal.lower(), name
        assert unicodedata.combining(small[-1]) == unicodedata.combining(letter), name


def test_lower_differs_from_python_only_for_letters_that_nfkc_changes_and_the_turkish_capital():
    different_letters = [letter for letter in LETTERS if lower(letter) != letter.lower()]

    for letter in different_letters:
        is_changed_by_nfkc = unicodedata.normalize("NFKC", letter) != letter
        assert is_changed_by_nfkc or letter == "İ", f"U+{ord(letter):04X}"


def test_texts_that_differ_only_in_case_are_duplicates():
    for letter in LETTERS:
        capital_text = f"a{letter}b"
        small_text = f"a{lower(letter)}b"

        assert comparable(capital_text) == comparable(small_text), f"U+{ord(letter):04X}"
    assert comparable("İZMİR") == comparable("izmir")


def test_texts_that_differ_only_in_soft_hyphens_are_duplicates():
    assert comparable("hy\u00adphen") == comparable("hyphen")
