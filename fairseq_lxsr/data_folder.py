"""Counts the sentences in a data folder of fairseq-preprocess without importing fairseq."""

from pathlib import Path

INDEX_NAME = b"MMIDIDX\x00\x00"  # first bytes of fairseq's memory-mapped datasets


def count_pairs(folder: Path, lang_pairs: str | None = None) -> dict[str, int]:
    """Count the sentence pairs for training.

    Args:
        folder: the data folder.
        lang_pairs: comma-separated language pairs, each in either order; None counts all.

    Returns:
        Number of pairs by SRC-TGT; empty for a folder that does not exist.
    """
    wanted = {frozenset(name.strip().split("-")) for name in lang_pairs.split(",")} if lang_pairs else None
    counts = {path.name.split(".")[1]: count_sentences(path) for path in sorted(folder.glob("train.*-*.*.idx"))}
    return {name: count for name, count in counts.items() if wanted is None or frozenset(name.split("-")) in wanted}


def count_sentences(index: Path) -> int:
    """Return the number of sentences of a memory-mapped fairseq dataset from its .idx; 0 for another format."""
    with index.open("rb") as stream:
        head = stream.read(26)  # format name, version (8 bytes), type (1 byte), number of sentences (8 bytes)
    return int.from_bytes(head[18:], "little") if head.startswith(INDEX_NAME) else 0
