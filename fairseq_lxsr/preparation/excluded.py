"""Reads the sentences to exclude from a corpus; the text may have any supported format."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.archives import archive_of, names_in_archive
from fairseq_lxsr.files.lines import is_blank, peek, read_lines
from fairseq_lxsr.preparation.catalogues import parse_catalogue
from fairseq_lxsr.preparation.clean import strip_message
from fairseq_lxsr.preparation.formats import (
    CATALOGUES,
    JSON_LINES,
    SGML,
    check_file,
    ending_of,
    find_source,
    json_object,
)
from fairseq_lxsr.preparation.memories import MEMORIES, read_segments
from fairseq_lxsr.preparation.tables import Table

# File formats that are not supported, because they do not have one sentence per line.
UNREAD = (".json", ".html", ".htm", ".yaml", ".yml", ".srt", ".vtt", ".rtf", ".tex")
_XML_STARTS = ("<?xml", "<tmx", "<xliff", "<dataset")
_SGML_STARTS = ("<srcset", "<refset", "<tstset", "<mteval", "<!doctype mteval")
_HTML_STARTS = ("<!doctype", "<html")
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)
# Separates the cells of a table, or the two sides of a line in fast_align format.
_CELL_END = re.compile(r"\t|\s*\|\|\|\s*")
_TAG = re.compile(r"<[^>]*>")


def files_to_exclude(names: Sequence[str], source: str, target: str) -> list[Path]:
    """Return the files of the texts to exclude.

    Args:
        names: texts in any form that `find_source` accepts, or single files in any language.
        source: source language.
        target: target language.

    Raises:
        InputError: if a text is missing, or cannot be read more than once.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if _is_file(path, source):
            check_file(path, "text to exclude")
            files.append(path)
        else:
            files.extend(find_source(name, source, target).files)
    return files


def _is_file(path: Path, source: str) -> bool:
    """Return whether a name refers to one file, rather than a folder or the prefix of two files."""
    if archive_of(path):
        return True
    if path.is_dir():
        return False
    is_prefix = not path.suffix or Path(f"{path}.{source}").exists()
    return path.exists() or not is_prefix


def sentences_to_exclude(path: Path) -> Iterator[str]:
    """Yield all sentences in a file: lines, cells, translation units or messages.

    Raises:
        InputError: if the format is not supported, or the file cannot be read or contains no text.
    """
    is_empty = True
    for sentence in _sentences(path):
        is_empty = is_empty and is_blank(sentence)
        yield sentence
    if is_empty:
        raise InputError(f"{path} contains no sentences to exclude; check the file")


def _sentences(path: Path) -> Iterator[str]:
    ending = ending_of(str(path))
    if archive_of(path) == path:
        for name in names_in_archive(path):
            yield from _sentences(path / name)
    elif ending in CATALOGUES:
        yield from _of_catalogue(path)
    elif ending in JSON_LINES:
        for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
            if not is_blank(line):
                yield from _strings(json_object(path, number, line))
    elif ending == ".csv":
        for _, _, cells in Table(path).cells():
            yield from cells
    elif ending in MEMORIES:
        yield from read_segments(path)
    else:
        yield from _of_text(path, ending)


def _of_catalogue(path: Path) -> Iterator[str]:
    """Yield a catalogue's messages and translations, with and without mark-up."""
    for message, translation in parse_catalogue(path, Counter()).items():
        # A message may start with a context, which ends with \x04.
        for text in (message.rpartition("\x04")[2], translation):
            yield text
            yield strip_message(text)


def _of_text(path: Path, ending: str) -> Iterator[str]:
    """Yield the sentences in a text file. Mark-up is detected from the start of the file."""
    first, lines = peek(read_lines(path, is_sentence=False))
    start = "".join(first[:1]).lstrip().lower()
    if start.startswith(_XML_STARTS):
        yield from read_segments(path)
    elif ending in SGML or start.startswith(_SGML_STARTS):
        for segment in _SEGMENT.findall("\n".join(lines)):
            yield " ".join(html.unescape(_TAG.sub("", segment)).split())
    elif ending in UNREAD or start.startswith(_HTML_STARTS):
        raise InputError(
            f"{path}: unsupported format for text to exclude; use text with one sentence "
            "per line, or a format that --data supports"
        )
    else:
        for line in lines:
            # In a table, each cell is excluded as a sentence.
            yield from {line, *_CELL_END.split(line)}


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, except for the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
