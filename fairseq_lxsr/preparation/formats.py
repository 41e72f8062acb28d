"""Reads sentence pairs from aligned text, tables, translation memories, JSON and catalogues.

All files may be compressed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, listed, say
from fairseq_lxsr.files.archives import archive_of, names_in_archive
from fairseq_lxsr.files.lines import is_blank, read_lines, read_parallel
from fairseq_lxsr.files.open import COMPRESSED_SUFFIXES
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.preparation.catalogues import (
    LOCALE_FOLDERS,
    catalogue_language,
    harvest,
    input_files,
    read_messages,
    report_unread,
)
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.config import Sources, TextName
from fairseq_lxsr.preparation.memories import MEMORIES, read_memory
from fairseq_lxsr.preparation.tables import (
    Columns,
    Table,
    is_language_key,
    language_of_column,
    side_of_column,
    side_of_language_key,
)
from fairseq_lxsr.text.languages import best_code

TABLES = (".tsv", ".csv")
JSON_LINES = (".jsonl", ".ndjson")
CATALOGUES = (".po", ".mo")
# Formats of WMT test sets.
SGML = (".sgm", ".sgml")
_ENDINGS = (*TABLES, *JSON_LINES, *MEMORIES, *CATALOGUES)

# A function that yields the pairs in a text, and counts skipped pairs by reason in the counter.
Reader = Callable[[Counter], Iterator[TextPair]]


@dataclass(frozen=True)
class Source:
    """The text of one language pair, and how to read it.

        source = find_source("bitext.tsv", "en", "fr")
        dropped = Counter()
        for english, french in source.read(dropped):
            ...

    Attributes:
        name: name of the text in messages and manifests.
        files: all files to read.
        read: yields the pairs, and counts skipped pairs, by reason, in the given counter.
        is_messages: whether the text consists of program messages.
        parts: named sources of the text, in reading order; empty if there is only one.
    """

    name: str
    files: tuple[Path, ...]
    read: Reader
    is_messages: bool = False
    parts: Mapping[str, "Source"] = field(default_factory=dict)


def find_source(
    data: TextName | Sources | Sequence[str],
    source: str,
    target: str,
    columns: Columns | None = None,
) -> Source:
    """Find the text for a language pair, given its file name, prefix or folder.

    Args:
        data: a FILE.tsv or FILE.csv, a translation memory (see `memories`), FILE.jsonl, a gettext
            catalogue or a folder of catalogues, FILE.zip with any of these, or PREFIX for
            PREFIX.SRC and PREFIX.TGT; each file may be compressed. None means the catalogues on
            this machine. Several texts are a list, or a mapping from source name (kind of text) to
            text.
        source: source language.
        target: target language.
        columns: columns of tables; None detects them (see `tables`).

    Raises:
        InputError: if the text is missing, or belongs to another language pair.
    """
    if isinstance(data, Mapping):
        parts = {name: find_source(text, source, target, columns) for name, text in data.items()}
        name = ", ".join(f"{name}={part.name}" for name, part in parts.items())
        return replace(join_sources(parts.values()), name=name, parts=parts)
    if data is None or isinstance(data, str):
        return _find_text(data, source, target, columns)
    return join_sources([_find_text(text, source, target, columns) for text in data])


def _find_text(data: TextName, source: str, target: str, columns: Columns | None) -> Source:
    if data is None:
        return _find_catalogues("gettext catalogues", source, target, LOCALE_FOLDERS)
    path = Path(data)
    # A folder is always read as a folder of catalogues.
    if path.is_dir():
        return _find_catalogues(data, source, target, (path,))
    ending = ending_of(data)
    if ending in _ENDINGS:
        check_file(path, f"a {ending} of {source} and {target}")
        # Reject a catalogue in another language before any text is read.
        if ending in CATALOGUES:
            catalogue_language(path, source, target)
        name = data
        if columns and ending in TABLES:
            name = f"{data} ({','.join(map(str, columns))})"
        read = _reader(path, source, target, columns)
        return Source(name, _on_disk(path), read, is_messages=ending in CATALOGUES)
    if ending == ".zip":
        check_file(path, f"an archive with text of {source} and {target}")
        return _find_in_archive(path, source, target, columns)
    files = _two_sides(data, source, target)
    return Source(data, _on_disk(*files), lambda dropped: read_parallel(*files, is_sentence=False))


def _find_catalogues(name: str, source: str, target: str, folders: tuple[Path, ...]) -> Source:
    files = tuple(input_files(source, target, folders))
    if folders != LOCALE_FOLDERS:
        report_unread(source, target, folders, files)
    return Source(
        name, files, lambda dropped: harvest(source, target, dropped, folders), is_messages=True
    )


def _reader(path: Path, source: str, target: str, columns: Columns | None) -> Reader:
    """Return the function that reads pairs from a file, depending on the file's suffix."""
    ending = ending_of(str(path))
    if ending in TABLES:
        return lambda dropped: read_table(Table(path, columns, (source, target)), dropped)
    if ending in MEMORIES:
        return lambda dropped: read_memory(path, source, target, dropped)
    if ending in JSON_LINES:
        return lambda dropped: read_json_lines(path, source, target, dropped)
    return lambda dropped: read_messages(path, source, target, dropped)


