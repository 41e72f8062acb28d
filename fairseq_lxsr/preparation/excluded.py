"""Reads the sentences of text to exclude, of any format and in any language."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.archives import archive_of, names_in_archive
from fairseq_lxsr.files.lines import is_blank, peek, read_lines
from fairseq_lxsr.preparation.catalogues import read_catalogue
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

UNREAD = (
    ".json",
    ".html",
    ".htm",
    ".yaml",
    ".yml",
    ".srt",
    ".vtt",
    ".rtf",
    ".tex",
)  # text, but no lines of sentences


def files_to_exclude(names: Sequence[str], source: str, target: str) -> list[Path]:
    """Return the files of texts to exclude, each of which is what `find_source` takes, or text of
    any one language.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        prefix = not path.suffix or Path(f"{name}.{source}").exists()
        if archive_of(path) or (not path.is_dir() and (path.exists() or not prefix)):
            check_file(path, "text to exclude")
            files.append(path)
        else:
            files.extend(find_source(name, source, target).files)
    return files


def sentences_to_exclude(path: Path) -> Iterator[str]:
    """Yield all sentences of a file of any format, in whatever languages: lines, cells, units and
    messages.
    """
    ending = ending_of(str(path))
    if archive_of(path) == path:
        yield from chain.from_iterable(
            sentences_to_exclude(path / name) for name in names_in_archive(path)
        )
    elif ending in CATALOGUES:
        for message, text in read_catalogue(path, Counter()).items():
            for side in (message.rpartition("\x04")[2], text):
                yield from (side, strip_message(side))
    elif ending in JSON_LINES:
        for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
            yield from _strings(json_object(path, number, line)) if not is_blank(line) else ()
    elif ending == ".csv":
        yield from chain.from_iterable(cells for _, _, cells in Table(path).cells())
    else:
        yield from _of_lines(path, ending)


def _of_lines(path: Path, ending: str) -> Iterator[str]:
    """Yield the sentences of text, and of mark-up whatever its name is."""
    first, lines = (
        peek(read_lines(path, is_sentence=False)) if ending not in MEMORIES else ([], iter(()))
    )
    start = first[0].lstrip().lower() if first else ""
    if ending in MEMORIES or start.startswith(("<?xml", "<tmx", "<xliff", "<dataset")):
        yield from read_segments(path)
    elif ending in SGML or start.startswith(
        ("<srcset", "<refset", "<tstset", "<mteval", "<!doctype mteval")
    ):
        for segment in re.findall(
            r"<seg\b[^>]*>(.*?)</seg>", "\n".join(lines), re.IGNORECASE | re.DOTALL
        ):
            yield " ".join(html.unescape(re.sub(r"<[^>]*>", "", segment)).split())
    elif ending in UNREAD or start.startswith(("<!doctype", "<html")):
        raise InputError(
            f"{path}: cannot be excluded; expected text, one sentence a line, or what --data reads"
        )
    else:
        for line in lines:
            yield from {line, *line.split("\t")}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
