"""Reads sentence pairs from aligned text, TSV, TMX and gettext catalogues, compressed or not."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.files.open import PACKED
from fairseq_lxsr.preparation.catalogues import (
    LOCALE_FOLDERS,
    catalogue_language,
    harvest,
    input_files,
    read_messages,
)
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.config import Sources, TextName
from fairseq_lxsr.preparation.memories import MEMORIES, read_memory
from fairseq_lxsr.text.tables import Columns, Table

ENDINGS = ("", ".txt")


@dataclass(frozen=True)
class Source:
    """Text of one language pair."""

    name: str  # in messages and manifests
    files: tuple[Path, ...]  # all that are read
    read: Callable[[Counter], Iterator[TextPair]]  # yields the pairs, and counts skipped pairs in the counter
    is_messages: bool = False  # of programs
    parts: Mapping[str, "Source"] = field(default_factory=dict)  # named sources, read in this order; none of one text


def find_source(
    data: TextName | Sources | Sequence[str],
    source: str,
    target: str,
    locale_folders: Sequence[Path] = LOCALE_FOLDERS,
    columns: Columns | None = None,
) -> Source:
    """Find the text that a name stands for.

    It is FILE.tsv or FILE.csv (of these `columns`; None: see `text.tables`), FILE.tmx, a folder of gettext catalogues,
    or PREFIX for PREFIX.SRC and PREFIX.TGT; each file may end
    in .gz, .xz or .zst. None stands for the catalogues of this machine. Several of these are a list, or a mapping by
    the name of each source (kind of text).
    """
    if isinstance(data, Mapping):
        parts = {name: find_source(text, source, target, locale_folders, columns) for name, text in data.items()}
        name = ", ".join(f"{name}={part.name}" for name, part in parts.items())
        return replace(join(parts.values()), name=name, parts=parts)
    if data is None or isinstance(data, str):
        return _find_text(data, source, target, locale_folders, columns)
    return join([_find_text(text, source, target, locale_folders, columns) for text in data])


def _find_text(
    data: TextName, source: str, target: str, locale_folders: Sequence[Path], columns: Columns | None
) -> Source:
    if data is None or Path(data).is_dir():
        folders = tuple(locale_folders) if data is None else (Path(data),)
        files = tuple(input_files(source, target, folders))
        name = data or "gettext catalogues"
        return Source(name, files, lambda dropped: harvest(source, target, dropped, folders), is_messages=True)
    ending = ending_of(data)
    if ending in (".tsv", ".csv", *MEMORIES):
        path = Path(data)
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected a {ending} of {source} and {target}")
        if ending not in MEMORIES:
            name = f"{data} ({','.join(map(str, columns))})" if columns else data
            return Source(name, (path,), lambda dropped: read_table(Table(path, columns, (source, target)), dropped))
        return Source(data, (path,), lambda dropped: read_memory(path, source, target, dropped))
    if ending in (".po", ".mo") and Path(data).is_file():
        catalogue_language(Path(data), source, target)
        return Source(data, (Path(data),), lambda dropped: read_messages(Path(data), source, target, dropped), True)
    files = (_one_side(data, source, source, target), _one_side(data, target, source, target))
    return Source(data, files, lambda dropped: read_parallel(*files, is_sentence=False))


def join(texts: Collection[Source]) -> Source:
    """Join texts, which are read in this order; they are program messages only if all of them are."""
    return Source(
        "+".join(text.name for text in texts),
        tuple(path for text in texts for path in text.files),
        lambda dropped: (pair for text in texts for pair in text.read(dropped)),
        all(text.is_messages for text in texts),
    )


def ending_of(name: str) -> str:
    """Return the ending of a name in small letters, without that of a packed file."""
    path = Path(name)
    plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return plain.suffix.lower()


def _one_side(prefix: str, language: str, source: str, target: str) -> Path:
    for ending in ENDINGS:
        for packed in ("", *PACKED):
            path = Path(f"{prefix}.{language}{ending}{packed}")
            if path.is_file():
                return path
    raise InputError(
        f"{prefix}.{language}: no such file (nor with .txt, {', '.join(PACKED)}); expected PREFIX.{source} and "
        f"PREFIX.{target}, one .tsv or .tmx file, or a folder of gettext catalogues"
    )


def read_table(table: Table, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs of a table; rows without one are counted as dropped."""
    row = None
    for row in table.rows():
        if row.pair:
            yield row.pair
        else:
            dropped[{"blank": "empty side", "short": "short row"}.get(row.why, row.why)] += 1
    if row is None:
        raise InputError(f"{table.path}: empty file; expected `source<TAB>target` lines")
