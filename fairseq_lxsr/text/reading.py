"""Reads away what is no text: mark-up, web addresses, blanks in Chinese, Latin look-alikes.

Each rule is a regular expression with a replacement. The expressions are valid in Python,
JavaScript and the tokenizers library, so every export reads text in the same way.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from fairseq_lxsr.characters import STEPS, ZERO_WIDTH_SPACE
from fairseq_lxsr.files.lines import BLANKS

Steps = tuple[tuple[str, str], ...]
Pattern = tuple[re.Pattern[str], str]

_BLANK = BLANKS.removesuffix("+")
_NO_BLANK = _BLANK.replace("[", "[^", 1)
# Anything but blanks and ASCII signs: letters and digits of all scripts, and other signs.
_NO_SIGN = r"[^\x00-/:-@\[-`{-\u00a0]"
# HTML tags that may stand within a word, or before a punctuation mark.
INLINE_TAGS = (
    "a|abbr|b|big|bdo|cite|code|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|strike|strong|"
    "sub|sup|tt|u|var"
)
# HTML tags that separate words.
BLOCK_TAGS = (
    "blockquote|br|center|dd|div|dl|dt|h[1-6]|hr|img|li|ol|p|pre|table|tbody|td|tfoot|th|thead|tr|"
    "ul|wbr"
)
# If the expression did not look ahead first, its time would be quadratic in the length of the text.
_TAG = "<(?=/?[a-zA-Z][^<>]*>)"
_ATTRIBUTES = f"(?:{_BLANK}[^<>]*=[^<>]*)?{_BLANK}*/?>"
# A web address ends in a letter, a digit or one of a few signs.
_ADDRESS = r"https?://[!#-;=?-\[\]_a-z~]*[#%&+\-/0-9=@A-Z_a-z]"
# The end of a link of Markdown: its target has a stop, a slash or a number sign, unlike most code.
_TARGET = r"\]\((?=[^()<>\x00-\x20]*[./#])[^()<>\x00-\x20]*\)"
# Chinese and Japanese characters and their punctuation.
_HAN = "[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff9f]"


def _tags(names: str) -> str:
    return f"{_TAG}/?(?:{names}|{names.upper()}){_ATTRIBUTES}"


# Rules that look at several words.
TEXT_STEPS: Steps = (
    (_tags(INLINE_TAGS), ""),
    (f"{_tags(BLOCK_TAGS)}|<!--[^<>]*-->", " "),
    # Other names in angle brackets may be text, unless they close, are empty or have an attribute.
    (f"{_TAG}(?:/[^<>]*|[^<>]*(?:=[\"'][^<>]*|/))>", " "),
    # The text of a link stays.
    (rf"!?\[(?=[^\[\]]*{_TARGET})", ""),
    (f"(?<={_NO_BLANK}){_TARGET}", ""),
    # An address stays if it is the whole text.
    (f"(?:(?<={_NO_BLANK})|(?<={_NO_BLANK}{_BLANK})){_ADDRESS}", ""),
    (f"{_ADDRESS}(?={_BLANK}{_NO_BLANK})", ""),
    (f"(?<={_HAN}){BLANKS}(?={_HAN})", ""),
)
# Rules that look at one word.
WORD_STEPS: Steps = (
    # Marks of footnotes after a word or a punctuation mark, such as [1] or [2,3].
    (rf"(?<=[.,:;!?\x22')]|{_NO_SIGN})\[[1-9][0-9]{{0,2}}(?:[,\-\u2013][0-9]{{1,3}})*\]", ""),
    (rf"(?<={_NO_SIGN})_+(?={_NO_SIGN})|\||-{{3,}}|={{3,}}", " "),
    (
        r"_+|~~+|``+|(?<![*0-9A-Za-z])\*+|\*+(?![*0-9A-Za-z])|(?<![#&0-9A-Za-z])#+(?![#0-9])",
        "",
    ),
)
# Number of texts to search at once for signs.
TEXTS_PER_SEARCH = 512
# Every text that a rule changes contains one of these signs, Chinese, or letters of two scripts.
_TEXT_SIGNS = (("<", "<"), ("]", "]("), ("/", "://"))
_WORD_SIGNS = ("_", "|", "*", "#", "[", "~~", "``", "---", "===")

# Latin letters and the Cyrillic and Greek letters whose small or capital form looks the same.
_CYRILLIC = ("abcehijkmoptxy", "авсеніјкмортху")
_GREEK = ("abehikmnoptuvxyz", "αβεηικμνορτυνχυζ")
_CYRILLIC_LETTER = "[\u0400-\u0481\u048a-\u052f]"
_GREEK_LETTER = "[\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u03ff\u1f00-\u1fff]"
# A single Greek letter may be part of a unit, such as kΩ or μm.
_SCRIPTS = ((*_CYRILLIC, _CYRILLIC_LETTER), (*_GREEK, f"{_GREEK_LETTER}{{2}}"))
_MIXED = re.compile("[A-Za-z][\u0370-\u052f\u1f00-\u1fff]|[\u0370-\u052f\u1f00-\u1fff][A-Za-z]")


@cache
def look_alike_steps(lowercase: bool) -> Steps:
    """Return rules for Latin letters in Cyrillic and Greek words.

    The letters are replaced if up to three of them stand next to letters of the other script, and
    not next to other Latin letters.

    Args:
        lowercase: whether text is lowercased afterwards, so that one rule is enough for both cases.
    """
    steps = []
    for latin, look_alikes, script in _SCRIPTS:
        for letter, look_alike in zip(latin, look_alikes, strict=True):
            pairs = [(letter, look_alike), (letter.upper(), look_alike.upper())]
            if lowercase:
                pairs = [(f"[{letter}{letter.upper()}]", look_alike)]
            pattern = _in_word(f"[{latin}{latin.upper()}]", script)
            steps += [(old + pattern, new) for old, new in pairs]
    return tuple(steps)


def _in_word(latin: str, script: str) -> str:
    """Return an expression that holds after a Latin look-alike in a word of another script.

    Args:
        latin: character class of the look-alikes.
        script: expression for letters of the other script.
    """
    starts = []
    ends = []
    for length in range(3):
        run = f"{latin}{{{length}}}." if length else "."
        starts.append(f"(?<={run})(?<![A-Za-z]{run})")
        ends.append(f"(?<={script}{run})")
    before = f"(?={latin}{{0,2}}{script})(?:{'|'.join(starts)})"
    after = f"(?={latin}{{0,2}}(?![A-Za-z]))(?:{'|'.join(ends)})"
    return f"(?:{before}|{after})"


def reading_steps(lowercase: bool) -> Steps:
    """Return all rules in the order in which they apply, also those for invisible characters."""
    return (
        *TEXT_STEPS,
        (ZERO_WIDTH_SPACE, ""),
        *STEPS,
        *WORD_STEPS,
        *look_alike_steps(lowercase),
    )


def read_texts(texts: Sequence[str]) -> list[str]:
    """Apply the rules that look at several words to each text."""
    read: list[str] = []
    for start in range(0, len(texts), TEXTS_PER_SEARCH):
        part = list(texts[start : start + TEXTS_PER_SEARCH])
        for index in _indices_of_changed(part):
            part[index] = _apply(part[index], _compiled(TEXT_STEPS))
        read += part
    return read


def _indices_of_changed(texts: Sequence[str]) -> set[int]:
    """Return the indices of the texts that `TEXT_STEPS` may change."""
    joined = "".join(texts)
    indices: set[int] = set()
    if _has_text_signs(joined):
        indices.update(index for index, text in enumerate(texts) if _has_text_signs(text))
    if not joined.isascii():
        places = _han_places(joined)
        if len(places):
            ends = np.fromiter(map(len, texts), np.int64, len(texts)).cumsum()
            indices.update(np.searchsorted(ends, places, side="right").tolist())
    return indices


def _has_text_signs(text: str) -> bool:
    # A single character is found much faster than several.
    return any(rarest in text and sign in text for rarest, sign in _TEXT_SIGNS)


def _han_places(text: str) -> np.ndarray:
    """Return the places of Chinese and Japanese characters before a blank or control character."""
    # In UTF-8, no other byte of text before these characters is as large, and bytes are searched
    # faster.
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    if data.max() < 0xE3:
        return np.zeros(0, dtype=np.int64)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    is_han = (codes > 0x3000) & (codes < 0xA000) | (codes >= 0xF900) & (codes < 0xFFA0)
    places = np.flatnonzero(is_han[:-1])
    return places[_is_blank()[codes[places + 1]]]


@cache
def _is_blank() -> np.ndarray:
    """Return a mask of the blanks in Unicode's first plane, and of nothing beyond."""
    is_blank = np.zeros(sys.maxunicode + 1, dtype=bool)
    for match in re.finditer(_BLANK, "".join(map(chr, range(0x10000)))):
        is_blank[match.start()] = True
    return is_blank


