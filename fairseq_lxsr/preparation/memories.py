"""Reads translation memories one unit at a time: TMX 1.1 to 1.4, XLIFF 1.2 and XLIFF 2.

XLIFF is read in the variants written by memoQ, Trados and other programs.
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

from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.files.lines import is_blank, reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.files.tmx import FORBIDDEN
from fairseq_lxsr.machine import require
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.text.languages import best_code, parse_tag

MEMORIES = (".tmx", ".xlf", ".xliff", ".mqxliff", ".sdlxliff", ".xml")
# Maximum number of bytes, and of elements, between the ends of two successive translation units.
UNIT_BYTES = 1 << 22
UNIT_ELEMENTS = 20_000
# Maximum number of characters in a CDATA section that is passed to expat in one piece.
CDATA_LENGTH = 1 << 20
# Maximum nesting depth of elements. TMX needs fewer than ten levels.
MAX_NESTING = 100
# Maximum number of pairs from one unit, which combines every source with every target variant.
MAX_TRANSLATIONS = 100
XML = "{http://www.w3.org/XML/1998/namespace}"
# Unit elements in TMX, XLIFF 1.2 and XLIFF 2.
UNITS = {"tu", "trans-unit", "unit"}
# Elements with the contents of inline codes: of a file of Trados, and of a unit of XLIFF 2.
DEFINITIONS = {"tag-defs", "originalData"}
# Elements that contain mark-up from the original document instead of text.
INLINE_CODES = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex"}
# States that mean "untranslated" in XLIFF 1.2, XLIFF 2 and memoQ.
UNTRANSLATED = {"new", "needs-translation", "initial", "NotStarted", "Rejected"}
# Attributes for source and target language in XLIFF 1.2 and XLIFF 2.
LANGUAGES_OF_XLIFF = (("source-language", "srcLang"), ("target-language", "trgLang"))
# Replacement for invalid characters.
DAMAGE = "\ufffd"
_DECLARED = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([\w.-]+)""")
_DECODED = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|iso-8859-\d+|windows-125\d|cp125\d|koi8-[ru]", re.IGNORECASE
)
_REFERENCE = re.compile(rf"(?s)<!\[CDATA\[.*?]]>|&(?:(#?\w+);)?|{FORBIDDEN.pattern}")
_XML_ENTITIES = {"amp", "lt", "gt", "quot", "apos"}
# Names of mark-up that separates words. memoQ writes tabs and non-breaking spaces as mq:ch.
_BREAKS = (
    "br|hr|p|div|li|ul|ol|dl|dt|dd|table|tr|td|th|h[1-6]|section|blockquote|title|"
    "lb|pb|cb|cr|tab|ptab|text:s|ch|par|para|paragraph|line|newline|break|line-?break|item|"
    "listitem|entry|cell|row"
)
# A break in the content of an inline code: a tab or newline, also as in C or RTF, or an element.
_BREAK = re.compile(
    rf"[\n\t]|\\[nt](?![a-z])|\\(?:line|tab|par|cell|row)\b|</?(?:[\w-]+:)?(?:{_BREAKS})\b",
    re.IGNORECASE,
)
# A break as the type of an inline code, such as lb, fmt:lb or x-html-br.
_BREAK_TYPE = re.compile(rf"(?:.*[-_:])?(?:{_BREAKS})", re.IGNORECASE)
_TYPES = ("ctype", "type", "subType")
# Attributes with the content of an inline code.
_CONTENTS = ("equiv-text", "equiv", "disp", "dispStart", "dispEnd", "content")
# Attributes with the id of the content of an inline code in XLIFF 2.
_REFERENCES = ("dataRef", "dataRefStart", "dataRefEnd")
_TRADOS_REFERENCES = ("id",)
# Tags in text: of HTML, or as OmegaT writes them (<f0>). They may be escaped twice.
_TAG = re.compile(
    r"""(?:<|&lt;)(/?)([A-Za-z][\w.:-]*|\d+)((?:\s+[\w.:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*)"""
    r"\s*(/?)(?:>|&gt;)|<!--.{0,200}?-->",
    re.DOTALL,
)
_NUMBERED_TAG = re.compile(r"[a-z]{0,3}\d{1,4}")
# Tags of HTML that may have no closing tag.
_UNCLOSED_TAGS = {"br", "hr", "p", "div", "li", "tr", "td", "th", "img"}


