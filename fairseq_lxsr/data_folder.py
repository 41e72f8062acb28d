"""What a data folder of fairseq-preprocess holds, counted without fairseq."""

from pathlib import Path

INDEX_NAME = b"MMIDIDX\x00\x00"  # that fairseq's memory-mapped datasets begin with


def count_pairs(folder: Path, lang_pairs: str | None = None) -> dict[str, int]:
    """Count the sentence pairs to train on.

    Args:
        lang_pairs: language pairs with commas between them, in either order; None for all.

    Returns:
        number of pairs by SRC-TGT; empty for a folder that is not there.
    """
    wanted = {frozenset(name.strip().split("-")) for name in lang_pairs.split(",")} if lang_pairs else None
    counts = {path.name.split(".")[1]: count_sentences(path) for path in sorted(folder.glob("train.*-*.*.idx"))}
    return {name: count for name, count in counts.items() if wanted is None or frozenset(name.split("-")) in wanted}


def count_sentences(index: Path) -> int:
    """Sentences of a memory-mapped fairseq dataset, from its .idx; 0 for one of another kind."""
    with index.open("rb") as stream:
        head = stream.read(26)  # its name, 8 bytes of version, 1 of type, 8 of the number
    return int.from_bytes(head[18:], "little") if head.startswith(INDEX_NAME) else 0
