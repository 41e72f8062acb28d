"""Splits a passage into windows and sentences, each of which becomes a vector in an index.

A window contains consecutive sentences, and is short enough for a model with a length limit. A
passage of ordinary length is one window. Lengths are in letters; a Chinese, Japanese or Korean
character counts as three.
"""

import re
from dataclasses import dataclass

# Quotes and brackets that close after the end of a sentence, and belong to it.
_CLOSING = "[\"'\u201d\u2019\u00bb)\\]\u300d\u300f\uff09\u3011]*"
# The end of a sentence: punctuation and a space, or punctuation of scripts without spaces. A
# full-width full stop is only an end after a Chinese or Japanese character.
_END = re.compile(
    rf"(?P<spaced>[.!?;:\u2026\u0964\u0965\u061f\u0589\u06d4]{_CLOSING})\s+"
    rf"|(?P<unspaced>(?:[\u3002\uff01\uff1f\uff1b\uff61\u1362\u17d4]"
    rf"|(?<=[\u3041-\u30ff\u3400-\u9fff])\uff0e){_CLOSING})\s*"
)
_IDEOGRAPH = re.compile("[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff]")
IDEOGRAPH_LETTERS = 3
# Shorter parts, such as abbreviations, are joined with the next sentence.
SHORTEST = 30
# Longer sentences are split, at a space if possible.
LONGEST = 400
# Longer passages are split into several windows.
LONGEST_WINDOW = 900

# Start and end of a text, in characters.
Span = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Consecutive sentences of a passage.

    Attributes:
        span: start and end of the window, in characters.
        sentences: start and end of each sentence, in characters.
    """

    span: Span
    sentences: list[Span]


def sentence_spans(text: str) -> list[Span]:
    """Split a text into sentences by a simple rule.

        sentence_spans("It rains. Where is the dog?")  # [(0, 9), (10, 27)]

    Args:
        text: text in any language, on one line.

    Returns:
        Start and end of each sentence, in characters.
    """
    spans = []
    start = 0
    for match in _END.finditer(text):
        stop = match.end(match.lastgroup or 0)
        if _size(text[start:stop]) >= SHORTEST:
            spans += _cut(text, start, stop)
            start = match.end()
    if text[start:].strip():
        spans += _cut(text, start, len(text))
    return spans


def _cut(text: str, start: int, stop: int) -> list[Span]:
    """Split a long sentence into parts of about equal size, at spaces if possible."""
    num_parts = -(-_size(text[start:stop]) // LONGEST)
    spans = []
    for part in range(num_parts, 1, -1):
        middle = start + (stop - start) // part
        blank = text.find(" ", middle, min(middle + LONGEST // 4, stop))
        if blank < 0:
            blank = middle
        spans.append((start, blank))
        start = blank + (text[blank : blank + 1] == " ")
    spans.append((start, stop))
    return [span for span in spans if text[span[0] : span[1]].strip()]


def windows(text: str) -> list[Window]:
    """Split a passage into windows of consecutive sentences.

    Args:
        text: text of the passage, on one line.

    Returns:
        Windows of about equal size, with at most about `LONGEST_WINDOW` letters.
    """
    num_windows = -(-_size(text) // LONGEST_WINDOW)
    size = len(text) / max(num_windows, 1)
    groups: list[list[Span]] = [[]]
    for span in sentence_spans(text):
        # A sentence belongs to the window that contains its middle.
        if groups[-1] and (span[0] + span[1]) / 2 > size * len(groups):
            groups.append([])
        groups[-1].append(span)
    return [Window((group[0][0], group[-1][1]), group) for group in groups if group]


def passage_rows(text: str) -> list[Span]:
    """Return the parts of a passage that become vectors: each window, and its sentences.

    A window with only one sentence becomes a single vector.

    Args:
        text: text of the passage, on one line.

    Returns:
        Start and end of each part, in characters.
    """
    rows = []
    for window in windows(text):
        rows.append(window.span)
        if len(window.sentences) > 1:
            rows += window.sentences
    return rows


def _size(text: str) -> int:
    """Return the number of characters; a Chinese, Japanese or Korean one counts as three."""
    if text.isascii():
        return len(text)
    return len(text) + (IDEOGRAPH_LETTERS - 1) * len(_IDEOGRAPH.findall(text))
