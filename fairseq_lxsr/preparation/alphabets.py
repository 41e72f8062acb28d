"""Which letters a language is written with, from Unicode's CLDR (see tools/alphabets.py)."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError

OTHER_NUMBERS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u218b\u2460-\u249b\u00aa\u00ba"  # and ordinals, as in 2º


@cache
def alphabets() -> dict[str, str]:
    """Letters and marks of each language, as the inside of a regular expression's brackets."""
    record = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return record["alphabets"]


def foreign_letter(*languages: str) -> Callable[[str], re.Match | None]:
    """A function that finds the first letter or mark of a text that none of the languages is written with.

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
    # \w holds letters, digits and the like of ½ and ²; marks always come with a letter
    return re.compile(rf"[^{known}{OTHER_NUMBERS}\W\d_]").search
