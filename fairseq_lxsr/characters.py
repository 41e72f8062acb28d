"""Removes invisible characters, such as soft hyphens and direction marks, from text.

These are the characters with the Unicode property Default_Ignorable_Code_Point, and the empty
Braille cell. Some are meaningful next to certain letters: joiners are kept there, and a zero-width
space or an empty Braille cell is replaced by a space (see `visible`).
"""

import re
import unicodedata
from collections.abc import Iterable

# Code point ranges with the Unicode property Default_Ignorable_Code_Point, including reserved ones.
DEFAULT_IGNORABLE = (
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
# Unicode blocks of scripts with joining or clustering letters: Arabic, Syriac, N'Ko, Mongolian,
# South Asian scripts, Tibetan, Burmese, Khmer, Javanese, Adlam.
JOINING_BLOCKS = (
    (0x600, 0x77F),
    (0x7C0, 0x7FF),
    (0x840, 0xDFF),
    (0xF00, 0x109F),
    (0x1700, 0x18AF),
    (0x1A20, 0x1AAF),
    (0x1B00, 0x1C4F),
    (0x1CD0, 0x1CFF),
    (0xA800, 0xA82F),
    (0xA840, 0xA8FF),
    (0xA980, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xAAE0, 0xAAFF),
    (0xABC0, 0xABFF),
    (0xFB50, 0xFDFF),
    (0xFE70, 0xFEFC),
    (0x10A00, 0x10A5F),
    (0x10AC0, 0x10AFF),
    (0x10B80, 0x10BAF),
    (0x10D00, 0x10D3F),
    (0x10EC0, 0x10FFF),
    (0x11000, 0x11DAF),
    (0x11F00, 0x11F5F),
    (0x1E900, 0x1E95F),
)
# Unicode blocks of scripts written without spaces between words: Thai, Lao, Tibetan, Burmese,
# Khmer, Tai, Javanese.
UNSPACED_BLOCKS = (
    (0xE00, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19FF),
    (0x1A20, 0x1AAF),
    (0x1B00, 0x1B7F),
    (0xA980, 0xA9FF),
    (0xAA60, 0xAADF),
)
ZERO_WIDTH_SPACE = "\u200b"
BLANK_CELL = "\u2800"
JOINERS = "\u200c\u200d"
# Canonical combining class of viramas.
VIRAMA_CLASS = 9


def in_brackets(ranges: Iterable[tuple[int, int]]) -> str:
    """Format code point ranges as the contents of a character class in a regular expression.

    The result has no brackets, and is valid in Python, JavaScript and the tokenizers library.
    """
    parts = []
    for first, last in ranges:
        part = _in_pattern(first)
        if last > first:
            part += f"-{_in_pattern(last)}"
        parts.append(part)
    return "".join(parts)


def _in_pattern(code: int) -> str:
    # Some ASCII punctuation is special inside a character class.
    if code > 127 or chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}"


def _viramas() -> str:
    """Return all viramas in the `JOINING_BLOCKS`, as one string.

    A virama is a sign that mutes the vowel of a letter. A joiner after it selects its shape.
    """
    signs = []
    for first, last in JOINING_BLOCKS:
        letters = map(chr, range(first, last + 1))
        signs += [letter for letter in letters if unicodedata.combining(letter) == VIRAMA_CLASS]
    return "".join(signs)


def combining_marks() -> str:
    """Return all combining marks in the Basic Multilingual Plane, such as vowel signs and accents.

    This function takes 40 ms, so patterns that contain the marks should be compiled on first use.
    Marks in other planes are left out, because they would make `re` ten times slower.

    Returns:
        The marks, as one string.
    """
    characters = map(chr, range(0x300, 0x10000))
    return "".join(mark for mark in characters if unicodedata.category(mark)[0] == "M")


# The contents of character classes, without the brackets.
INVISIBLE = in_brackets(DEFAULT_IGNORABLE) + BLANK_CELL
_NOT_JOINERS = INVISIBLE.replace("\u200b-\u200f", "\u200b\u200e\u200f")
_JOINING = in_brackets(JOINING_BLOCKS)
_UNSPACED = in_brackets(UNSPACED_BLOCKS)
_CELLS = "\u2801-\u28ff"
# Regular expressions and their replacements, in the order in which they are applied. They are valid
# in Python, JavaScript and the tokenizers library.
INVISIBLE_STEPS = (
    (f"(?<=[{_UNSPACED}]){ZERO_WIDTH_SPACE}|{ZERO_WIDTH_SPACE}(?=[{_UNSPACED}])", " "),
    (f"(?<=[{_CELLS}]){BLANK_CELL}|{BLANK_CELL}(?=[{_CELLS}])", " "),
    (f"[{_NOT_JOINERS}]+", ""),
    (f"(?<![{_JOINING}])[{JOINERS}]|(?<![{_viramas()}])[{JOINERS}](?![{_JOINING}])", ""),
)
# Vowel marks and other signs that most Arabic text omits, and the lengthening stroke (tatweel).
# Hamza and madda are not included, because they distinguish letters.
ARABIC_MARKS = (
    (0x610, 0x61A),
    (0x640, 0x640),
    (0x64B, 0x652),
    (0x670, 0x670),
    (0x6D6, 0x6DC),
    (0x6DF, 0x6E4),
    (0x6E7, 0x6E8),
    (0x6EA, 0x6ED),
    (0xFC5E, 0xFC63),
    (0xFCF2, 0xFCF4),
    (0xFE70, 0xFE72),
    (0xFE74, 0xFE74),
    (0xFE76, 0xFE7F),
)
VOWEL_MARKS = in_brackets(ARABIC_MARKS)
# The last five entries replace letters that NFKC decomposes into a letter and a mark.
ARABIC_STEPS = (
    (f"[{VOWEL_MARKS}]+", ""),
    ("[ﴼﴽ]", "\u0627"),
    ("ﱛ", "ذ"),
    ("ﱜ", "ر"),
    ("[ﱝﲐ]", "ى"),
    ("ﳙ", "\u0647"),
)
# All characters that `without_marks` removes or replaces.
STEPS = INVISIBLE_STEPS + ARABIC_STEPS
_INVISIBLE_PATTERN = re.compile(f"[{INVISIBLE}]")
_INVISIBLE_STEPS = [(re.compile(pattern), replacement) for pattern, replacement in INVISIBLE_STEPS]
_ARABIC_STEPS = [(re.compile(pattern), replacement) for pattern, replacement in ARABIC_STEPS]


def without_marks(text: str) -> str:
    """Return text without invisible characters, Arabic vowel marks and lengthening strokes."""
    text = visible(text)
    if text.isascii():
        return text
    for pattern, replacement in _ARABIC_STEPS:
        text = pattern.sub(replacement, text)
    return text


def visible(text: str) -> str:
    """Remove invisible characters from text.

        visible("hy\\u00adphen")  # "hyphen"

    Joiners are kept between letters of scripts whose letters join (such as Arabic and South Asian
    scripts), and after signs that mute a letter's vowel. A zero-width space becomes a space next to
    letters of scripts without spaces (such as Thai and Khmer), and so does the empty Braille cell
    next to other cells.
    """
    if text.isascii() or not _INVISIBLE_PATTERN.search(text):
        return text
    for pattern, replacement in _INVISIBLE_STEPS:
        text = pattern.sub(replacement, text)
    return text
