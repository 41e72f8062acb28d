"""Filters for sentence pairs: small pure functions that are applied in order.

Dropped pairs are counted per filter.
"""

import functools
import html
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from fairseq_lxsr.characters import (
    UNSPACED_BLOCKS,
    combining_marks,
    in_brackets,
    visible,
    without_marks,
)
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.options import FileName, Range, at_least, between
from fairseq_lxsr.preparation.language_id import METHOD, LanguageCheck, language_check
from fairseq_lxsr.text.case import without_second_dot
from fairseq_lxsr.text.languages import best_code

TextPair = tuple[str, str]

# Default limits on the number of words in a sentence.
SHORTEST_SENTENCE = 3
LONGEST_SENTENCE = 60
# Unicode blocks for Han, Hiragana, Katakana, Bopomofo, Yi, Nushu, Tangut and Khitan.
_EAST_ASIAN_BLOCKS = (
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303C),
    (0x3041, 0x30FA),
    (0x30FC, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0xA4CF),
    (0xF900, 0xFAFF),
    (0x16FE0, 0x18D7F),
    (0x1AFF0, 0x1B2FF),
    (0x20000, 0x3FFFF),
)
# Scripts written without spaces, with the approximate number of characters per word.
_UNSPACED = {
    re.compile(f"[{in_brackets(_EAST_ASIAN_BLOCKS)}]"): 2,
    re.compile(f"[{in_brackets(UNSPACED_BLOCKS)}]"): 5,
}
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?: \d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,'’]\d+)*")
_DIGITS = re.compile(r"\d+")
_NOT_DIGIT = re.compile(r"\D")
_DIGIT = re.compile(r"\d")
_NOT_WORD = re.compile(r"[\W_]+")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\([^()\s]*\))?[-+#0 ]{0,3}\d*(?:\.\d+)?"
    r"(?:hh|h|ll|l|L|q|j|z|t)?[a-zA-Z@](?![a-zA-Z])"
    r"|%<?\w+>|%\d+|\$\{[^}]*\}|\$\w+\$?|\{[\w.:!]*\}|%%"
)
_ACCELERATOR = re.compile(r"\s*\([_&~]\w\)|(?<![\w&_~])[_&~](?=[^\W_])")
_ESCAPE = re.compile(r"\\[ntrfva\\\"']")
_EMPTY_QUOTES = re.compile(r"[«\"'`“‘„(\[<]\s*[»\"'’”“)\]>]")
_BLANKS = re.compile(r"\s+")


@functools.cache
def _mark() -> re.Pattern[str]:
    """Return a pattern that matches combining marks."""
    return re.compile(f"[{combining_marks()}]")


@functools.cache
def _not_word_or_mark() -> re.Pattern[str]:
    """Return a pattern like `_NOT_WORD` that keeps combining marks, and is ten times slower."""
    return re.compile(rf"(?:[^\w{combining_marks()}]|_)+")


def count_words(text: str) -> int:
    """Count the words in a sentence.

    For scripts without spaces between words, the count is estimated from the number of characters.
    """
    count = 0.0
    text = _normalized(text)
    if not text.isascii():
        for script, size in _UNSPACED.items():
            text, characters = script.subn(" ", text)
            count += characters / size
    return len(text.split()) + math.ceil(count)