def check_file(path: Path, expected: str) -> None:
    """Check that a file exists and can be read several times. A pipe cannot.

    Raises:
        InputError: if the file is missing, or is a folder, a pipe or a device. The message ends
            with `expected`.
    """
    if path.is_file() or archive_of(path):
        return
    if path.exists() and not path.is_dir():
        raise InputError(
            f"{path} is a pipe or device, which can be read only once; save its text to a "
            "file, and use that file"
        )
    raise InputError(f"{path}: no such file; expected {expected}")


def _on_disk(*paths: Path) -> tuple[Path, ...]:
    """Return the distinct files on disk for these paths. An archive counts as one file."""
    return tuple(dict.fromkeys(archive_of(path) or path for path in paths))


def _find_in_archive(archive: Path, source: str, target: str, columns: Columns | None) -> Source:
    """Find the text of a pair in a .zip: aligned files as in OPUS, or memories and tables."""
    names = names_in_archive(archive)
    texts: dict[str, tuple[str | None, ...]] = {}
    for prefix in dict.fromkeys(_prefix_and_code(name)[0] for name in names):
        sides = _sides_of(prefix, names, source, target)
        if all(sides):
            texts[prefix] = sides
    if not texts:
        # In OPUS archives, .xml files contain alignments instead of text.
        endings = {*TABLES, *JSON_LINES, *MEMORIES} - {".xml"}
        texts = {name: (name,) for name in names if ending_of(name) in endings}
    if not texts:
        raise InputError(
            f"{archive}: no text for {source}-{target}, only {', '.join(map(repr, names[:10]))}; "
            f"expected NAME.{source} and NAME.{target}, or "
            f"{', '.join((*TABLES, *JSON_LINES, *MEMORIES))}"
        )
    if len(texts) > 1:
        say(
            f"{archive}: joins {len(texts):,} texts for {source}-{target}: {listed(texts)}; to "
            f"read only one of them, use {archive}/{next(iter(texts))}"
        )
    read_names = {name for files in texts.values() for name in files}
    unread = [name for name in names if name not in read_names]
    if unread:
        say(f"{archive}: not read for {source}-{target} ({len(unread):,}): {listed(unread)}")
    return join_sources(
        [_find_text(f"{archive}/{name}", source, target, columns) for name in texts]
    )


def join_sources(texts: Collection[Source]) -> Source:
    """Join texts into one text, which is read in this order.

    The joined text consists of program messages only if every text does.
    """

    def read(dropped: Counter) -> Iterator[TextPair]:
        for text in texts:
            yield from text.read(dropped)

    files: list[Path] = []
    for text in texts:
        files += text.files
    name = "+".join(text.name for text in texts)
    return Source(name, tuple(files), read, all(text.is_messages for text in texts))


