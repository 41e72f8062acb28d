"""Reads translation memories a unit at a time: TMX 1.1 to 1.4, XLIFF 1.2 and 2 as memoQ, Trados and
others write it.
"""

import codecs
import html
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError
from xml.sax.saxutils import escape

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.text.languages import best_code, parse_tag

MEMORIES = (".tmx", ".xlf", ".xliff", ".mqxliff", ".sdlxliff", ".xml")
UNIT_BYTES, UNIT_ELEMENTS = (
    1 << 22,
    20_000,
)  # limits between the end of one translation unit and the end of the next
CDATA_LENGTH = 1 << 20  # of a section that is read as a whole
MAX_NESTING = 100  # depth of nested elements; TMX needs less than ten
MAX_TRANSLATIONS = 100  # pairs of one unit, which multiply
XML = "{http://www.w3.org/XML/1998/namespace}"
UNITS = {"tu", "trans-unit", "unit"}  # TMX, XLIFF 1.2, XLIFF 2
INLINE_CODES = {
    "bpt",
    "ept",
    "ph",
    "it",
    "ut",
    "x",
    "bx",
    "ex",
}  # what they hold is mark-up of the document, not text
UNTRANSLATED = {
    "new",
    "needs-translation",
    "initial",
    "NotStarted",
    "Rejected",
}  # states of XLIFF 1.2, 2 and memoQ
DAMAGE = "\ufffd"  # stands for what is no character
_DECLARED = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([\w.-]+)""")
_DECODED = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|iso-8859-\d+|windows-125\d|cp125\d|koi8-[ru]", re.IGNORECASE
)
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # in XML 1.0
_REFERENCE = re.compile(rf"(?s)<!\[CDATA\[.*?]]>|&(?:(#?\w+);)?|{_FORBIDDEN.pattern}")
_XML_ENTITIES = {"amp", "lt", "gt", "quot", "apos"}
_BREAK = re.compile(
    r"<br\b|\\n|\n|<mq:ch\b", re.IGNORECASE
)  # memoQ writes tabs and hard blanks as mq:ch


def read_memory(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs of a translation memory, of which there must be some; see `read_tmx`."""
    codes: Counter[str] = Counter()
    pair = None
    for pair in read_tmx(path, source, target, dropped, codes):
        yield pair
    if pair is None:
        there = ", ".join(sorted(filter(None, codes))) or "no codes of languages"
        raise InputError(
            f"{path}: none of its units has text of both {source} and {target}; it has {there}: "
            "name one of these pairs with --lang-pairs"
        )


def read_tmx(
    path: Path, source: str, target: str, dropped: Counter, codes: Counter[str] | None = None
) -> Iterator[TextPair]:
    """Yield the pairs of a translation memory one at a time, without inline mark-up.

    Languages are found by `best_code`; of several translations each makes a pair. Units without
    both languages, without a translation, or with something that is no character are counted as
    dropped, the units of each language in `codes`.
    """
    codes = Counter() if codes is None else codes
    units = 0
    for unit, parents in read_elements(path, UNITS):
        units += 1
        for sides in _variants(unit, parents, dropped):
            codes.update(sides.keys())
            yield from _pairs(sides, source, target, dropped)
    if not units:
        raise InputError(
            f"{path}: no translation units; expected <tu> elements of TMX, or <trans-unit> of XLIFF"
        )


def read_segments(path: Path) -> Iterator[str]:
    """Yield all sentences of a translation memory, or of a test set of WMT in XML, in any
    language.
    """
    for element, _ in read_elements(path, {"seg", "source", "target", "seg-source"}):
        yield from _segments(element).values()


def _pairs(
    sides: dict[str, list[str]], source: str, target: str, dropped: Counter
) -> Iterator[TextPair]:
    """Yield the pairs of a unit or segment, whose texts are given by language."""
    if "" in sides and len(sides) == 2:  # XLIFF need not say what it is translated to
        said = next(filter(None, sides))
        other = target if best_code(source, [said]) else source
        sides = {code or other: texts for code, texts in sides.items()}
    there = tuple(sides)
    chosen = _codes_of(source, there), _codes_of(target, there)
    if not all(chosen):
        dropped["language missing"] += 1
        return
    left, right = ([text for code in codes for text in sides[code]] for codes in chosen)
    if any(DAMAGE in text for text in (*left, *right)):
        dropped["not characters"] += 1
        return
    if len(sides) > 2 or len(left) + len(right) > 2:
        wanted = {parse_tag(codes[0]).language for codes in chosen}
        same = sum(
            len(texts) for code, texts in sides.items() if parse_tag(code).language in wanted
        )
        for reason, count in (
            ("of another region", same - len(left) - len(right)),
            (f"over {MAX_TRANSLATIONS} translations", len(left) * len(right) - MAX_TRANSLATIONS),
        ):
            if count > 0:
                dropped[reason] += count
    yield from islice(product(left, right), MAX_TRANSLATIONS)


