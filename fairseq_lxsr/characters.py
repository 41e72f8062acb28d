"""Characters that show nothing, such as soft hyphens and marks of direction: text is read without
them.

They are those with the property Default_Ignorable_Code_Point of Unicode, and the blank cell of
braille. Three of them say something in some scripts and are read there: joiners, the blank of no
width, and the blank cell.
"""

import re
import unicodedata
from collections.abc import Iterable

# first and last code points with the property; its reserved ranges are for characters of later
# versions
DEFAULT_IGNORABLE = (
    *(
        (0xAD, 0xAD),
        (0x34F, 0x34F),
        (0x61C, 0x61C),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
    ),
    *(
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
    ),
    *(
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0x1BCA0, 0x1BCA3),
        (0x1D173, 0x1D17A),
        (0xE0000, 0xE0FFF),
    ),
)
# blocks of scripts whose letters join or form clusters: Arabic, Syriac, N'Ko, Mongolian, those of
# India and its neighbours, Tibetan, Burmese, Khmer, Javanese, Adlam
JOINING_BLOCKS = (
    *(
        (0x600, 0x77F),
        (0x7C0, 0x7FF),
        (0x840, 0xDFF),
        (0xF00, 0x109F),
        (0x1700, 0x18AF),
        (0x1A20, 0x1AAF),
    ),
    *(
        (0x1B00, 0x1C4F),
        (0x1CD0, 0x1CFF),
        (0xA800, 0xA82F),
        (0xA840, 0xA8FF),
        (0xA980, 0xA9FF),
        (0xAA60, 0xAA7F),
    ),
    *(
        (0xAAE0, 0xAAFF),
        (0xABC0, 0xABFF),
        (0xFB50, 0xFDFF),
        (0xFE70, 0xFEFC),
        (0x10A00, 0x10A5F),
        (0x10AC0, 0x10AFF),
    ),
    *(
        (0x10B80, 0x10BAF),
        (0x10D00, 0x10D3F),
        (0x10EC0, 0x10FFF),
        (0x11000, 0x11DAF),
        (0x11F00, 0x11F5F),
    ),
    (0x1E900, 0x1E95F),
)
# blocks of scripts that write no blanks between words: Thai, Lao, Tibetan, Burmese, Khmer, Tai,
# Javanese
UNSPACED_BLOCKS = (
    *(
        (0xE00, 0x109F),
        (0x1780, 0x17FF),
        (0x1950, 0x19FF),
        (0x1A20, 0x1AAF),
        (0x1B00, 0x1B7F),
        (0xA980, 0xA9FF),
    ),
    *((0xAA60, 0xAADF),),
)
ZERO_WIDTH_SPACE, BLANK_CELL, JOINERS = "\u200b", "\u2800", "\u200c\u200d"


def in_brackets(ranges: Iterable[tuple[int, int]]) -> str:
    """Write ranges of code points as the content of a regular expression's brackets, as every
    dialect reads it.
    """
    return "".join(
        f"{_shown(first)}-{_shown(last)}" if last > first else _shown(first)
        for first, last in ranges
    )


def _shown(code: int) -> str:
    # some have a meaning there
    return chr(code) if code > 127 or chr(code).isalnum() else f"\\u{code:04x}"


def _silencers() -> str:
    """Return the signs that take the vowel from a letter, after which a joiner chooses its form
    (class 9).
    """
    codes = (code for first, last in JOINING_BLOCKS for code in range(first, last + 1))
    return "".join(letter for letter in map(chr, codes) if unicodedata.combining(letter) == 9)


# content of a regular expression's brackets
INVISIBLE = in_brackets(DEFAULT_IGNORABLE) + BLANK_CELL
_NOT_JOINERS = INVISIBLE.replace("\u200b-\u200f", "\u200b\u200e\u200f")
_JOINING, _UNSPACED, _CELLS = (
    in_brackets(JOINING_BLOCKS),
    in_brackets(UNSPACED_BLOCKS),
    "\u2801-\u28ff",
)
# regular expressions and what replaces them, in this order; Python, JavaScript and the library
# tokenizers read them
STEPS = (
    (f"(?<=[{_UNSPACED}]){ZERO_WIDTH_SPACE}|{ZERO_WIDTH_SPACE}(?=[{_UNSPACED}])", " "),
    (f"(?<=[{_CELLS}]){BLANK_CELL}|{BLANK_CELL}(?=[{_CELLS}])", " "),
    (f"[{_NOT_JOINERS}]+", ""),
    (f"(?<![{_JOINING}])[{JOINERS}]|(?<![{_silencers()}])[{JOINERS}](?![{_JOINING}])", ""),
)
# vowels and other signs that most Arabic text leaves out, and the stroke that makes words longer;
# not hamza and madda, which make other letters
ARABIC_MARKS = (
    *(
        (0x610, 0x61A),
        (0x640, 0x640),
        (0x64B, 0x652),
        (0x670, 0x670),
        (0x6D6, 0x6DC),
        (0x6DF, 0x6E4),
        (0x6E7, 0x6E8),
    ),
    *(
        (0x6EA, 0x6ED),
        (0xFC5E, 0xFC63),
        (0xFCF2, 0xFCF4),
        (0xFE70, 0xFE72),
        (0xFE74, 0xFE74),
        (0xFE76, 0xFE7F),
    ),
)
VOWEL_MARKS = in_brackets(ARABIC_MARKS)
# the last five are letters that Unicode's form NFKC takes apart into a letter and a mark
ARABIC_STEPS = (
    (f"[{VOWEL_MARKS}]+", ""),
    ("[ﴼﴽ]", "\u0627"),
    ("ﱛ", "ذ"),
    ("ﱜ", "ر"),
    ("[ﱝﲐ]", "ى"),
    ("ﳙ", "\u0647"),
)
_INVISIBLE = re.compile(f"[{INVISIBLE}]")
_STEPS, _ARABIC = (
    [(re.compile(old), new) for old, new in steps] for steps in (STEPS, ARABIC_STEPS)
)


def steps_of(version: int) -> tuple[tuple[str, str], ...]:
    """Return the regular expressions, and what replaces them, of a version of `TextOptions`."""
    return (STEPS[:0], STEPS, STEPS + ARABIC_STEPS)[version - 1]


def without_marks(text: str) -> str:
    """Leave out the vowel marks of Arabic, the strokes that make words longer, and what is
    invisible.
    """
    text = visible(text)
    for pattern, replacement in _ARABIC if not text.isascii() else ():
        text = pattern.sub(replacement, text)
    return text


def visible(text: str) -> str:
    """Leave out the characters of a text that show nothing.

        visible("hy\\u00adphen")  # "hyphen"

    A joiner stays between letters of a script whose letters join (Arabic, Persian, those of India),
    and after a sign that silences a vowel; a blank of no width is a blank beside letters of a
    script without blanks (Thai, Khmer), and the blank cell of braille beside other cells.
    """
    if text.isascii() or not _INVISIBLE.search(text):
        return text
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text
