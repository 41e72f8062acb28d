"""Codes of languages as BCP 47 has them, in every usual spelling, and pairs of them: SRC-TGT."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fairseq_lxsr.errors import InputError, shown

CODE = re.compile(r"\w[\w@]{0,31}")  # a code is part of file names
_TAG = re.compile(
    r"([a-z]{2,3})(?:-([a-z]{4}))?(?:-r?([a-z]{2}|\d{3}))?((?:-[a-z\d]{1,8})*)", re.IGNORECASE
)
# in a pair, a script and a region are told from a language by their capitals: en-zh-Hans-CN
_DASHED = r"(\w[\w@]*(?:-[A-Z][a-z]{3})?(?:-(?:[A-Z]{2}|\d{3}))?)"
_DASHED_PAIR = re.compile(f"{_DASHED}-{_DASHED}")
_SCRIPTS = {
    "latin": "Latn",
    "cyrillic": "Cyrl",
    "arabic": "Arab",
    "devanagari": "Deva",
}  # after @ in names of locales


class Tag(NamedTuple):
    """The parts of a code: a language (two letters where ISO 639 has them), a script, a region, all
    else.
    """

    language: str
    script: str = ""
    region: str = ""
    variant: str = ""


@cache
def _known() -> dict[str, dict[str, str]]:
    """Read which codes are of one language, and the scripts of languages and regions: ISO 639 and
    Unicode's CLDR.
    """
    read = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    same = dict(pair.split(":") for pair in read["same"].split())
    named = [*read["scripts"].items(), *read["regions"].items()]
    scripts = {code: script for script, codes in named for code in codes.split()}
    return {"same": same, "scripts": scripts}


@cache
def parse_tag(code: str) -> Tag:
    """Return the parts of a code, as it says them: eng, en-US, pt_BR, zh-Hans-CN, sr@latin, fr-rCA,
    fr_FR.UTF-8.

    A code of no known form is a language by itself.

        >>> parse_tag("zho_Hant")
        Tag(language='zh', script='Hant', region='', variant='')
    """
    plain, _, modifier = (
        code.strip().replace("_", "-").replace("+", "-").removeprefix("b-").partition("@")
    )
    found = _TAG.fullmatch(plain.partition(".")[0])
    if not found:
        return Tag(code.strip().lower())
    language, script, region, rest = (part or "" for part in found.groups())
    same, _, implied = _known()["same"].get(language.lower(), language.lower()).partition("-")
    script = script.title() or _SCRIPTS.get(modifier, implied)
    other = "" if modifier in (*_SCRIPTS, "euro") else modifier
    return Tag(same, script, region.upper(), f"{rest}-{other}".strip("-").lower())


def script_of(tag: Tag) -> str:
    """Return the script of a tag, or the one that its region or its language is written in; empty
    where unknown.
    """
    scripts = _known()["scripts"]
    return (
        tag.script or scripts.get(f"{tag.language}-{tag.region}") or scripts.get(tag.language, "")
    )


def is_same_language(code: str, other: str) -> bool:
    """Return whether two codes are of one language, and contradict each other in neither script nor
    region.

    `zh` agrees with zh_TW, which does not agree with zh_Hans.
    """
    one, two = parse_tag(code), parse_tag(other)
    scripts = {script_of(tag) for tag in (one, two) if tag.script or tag.region} - {""}
    regions = {tag.region for tag in (one, two)} - {""}
    return one.language == two.language and len(scripts) < 2 and len(regions) < 2


def best_code(wanted: str, codes: Iterable[str]) -> str | None:
    """Return which of these codes text of the wanted language has; None where there is none.

    Text of the same script and region is preferred, then text without a region, then, where none is
    wanted, that of any region, then of any script, in the order of the codes: `en` takes en-US
    where there is no en; pt_BR takes pt, never pt-PT; zh_TW never takes zh, which is another
    script.
    """
    tag = parse_tag(wanted)
    script = script_of(tag)

    def rank(code: str) -> int | None:
        other = parse_tag(code)
        theirs = script_of(other)
        if other.language != tag.language:
            return None
        if script and theirs and script != theirs:
            return None if tag.script or tag.region else 4
        if (other.region, other.variant) == (tag.region, tag.variant):
            return 0 if code == wanted else 1
        if not other.region and not other.variant:
            return 2
        return None if tag.region or tag.variant else 3

    ranked = [(place, code) for code in codes if (place := rank(code)) is not None]
    return min(ranked, key=lambda item: item[0])[1] if ranked else None


def check_language_code(text: str) -> None:
    """Check that a text is a language code."""
    if not CODE.fullmatch(text):
        raise InputError(
            f"{shown(text)}; expected the code of a language, for example en, zh_TW or sr@latin"
        )


def split_pair(text: str, distinct: bool = True) -> tuple[str, str]:
    """Split a language pair SRC-TGT, for example `en-fr`, into its two languages; surrounding
    blanks are ignored.

    A code may have dashes where capitals tell its parts, as in en-zh-Hans-CN; they become `_`,
    which names of files need. A language that is paired with itself is refused where they must be
    `distinct`.
    """
    found = _DASHED_PAIR.fullmatch(text.strip())
    source, target = (code.replace("-", "_") for code in found.groups()) if found else ("", "")
    if not (CODE.fullmatch(source) and CODE.fullmatch(target)) or (distinct and source == target):
        raise InputError(f"{shown(text.strip())}; expected SRC-TGT, for example en-fr")
    return source, target


def split_pairs(text: str, distinct: bool = True) -> list[tuple[str, str]]:
    """Split a comma-separated list of language pairs, for example `en-fr,en-de`."""
    pairs = [split_pair(name, distinct) for name in text.split(",")]
    for number, pair in enumerate(pairs):
        if pair in pairs[:number]:
            raise InputError(
                f"{'-'.join(pair)!r} occurs twice in {text!r}; expected each pair once"
            )
    return pairs