def ending_of(name: str) -> str:
    """Return the suffix of a file name in lower case, ignoring any compression suffix."""
    path = Path(name)
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def _prefix_and_code(name: str) -> tuple[str, str]:
    """Split a file name of the form PREFIX.CODE[.txt][.gz] into prefix and language code."""
    ending = Path(name).suffix
    plain = name
    if ending.lower() in COMPRESSED_SUFFIXES:
        plain = name.removesuffix(ending)
    if plain.lower().endswith(".txt"):
        plain = plain[:-4]
    prefix, _, code = plain.rpartition(".")
    return prefix, code


def _sides_of(
    prefix: str, names: Sequence[str], source: str, target: str
) -> tuple[str | None, str | None]:
    """Return the file names of the two sides of aligned text, or None for a missing side.

    Plain text is preferred to compressed text, and the exact code to other spellings.
    """
    codes: dict[str, str] = {}
    # For each code, the file with the shortest name is the uncompressed one.
    for name in sorted(names, key=len):
        if name.startswith(f"{prefix}."):
            name_prefix, code = _prefix_and_code(name)
            if name_prefix == prefix and code:
                codes.setdefault(code, name)
    source_code = best_code(source, codes)
    target_code = best_code(target, codes)
    # The same file cannot be both sides.
    if target_code == source_code:
        target_code = None
    return codes.get(source_code or ""), codes.get(target_code or "")


def _two_sides(prefix: str, source: str, target: str) -> tuple[Path, Path]:
    """Return the files of aligned text, PREFIX.SRC and PREFIX.TGT."""
    archive = archive_of(prefix)
    name = str(Path(prefix))
    if archive:
        name = Path(prefix).relative_to(archive).as_posix()
    names = _names_next_to(Path(prefix), archive)
    sides = _sides_of(name, names, source, target)
    paths: list[Path] = []
    for language, side in zip((source, target), sides, strict=True):
        if side is None:
            _refuse_unread(Path(prefix))
            similar = sorted(Path(path).name for path in names if path.startswith(f"{name}."))
            available = ""
            if similar:
                available = f"; available: {', '.join(similar[:20])}"
            raise InputError(
                f"{prefix}.{language}: no such file (nor with .txt, "
                f"{', '.join(COMPRESSED_SUFFIXES)})"
                f"{available}; expected PREFIX.{source} and PREFIX.{target}, one file "
                f"{', '.join(_ENDINGS)}, or a folder of gettext catalogues"
            )
        paths.append(Path(archive or "", side))
    for path in paths:
        check_file(path, f"text of {source} and {target}")
    return paths[0], paths[1]


def _names_next_to(prefix: Path, archive: Path | None) -> list[str]:
    """Return the names of all files in the archive or folder that contains a prefix."""
    if archive:
        return names_in_archive(archive)
    if prefix.parent.is_dir():
        return [str(path) for path in prefix.parent.iterdir()]
    return []


def _refuse_unread(path: Path) -> None:
    """Raise `InputError` if a file exists but its format is not supported."""
    if path.is_file():
        about_sgml = ""
        if path.suffix.lower() in SGML:
            about_sgml = " (.sgm is read only by --exclude)"
        raise InputError(
            f"{path}: unsupported format {path.suffix or 'without a suffix'}; expected "
            f"{', '.join(_ENDINGS)}, or PREFIX of two aligned files{about_sgml}"
        )
    if path.exists():
        check_file(path, "text")


def holds_languages(data: str) -> bool:
    """Return whether a text may contain several language pairs.

    This is possible for folders, archives, and formats that specify the language of each sentence.
    """
    path = Path(data)
    names_languages = ending_of(data) in (*MEMORIES, *JSON_LINES)
    return path.is_dir() or names_languages or archive_of(data) == path


