"""Alphabets of languages, from Unicode's CLDR (see tools/alphabets.py)."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError

OTHER_NUMBERS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u218b\u2460-\u249b\u00aa\u00ba"  # with ordinals, as in 2º


@cache
def alphabets() -> dict[str, str]:
    """Return letters and marks of each language, as the content of a regular expression's brackets."""
    record = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return record["alphabets"]


def foreign_letter(*languages: str) -> Callable[[str], re.Match | None]:
    """Return a function that finds the first letter or mark that is in the alphabet of none of the languages.

    Raises:
        InputError: for a language without a known alphabet.
    """
    unknown = [language for language in languages if language not in alphabets()]
    if unknown:
        raise InputError(
            f"no alphabet of {', '.join(unknown)}; there are those of {', '.join(alphabets())}: leave the filter "
            "`characters` out for this pair"
        )
    known = "".join(alphabets()[language] for language in languages)
    # \w matches letters, digits and signs such as ½ and ²; marks always follow a letter
    return re.compile(rf"[^{known}{OTHER_NUMBERS}\W\d_]").search