# Cached, because several filters normalize the same two sentences.
@functools.lru_cache(maxsize=16)
def _normalized(text: str) -> str:
    """Normalize text in the same way as the tokenizer: NFKC, without ignored characters."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", without_marks(text))


def strip_message(text: str) -> str:
    """Remove mark-up, placeholders, keyboard shortcuts and line breaks from a program message."""
    for pattern in (_ESCAPE, _TAG, _PLACEHOLDER):
        text = pattern.sub(" ", text)
    text = _ACCELERATOR.sub("", html.unescape(text))
    text = _EMPTY_QUOTES.sub(" ", text)
    return _BLANKS.sub(" ", text).strip(" \t:;,.-–—=|*/\\")


def too_short_or_long(
    pair: TextPair,
    shortest: Annotated[int, at_least(0)] = SHORTEST_SENTENCE,
    longest: Annotated[int, at_least(0)] = LONGEST_SENTENCE,
) -> bool:
    """Return whether a side has fewer than `shortest` or more than `longest` words."""
    return not all(shortest <= count_words(side) <= longest for side in pair)


def lengths_differ(pair: TextPair, ratio: Annotated[float, Range(1)] = 2.5) -> bool:
    """Return whether one side has more than `ratio` times as many words as the other.

    A difference of two words is always tolerated.
    """
    short, long = sorted(map(count_words, pair))
    return long > ratio * short + 2


def mostly_not_letters(pair: TextPair, share: Annotated[float, between(0, 1)] = 0.6) -> bool:
    """Return whether letters make up less than `share` of a side, ignoring spaces."""
    lengths = ((side, len(side.replace(" ", ""))) for side in map(visible, pair))
    return not all(length and _letters(side) >= share * length for side, length in lengths)


def _letters(text: str) -> int:
    """Count letters and marks."""
    count = sum(map(str.isalpha, text))
    if not text.isascii():
        count += len(_mark().findall(text))
    return count


def identical(pair: TextPair) -> bool:
    """Return whether both sides are equal when compared by `comparable`."""
    return comparable(pair[0]) == comparable(pair[1])


# Cached, because filters and keys compare the same two sentences.
@functools.lru_cache(maxsize=16)
def comparable(text: str) -> str:
    """Return a normalized form of a sentence, for comparison with other sentences.

    Case is folded, punctuation becomes spaces, each digit becomes 0, and characters that models
    ignore are removed. So `Page 5` equals `page 7!`, but not `page 12`. Spellings that models with
    the rule `folded` read alike, such as ё and е, are equal. If a sentence has no letters or
    digits, only its case and spelling are folded. HTML entities are decoded, because the Moses
    tokenizer writes `It &apos;s` for `It's`.
    """
    # Imported here because it imports SentencePiece, which is slow.
    from fairseq_lxsr.text.folding import fold

    if "&" in text:
        text = html.unescape(text)
    folded = without_second_dot(unicodedata.normalize("NFKC", without_marks(text)).casefold())
    if not folded.isascii():
        folded = fold(folded)
    blanks = _NOT_WORD if folded.isascii() or not _mark().search(folded) else _not_word_or_mark()
    return blanks.sub(" ", _DIGIT.sub("0", folded)).strip() or folded.strip()


def numbers_differ(pair: TextPair) -> bool:
    """Return whether the two sides contain different numbers. Digit separators are ignored.

    12.05.2003 may be one number or three, and m² may contain no number or a 2. A pair is kept if
    both sides agree in one of these interpretations.
    """
    return all(
        _numbers(source, pattern) != _numbers(target, pattern)
        for source, target in (pair, map(_normalized, pair))
        for pattern in (_NUMBER, _DIGITS)
    )


def _numbers(text: str, pattern: re.Pattern[str]) -> list[str]:
    return sorted(map(_digits, pattern.findall(text)))


def _digits(number: str) -> str:
    return "".join(str(int(digit)) for digit in _NOT_DIGIT.sub("", number))


def in_foreign_letters(pair: TextPair, find: Callable[[str], object]) -> bool:
    """Return whether a side has a letter from neither alphabet (the filter of Mao et al. 2021).

    `find` is a function returned by `foreign_letter`.
    """
    return any(find(side) for side in pair)


def in_another_language(
    pair: TextPair,
    languages: TextPair,
    is_in: LanguageCheck,
    method: Annotated[str, METHOD] = "stopwords",
) -> bool:
    """Return whether a side is not in its language, according to `is_in` from `language_check`."""
    source, target = languages
    first, second = map(_normalized, pair)
    return not (is_in(first, source, target) and is_in(second, target, source))


FILTERS: dict[str, Callable[..., bool]] = {
    "length": too_short_or_long,
    "ratio": lengths_differ,
    "letters": mostly_not_letters,
    "identical": identical,
    "numbers": numbers_differ,
    "characters": in_foreign_letters,
    "language": in_another_language,
}
# Default filters for program messages.
MESSAGE_FILTERS: dict[str, dict[str, Any]] = {
    "length": {},
    "ratio": {},
    "letters": {},
    "identical": {},
}
Filters = dict[str, Callable[[TextPair], bool]]


def make_filters(chosen: Mapping[str, Mapping[str, Any] | None], languages: TextPair) -> Filters:
    """Map filter names to functions that return whether to drop a pair.

        filters = make_filters({"length": {"longest": 80}, "identical": {}}, ("en", "fr"))
        reason = first_failing_filter(("A dog.", "Un chien."), filters)

    Args:
        chosen: options of each filter, in the order in which to apply the filters.
        languages: source and target language.

    Raises:
        InputError: if a filter or option is unknown, or a filter does not support a language.
    """
    check_filters(chosen)
    filters: Filters = {}
    for name, values in chosen.items():
        options = dict(values or {})
        if name == "characters":
            options["find"] = foreign_letter(*languages)
        elif name == "language":
            options["languages"] = languages
            options["is_in"] = language_check(options.get("method", "stopwords"), *languages)
        filters[name] = functools.partial(FILTERS[name], **options)
    return filters


def check_filters(chosen: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Check the names and options of filters.

    Raises:
        InputError: if a name, an option or its value is invalid.
    """
    for name, options in chosen.items():
        if name not in FILTERS:
            raise InputError(f"unknown filter {shown(name)}; choose from {', '.join(FILTERS)}")
        allowed = filter_options(name)
        for option, value in (options or {}).items():
            if option not in allowed:
                expected = ", ".join(allowed) or "no options"
                raise InputError(
                    f"filter {name!r}: unknown option {shown(option)}; expected {expected}"
                )
            allowed[option].check(f"filter {name!r}: {option}", value)
    length = {
        "shortest": SHORTEST_SENTENCE,
        "longest": LONGEST_SENTENCE,
        **(chosen.get("length") or {}),
    }
    if length["shortest"] > length["longest"]:
        raise InputError(
            f"filter 'length': shortest {length['shortest']} is greater than longest "
            f"{length['longest']}"
        )


