"""Filters on sentence pairs: small pure functions, applied in order, each drop counted under its name."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

Pair = tuple[str, str]

# scripts that are written without blanks count a word per character
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]|[^\s\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]+"
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\([^()\s]*\))?[-+#0 ]{0,3}\d*(?:\.\d+)?(?:hh|h|ll|l|L|q|j|z|t)?[a-zA-Z@](?![a-zA-Z])"
    r"|%<?\w+>|%\d+|\$\{[^}]*\}|\$\w+\$?|\{[\w.:!]*\}|%%"
)
_ACCELERATOR = re.compile(r"\s*\([_&~]\w\)|(?<![\w&_~])[_&~](?=[^\W_])")
_ESCAPE = re.compile(r"\\[ntrfva\\\"']")
_EMPTY_QUOTES = re.compile(r"[«\"'`“‘„(\[<]\s*[»\"'’”“)\]>]")
_BLANKS = re.compile(r"\s+")


def count_words(text: str) -> int:
    """Words of a sentence; every character of a script without blanks is one."""
    return len(_WORD.findall(text))


def strip_message(text: str) -> str:
    """The words of a program message: without mark-up, placeholders, keyboard accelerators and line breaks."""
    for pattern in (_ESCAPE, _TAG, _PLACEHOLDER):
        text = pattern.sub(" ", text)
    text = _ACCELERATOR.sub("", html.unescape(text))
    text = _EMPTY_QUOTES.sub(" ", text)
    return _BLANKS.sub(" ", text).strip(" \t:;,.-–—=|*/\\")


def too_short_or_long(pair: Pair, shortest: int = 3, longest: int = 60) -> bool:
    return not all(shortest <= count_words(side) <= longest for side in pair)


def lengths_differ(pair: Pair, ratio: float = 2.5) -> bool:
    """One side more than `ratio` times as long as the other, in words (two words of slack for short sentences)."""
    short, long = sorted(map(count_words, pair))
    return long > ratio * short + 2


def mostly_not_letters(pair: Pair, share: float = 0.6) -> bool:
    """A side with fewer letters than `share` of its characters, blanks not counted."""
    return not all(sum(map(str.isalpha, side)) >= share * len(side.replace(" ", "")) > 0 for side in pair)


def identical(pair: Pair) -> bool:
    return comparable(pair[0]) == comparable(pair[1])


def comparable(text: str) -> str:
    """What two sentences have in common when they are the same but for case, punctuation and digits."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub(r"[\W_]+", " ", re.sub(r"\d", "0", folded)).split())


FILTERS: dict[str, Callable[[Pair], bool]] = {
    "length": too_short_or_long,
    "length ratio": lengths_differ,
    "letters": mostly_not_letters,
    "identical": identical,
}


def clean(pairs: Iterable[Pair], dropped: Counter) -> Iterator[Pair]:
    """Pairs that pass every filter; `dropped` counts the others by the first filter that caught them."""
    for pair in pairs:
        reason = next((name for name, is_bad in FILTERS.items() if is_bad(pair)), None)
        if reason is None:
            yield pair
        else:
            dropped[reason] += 1


def one_to_one(pairs: Iterable[Pair], dropped: Counter) -> Iterator[Pair]:
    """Each sentence once: of pairs that share a side (see `comparable`), only the first is kept."""
    seen: tuple[set[str], set[str]] = (set(), set())
    for pair in pairs:
        keys = [comparable(side) for side in pair]
        if any(key in known for key, known in zip(keys, seen, strict=True)):
            dropped["repeated side"] += 1
            continue
        for key, known in zip(keys, seen, strict=True):
            known.add(key)
        yield pair