def read_word(text: str, lowercase: bool) -> str:
    """Apply the rules that look at one word to text without invisible characters."""
    if has_word_signs(text):
        text = _apply(text, _compiled(WORD_STEPS))
    if not text.isascii() and _MIXED.search(text):
        text = _apply(text, _compiled(look_alike_steps(lowercase)))
    return text


def has_word_signs(text: str) -> bool:
    """Return whether a rule for single words may change text of one script."""
    return any(sign in text for sign in _WORD_SIGNS)


def is_mixed(codes: np.ndarray) -> np.ndarray:
    """Return a mask of the letters that follow a letter of another script, bool [P].

    Args:
        codes: code points of text, uint32 [P].
    """
    is_latin = (codes | 0x20) - ord("a") < 26
    is_cyrillic_or_greek = (codes >= 0x370) & (codes < 0x530) | (codes >= 0x1F00) & (codes < 0x2000)
    mask = np.zeros(len(codes), dtype=bool)
    mask[1:] = is_latin[1:] & is_cyrillic_or_greek[:-1] | is_cyrillic_or_greek[1:] & is_latin[:-1]
    return mask


@cache
def _compiled(steps: Steps) -> list[Pattern]:
    return [(re.compile(pattern), replacement) for pattern, replacement in steps]


def _apply(text: str, steps: Iterable[Pattern]) -> str:
    for pattern, replacement in steps:
        text = pattern.sub(replacement, text)
    return text