def filter_options(name: str) -> dict[str, Range | FileName]:
    """Return the valid range of each option of a filter, from the signature of its function."""
    hints = get_type_hints(FILTERS[name], include_extras=True)
    return {
        option: hint.__metadata__[0]
        for option, hint in hints.items()
        if get_origin(hint) is Annotated
    }


def first_failing_filter(pair: TextPair, filters: Filters) -> str | None:
    """Return the name of the first filter that drops a pair, or None if all filters keep it."""
    return next((name for name, is_bad in filters.items() if is_bad(pair)), None)


# Numbers, ordinal indicators such as in 2º, letter-like symbols, and every code point for µ and Ω.
OTHER_NUMBERS = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u218b\u2460-\u249b\u00aa\u00ba\u00b5\u03bc\u03a9"
)


@cache
def alphabets() -> dict[str, str]:
    """Return the letters and marks of each language, as the contents of a regex character class."""
    record = json.loads(Path(__file__).with_name("alphabets.json").read_text(encoding="utf-8"))
    return record["alphabets"]


def foreign_letter(*languages: str) -> Callable[[str], re.Match | None]:
    """Return a function that finds the first letter or mark outside these languages' alphabets.

    Variants of letters, such as full-width letters and ligatures, belong to the same alphabet
    (NFKC).

    Args:
        languages: languages whose alphabets are allowed.

    Raises:
        InputError: if the alphabet of a language is unknown.
    """
    codes = {language: best_code(language, alphabets()) for language in languages}
    unknown = [language for language, code in codes.items() if code is None]
    if unknown:
        raise InputError(
            f"no alphabet for {', '.join(unknown)} (available: "
            f"{', '.join(alphabets())}); "
            "omit the filter `characters` for this pair"
        )
    allowed = "".join(alphabets()[code] for code in codes.values() if code)
    # \w matches letters, digits and signs such as ½ and ². Marks always follow a letter.
    find = re.compile(rf"[^{allowed}{OTHER_NUMBERS}\W\d_]").search
    letters = re.compile(rf"(?:(?![{OTHER_NUMBERS}])[^\W\d_]|{_mark().pattern})+")

    def find_foreign(text: str) -> re.Match | None:
        match = find(unicodedata.normalize("NFC", text))
        return match and find(_normalized(" ".join(letters.findall(text))))

    return find_foreign
