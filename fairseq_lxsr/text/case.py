"""Lowercasing without leftover capital letters or added combining marks."""

import re
import unicodedata

from fairseq_lxsr.characters import in_brackets

# The character "combining dot above".
DOT = "\u0307"
# Letters that already have a dot, and marks that may precede a second dot. Lowercasing adds a
# second dot to İ and to accented Lithuanian letters.
DOTTED = "[ijįɉɨʝḭị\u03f3\u0456\u0458]"
MARKS = "[\u0316-\u0333\u0339-\u033c]"
SECOND_DOT = f"({DOTTED}{MARKS}*){DOT}"
# Unicode blocks with styled capitals, such as U+2115 (N) and №, which have no lowercase form; their
# NFKC forms have one.
STYLED_BLOCKS = (
    (0x3D2, 0x3D4),
    (0x1D2C, 0x1D42),
    (0x20A8, 0x2145),
    (0x2C7D, 0x2C7D),
    (0x3250, 0x33FF),
    (0xA7F1, 0xA7F8),
    (0x1CCD6, 0x1CCEF),
    (0x1D400, 0x1D7FF),
    (0x1F110, 0x1F190),
)
STYLED = f"[{in_brackets(STYLED_BLOCKS)}]"
_SECOND_DOT = re.compile(SECOND_DOT)
_STYLED = re.compile(STYLED)
_ODD = re.compile(f"[{DOT}{in_brackets(STYLED_BLOCKS)}]")


def lower(text: str) -> str:
    """Lowercase text so that NFKC normalization does not reintroduce capitals.

    For example, İ becomes i, and № becomes no. No capital remains, and no mark is added.
    """
    text = text.lower()
    if text.isascii() or not _ODD.search(text):
        return text
    return _STYLED.sub(_plain, without_second_dot(text))


def without_second_dot(text: str) -> str:
    """Remove a combining dot above letters that already have a dot, such as lowercased İ."""
    return _SECOND_DOT.sub(r"\1", text) if DOT in text else text


def _plain(match: re.Match[str]) -> str:
    """Replace a styled capital with plain lowercase letters; keep any other character."""
    letters = unicodedata.normalize("NFKC", match[0])
    small_letters = letters.lower()
    return match[0] if letters == small_letters else small_letters