def read_memory(path: Path, source: str, target: str, dropped: Counter) -> Iterator[TextPair]:
    """Yield the pairs in a translation memory, like `read_units`, but require at least one pair.

    Args:
        path: TMX or XLIFF file, which may be compressed.
        source: source language.
        target: target language.
        dropped: counts units without a pair, by reason.

    Raises:
        InputError: if no unit has text in both languages, or the file cannot be read.
    """
    codes: Counter[str] = Counter()
    pair = None
    for pair in read_units(path, source, target, dropped, codes):
        yield pair
    if pair is None:
        languages = listed(sorted(filter(None, codes))) or "no language codes"
        raise InputError(
            f"{path}: no unit has text in both {source} and {target}, only in {languages}; "
            "specify a pair of these languages with --lang-pairs"
        )


def read_units(
    path: Path, source: str, target: str, dropped: Counter, codes: Counter[str] | None = None
) -> Iterator[TextPair]:
    """Yield the pairs in a translation memory one at a time, without inline mark-up.

    Languages are matched by `best_code`. If there are several translations, each of them forms a
    pair.

    Args:
        path: TMX or XLIFF file, which may be compressed.
        source: source language.
        target: target language.
        dropped: counts units that lack a language or a translation, or contain invalid characters,
            by reason.
        codes: counts the units that contain each language code.

    Raises:
        InputError: if the file contains no translation units, or cannot be read.
    """
    if codes is None:
        codes = Counter()
    for pairs in read_units_apart(path, source, target, dropped, codes):
        yield from pairs


def read_units_apart(
    path: Path, source: str, target: str, dropped: Counter, codes: Counter[str]
) -> Iterator[list[TextPair]]:
    """Yield the list of pairs of each unit, like `read_units`; it may be empty."""
    is_empty = True
    for unit, parents in _read_with_contents(path, UNITS):
        is_empty = False
        unit_pairs: list[TextPair] = []
        for sides in _variants(unit, parents, dropped):
            codes.update(sides.keys())
            unit_pairs += _pairs(sides, source, target, dropped)
        yield unit_pairs
    if is_empty:
        raise InputError(
            f"{path}: no translation units; expected <tu> elements (TMX) or <trans-unit> "
            "elements (XLIFF)"
        )


