"""Checks a data folder of fairseq-preprocess, counts its sentences and those of its sources; without fairseq."""

import json
from collections.abc import Mapping
from pathlib import Path

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.stored import is_count, parse_json

INDEX_NAME = b"MMIDIDX\x00\x00"  # first bytes of fairseq's memory-mapped datasets


def check_data_folder(folder: Path) -> None:
    """Refuse a data folder that does not exist.

    Raises:
        InputError: naming the folder, and what makes one.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such data folder; make one with fairseq-preprocess or `lxsr prepare`")


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


def write_sources(path: Path, sources: Mapping[str, int]) -> None:
    """Write the number of pairs of each source of a text."""
    path.write_text(json.dumps(sources, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_sources(path: Path, count: int) -> dict[str, int]:
    """Read the number of pairs of each source (kind of text), whose pairs follow each other in this order.

    Args:
        path: the JSON file, for example data-bin/train.en-fr.sources.json.
        count: number of pairs of the text.

    Returns:
        Number of pairs by source; empty where there is no such file.

    Raises:
        InputError: for a file that is no such JSON, or that counts another text.
    """
    if not path.is_file():
        return {}
    try:
        sources = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: no JSON object ({error}); expected the number of pairs of each source") from None
    for name, number in sources.items():
        if not is_count(number):
            raise InputError(f"{path}: {shown(name)} is {shown(number)}; expected the number of its pairs")
    if sum(sources.values()) != count:
        raise InputError(
            f"{path}: counts {sum(sources.values()):,} pairs, the text has {count:,}; run `lxsr prepare` again, or "
            "remove the file"
        )
    return sources
