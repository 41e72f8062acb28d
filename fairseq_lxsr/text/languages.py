"""Parses language pairs: SRC-TGT, and lists of them."""

import re

from fairseq_lxsr.errors import InputError, shown

CODE = re.compile(r"\w[\w@]{0,31}")  # a code is part of file names


def check_language_code(text: str) -> None:
    """Check that a text is a language code."""
    if not CODE.fullmatch(text):
        raise InputError(f"{shown(text)}; expected the code of a language, for example en, zh_TW or sr@latin")


def split_pair(text: str, distinct: bool = True) -> tuple[str, str]:
    """Split a language pair SRC-TGT, for example `en-fr`, into its two languages; surrounding blanks are ignored.

    A language that is paired with itself is refused where they must be `distinct`.
    """
    source, _, target = text.strip().partition("-")
    if not (CODE.fullmatch(source) and CODE.fullmatch(target)) or (distinct and source == target):
        raise InputError(f"{shown(text.strip())}; expected SRC-TGT, for example en-fr")
    return source, target


def split_pairs(text: str, distinct: bool = True) -> list[tuple[str, str]]:
    """Split a comma-separated list of language pairs, for example `en-fr,en-de`."""
    pairs = [split_pair(name, distinct) for name in text.split(",")]
    for number, pair in enumerate(pairs):
        if pair in pairs[:number]:
            raise InputError(f"{'-'.join(pair)!r} occurs twice in {text!r}; expected each pair once")
    return pairs
