"""Lower case that a model which reads no capitals knows."""

import re
import unicodedata

from fairseq_lxsr.characters import in_brackets

DOT = "\u0307"  # above
# letters with a dot of their own, and the marks that may stand before a second dot: in lower case İ
# and Lithuanian letters with accents have it
DOTTED, MARKS = "[ijįɉɨʝḭị\u03f3\u0456\u0458]", "[\u0316-\u0333\u0339-\u033c]"
SECOND_DOT = f"({DOTTED}{MARKS}*){DOT}"
# where the letters are that have no lower case, such as U+2115 (N) and № (No), and whose letters in
# NFKC have one
STYLED_BLOCKS = (
    *(
        (0x3D2, 0x3D4),
        (0x1D2C, 0x1D42),
        (0x20A8, 0x2145),
        (0x2C7D, 0x2C7D),
        (0x3250, 0x33FF),
        (0xA7F1, 0xA7F8),
    ),
    *((0x1CCD6, 0x1CCEF), (0x1D400, 0x1D7FF), (0x1F110, 0x1F190)),
)
STYLED = f"[{in_brackets(STYLED_BLOCKS)}]"
_SECOND_DOT, _STYLED = re.compile(SECOND_DOT), re.compile(STYLED)
_ODD = re.compile(f"[{DOT}{in_brackets(STYLED_BLOCKS)}]")


def lower(text: str) -> str:
    """Convert a text to lower case that NFKC keeps: İ is i and № is no, with no mark and no capital
    left.
    """
    text = text.lower()
    if text.isascii() or not _ODD.search(text):
        return text
    return _STYLED.sub(_plain, without_second_dot(text))


def without_second_dot(text: str) -> str:
    """Remove the dot above that a letter with a dot of its own has got in lower case, as İ does."""
    return _SECOND_DOT.sub(r"\1", text) if DOT in text else text


def _plain(found: re.Match[str]) -> str:
    """Return the small letters of a capital in disguise, and anything else as it is."""
    letters = unicodedata.normalize("NFKC", found[0])
    return found[0] if letters == letters.lower() else letters.lower()
