"""Reads the table of the sources of a training text, for the model card: licence and attribution of each."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.lines import read_lines
from fairseq_lxsr.ranges import check_fields
from fairseq_lxsr.stored import parse_json


@dataclass(frozen=True)
class TextSource:
    """A source of training text.

    Args:
        name: its name.
        about: what it is.
        url: where it comes from.
        licence: its licence.
        attribution: whom to name.
        pairs: number of sentence pairs by language pair.
    """

    name: str
    about: str
    url: str
    licence: str
    attribution: str
    pairs: Mapping[str, int]

    def __post_init__(self):
        check_fields(self)

    @property
    def cells(self) -> list[str]:
        """Cells of a row in a Markdown table."""
        counts = ", ".join(f"{pair} {count:,}" for pair, count in sorted(self.pairs.items()))
        texts = f"{self.name}: {self.about}, {self.url}", self.licence, self.attribution, counts
        return [" ".join(text.split()).replace("|", "\\|") for text in texts]


@dataclass(frozen=True)
class TextSources:
    """All sources of a training text.

    Args:
        note: what was taken and why, a paragraph.
        sources: the sources.
    """

    note: str
    sources: tuple[TextSource, ...]

    @classmethod
    def read(cls, path: str | Path) -> "TextSources":
        """Read a JSON file `{"note": ..., "sources": [{"name": ..., ...}, ...]}`; other fields are ignored.

        Raises:
            InputError: for anything else, naming the source.
        """
        try:
            read = parse_json("\n".join(read_lines(path, max_words=None)))
            note, rows = read["note"], read["sources"]
            if not (isinstance(note, str) and isinstance(rows, list) and rows):
                raise TypeError("the note is no text, or the sources are no list")
        except (ValueError, KeyError, TypeError) as error:
            reason = error if isinstance(error, InputError) else f"{path}: {error!r:.100}"
            raise InputError(f'{reason}; expected {{"note": ..., "sources": [...]}}') from None
        sources = (_source(row, f"{path}, source {number}") for number, row in enumerate(rows, start=1))
        return cls(" ".join(note.split()), tuple(sources))


def _source(row: Any, where: str) -> TextSource:
    names = [item.name for item in fields(TextSource)]
    if not isinstance(row, dict) or not row.keys() >= set(names):
        raise InputError(f"{where}: {shown(row)}; expected an object with {', '.join(names)}")
    try:
        return TextSource(**{name: row[name] for name in names})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
