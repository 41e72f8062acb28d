"""Parses and matches language codes (BCP 47 and similar) and language pairs SRC-TGT."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fairseq_lxsr.errors import InputError, shown

# Other characters are not allowed, because codes become parts of file names.
CODE = re.compile(r"\w[\w@]{0,31}")
_TAG = re.compile(
    r"([a-z]{2,3})(?:-([a-z]{4}))?(?:-r?([a-z]{2}|\d{3}))?((?:-[a-z\d]{1,8})*)", re.IGNORECASE
)
# In a pair such as en-zh-Hans-CN, capitals mark scripts and regions.
_DASHED = r"(\w[\w@]*(?:-[A-Z][a-z]{3})?(?:-(?:[A-Z]{2}|\d{3}))?)"
_DASHED_PAIR = re.compile(f"{_DASHED}-{_DASHED}")
# Scripts, as spelled after @ in locale names.
_SCRIPTS = {
    "latin": "Latn",
    "cyrillic": "Cyrl",
    "arabic": "Arab",
    "devanagari": "Deva",
}


class Tag(NamedTuple):
    """The parts of a parsed language code.

    `language` has two letters if ISO 639 defines such a code; `variant` is everything else.
    """

    language: str
    script: str = ""
    region: str = ""
    variant: str = ""


@cache
def _language_data() -> dict[str, dict[str, str]]:
    """Load equivalent codes, and each language's and region's script (ISO 639, Unicode CLDR)."""
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    equivalents = dict(pair.split(":") for pair in content["same"].split())
    scripts = {}
    for script, codes in (*content["scripts"].items(), *content["regions"].items()):
        for code in codes.split():
            scripts[code] = script
    return {"equivalents": equivalents, "scripts": scripts}


@cache
def parse_tag(code: str) -> Tag:
    """Parse a language code, such as eng, en-US, pt_BR, zh-Hans-CN, sr@latin or fr_FR.UTF-8.

    If a code has an unknown form, all of it becomes the language of the tag.

        >>> parse_tag("zho_Hant")
        Tag(language='zh', script='Hant', region='', variant='')
    """
    dashed = code.strip().replace("_", "-").replace("+", "-").removeprefix("b-")
    locale_name, _, modifier = dashed.partition("@")
    match = _TAG.fullmatch(locale_name.partition(".")[0])
    if match is None:
        return Tag(code.strip().lower())
    language, script, region, rest = (part or "" for part in match.groups())
    # Some language codes imply a script, which an explicit script overrides.
    equivalent = _language_data()["equivalents"].get(language.lower(), language.lower())
    language, _, implied_script = equivalent.partition("-")
    script = script.title() or _SCRIPTS.get(modifier, implied_script)
    if modifier in (*_SCRIPTS, "euro"):
        modifier = ""
    return Tag(language, script, region.upper(), f"{rest}-{modifier}".strip("-").lower())


def script_of(tag: Tag) -> str:
    """Return the script of a tag, or else the default script of its region or language.

    The result is empty if no script is known.
    """
    scripts = _language_data()["scripts"]
    return (
        tag.script or scripts.get(f"{tag.language}-{tag.region}") or scripts.get(tag.language, "")
    )


def is_same_language(first_code: str, second_code: str) -> bool:
    """Return whether two codes mean the same language, without conflicting scripts or regions.

    `zh` is compatible with both zh_TW and zh_Hans, but zh_TW is not compatible with zh_Hans.
    """
    first = parse_tag(first_code)
    second = parse_tag(second_code)
    if first.language != second.language:
        return False
    # Ignore a script that is only implied by the language.
    scripts = {script_of(tag) for tag in (first, second) if tag.script or tag.region} - {""}
    regions = {first.region, second.region} - {""}
    return len(scripts) < 2 and len(regions) < 2


def best_code(language: str, codes: Iterable[str]) -> str | None:
    """Return the code that best matches a language, or None if no code matches.

    The best match has the same script and region; next come codes without a region, then, if
    `language` has no region, codes with any region, and last codes with any script. The first of
    several equal matches is returned. For example, `en` matches en-US if `en` is missing, pt_BR
    matches pt but never pt-PT, and zh_TW never matches zh, which is written in another script.

    Args:
        language: language code to find.
        codes: candidate codes.
    """
    tag = parse_tag(language)
    best = None
    best_rank = _NO_MATCH
    for code in codes:
        rank = 0 if code == language else _rank(tag, parse_tag(code))
        if rank < best_rank:
            best = code
            best_rank = rank
    return best


# Larger than the rank of any match.
_NO_MATCH = 5


def _rank(tag: Tag, candidate: Tag) -> int:
    """Rank how well a candidate matches a tag: 1 is best, and `_NO_MATCH` means no match."""
    if candidate.language != tag.language:
        return _NO_MATCH
    scripts = {script_of(tag), script_of(candidate)} - {""}
    if len(scripts) == 2:
        return _NO_MATCH if tag.script or tag.region else 4
    if (candidate.region, candidate.variant) == (tag.region, tag.variant):
        return 1
    if not candidate.region and not candidate.variant:
        return 2
    return _NO_MATCH if tag.region or tag.variant else 3


def check_language_code(text: str) -> None:
    """Check that a string is a valid language code.

    Raises:
        InputError: if it is not.
    """
    if not CODE.fullmatch(text):
        raise InputError(
            f"{shown(text)} is not a language code; use a code such as en, zh_TW or sr@latin"
        )


def split_pair(text: str, distinct: bool = True) -> tuple[str, str]:
    """Split a language pair SRC-TGT, such as `en-fr`, into its two languages.

    A code may contain dashes if capitals mark its parts, as in en-zh-Hans-CN; its dashes become
    `_`, because codes are used in file names. Surrounding spaces are ignored.

    Args:
        text: the language pair.
        distinct: whether to reject a pair of equal languages.

    Returns:
        The codes of the source and the target language.

    Raises:
        InputError: if the text is not a language pair.
    """
    source = ""
    target = ""
    match = _DASHED_PAIR.fullmatch(text.strip())
    if match:
        source, target = (code.replace("-", "_") for code in match.groups())
    are_codes = CODE.fullmatch(source) and CODE.fullmatch(target)
    if not are_codes or (distinct and source == target):
        raise InputError(f"{shown(text.strip())}; expected SRC-TGT, for example en-fr")
    return source, target


def split_pairs(text: str, distinct: bool = True) -> list[tuple[str, str]]:
    """Split a comma-separated list of language pairs, such as `en-fr,en-de`.

    Args:
        text: the list.
        distinct: whether to reject a pair of equal languages.

    Returns:
        The source and the target language of each pair.

    Raises:
        InputError: if an item is not a language pair, or a pair occurs twice.
    """
    pairs = [split_pair(name, distinct) for name in text.split(",")]
    for number, pair in enumerate(pairs):
        if pair in pairs[:number]:
            raise InputError(f"{'-'.join(pair)!r} occurs twice in {text!r}; list each pair once")
    return pairs