@lru_cache(maxsize=1024)
def _codes_of(wanted: str, codes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the spellings, in these codes, of the one that text of a language has."""
    best = best_code(wanted, codes)
    return tuple(code for code in codes if best is not None and parse_tag(code) == parse_tag(best))


def _variants(unit, parents: list[Any], dropped: Counter) -> Iterator[dict[str, list[str]]]:
    """Yield the texts of a unit by language; those of each segment where XLIFF has segments."""
    if _name(unit) == "tu":
        sides: dict[str, list[str]] = {}
        for variant in _children(unit, "tuv"):
            for segment in _children(variant, "seg")[:1]:
                sides.setdefault(_language(variant), []).append(_text(segment))
        yield sides
        return
    said = {key: value for parent in parents for key, value in _local(parent).items()}
    languages = [said.get(name) or said.get(short, "") for name, short in LANGUAGES_OF_XLIFF]
    for segment in _children(unit, "segment") if _name(unit) == "unit" else [unit]:
        sources, targets = (
            _children(segment, "seg-source") or _children(segment, "source"),
            _children(segment, "target"),
        )
        states = {
            _local(element).get(key)
            for element in (segment, *targets)
            for key in ("state", "status")
        }
        says = next(
            (e.get("translate") for e in (segment, unit, *parents[::-1]) if e.get("translate")), ""
        )
        if not sources or not targets or states & UNTRANSLATED or says == "no":
            dropped["untranslated"] += 1
            continue
        codes = [
            _language(side) or code
            for side, code in zip((sources[0], targets[0]), languages, strict=True)
        ]
        left, right = _segments(sources[0]), _segments(targets[0])
        if left.keys() != right.keys():
            left, right = {"": _text(sources[0])}, {"": _text(targets[0])}
        for name, text in left.items():
            if right[name]:
                yield {codes[0]: [text], codes[1]: [right[name]]}
            else:
                dropped["untranslated"] += 1


LANGUAGES_OF_XLIFF = (("source-language", "srcLang"), ("target-language", "trgLang"))


def _segments(element) -> dict[str, str]:
    """Return the segments of a text by their names; a text that is not segmented is one."""
    marked = [
        mark for mark in element.iter() if _name(mark) == "mrk" and mark.get("mtype") == "seg"
    ]
    return {mark.get("mid", ""): _text(mark) for mark in marked} or {"": _text(element)}


def _text(element) -> str:
    return " ".join("".join(_texts(element)).split())


def _texts(element) -> Iterator[str]:
    """Yield what is text of an element; a line break in mark-up is a blank."""
    yield element.text or ""
    for child in element:
        if _name(child) not in INLINE_CODES:
            yield from _texts(child)
        elif (
            child.get("ctype") == "lb"
            or child.get("type") in ("lb", "fmt:lb")
            or _BREAK.search(child.text or "")
        ):
            yield " "
        yield child.tail or ""


def _children(element, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _local(element) -> dict[str, str]:
    """Return the attributes of an element without their namespaces."""
    return {key.rpartition("}")[2]: value for key, value in element.attrib.items()}


def _language(element) -> str:
    return element.get(f"{XML}lang") or element.get("lang") or ""


def _name(element) -> str:
    """Return the name of an element without its namespace, which some programs write."""
    return element.tag.rpartition("}")[2]


def read_elements(path: Path, names: set[str]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the elements of these names one at a time, each with those that it is in, in constant
    memory.

    Characters that XML forbids become `DAMAGE`. Entities that a file defines are refused, because
    they grow.
    """
    require("defusedxml", "prepare", f"{path}: {path.suffix.lower().strip('.').upper() or 'XML'}")
    from defusedxml.ElementTree import DefusedXMLParser, iterparse

    parser = DefusedXMLParser()
    parser.parser.AttlistDeclHandler = _refuse_attributes
    with _refusing(path), reading(path), open_binary(path) as stream:
        measured = _Measured(stream, path, min(names & {"tu", "seg"}))
        parents: list[Any] = []
        since = 0
        for event, element in iterparse(measured, ("start", "end"), parser):
            if event == "start":
                parents.append(element)
                since += 1
                if len(parents) > MAX_NESTING or since > UNIT_ELEMENTS:
                    raise ValueError(
                        f"{since:,} elements without the end of a <tu>, {len(parents)} of them nested"
                    )
                continue
            parents.pop()
            if _name(element) in names:
                yield element, parents
                measured.since = since = 0
                for parent in parents:
                    del parent[:]


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Convert errors of XML to an `InputError` that names the file."""
    from defusedxml.common import DefusedXmlException

    kind = "an XLIFF" if "xl" in path.name.lower() else "a TMX"
    try:
        yield
    except DefusedXmlException as error:
        raise InputError(
            f"{path}: defines an entity ({getattr(error, 'name', type(error).__name__)}), which could grow without "
            "end; remove its DOCTYPE"
        ) from None
    except InputError:
        raise
    except (ParseError, ValueError, LookupError) as error:
        raise InputError(
            f"{path}: not {kind} file ({error}); expected XML with translation units"
        ) from None


def _refuse_attributes(*declaration) -> None:
    """Refuse declared attributes, which every element would get, at any length."""
    raise ValueError("it declares attributes: remove its DOCTYPE")


class _Measured:
    """An XML file as expat reads it: decoded, without what is no character; long stretches without
    a unit are refused.

    Multi-byte encodings that are not of Unicode are left to expat, which refuses them.
    """

    def __init__(self, stream: BinaryIO, path: Path, unit: str):
        self.stream, self.path, self.unit, self.since = stream, path, unit, 0
        self.rest: bytes | None = None  # of the first block, from which the encoding is known
        self.decoder: codecs.IncrementalDecoder | None = None
        self.held = ""

    def _block(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.since += len(block)
        if self.since > UNIT_BYTES:
            raise InputError(
                f"{self.path}: {UNIT_BYTES:,} bytes without the end of a <{self.unit}>; expected translation units"
            )
        return block

    def read(self, size: int) -> bytes | str:
        block = self._block(size)
        if self.rest is None:
            self.rest = block
            self.decoder = _decoder(block)
        if self.decoder is None:
            return block
        text = self.held + self.decoder.decode(block, final=not block)
        cut = _whole(text) if block else len(text)
        self.held = text[cut:]
        return _REFERENCE.sub(_readable, text[:cut]) or (self.read(size) if block else "")


def _whole(text: str) -> int:
    """Return where a block may end: before a reference, a tag or a CDATA section that may go on in
    the next one.
    """
    end = len(text)
    starts = text.rfind("&", max(0, end - 40)), text.rfind("<", max(0, end - 8))
    cut = min((start for start in starts if start >= 0), default=end)
    opened = text.find("<![CDATA[", text.rfind("]]>", 0, cut) + 1, cut)
    return opened if opened >= 0 and end - opened < CDATA_LENGTH else cut


def _decoder(head: bytes) -> codecs.IncrementalDecoder | None:
    """Return the decoder of an XML file by its first bytes; None where expat decodes it."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif head[:2] in (b"<\0", b"\0<"):
        name = "utf-16-le" if head[1] == 0 else "utf-16-be"
    else:
        declared = _DECLARED.match(head.removeprefix(codecs.BOM_UTF8))
        name = declared[1].decode() if declared else "utf-8-sig"
        if not _DECODED.fullmatch(name.removesuffix("-sig")):
            return None
        name = "utf-8-sig" if name.lower().replace("-", "") == "utf8" else name
    return codecs.getincrementaldecoder(name)(errors="replace")


def _readable(found: re.Match[str]) -> str:
    """Return what expat can read for a reference or a character that it may refuse: entities of
    HTML are known.
    """
    text, name = found.group(0, 1)
    if name is None:
        return {"&": "&amp;", "<": text}.get(text[0], DAMAGE)
    if not name.startswith("#"):
        character = html.unescape(text)
        return text if name in _XML_ENTITIES else DAMAGE if character == text else escape(character)
    try:
        code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
        if _FORBIDDEN.match(chr(code)):
            return DAMAGE
    except (ValueError, OverflowError):
        return DAMAGE
    return (
        html.unescape(text) if 0x80 <= code < 0xA0 else f"&#{code};"
    )  # of Windows, as browsers read it
