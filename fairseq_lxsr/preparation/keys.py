"""Keys of sentences: 64 bits each, cheap to store and to compare."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import PACKED
from fairseq_lxsr.lines import read_lines
from fairseq_lxsr.preparation.clean import comparable


def sentence_key(text: str) -> int:
    """Hash a sentence to 64 bits; sentences that are equal by `comparable` have equal keys."""
    return int.from_bytes(
        hashlib.blake2b(comparable(text).encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


def excluded_keys(paths: Sequence[str]) -> frozenset[int]:
    """Return the keys of the lines of text files, and of their columns where lines have tabs.

    Raises:
        InputError: for files that are not lines of text.
    """
    for path in paths:
        plain = Path(path).with_suffix("") if Path(path).suffix in PACKED else Path(path)
        if plain.suffix.lower() in (".tmx", ".po", ".mo"):
            raise InputError(f"{path}: cannot be excluded; expected text, one sentence a line, or columns with tabs")
    lines = itertools.chain.from_iterable(read_lines(path) for path in paths)
    texts = itertools.chain.from_iterable({line, *line.split("\t")} for line in lines)
    return frozenset(sentence_key(text) for text in texts if text.strip())
