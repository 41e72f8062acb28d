"""Chinese characters: traditional ones read as simplified ones, and how many of a text are
either.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from fairseq_lxsr.machine import require

EXTRA = "chinese"
# blocks of Chinese characters that have simplified forms: CJK Unified Ideographs, their extensions
# and compatible ones
HAN_BLOCKS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3347F))
# standards of the characters of either script, which share what is written alike
TRADITIONAL, SIMPLIFIED = "big5", "gb2312"


def require_converter() -> None:
    """Check for the package that knows which characters are forms of which, before any work."""
    require("opencc", EXTRA, "--simplify-chinese")


def simplified_characters() -> str:
    """Return each traditional character followed by its simplified one, as `TextOptions` records
    them.

    They are those of OpenCC, by itself each: which form a phrase asks for matters to 7 of 36,573
    characters.
    """
    require_converter()
    from opencc import OpenCC

    characters = [chr(code) for first, last in HAN_BLOCKS for code in range(first, last + 1)]
    simplified = OpenCC("t2s").convert("\n".join(characters)).split("\n")
    return "".join(
        old + new
        for old, new in zip(characters, simplified, strict=True)
        if old != new and len(new) == 1
    )


def describe_characters(
    lines: Iterable[str], is_unknown: Callable[[str], bool]
) -> dict[str, float]:
    """Return the percent of Chinese characters that are traditional alone, simplified alone, and
    unknown.

    Without Chinese characters there is nothing to describe; `is_unknown` is asked once for each
    character.
    """
    counts = Counter[str]()
    for line in lines:
        counts.update(line)
    han = {
        letter: count
        for letter, count in counts.items()
        if any(first <= ord(letter) <= last for first, last in HAN_BLOCKS)
    }
    kinds: dict[str, Callable[[str], bool]] = {
        "traditional only": lambda letter: (
            _is_of(letter, TRADITIONAL) and not _is_of(letter, SIMPLIFIED)
        ),
        "simplified only": lambda letter: (
            _is_of(letter, SIMPLIFIED) and not _is_of(letter, TRADITIONAL)
        ),
        "unknown to the pieces": is_unknown,
    }
    total = sum(han.values())
    return {
        kind: round(100 * sum(count for letter, count in han.items() if is_one(letter)) / total, 2)
        for kind, is_one in kinds.items()
        if total
    }


def _is_of(letter: str, standard: str) -> bool:
    try:
        return bool(letter.encode(standard))
    except UnicodeEncodeError:
        return False
