"""Replaces HTML entities in plain text by their characters: `isn&#39;t` becomes `isn't`."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from fairseq_lxsr.preparation.workers import in_blocks

ENTITIES = ("auto", "unescape", "keep")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Characters that programs replace by entities. `&` always is one of them.
ESCAPED_CHARACTERS = frozenset("<>\"'")
# Text that was escaped several times has entities such as &amp;quot;.
MAX_LEVELS = 3
# Number of lines with a bare `&`, for each line with an entity, up to which a text counts as
# escaped.
TOLERANCE = 0.05


class EntityReader:
    """Replaces the entities in sentence pairs, and counts the pairs that have some.

        reader = EntityReader("auto")
        pairs = list(reader.read([("isn&#39;t", "n&#39;est")]))
        print(pairs, reader.num_unescaped)

    Args:
        choice: `unescape` replaces all entities, `keep` none. `auto` replaces those of a side
            whose first 10,000 sentences are written in entities, see `is_escaped`.

    Attributes:
        num_unescaped: number of pairs in which entities were replaced.
        num_kept: number of pairs in which entities were kept.
    """

    def __init__(self, choice: str):
        self.choice = choice
        self.num_unescaped = 0
        self.num_kept = 0

    def read(self, pairs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the pairs; what follows the two sentences in a tuple is kept."""
        self.num_unescaped = 0
        self.num_kept = 0
        blocks = in_blocks(pairs)
        first_block = next(blocks, [])
        source_levels = self._levels([pair[0] for pair in first_block])
        target_levels = self._levels([pair[1] for pair in first_block])
        for source, target, *rest in chain(first_block, chain.from_iterable(blocks)):
            if "&" not in source and "&" not in target:
                yield source, target, *rest
                continue
            sides = (unescape(source, source_levels), unescape(target, target_levels))
            self.num_unescaped += sides != (source, target)
            self.num_kept += any(side != unescape(side) for side in sides)
            yield *sides, *rest

    def _levels(self, texts: Sequence[str]) -> int:
        """Return how many times to replace the entities in texts like these."""
        if self.choice == "keep":
            return 0
        if self.choice == "unescape":
            return MAX_LEVELS
        level = 0
        while level < MAX_LEVELS and is_escaped(texts):
            texts = [unescape(text) for text in texts]
            level += 1
        return level


def is_escaped(texts: Iterable[str]) -> bool:
    """Return whether a program has replaced the special characters in all texts by entities.

    Then no text has a bare `&`, and no text has a character that other texts have as an entity.
    """
    num_escaped = 0
    characters = set("&")
    # The texts without their entities.
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
    """Replace the entities that end with a semicolon; html.unescape would also replace `&copy`."""
    for _ in range(levels):
        if "&" in text:
            text = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text