def _read_with_contents(path: Path, names: set[str]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield elements like `read_elements`, with the contents of inline codes defined elsewhere.

    The content is in the attribute `content` of a code.
    """
    contents: dict[str, str] = {}
    for element, parents in read_elements(path, names | DEFINITIONS):
        if _name(element) in DEFINITIONS:
            contents = {child.get("id", ""): "".join(child.itertext()) for child in element}
            continue
        for code in element.iter() if contents else ():
            # Trados refers to contents by the id of the code.
            references = _TRADOS_REFERENCES if _name(code) in ("x", "g") else _REFERENCES
            code.set("content", " ".join(contents.get(code.get(name), "") for name in references))
        yield element, parents


def read_segments(path: Path) -> Iterator[str]:
    """Yield all sentences, in any language, from a translation memory or a WMT test set in XML."""
    for element, _ in _read_with_contents(path, {"seg", "source", "target", "seg-source"}):
        yield from _segments(element).values()


def _pairs(
    sides: dict[str, list[str]], source: str, target: str, dropped: Counter
) -> Iterator[TextPair]:
    """Yield the pairs in a unit or segment, given its texts by language code."""
    sides = _without_blank_variants(_with_missing_code(sides, source, target))
    # If a language has several regions, such as pt-PT and pt-BR, use only the best match.
    codes = tuple(sides)
    source_codes = _codes_of(source, codes)
    target_codes = _codes_of(target, codes)
    if not source_codes or not target_codes:
        dropped["language missing"] += 1
        return
    sources = _texts_of(sides, source_codes)
    targets = _texts_of(sides, target_codes)
    if any(DAMAGE in text for text in (*sources, *targets)):
        dropped["not characters"] += 1
        return
    if len(sides) > 2 or len(sources) + len(targets) > 2:
        languages = {parse_tag(source_codes[0]).language, parse_tag(target_codes[0]).language}
        same_languages = _count_texts(sides, languages)
        _count_excess(dropped, "of another region", same_languages - len(sources) - len(targets))
        _count_excess(
            dropped,
            f"over {MAX_TRANSLATIONS} translations",
            len(sources) * len(targets) - MAX_TRANSLATIONS,
        )
    yield from islice(product(sources, targets), MAX_TRANSLATIONS)


def _with_missing_code(
    sides: dict[str, list[str]], source: str, target: str
) -> dict[str, list[str]]:
    """Return the sides of a unit after filling in a missing language code.

    XLIFF files need not specify the language of the translation.
    """
    if "" not in sides or len(sides) != 2:
        return sides
    named = next(filter(None, sides))
    missing = target if best_code(source, [named]) else source
    return {code or missing: texts for code, texts in sides.items()}


def _without_blank_variants(sides: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the sides without blank texts, unless a language has no other text."""
    filled = {code: [text for text in texts if not is_blank(text)] for code, texts in sides.items()}
    if filled == sides:
        return sides
    languages = {parse_tag(code).language for code, texts in filled.items() if texts}
    variants: dict[str, list[str]] = {}
    for code, texts in sides.items():
        if filled[code]:
            variants[code] = filled[code]
        elif parse_tag(code).language not in languages:
            variants[code] = texts
    return variants


def _texts_of(sides: dict[str, list[str]], codes: tuple[str, ...]) -> list[str]:
    texts: list[str] = []
    for code in codes:
        texts += sides[code]
    return texts


def _count_texts(sides: dict[str, list[str]], languages: set[str]) -> int:
    """Count the texts in these languages, in any region."""
    count = 0
    for code, texts in sides.items():
        if parse_tag(code).language in languages:
            count += len(texts)
    return count


def _count_excess(dropped: Counter, reason: str, count: int) -> None:
    """Add a count to `dropped`, unless it is zero or negative."""
    if count > 0:
        dropped[reason] += count


@lru_cache(maxsize=1024)
def _codes_of(language: str, codes: tuple[str, ...]) -> tuple[str, ...]:
    """Return all spellings of the code that best matches a language."""
    best = best_code(language, codes)
    if best is None:
        return ()
    return tuple(code for code in codes if parse_tag(code) == parse_tag(best))


def _variants(unit, parents: list[Any], dropped: Counter) -> Iterator[dict[str, list[str]]]:
    """Yield the texts of a TMX unit, or of each segment in an XLIFF unit, by language code."""
    if _name(unit) == "tu":
        yield _texts_by_language(unit)
    else:
        yield from _xliff_variants(unit, parents, dropped)


def _xliff_variants(unit, parents: list[Any], dropped: Counter) -> Iterator[dict[str, list[str]]]:
    """Yield the texts of each translated segment in an XLIFF unit, by language code."""
    languages = _languages_of_xliff(parents)
    # An XLIFF 1.2 unit is a single segment. An XLIFF 2 unit may have several segments.
    segments = _children(unit, "segment") if _name(unit) == "unit" else [unit]
    for segment in segments:
        # Prefer the segmented source to the original source.
        sources = _children(segment, "seg-source") or _children(segment, "source")
        targets = _children(segment, "target")
        may_be_translated = _may_be_translated([segment, unit, *parents[::-1]])
        if not may_be_translated or not _is_complete(segment, sources, targets):
            dropped["untranslated"] += 1
            continue
        source_code = _language(sources[0]) or languages[0]
        target_code = _language(targets[0]) or languages[1]
        for source_text, target_text in _translated(sources[0], targets[0], dropped):
            yield {source_code: [source_text], target_code: [target_text]}


def _is_complete(segment, sources: list[Any], targets: list[Any]) -> bool:
    """Return whether a segment has a source and a translation."""
    return bool(sources and targets) and not _is_untranslated(segment, targets)


def _translated(source, target, dropped: Counter) -> Iterator[TextPair]:
    """Yield the texts of each translated segment, and count untranslated segments."""
    for source_text, target_text in _aligned_texts(source, target):
        if target_text:
            yield source_text, target_text
        else:
            dropped["untranslated"] += 1


def _aligned_texts(source, target) -> list[TextPair]:
    """Return aligned pairs of segments, or a single pair if the sides are segmented differently."""
    source_texts = _segments(source)
    target_texts = _segments(target)
    if source_texts.keys() != target_texts.keys():
        return [(_text(source), _text(target))]
    return [(text, target_texts[name]) for name, text in source_texts.items()]


def _texts_by_language(unit) -> dict[str, list[str]]:
    """Return the texts in a TMX unit, keyed by language code."""
    sides: dict[str, list[str]] = {}
    for variant in _children(unit, "tuv"):
        for segment in _children(variant, "seg")[:1]:
            sides.setdefault(_language(variant), []).append(_text(segment))
    return sides


def _languages_of_xliff(parents: list[Any]) -> list[str]:
    """Return the source and target language declared by the parents of an XLIFF unit.

    A language that is not declared is "".
    """
    attributes: dict[str, str] = {}
    for parent in parents:
        attributes |= _local(parent)
    return [attributes.get(name) or attributes.get(short, "") for name, short in LANGUAGES_OF_XLIFF]


def _may_be_translated(elements: list[Any]) -> bool:
    """Return whether the first element with a `translate` attribute allows translation.

    The result is True if no element has this attribute.
    """
    for element in elements:
        if element.get("translate"):
            return element.get("translate") != "no"
    return True


def _is_untranslated(segment, targets: list[Any]) -> bool:
    """Return whether the state or status of a segment, or of its targets, means "untranslated"."""
    for element in (segment, *targets):
        attributes = _local(element)
        if attributes.get("state") in UNTRANSLATED or attributes.get("status") in UNTRANSLATED:
            return True
    return False


def _segments(element) -> dict[str, str]:
    """Return the segments of a text, keyed by id. Unsegmented text has the id ""."""
    segments = {
        mark.get("mid", ""): _text(mark)
        for mark in element.iter()
        if _name(mark) == "mrk" and mark.get("mtype") == "seg"
    }
    return segments or {"": _text(element)}


def _text(element) -> str:
    return " ".join(_without_tags("".join(_texts(element))).split())


def _texts(element) -> Iterator[str]:
    """Yield the parts of an element's text. Breaks in mark-up become spaces."""
    yield element.text or ""
    for child in element:
        separator = " " if _is_break(child) else ""
        yield separator
        if _name(child) not in INLINE_CODES:
            yield from _texts(child)
            yield separator
        yield child.tail or ""


def _is_break(code) -> bool:
    """Return whether mark-up is or contains a break, such as a tab or the end of a paragraph."""
    if any(_BREAK_TYPE.fullmatch(code.get(name, "")) for name in _TYPES):
        return True
    contents = [code.get(name, "") for name in _CONTENTS]
    if _name(code) in INLINE_CODES:
        contents.append(code.text or "")
    # In XLIFF 2, cp stands for a control character.
    return _name(code) == "cp" or any(map(_BREAK.search, contents))


def _without_tags(text: str) -> str:
    """Remove the tags that programs leave in the text; breaks become spaces.

    An opening tag without attributes and without a closing tag, such as <name>, may be text.
    """
    closed = {match[2] for match in _TAG.finditer(text) if match[1]}

    def replacement(match: re.Match[str]) -> str:
        is_closing, name, attributes, is_empty = match.groups()
        before = text[max(0, match.start() - 1) : match.start()]
        is_tag = (
            name is None
            or is_closing
            or attributes
            or is_empty
            or name in closed
            or name.lower() in _UNCLOSED_TAGS
            or (_NUMBERED_TAG.fullmatch(name) and not before.isalnum())
        )
        if not is_tag:
            return match[0]
        is_between_letters = before.isalnum() and text[match.end() : match.end() + 1].isalnum()
        if (is_empty and is_between_letters) or _BREAK.match(html.unescape(match[0])):
            return " "
        return ""

    return _TAG.sub(replacement, text)


def _children(element, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _local(element) -> dict[str, str]:
    """Return an element's attributes without namespaces."""
    return {key.rpartition("}")[2]: value for key, value in element.attrib.items()}


def _language(element) -> str:
    return element.get(f"{XML}lang") or element.get("lang") or ""


def _name(element) -> str:
    """Return an element's name without its namespace, which not all programs write."""
    return element.tag.rpartition("}")[2]


def read_elements(path: Path, names: set[str]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the elements with these names one at a time, with their parents, in constant memory.

    Characters that XML forbids become `DAMAGE`. Files that define entities are rejected, because
    entities can expand without limit.

    Raises:
        InputError: if the file is not XML, defines entities or attributes, or does not consist of
            translation units of normal size.
    """
    require("defusedxml", "prepare", f"{path}: {path.suffix.lower().strip('.').upper() or 'XML'}")
    from defusedxml.ElementTree import DefusedXMLParser, iterparse

    # defusedxml rejects entity declarations, but not attribute defaults.
    parser = DefusedXMLParser()
    parser.parser.AttlistDeclHandler = _refuse_attributes
    with _refusing(path), reading(path), open_binary(path) as stream:
        measured = _Measured(stream, path, min(names & {"tu", "seg"}))
        parents: list[Any] = []
        elements = 0
        for event, element in iterparse(measured, ("start", "end"), parser):
            if event == "start":
                parents.append(element)
                elements += 1
                if len(parents) > MAX_NESTING or elements > UNIT_ELEMENTS:
                    raise ValueError(
                        f"no closing </tu> after {elements:,} elements ({len(parents)} still open)"
                    )
                continue
            parents.pop()
            if _name(element) in names:
                yield element, parents
                # The parent of an element within a unit is still needed.
                if any(_name(parent) in names for parent in parents):
                    continue
                measured.bytes_since_unit = 0
                elements = 0
                # Remove elements that were already read, so that the tree does not grow.
                for parent in parents:
                    del parent[:]


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Convert XML errors to `InputError`s that name the file."""
    from defusedxml.common import DefusedXmlException

    kind = "an XLIFF" if "xl" in path.name.lower() else "a TMX"
    try:
        yield
    except DefusedXmlException as error:
        raise InputError(
            f"{path}: defines an entity ({getattr(error, 'name', type(error).__name__)}), which "
            "could expand without limit; remove the DOCTYPE"
        ) from None
    except InputError:
        raise
    except (ParseError, ValueError, LookupError) as error:
        raise InputError(
            f"{path}: not {kind} file ({error}); expected XML with translation units"
        ) from None


def _refuse_attributes(*declaration) -> None:
    """Reject attribute declarations, because each element would get a copy of the default value."""
    raise ValueError("contains attribute declarations; remove the DOCTYPE")


class _Measured:
    """Decodes an XML file for expat, and replaces invalid characters.

    It rejects long stretches without the end of a unit. Multi-byte encodings other than Unicode are
    left to expat, which rejects them.
    """

    def __init__(self, stream: BinaryIO, path: Path, unit: str):
        self.stream = stream
        self.path = path
        self.unit = unit
        self.bytes_since_unit = 0
        self.is_started = False
        self.decoder: codecs.IncrementalDecoder | None = None
        # Rest of the previous block, from an entity reference, tag or CDATA section that may be cut
        # off; empty if there is none.
        self.unfinished = ""

    def _block(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.bytes_since_unit += len(block)
        if self.bytes_since_unit > UNIT_BYTES:
            raise InputError(
                f"{self.path}: no closing </{self.unit}> within {UNIT_BYTES:,} bytes; expected "
                "translation units"
            )
        return block

    def read(self, size: int) -> bytes | str:
        """Return the decoded text of the next `size` bytes, or "" at the end of the file."""
        block = self._block(size)
        if not self.is_started:
            self.is_started = True
            self.decoder = _decoder(block)
        if self.decoder is None:
            return block
        text = self.unfinished + self.decoder.decode(block, final=not block)
        end = _end_of_block(text) if block else len(text)
        self.unfinished = text[end:]
        readable = _REFERENCE.sub(_readable, text[:end])
        # expat would treat an empty string as the end of the file.
        if block and not readable:
            return self.read(size)
        return readable


def _end_of_block(text: str) -> int:
    """Return the position before a reference, tag or CDATA section that may be cut off."""
    end = len(text)
    reference = text.rfind("&", max(0, end - 40))
    tag = text.rfind("<", max(0, end - 8))
    complete = min((start for start in (reference, tag) if start >= 0), default=end)
    section = text.find("<![CDATA[", text.rfind("]]>", 0, complete) + 1, complete)
    if section >= 0 and end - section < CDATA_LENGTH:
        return section
    return complete


def _decoder(head: bytes) -> codecs.IncrementalDecoder | None:
    """Choose a decoder by the first bytes of an XML file, or return None to let expat decode it."""
    name = encoding_of(head)
    return codecs.getincrementaldecoder(name)(errors="replace") if name else None


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of an XML file by its first bytes; None if only expat may decode it."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[:2] in (b"<\0", b"\0<"):
        return "utf-16-le" if head[1] == 0 else "utf-16-be"
    # Without a byte order mark, use the encoding in the XML declaration, or else UTF-8.
    declared = _DECLARED.match(head.removeprefix(codecs.BOM_UTF8))
    name = declared[1].decode() if declared else "utf-8-sig"
    if not _DECODED.fullmatch(name.removesuffix("-sig")):
        return None
    if name.lower().replace("-", "") == "utf8":
        return "utf-8-sig"
    return name


def _readable(match: re.Match[str]) -> str:
    """Replace a reference or character that expat might reject with one that it accepts.

    HTML entities are replaced with their characters.
    """
    text, name = match.group(0, 1)
    if name is None:
        return {"&": "&amp;", "<": text}.get(text[0], DAMAGE)
    if name.startswith("#"):
        return _readable_number(text, name[1:])
    if name in _XML_ENTITIES:
        return text
    character = html.unescape(text)
    return DAMAGE if character == text else escape(character)


def _readable_number(text: str, number: str) -> str:
    """Replace a numeric character reference such as &#x41; with one that expat accepts."""
    try:
        code = int(number[1:], 16) if number[0] in "xX" else int(number)
        if FORBIDDEN.match(chr(code)):
            return DAMAGE
    except (ValueError, OverflowError):
        return DAMAGE
    # Like browsers, treat these numbers as Windows-1252 characters.
    if 0x80 <= code < 0xA0:
        return html.unescape(text)
    return f"&#{code};"
