"""Converts traditional Chinese characters to simplified ones, and counts how often both occur."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fairseq_lxsr.machine import require

EXTRA = "chinese"
# Unicode blocks of Chinese characters that have simplified forms: CJK Unified Ideographs, their
# extensions, and CJK Compatibility Ideographs.
HAN_BLOCKS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3347F))
# Character encodings that each cover one script. Characters shared by the two scripts are in both.
TRADITIONAL = "big5"
SIMPLIFIED = "gb2312"


def require_converter() -> None:
    """Check that the OpenCC package is installed.

    Raises:
        InputError: if OpenCC is missing.
    """
    require("opencc", EXTRA, "--simplify-chinese")


def simplified_characters() -> str:
    """Return all traditional characters, each followed by its simplified form.

    This is a value for the text option `read_as`.

    OpenCC converts each character separately. For 7 of the 36,573 characters, the simplified form
    would be different within a phrase.
    """
    require_converter()
    from opencc import OpenCC

    characters: list[str] = []
    for first, last in HAN_BLOCKS:
        characters.extend(map(chr, range(first, last + 1)))
    simplified = OpenCC("t2s").convert("\n".join(characters)).split("\n")
    pairs = []
    for character, form in zip(characters, simplified, strict=True):
        if form != character and len(form) == 1:
            pairs.append(character + form)
    return "".join(pairs)


def describe_characters(
    lines: Iterable[str], is_unknown: Callable[[str], bool]
) -> dict[str, float]:
    """Return the percentages of traditional, simplified and unknown Chinese characters.

    Args:
        lines: lines of text.
        is_unknown: returns whether a character is missing from the word pieces; called once for
            each distinct Chinese character.

    Returns:
        The percentages of characters that are only traditional, only simplified, or unknown,
        rounded to two digits; empty if the text has no Chinese characters.
    """
    letter_counts = Counter[str]()
    for line in lines:
        letter_counts.update(line)
    han_counts = {letter: count for letter, count in letter_counts.items() if _is_han(letter)}
    if not han_counts:
        return {}
    return {
        "traditional only": _percentage(han_counts, _is_only_traditional),
        "simplified only": _percentage(han_counts, _is_only_simplified),
        "unknown to the pieces": _percentage(han_counts, is_unknown),
    }


def _percentage(counts: Mapping[str, int], has_property: Callable[[str], bool]) -> float:
    matching = sum(count for letter, count in counts.items() if has_property(letter))
    return round(100 * matching / sum(counts.values()), 2)


def _is_only_traditional(letter: str) -> bool:
    return _is_in(letter, TRADITIONAL) and not _is_in(letter, SIMPLIFIED)


def _is_only_simplified(letter: str) -> bool:
    return _is_in(letter, SIMPLIFIED) and not _is_in(letter, TRADITIONAL)


def _is_han(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in HAN_BLOCKS)


def _is_in(letter: str, character_set: str) -> bool:
    try:
        letter.encode(character_set)
    except UnicodeEncodeError:
        return False
    return True
