"""Alternative spellings of sentences, so that a model treats both equally.

Serbian is written in both scripts, and Korean with fewer spaces.
"""

import random
import re
import unicodedata
from collections.abc import Callable

CYRILLIC = "абвгдђежзијклљмнњопрстћуфхцчџш"
LATIN = re.findall(r"\S+", "a b v g d đ e ž z i j k l lj m n nj o p r s t ć u f h c č dž š")
# Fraction of the spaces between Korean letters that are removed.
LEFT_OUT = 0.3
_SMALL = dict(zip(CYRILLIC, LATIN, strict=True))
_TO_LATIN = _SMALL | {letter.upper(): latin.capitalize() for letter, latin in _SMALL.items()}
_TO_CYRILLIC = {latin: letter for letter, latin in _TO_LATIN.items()}
_TO_CYRILLIC |= {latin.upper(): letter.upper() for letter, latin in _SMALL.items()}
_LETTERS = str.maketrans(_TO_LATIN)
# Longer letters such as lj come first.
_LATIN = re.compile("|".join(sorted(_TO_CYRILLIC, key=len, reverse=True)))
_ANY_CYRILLIC = re.compile("[\u0400-\u04ff]", re.IGNORECASE)
_ANY_LATIN_OR_ADDRESS = re.compile("[a-z\u00c0-\u024f]|://|@", re.IGNORECASE)
_KOREAN_BLANK = re.compile("(?<=[가-힣]) (?=[가-힣])")


def other_script(text: str, _: random.Random) -> str:
    """Return Serbian text in the other script, Cyrillic or Latin.

        other_script("Njegov đak", rng)  # "Његов ђак"

    Text with letters of other languages or with addresses is returned unchanged.
    """
    text = unicodedata.normalize("NFC", text)
    if any(letter in _TO_LATIN for letter in text):
        converted = text.translate(_LETTERS)
        foreign = _ANY_CYRILLIC
    else:
        converted = _LATIN.sub(lambda letter: _TO_CYRILLIC[letter[0]], text)
        foreign = _ANY_LATIN_OR_ADDRESS
    return text if foreign.search(converted) else converted


def written_together(text: str, rng: random.Random) -> str:
    """Remove some spaces from Korean text, as many people write it."""

    def blank(_: re.Match) -> str:
        return "" if rng.random() < LEFT_OUT else " "

    return _KOREAN_BLANK.sub(blank, text)


VARIANTS: dict[str, Callable[[str, random.Random], str]] = {
    "sr": other_script,
    "ko": written_together,
}
