"""Fields of the hits in responses of /search."""

from typing import Any

from fairseq_lxsr.errors import shown
from fairseq_lxsr.search import Hit
from fairseq_lxsr.serve.responses import RequestError

HIT_FIELDS = ("score", "id", "line", "snippet", "match", "text")
# Maximum number of characters of a snippet.
SNIPPET_LENGTH = 300
# Maximum number of characters to leave out at either end, so that words are whole.
LONGEST_WORD = 40
ELLIPSIS = "\u2026"


def checked_hit_fields(given: Any, has_ids: bool) -> tuple[str, ...]:
    """Check and return the names of the fields of each hit.

    Args:
        given: list of names; None for the score, the id if there are ids, the line and the snippet.
        has_ids: whether the index has ids.
    """
    if given is None:
        return tuple(name for name in HIT_FIELDS[:4] if has_ids or name != "id")
    if not isinstance(given, list) or not given or any(name not in HIT_FIELDS for name in given):
        raise RequestError(
            400, f"fields is {shown(given)}; expected a list of {', '.join(HIT_FIELDS)}", "fields"
        )
    return tuple(dict.fromkeys(given))


def hit_values(hit: Hit, names: tuple[str, ...]) -> dict[str, Any]:
    """Return fields of a hit, with a one-based line number."""
    values = {
        "score": hit.score,
        "id": hit.id,
        "line": hit.line + 1,
        "match": hit.match or hit.text,
        "text": hit.text,
    }
    if "snippet" in names:
        values["snippet"] = snippet(hit.text, hit.match)
    return {name: values[name] for name in names}


def snippet(text: str, match: str) -> str:
    """Return the part of a text that begins with the match, with an ellipsis where it is cut."""
    if len(text) <= SNIPPET_LENGTH:
        return text
    # Show as much as possible if the match is near the end.
    start = min(max(text.find(match), 0), len(text) - SNIPPET_LENGTH)
    end = start + SNIPPET_LENGTH
    part = text[start:end]
    # Cut between words. Some scripts have no spaces.
    if start and not text.startswith(match, start):
        part = part[part.find(" ", 0, LONGEST_WORD) + 1 :]
    last_space = part.rfind(" ", len(part) - LONGEST_WORD)
    if end < len(text) and last_space > 0:
        part = part[:last_space]
    before = ELLIPSIS if start else ""
    after = ELLIPSIS if end < len(text) else ""
    return f"{before}{part}{after}"