def read_table(table: Table, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs in a table. Rows without a pair are counted in `dropped`, by reason.

    Raises:
        InputError: if the table is empty, or cannot be read.
    """
    reasons = {"blank": "empty side", "short": "short row", "long": "long row"}
    row = None
    for row in table.rows():
        if row.pair:
            yield row.pair
        else:
            dropped[reasons.get(row.why, row.why)] += 1
    if row is None:
        raise InputError(f"{table.path}: empty file; expected `source<TAB>target` lines")


def read_json_lines(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs in a file with one JSON object per line.

    An object is {"en": "...", "fr": "..."}, or has the keys "source" and "target". Either form may
    also be the value of "translation". "source_lang" and "target_lang" may specify the languages of
    source and target.

    Args:
        path: JSON Lines file, which may be compressed.
        source: source language.
        target: target language.
        dropped: counts blank lines, and lines that lack a language or contain invalid characters.

    Raises:
        InputError: if a line is not a JSON object, or no line has both languages.
    """
    keys: set[str] = set()
    is_empty = True
    for number, line in enumerate(read_lines(path, is_sentence=False), start=1):
        if is_blank(line):
            dropped["empty side"] += 1
            continue
        try:
            record = json_object(path, number, line)
        except InvalidCharactersError:
            dropped["not characters"] += 1
            continue
        sides = _texts_of(record)
        keys.update(sides)
        source_key = _key_of(sides, source, 0)
        target_key = _key_of(sides, target, 1)
        if source_key is None or target_key is None or source_key == target_key:
            dropped["language missing"] += 1
            continue
        is_empty = False
        yield sides[source_key], sides[target_key]
    if is_empty:
        listed = ", ".join(sorted(keys)[:20]) or "no text"
        raise InputError(f"{path}: no line has text in both {source} and {target}, only {listed}")


class InvalidCharactersError(InputError):
    """Raised for a JSON object that contains a lone surrogate."""


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    """Parse a line as a JSON object. `number` is the line number for messages."""
    try:
        return parse_json(line)
    except ValueError as error:
        kind = InvalidCharactersError if isinstance(error, UnicodeEncodeError) else InputError
        raise kind(
            f"{path}, line {number}: {line!r:.60} is not a JSON object ({error}); expected "
            '{"en": "...", "fr": "..."} on each line'
        ) from None


def _texts_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the strings in an object, or in its "translation" object, by key.

    If the object specifies the language of source or target, the key is that language code.
    """
    translation = record.get("translation")
    if isinstance(translation, dict):
        record = translation
    codes: dict[int, str] = {}
    texts: dict[str, str] = {}
    for key, value in record.items():
        if not isinstance(value, str):
            continue
        if not is_language_key(key, value):
            texts[key] = value
            continue
        side = side_of_language_key(key)
        if side is not None:
            codes[side] = value
    if not codes:
        return texts
    return {_code_of_side(key, codes) or key: text for key, text in texts.items()}


def _code_of_side(key: str, codes: Mapping[int, str]) -> str:
    """Return the language code specified for source or target, or "" if there is none."""
    side = side_of_column(key)
    if side is None:
        return ""
    return codes.get(side, "").strip()


def _key_of(sides: Mapping[str, str], language: str, side: int) -> str | None:
    """Return the key of the text in a language.

    The key of a blank text is returned only if no other text is in this language.

    Args:
        sides: maps language codes or column names to texts.
        language: the language.
        side: 0 for the source language of the pair, 1 for the target language.
    """
    filled = {key: text for key, text in sides.items() if not is_blank(text)}
    if len(filled) < len(sides):
        return _best_key(filled, language, side) or _best_key(sides, language, side)
    return _best_key(sides, language, side)


def _best_key(sides: Mapping[str, str], language: str, side: int) -> str | None:
    code = best_code(language, sides)
    if code:
        return code
    # Keys may be column names such as `French` or `text_fr`.
    languages = {language_of_column(key): key for key in sides}
    code = best_code(language, filter(None, languages))
    if code:
        return languages[code]
    for key in sides:
        if side_of_column(key) == side:
            return key
    return None
