"""Reads the pairs of a translation memory or .po file by unit, and writes scores into its units.

Everything else of the file stays as it is, byte for byte: only positions are read from the XML, and
the text of the units is copied.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import is_blank, reading
from fairseq_lxsr.files.open import open_binary
from fairseq_lxsr.files.tmx import SCORE_TYPE
from fairseq_lxsr.preparation.catalogues import decoded_po, po_entries, read_entries
from fairseq_lxsr.preparation.clean import TextPair
from fairseq_lxsr.preparation.formats import ending_of
from fairseq_lxsr.preparation.memories import MEMORIES, UNITS, encoding_of, read_units_apart

CATALOGUE = ".po"
SCORED = (*MEMORIES, CATALOGUE)
READ_BYTES = 1 << 16
# Name of the score in notes of XLIFF and comments of .po files.
SCORE_NAME = "lxsr-score"
# Where a unit of TMX or .po begins, and a segment of XLIFF.
_UNIT_START = re.compile(rb"<(?:tu|trans-unit|segment)[\s>]|^msgid ", re.M)
# Elements of a unit of XLIFF 2 that notes must precede.
_AFTER_NOTES = {"originalData", "segment", "ignorable"}


def pairs_by_unit(
    path: Path, source: str, target: str, dropped: Counter
) -> Iterator[list[TextPair]]:
    """Yield the pairs of each unit, in the order of the file; a unit may have none.

    Args:
        path: TMX, XLIFF or .po file, which may be compressed.
        source: source language.
        target: target language.
        dropped: counts what is left out, by reason.

    Raises:
        InputError: if the file has no units, or cannot be read.
    """
    if ending_of(str(path)) == CATALOGUE:
        units = read_entries(path, source, target, dropped)
    else:
        units = read_units_apart(path, source, target, dropped, Counter())
    for pairs in units:
        filled = [pair for pair in pairs if not any(map(is_blank, pair))]
        if len(filled) < len(pairs):
            # A unit that is still to be translated is not a bad one.
            dropped["empty side"] += len(pairs) - len(filled)
        yield filled


def count_units(path: Path) -> int:
    """Count the units of a file by their first bytes, for the time left: about as many as pairs."""
    count = 0
    with reading(path), open_binary(path) as stream:
        while block := stream.read(READ_BYTES):
            count += len(_UNIT_START.findall(block))
    return count


@dataclass(frozen=True)
class Marking:
    """What to write into the units of a file.

    Attributes:
        scores: a score for each unit, in the order of the file; NaN for a unit without a pair,
            which is copied.
        threshold: units with a lower score are left out; None keeps all.
        mark: keep units below the threshold, and write the threshold next to their score.
    """

    scores: Sequence[float]
    threshold: float | None = None
    mark: bool = False

    def is_left_out(self, score: float) -> bool:
        """Return whether the unit with this score is left out."""
        return self.threshold is not None and score < self.threshold and not self.mark

    def value(self, score: float) -> str:
        """Return the text to write for a score."""
        text = f"{score:.4f}"
        if self.threshold is not None and score < self.threshold:
            text += f", below {self.threshold:g}"
        return text


def write_scored(path: Path, stream: IO[bytes], marking: Marking) -> None:
    """Copy a memory or .po file, with the score in each unit.

    Args:
        path: the file that `pairs_by_unit` has read.
        stream: output.
        marking: scores, and what happens to units below a threshold.

    Raises:
        InputError: if the file cannot be copied, for example because it is invalid XML.
    """
    copy = _copy_po if ending_of(str(path)) == CATALOGUE else _copy_xml
    count = copy(path, stream, marking)
    if count != len(marking.scores):
        raise InputError(
            f"{path}: {count:,} units; expected {len(marking.scores):,}, as when it was scored: "
            "use a file that does not change, without units inside units"
        )


# -- .po


def _copy_po(path: Path, stream: IO[bytes], marking: Marking) -> int:
    """Copy a catalogue; the score is a comment before each entry. Return the number of entries."""
    text, encoding, mark = decoded_po(path)
    # Lines are split as by polib, which counts from 1; the first line is the one added to the text.
    lines = f"\n{text}".splitlines(keepends=True)
    entries = po_entries(path, text)
    starts = [max(entry.linenum - 1, 1) for entry in entries]
    output = lines[1 : starts[0] if starts else None]
    for start, end, score in zip(starts, [*starts[1:], None], marking.scores, strict=False):
        entry_lines = lines[start:end]
        if score == score:
            if marking.is_left_out(score):
                continue
            newline = "\r\n" if entry_lines[0].endswith("\r\n") else "\n"
            output.append(f"# {SCORE_NAME}: {marking.value(score)}{newline}")
            entry_lines = [line for line in entry_lines if not line.startswith(f"# {SCORE_NAME}:")]
        output += entry_lines
    stream.write(mark + "".join(output).encode(encoding))
    return len(starts)


# -- XML


@dataclass
class _Unit:
    """The position of a unit in bytes from the start of the file.

    Attributes:
        name: name of its element, without prefix.
        depth: number of open elements, the unit included.
        start: position of its start tag.
        score: position at which its score can be inserted; -1 if there is none.
        has_notes: whether this position is in the element `notes` of XLIFF 2.
        end: position after its end tag.
    """

    name: str
    depth: int
    start: int
    score: int = -1
    has_notes: bool = False
    end: int = -1


class _Scanner:
    """Finds the units of an XML file, and the place for a score in each.

    A position after a tag is that of the next event of the parser.
    """

    def __init__(self) -> None:
        self.units: deque[_Unit] = deque()
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._settle
        self.parser.DefaultHandler = self._settle
        self.parser.EntityDeclHandler = _refuse_entity
        self._depth = 0
        self._unit: _Unit | None = None
        # Field of the unit that the position of the next event is stored in.
        self._pending = ""

    def _settle(self, *_: Any) -> None:
        if not self._pending or self._unit is None:
            return
        setattr(self._unit, self._pending, self.parser.CurrentByteIndex)
        if self._pending == "end":
            self.units.append(self._unit)
            self._unit = None
        self._pending = ""

    def _start(self, tag: str, _: dict[str, str]) -> None:
        self._settle()
        self._depth += 1
        name = _local(tag)
        unit = self._unit
        if unit is None:
            if name in UNITS:
                self._unit = _Unit(name, self._depth, self.parser.CurrentByteIndex)
                # In TMX, properties are first.
                self._pending = "score" if name == "tu" else ""
        elif unit.name == "unit" and self._depth == unit.depth + 1 and unit.score < 0:
            if name == "notes":
                unit.has_notes = True
                self._pending = "score"
            elif name in _AFTER_NOTES:
                unit.score = self.parser.CurrentByteIndex

    def _end(self, tag: str) -> None:
        self._settle()
        if self._unit is not None:
            level = self._depth - self._unit.depth
            if level == 0:
                self._pending = "end"
            # In XLIFF 1.2, notes follow the translation.
            elif level == 1 and (self._unit.name, _local(tag)) == ("trans-unit", "target"):
                self._pending = "score"
        self._depth -= 1


def _local(tag: str) -> str:
    """Return the name of an element without its prefix."""
    return tag.rpartition(":")[2]


def _refuse_entity(name: str, *_: Any) -> None:
    raise ValueError(f"defines the entity {name}")


def _copy_xml(path: Path, stream: IO[bytes], marking: Marking) -> int:
    """Copy a memory, with a property or note in each unit. Return the number of units."""
    count = 0
    codec = ""
    for before, content, unit in _parts(path):
        # All that is compared or inserted is ASCII, so other encodings are copied byte by byte.
        codec = codec or _codec(before)
        score = float("nan")
        if unit is not None and count < len(marking.scores):
            score = marking.scores[count]
        count += unit is not None
        if unit is None or score != score:
            stream.write(before + content)
        elif marking.is_left_out(score):
            stream.write(_without_indent(before.decode(codec)).encode(codec))
        else:
            text = _with_score(content, unit, marking.value(score), codec)
            stream.write(before + text.encode(codec))
    return count


def _codec(head: bytes) -> str:
    """Return the codec for the text around and in units, given the start of the file."""
    encoding = encoding_of(head) or ""
    if not encoding.lower().replace("_", "-").startswith("utf-16"):
        return "latin-1"
    is_big = head.startswith((b"\xfe\xff", b"\0<"))
    return "utf-16-be" if is_big else "utf-16-le"


def _parts(path: Path) -> Iterator[tuple[bytes, bytes, _Unit | None]]:
    """Yield the text before each unit, the text of the unit, and its positions.

    The last item is the text after all units, without a unit.

    Raises:
        InputError: if the file is invalid XML, or defines entities.
    """
    scanner = _Scanner()
    buffer = bytearray()
    # Position of the start of the buffer in the file.
    offset = 0
    with reading(path), open_binary(path) as stream:
        is_final = False
        while not is_final:
            block = stream.read(READ_BYTES)
            is_final = not block
            buffer += block
            try:
                scanner.parser.Parse(block, is_final)
            except (expat.ExpatError, ValueError, LookupError) as error:
                raise InputError(
                    f"{path}: cannot be copied ({error}); expected valid XML without entities: "
                    "correct it, or write a table: --output FILE.tsv"
                ) from None
            while scanner.units:
                unit = scanner.units.popleft()
                start = unit.start - offset
                end = unit.end - offset
                yield bytes(buffer[:start]), bytes(buffer[start:end]), unit
                del buffer[:end]
                offset = unit.end
    yield bytes(buffer), b"", None


def _with_score(content: bytes, unit: _Unit, value: str, codec: str) -> str:
    """Return the text of a unit with its score, which replaces that of an earlier run."""
    text = content.decode(codec)
    prefix = re.match(r"<([^\s:<>/]+:)?", text)
    space = (prefix and prefix[1]) or ""
    name, attribute = {
        "tu": ("prop", f'type="{SCORE_TYPE}"'),
        "trans-unit": ("note", f'from="{SCORE_NAME}"'),
        "unit": ("note", f'category="{SCORE_NAME}"'),
    }[unit.name]
    start = f"<{space}{name} {attribute}>"
    end = f"</{space}{name}>"
    note = f"{start}{value}{end}"
    earlier = re.compile(f"{re.escape(start)}[^<]*{re.escape(end)}")
    if earlier.search(text):
        return earlier.sub(note, text)
    if unit.score < 0:
        return text
    if unit.name == "unit" and not unit.has_notes:
        note = f"<{space}notes>{note}</{space}notes>"
    position = len(content[: unit.score - unit.start].decode(codec))
    return text[:position] + note + text[position:]


def _without_indent(text: str) -> str:
    """Remove the start of the line in which a unit that is left out begins."""
    stripped = text.rstrip(" \t")
    if not stripped.endswith("\n"):
        return text
    return stripped.removesuffix("\n").removesuffix("\r")
