"""Reads sentence pairs from aligned text, TSV, TMX and gettext catalogues, compressed or not."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_parallel, reading
from fairseq_lxsr.files.open import PACKED, open_binary
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.catalogues import LOCALE_FOLDERS, harvest, input_files
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.config import Sources, TextName
from fairseq_lxsr.text.tables import Columns, Table

ENDINGS = ("", ".txt")
UNIT_BYTES, UNIT_ELEMENTS = 1 << 22, 20_000  # limits between the end of one translation unit and the end of the next
MAX_NESTING = 100  # depth of nested elements; TMX needs less than ten
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


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
    kind = _unpacked_name(data).rpartition(".")[2]
    if kind in ("tsv", "csv", "tmx"):
        path = Path(data)
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected a .{kind} of {source} and {target}")
        if kind != "tmx":
            name = f"{data} ({','.join(map(str, columns))})" if columns else data
            return Source(name, (path,), lambda dropped: read_table(Table(path, columns, (source, target)), dropped))
        return Source(data, (path,), lambda dropped: read_tmx(path, source, target, dropped))
    files = (_one_side(data, source, source, target), _one_side(data, target, source, target))
    return Source(data, files, lambda dropped: read_parallel(*files, max_words=None))


def join(texts: Collection[Source]) -> Source:
    """Join texts, which are read in this order; they are program messages only if all of them are."""
    return Source(
        "+".join(text.name for text in texts),
        tuple(path for text in texts for path in text.files),
        lambda dropped: (pair for text in texts for pair in text.read(dropped)),
        all(text.is_messages for text in texts),
    )


def _unpacked_name(name: str) -> str:
    return next((name.removesuffix(ending) for ending in PACKED if name.endswith(ending)), name)


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


def read_tmx(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs of a TMX file one at a time; inline mark-up is text.

    Languages are ISO 639 codes: `en` also matches en-US where there is no en, and `zh_TW` matches zh-TW alone. Units
    without both languages are counted as dropped.
    """
    require("defusedxml", "prepare", f"{path}: TMX")
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, iterparse

    units = 0
    first, second = _code(source), _code(target)
    parser = DefusedXMLParser()
    parser.parser.AttlistDeclHandler = _refuse_attributes
    try:
        with reading(path), open_binary(path) as stream:
            for unit in _units(iterparse(measured := _Measured(stream, path), ("start", "end"), parser)):
                units += 1
                measured.since = 0
                sides = _languages(unit)
                if first in sides and second in sides:
                    yield sides[first], sides[second]
                else:
                    dropped["language missing"] += 1
    except DefusedXmlException as error:
        raise InputError(
            f"{path}: defines an entity ({getattr(error, 'name', type(error).__name__)}), which could grow without "
            "end; remove its DOCTYPE"
        ) from None
    except InputError:
        raise
    except (ParseError, ValueError, LookupError) as error:
        raise InputError(f"{path}: not a TMX file ({error}); expected XML with <tu> elements") from None
    if not units:
        raise InputError(f"{path}: no translation units; expected <tu> elements")


class _Measured:
    """A file that raises InputError while it is read where a translation unit is implausibly long."""

    def __init__(self, stream: BinaryIO, path: Path):
        self.stream, self.path, self.since = stream, path, 0

    def read(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.since += len(block)
        if self.since > UNIT_BYTES:
            raise InputError(f"{self.path}: {UNIT_BYTES:,} bytes without the end of a <tu>; expected translation units")
        return block


def _refuse_attributes(*declaration) -> None:
    """Refuse declared attributes, which every element would get, at any length."""
    raise ValueError("it declares attributes: remove its DOCTYPE")


def _units(events: Iterator[tuple[str, Any]]) -> Iterator[Any]:
    """Yield the <tu> elements one at a time, in constant memory."""
    parents: list[Any] = []
    since = 0
    for event, element in events:
        if event == "start":
            parents.append(element)
            since += 1
            if len(parents) > MAX_NESTING or since > UNIT_ELEMENTS:
                raise ValueError(f"{since:,} elements without the end of a <tu>, {len(parents)} of them nested")
            continue
        parents.pop()
        if _name(element) == "tu":
            yield element
            since = 0
            for parent in parents:
                parent.clear()


def _name(element) -> str:
    """Return the name of an element without its namespace, which some programs write."""
    return element.tag.rpartition("}")[2]


def _code(language: str) -> str:
    return language.lower().replace("_", "-")


def _languages(unit) -> dict[str, str]:
    """Return the sentences of a unit by language; the first of a region is also that of the language without region."""
    sides: dict[str, str] = {}
    for variant in unit:
        if _name(variant) == "tuv":
            code = _code(variant.get(XML_LANGUAGE) or variant.get("lang") or "")
            segment = next((child for child in variant if _name(child) == "seg"), None)
            if segment is not None:
                sides.setdefault(code, " ".join("".join(segment.itertext()).split()))
    return {code.partition("-")[0]: text for code, text in reversed(sides.items())} | sides
