"""Filters on sentence pairs: small pure functions, applied in order, each drop counted under its name."""

import functools
import html
import inspect
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from fairseq_lxsr.errors import InputError
from preprocess.alphabets import foreign_letter
from preprocess.language_id import language_check

Pair = tuple[str, str]

# scripts that are written without blanks count a word per character
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]|[^\s\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]+"
)
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NUMBER = re.compile(r"\d+(?:[.,'’\u00a0\u202f]\d+)*")
_NOT_DIGIT, _DIGIT, _NOT_WORD = re.compile(r"\D"), re.compile(r"\d"), re.compile(r"[\W_]+")
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
    return len(_WORD.findall(text)) if _UNSPACED.search(text) else len(text.split())


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
    return _NOT_WORD.sub(" ", _DIGIT.sub("0", folded)).strip()


def numbers_differ(pair: Pair) -> bool:
    """The numbers of one side, whatever separates their digits, are not those of the other."""
    source, target = (sorted(map(_digits, _NUMBER.findall(side))) for side in pair)
    return source != target


def _digits(number: str) -> str:
    return "".join(str(int(digit)) for digit in _NOT_DIGIT.sub("", number))


def in_foreign_letters(pair: Pair, find: Callable[[str], object]) -> bool:
    """A side with a letter that neither language is written with (the filter of Mao et al. 2021)."""
    return any(find(side) for side in pair)


def in_another_language(pair: Pair, languages: Pair, is_in: Callable[[str, str, str], bool]) -> bool:
    """A side that is not in its language."""
    source, target = languages
    return not (is_in(pair[0], source, target) and is_in(pair[1], target, source))


FILTERS: dict[str, Callable[..., bool]] = {
    "length": too_short_or_long,
    "ratio": lengths_differ,
    "letters": mostly_not_letters,
    "identical": identical,
    "numbers": numbers_differ,
    "characters": in_foreign_letters,
    "language": in_another_language,
}
MESSAGE_FILTERS: dict[str, dict[str, Any]] = {"length": {}, "ratio": {}, "letters": {}, "identical": {}}
Filters = dict[str, Callable[[Pair], bool]]


def make_filters(chosen: Mapping[str, Mapping[str, Any]], languages: Pair) -> Filters:
    """Filters by name, in the order chosen, with their options bound.

    Args: chosen: options of each, for example {"length": {"longest": 80}, "language": {"method": "stopwords"}}.
    Raises: InputError for an unknown filter or option.
    """
    filters: Filters = {}
    for name, given in chosen.items():
        if name not in FILTERS:
            raise InputError(f"filter {name!r}; expected some of {', '.join(FILTERS)}")
        options = dict(given)
        if name == "characters":
            options["find"] = foreign_letter(*languages)
        elif name == "language":
            method = options.pop("method", "stopwords")
            options |= {"languages": languages, "is_in": language_check(method)}
        known = list(inspect.signature(FILTERS[name]).parameters)[1:]
        for option in options:
            if option not in known:
                raise InputError(f"filter {name!r}: no option {option!r}; it has {', '.join(known) or 'none'}")
        filters[name] = functools.partial(FILTERS[name], **options)
    return filters


def first_objection(pair: Pair, filters: Filters) -> str | None:
    """The name of the first filter that would drop a pair."""
    return next((name for name, is_bad in filters.items() if is_bad(pair)), None)
