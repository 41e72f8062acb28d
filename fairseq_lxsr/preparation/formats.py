"""Reads sentence pairs from aligned text, tables, memories, JSON and gettext catalogues, compressed
or not.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.archives import archive_of, names_in_archive
from fairseq_lxsr.files.lines import is_blank, read_lines, read_parallel
from fairseq_lxsr.files.open import PACKED
from fairseq_lxsr.files.records import parse_json
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
from fairseq_lxsr.preparation.tables import Columns, Table, language_of_column, side_of_column
from fairseq_lxsr.text.languages import best_code

TABLES, JSON_LINES, CATALOGUES = (".tsv", ".csv"), (".jsonl", ".ndjson"), (".po", ".mo")
SGML = (".sgm", ".sgml")  # test sets of WMT


@dataclass(frozen=True)
class Source:
    """Text of one language pair."""

    name: str  # in messages and manifests
    files: tuple[Path, ...]  # all that are read
    read: Callable[
        [Counter], Iterator[TextPair]
    ]  # yields the pairs, and counts skipped pairs in the counter
    is_messages: bool = False  # of programs
    parts: Mapping[str, "Source"] = field(
        default_factory=dict
    )  # named sources, read in this order; none of one text


def find_source(
    data: TextName | Sources | Sequence[str],
    source: str,
    target: str,
    locale_folders: Sequence[Path] = LOCALE_FOLDERS,
    columns: Columns | None = None,
) -> Source:
    """Find the text that a name stands for.

    It is FILE.tsv or FILE.csv (of these `columns`; None: see `text.tables`), a translation memory
    (see `memories`), FILE.jsonl, a gettext catalogue or a folder of them, FILE.zip with any of
    these, or PREFIX for PREFIX.SRC and PREFIX.TGT; each file may be packed. None stands for the
    catalogues of this machine. Several of these are a list, or a mapping by the name of each source
    (kind of text).
    """
    if isinstance(data, Mapping):
        parts = {
            name: find_source(text, source, target, locale_folders, columns)
            for name, text in data.items()
        }
        name = ", ".join(f"{name}={part.name}" for name, part in parts.items())
        return replace(join(parts.values()), name=name, parts=parts)
    if data is None or isinstance(data, str):
        return _find_text(data, source, target, locale_folders, columns)
    return join([_find_text(text, source, target, locale_folders, columns) for text in data])


def _find_text(
    data: TextName,
    source: str,
    target: str,
    locale_folders: Sequence[Path],
    columns: Columns | None,
) -> Source:
    if data is None or Path(data).is_dir():
        folders = tuple(locale_folders) if data is None else (Path(data),)
        files = tuple(input_files(source, target, folders))
        name = data or "gettext catalogues"
        return Source(
            name, files, lambda dropped: harvest(source, target, dropped, folders), is_messages=True
        )
    path, ending = Path(data), ending_of(data)
    readers: dict[str, Callable[[Counter], Iterator[TextPair]]] = {
        **dict.fromkeys(MEMORIES, lambda dropped: read_memory(path, source, target, dropped)),
        **dict.fromkeys(JSON_LINES, lambda dropped: read_json_lines(path, source, target, dropped)),
        **dict.fromkeys(
            TABLES, lambda dropped: read_table(Table(path, columns, (source, target)), dropped)
        ),
        **dict.fromkeys(CATALOGUES, lambda dropped: read_messages(path, source, target, dropped)),
    }
    if ending in readers:
        check_file(path, f"a {ending} of {source} and {target}")
        if ending in CATALOGUES:
            catalogue_language(path, source, target)
        name = f"{data} ({','.join(map(str, columns))})" if columns and ending in TABLES else data
        return Source(name, _on_disk(path), readers[ending], is_messages=ending in CATALOGUES)
    if ending == ".zip":
        check_file(path, f"an archive with text of {source} and {target}")
        return _find_in_archive(path, source, target, locale_folders, columns)
    files = _two_sides(data, source, target)
    return Source(data, _on_disk(*files), lambda dropped: read_parallel(*files, is_sentence=False))


def check_file(path: Path, expected: str) -> None:
    """Check that text can be read from a file as often as it takes; a pipe gives it once."""
    if path.is_file() or archive_of(path):
        return
    if path.exists() and not path.is_dir():
        raise InputError(
            f"{path}: is a pipe or device, which is read only once; write its text to a file, and name it"
        )
    raise InputError(f"{path}: no such file; expected {expected}")


def _on_disk(*paths: Path) -> tuple[Path, ...]:
    """Return the files that paths are in, each once; an archive is one."""
    return tuple(dict.fromkeys(archive_of(path) or path for path in paths))


def _find_in_archive(
    archive: Path, source: str, target: str, locale_folders: Sequence[Path], columns: Columns | None
) -> Source:
    """Find the text of a pair in a .zip as OPUS has them: aligned files, else memories and
    tables.
    """
    names = names_in_archive(archive)
    prefixes = dict.fromkeys(_prefix_and_code(name)[0] for name in names)
    aligned = [prefix for prefix in prefixes if all(_sides_of(prefix, names, source, target))]
    endings = {*TABLES, *JSON_LINES, *MEMORIES} - {".xml"}
    others = [name for name in names if ending_of(name) in endings]
    if not aligned and not others:
        raise InputError(
            f"{archive}: no text of {source}-{target} in it; it has {', '.join(map(repr, names[:10]))}; expected "
            f"NAME.{source} and NAME.{target}, {', '.join((*TABLES, *JSON_LINES, *MEMORIES))}"
        )
    how = (source, target, locale_folders, columns)
    return join([_find_text(f"{archive}/{name}", *how) for name in aligned or others])


def join(texts: Collection[Source]) -> Source:
    """Join texts, which are read in this order; they are program messages only if all of them
    are.
    """
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


def _prefix_and_code(name: str) -> tuple[str, str]:
    """Split the name of one side of aligned text, PREFIX.CODE[.txt][.gz]."""
    plain = name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in PACKED else name
    prefix, _, code = (plain[:-4] if plain.lower().endswith(".txt") else plain).rpartition(".")
    return prefix, code


def _sides_of(
    prefix: str, names: Sequence[str], source: str, target: str
) -> tuple[str | None, str | None]:
    """Return the names of the two sides of aligned text; plain text rather than packed, and the
    code as it is given.
    """
    codes: dict[str, str] = {}
    for name in sorted(names, key=len):
        if name.startswith(f"{prefix}."):
            before, code = _prefix_and_code(name)
            if before == prefix and code:
                codes.setdefault(code, name)
    first, second = best_code(source, codes), best_code(target, codes)
    return first and codes[first], codes[second] if second and second != first else None


def _two_sides(prefix: str, source: str, target: str) -> tuple[Path, Path]:
    path, archive = Path(prefix), archive_of(prefix)
    folder = archive or path.parent
    names = (
        names_in_archive(archive)
        if archive
        else [*map(str, folder.iterdir())]
        if folder.is_dir()
        else []
    )
    inside = path.relative_to(archive).as_posix() if archive else str(path)
    sides = _sides_of(inside, names, source, target)
    for language, name in zip((source, target), sides, strict=True):
        if name is None:
            _refuse_unread(path)
            there = ", ".join(
                sorted(Path(name).name for name in names if name.startswith(f"{inside}."))[:20]
            )
            raise InputError(
                f"{prefix}.{language}: no such file (nor with .txt, {', '.join(PACKED)})"
                f"{f'; there are {there}' if there else ''}; expected PREFIX.{source} and PREFIX.{target}, one file "
                f"{', '.join((*TABLES, *JSON_LINES, *MEMORIES, *CATALOGUES))}, or a folder of gettext catalogues"
            )
    left, right = (Path(archive, name) if archive else Path(name) for name in sides if name)
    for side in (left, right):
        check_file(side, f"text of {source} and {target}")
    return left, right


def _refuse_unread(path: Path) -> None:
    """Refuse a file that is there, in a format that is not read."""
    if path.is_file():
        raise InputError(
            f"{path}: a file whose ending, {path.suffix or 'none'}, is none of "
            f"{', '.join((*TABLES, *JSON_LINES, *MEMORIES, *CATALOGUES))}; expected one of these, or PREFIX of two "
            f"aligned files{' (.sgm is read by --exclude alone)' if path.suffix.lower() in SGML else ''}"
        )
    check_file(path, "text") if path.exists() else None


def holds_languages(data: str) -> bool:
    """Return whether one text may hold several language pairs, because it says which language its
    sentences are in.
    """
    return (
        Path(data).is_dir()
        or ending_of(data) in (*MEMORIES, *JSON_LINES)
        or archive_of(data) == Path(data)
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


def read_json_lines(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs of lines of JSON: {"en": "...", "fr": "..."}, also in "translation", or
    "source" and "target".
    """
    there: set[str] = set()
    is_found = False
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        if is_blank(line):
            dropped["empty side"] += 1
            continue
        read = json_object(path, number, line)
        inner = read.get("translation")
        given = inner if isinstance(inner, dict) else read
        sides = {key: text for key, text in given.items() if isinstance(text, str)}
        there.update(sides)
        keys = [_key_of(sides, language, place) for place, language in enumerate((source, target))]
        if keys[0] is None or keys[1] is None or keys[0] == keys[1]:
            dropped["language missing"] += 1
            continue
        is_found = True
        yield sides[keys[0]], sides[keys[1]]
    if not is_found:
        listed = ", ".join(sorted(there)[:20]) or "no text"
        raise InputError(f"{path}: no line has text of both {source} and {target}; it has {listed}")


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return parse_json(line)
    except ValueError as error:
        raise InputError(
            f"{path}, line {number}: {line!r:.60} is no JSON object ({error}); expected "
            '{"en": "...", "fr": "..."} on each line'
        ) from None


def _key_of(sides: Mapping[str, str], language: str, place: int) -> str | None:
    """Return the key of the text of a language, which is the first or second of a pair."""
    named = {language_of_column(key): key for key in sides}
    return (
        best_code(language, sides)
        or named.get(best_code(language, filter(None, named)) or "-")
        or next((key for key in sides if side_of_column(key) == place), None)
    )
