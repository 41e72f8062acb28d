"""Other spellings of sentences, so that a model reads them alike: Serbian in both scripts, Korean
with fewer blanks.
"""

import random
import re
import unicodedata
from collections.abc import Callable

CYRILLIC = "абвгдђежзијклљмнњопрстћуфхцчџш"
LATIN = re.findall(r"\S+", "a b v g d đ e ž z i j k l lj m n nj o p r s t ć u f h c č dž š")
_SMALL = dict(zip(CYRILLIC, LATIN, strict=True))
_TO_LATIN = _SMALL | {letter.upper(): latin.capitalize() for letter, latin in _SMALL.items()}
_TO_CYRILLIC = {latin: letter for letter, latin in _TO_LATIN.items()}
_TO_CYRILLIC |= {latin.upper(): letter.upper() for letter, latin in _SMALL.items()}
_LETTERS = str.maketrans(_TO_LATIN)
_LATIN = re.compile("|".join(sorted(_TO_CYRILLIC, key=len, reverse=True)))
_KOREAN_BLANK = re.compile("(?<=[가-힣]) (?=[가-힣])")
TOGETHER = 0.3  # share of the blanks that are left out


def other_script(text: str, _: random.Random) -> str:
    """Write Serbian or Croatian in Latin letters if it is in Cyrillic ones, and otherwise in these.

        other_script("Njegov đak", rng)  # "Његов ђак"

    Text with letters of other languages, and addresses, stay.
    """
    text = unicodedata.normalize("NFC", text)
    is_cyrillic = any(letter in _TO_LATIN for letter in text)
    made = (
        text.translate(_LETTERS)
        if is_cyrillic
        else _LATIN.sub(lambda found: _TO_CYRILLIC[found[0]], text)
    )
    left = re.search(
        "[\u0400-\u04ff]" if is_cyrillic else "[a-z\u00c0-\u024f]|://|@", made, re.IGNORECASE
    )
    return text if left else made


def written_together(text: str, rng: random.Random) -> str:
    """Leave out some blanks of Korean, as many writers do."""
    return _KOREAN_BLANK.sub(lambda _: "" if rng.random() < TOGETHER else " ", text)


VARIANTS: dict[str, Callable[[str, random.Random], str]] = {
    "sr": other_script,
    "hr": other_script,
    "ko": written_together,
}
