"""Replaces HTML entities in plain text with their characters: `isn&#39;t` becomes `isn't`."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from fairseq_lxsr.errors import say
from fairseq_lxsr.files.blocks import in_blocks

# What to do with entities; the first is the default.
ENTITIES = ("auto", "unescape", "keep")
ENTITIES_HELP = (
    "HTML entities such as &amp; and &#39; in the text: unescape replaces them with their "
    "characters, keep keeps them, auto replaces them if the text seems to be escaped throughout: "
    "it contains no bare &, and no character that also occurs as an entity"
)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Characters that programs may replace with entities, in addition to `&`.
ESCAPED_CHARACTERS = frozenset("<>\"'")
# Maximum number of times to unescape a text. Text that was escaped twice contains &amp;quot;.
MAX_LEVELS = 3
# A text is escaped if it has at most this many lines with a bare `&` per line with an entity.
TOLERANCE = 0.05


class EntityReader:
    """Replaces the entities in lines or sentence pairs, and counts lines or pairs with entities.

        reader = EntityReader("auto")
        lines = list(reader.read_lines(["isn&#39;t", "is"]))
        print(lines, reader.num_unescaped)

    Args:
        choice: `unescape` replaces all entities, `keep` replaces none. `auto` replaces the entities
            in a text, or in one side of the pairs, if its first 10,000 sentences are escaped; see
            `is_escaped`.

    Attributes:
        num_unescaped: number of lines or pairs so far in which entities were replaced.
        num_kept: number of lines or pairs so far in which entities were kept.
    """

    def __init__(self, choice: str = ENTITIES[0]):
        self.choice = choice
        self.num_unescaped = 0
        self.num_kept = 0

    def read(self, pairs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the pairs as tuples. Elements after the two sentences are kept unchanged."""
        blocks = in_blocks(pairs)
        first_block = next(blocks, [])
        source_levels = self.levels_of([pair[0] for pair in first_block])
        target_levels = self.levels_of([pair[1] for pair in first_block])
        for source, target, *rest in chain(first_block, chain.from_iterable(blocks)):
            sides = self._replaced((source, target), (source_levels, target_levels))
            yield *sides, *rest

    def read_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of one text."""
        first_block, lines = first_lines(lines)
        levels = self.levels_of(first_block)
        for line in lines:
            yield self.unescaped(line, levels)

    def levels_of(self, texts: Sequence[str]) -> int:
        """Return how many times the text must be unescaped, judging from a sample."""
        if self.choice == "keep":
            return 0
        if self.choice == "unescape":
            return MAX_LEVELS
        level = 0
        while level < MAX_LEVELS and is_escaped(texts):
            texts = [unescape(text) for text in texts]
            level += 1
        return level

    def unescaped(self, line: str, levels: int) -> str:
        """Unescape a line `levels` times, and count it if it has entities."""
        return self._replaced((line,), (levels,))[0]

    def _replaced(self, texts: tuple[str, ...], levels: tuple[int, ...]) -> tuple[str, ...]:
        """Unescape the line or both sides of a pair, and count it if it has entities."""
        if not any("&" in text for text in texts):
            return texts
        replaced = tuple(map(unescape, texts, levels))
        self.num_unescaped += replaced != texts
        self.num_kept += any(text != unescape(text) for text in replaced)
        return replaced

    def report(self, unit: str) -> None:
        """Print how many lines or pairs have entities; `unit` is the word for them in messages."""
        if self.num_unescaped:
            say(f"{unit} with HTML entities, now replaced by characters: {self.num_unescaped:,}")
        if self.num_kept and self.choice == ENTITIES[0]:
            say(
                f"{unit} with HTML entities such as &amp;: {self.num_kept:,}; use --entities "
                "unescape to replace them by characters"
            )


def first_lines(lines: Iterable[str]) -> tuple[list[str], Iterator[str]]:
    """Return the first 10,000 lines, and an iterator over all lines."""
    blocks = in_blocks(lines)
    first_block = next(blocks, [])
    return first_block, chain(first_block, chain.from_iterable(blocks))


def is_escaped(texts: Iterable[str]) -> bool:
    """Return whether a program has replaced all special characters in the texts with entities.

    In such texts, there is no bare `&`, and a character that occurs as an entity does not occur
    itself.
    """
    num_escaped = 0
    characters = set("&")
    # Texts without their entities.
    remainders = []
    for text in texts:
        remainder = text
        if "&" in text:
            entities = {entity for entity in ENTITY.findall(text) if unescape(entity) != entity}
            characters.update(map(unescape, entities))
            num_escaped += bool(entities)
            remainder = ENTITY.sub("", text)
        remainders.append(remainder)
    characters &= ESCAPED_CHARACTERS | {"&"}
    num_bare = 0
    for remainder in remainders:
        num_bare += not characters.isdisjoint(remainder)
    return num_escaped > 0 and num_bare <= TOLERANCE * num_escaped


def unescape(text: str, levels: int = 1) -> str:
    """Replace entities that end with a semicolon. html.unescape would also replace `&copy`."""
    for _ in range(levels):
        if "&" in text:
            text = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text
