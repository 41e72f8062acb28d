"""Checks of the fields of a request."""

import re
from typing import Any

import orjson

from fairseq_lxsr.errors import first_line, shown
from fairseq_lxsr.serve.responses import RequestError

# Escapes in JSON: halves of surrogate pairs, and in the group everything else.
_ESCAPE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def parse_object(content: bytes | bytearray) -> dict[str, Any]:
    """Parse the JSON object of a request, without fields that are null."""
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the request is not JSON: {first_line(error):.80}") from None
    if not isinstance(fields, dict):
        raise RequestError(
            400, f"the request is {shown(fields)}; expected an object with model and input"
        )
    return {name: value for name, value in fields.items() if value is not None}


def replace_half_characters(content: bytes | bytearray) -> bytes:
    """Replace escapes of unpaired surrogates by U+FFFD, as `SentenceEncoder.encode` does.

    A program that cuts a text within an emoji sends such an escape.
    """
    return _ESCAPE.sub(lambda match: match[1] or b"\\ufffd", content)


def checked_texts(given: Any, field: str, most: int) -> list[str]:
    """Check that a value is a text or a list of texts, and return it as a list."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise RequestError(
            400, f"{field} is {shown(given)}; expected a text, or a list of texts", field
        )
    if len(texts) > most:
        raise RequestError(
            400, f"{field} has {len(texts):,} texts; expected at most {most:,}", field
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(400, f"{field}[{row}] is {shown(text)}; expected a text", field)
    return texts


def check_names(fields: dict[str, Any], *names: str) -> None:
    """Raise an error if a request contains a field other than `names`."""
    if unknown := fields.keys() - set(names):
        expected = ", ".join(names) or "no fields"
        raise RequestError(
            400, f"unknown field {shown(min(unknown))}; expected {expected}", min(unknown)
        )


def checked_ids(given: Any, field: str) -> list[str | int]:
    """Check that a value is a list of ids, and return it."""
    if not isinstance(given, list):
        raise RequestError(400, f"{field} {shown(given)}; expected a list of ids", field)
    for row, value in enumerate(given):
        if type(value) not in (str, int):
            raise RequestError(400, f"{field}[{row}] {shown(value)}; expected an id", field)
    return given


def refuse_blank(texts: list[str], field: str) -> None:
    """Raise an error for a text without visible characters."""
    for row, text in enumerate(texts):
        if is_blank(text):
            raise RequestError(
                400, f"{field}[{row}] is {shown(text)}, which contains no words", field
            )


def is_blank(text: str) -> bool:
    """Return whether a text has no visible characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)
