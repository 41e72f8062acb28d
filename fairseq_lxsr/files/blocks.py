"""Groups items, such as the lines of a text, into blocks of limited size."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
# Maximum number of sentences or pairs in a block.
BLOCK_ITEMS = 10_000
# Number of characters after which a block ends.
BLOCK_CHARACTERS = 10_000_000


def in_blocks(
    items: Iterable[Item], size: int = BLOCK_ITEMS, weight: int = BLOCK_CHARACTERS
) -> Iterator[list[Item]]:
    """Group texts, or tuples of texts, into blocks of limited size.

    Args:
        items: texts, or tuples of texts.
        size: maximum number of items per block.
        weight: number of characters at which a block ends.
    """
    block: list[Item] = []
    characters = 0
    for item in items:
        block.append(item)
        if isinstance(item, tuple):
            characters += sum(map(len, item))
        else:
            characters += len(item)  # type: ignore[arg-type]
        if len(block) == size or characters >= weight:
            yield block
            block = []
            characters = 0
    if block:
        yield block
