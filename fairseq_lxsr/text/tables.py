"""Reads sentence pairs from tables, TSV or CSV: with a header or without, columns by number or by name."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.files.lines import RECORD_BYTES, is_blank, read_lines, single_line
from fairseq_lxsr.text.languages import parse_tag

SAMPLE_ROWS = 100  # rows that tell a header, and which columns hold text
DELIMITERS = ",;\t|"  # of CSV; some spreadsheets write ; where the comma is the decimal point
CSV_NAME, TABLE_NAME = (re.compile(rf"\.{ending}(\.\w+)?$", re.IGNORECASE) for ending in ("csv", "[ct]sv"))
# a cell that is no sentence: a number, an address, an identifier, or a sign that there is none
_CODE = re.compile(r"[!-~]*[0-9][!-~]*|\w+://\S+|www\.\S+|-?(nan|inf|infinity|none|null|n/?a|-)", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d_][\w .:()#/-]{0,39}")  # of a column
_SIDES = (
    {"source", "src", "original", "sentence1", "text1"},
    {"target", "tgt", "trg", "translation", "sentence2", "text2"},
)
_KIND = {"text", "sentence", "sentences", "segment", "lang", "language"}  # words that say nothing of the side
_LANGUAGES = {
    "arabic": "ar", "bulgarian": "bg", "chinese": "zh", "czech": "cs", "danish": "da", "dutch": "nl", "english": "en",
    "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi",
    "hungarian": "hu", "indonesian": "id", "italian": "it", "japanese": "ja", "korean": "ko", "latvian": "lv",
    "lithuanian": "lt", "norwegian": "no", "persian": "fa", "polish": "pl", "portuguese": "pt", "romanian": "ro",
    "russian": "ru", "slovak": "sk", "slovenian": "sl", "spanish": "es", "swedish": "sv", "thai": "th", "turkish": "tr",
    "ukrainian": "uk", "vietnamese": "vi",
}  # fmt: skip

Cells = tuple[int, str, list[str]]  # number of the line, the row as text, its cells
Columns = tuple[int | str, int | str]


@dataclass(frozen=True)
class Row:
    """A row of a table as text, with tabs between its cells, and its pair; where it has none, `why`."""

    text: str
    pair: tuple[str, str] | None
    why: str = ""  # header, blank or short


def parse_columns(text: str) -> Columns:
    """Parse two columns, each a number from 1 or a name in the first row: `3,4` or `en,fr`."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts) or any(part.isdecimal() and not int(part) for part in parts):
        raise InputError(f"columns {text!r:.60}; expected two, by number from 1 or by name, for example 3,4 or en,fr")
    first, second = (int(part) if part.isdecimal() else part for part in parts)
    return first, second


@dataclass
class Table:
    """The pairs of a TSV or (by its name) CSV file, with tabs, commas or semicolons between the cells.

        table = Table("bitext.csv", parse_columns("en,fr"))
        pairs = [row.pair for row in table.rows() if row.pair]
        print(table.left_out)

    A TSV has no quotes. Without `columns`, a header that names the two sides tells them; else they are the first two
    columns of text, not of numbers, addresses or identifiers. Which these are is said where they are not 1 and 2.

    Args:
        path: the file, compressed or not; `-` for standard input, which is TSV.
        columns: of source and target, from 1 or by name.
        languages: of source and target, which a header may name.
        is_sentence: see `read_lines`.
        skip_unreadable: leave out and count lines that are no text, which are refused otherwise.
    """

    path: str | Path
    columns: Columns | None = None
    languages: tuple[str, str] | None = None
    is_sentence: bool = False
    skip_unreadable: bool = False
    left_out: Counter[str] = field(default_factory=Counter, init=False)  # rows without a pair, by why
    _said: bool = field(default=False, init=False)

    def rows(self) -> Iterator[Row]:
        """Yield all rows in their order."""
        self.left_out.clear()
        remaining = self.cells()
        for row in remaining:
            if not _blank(row[2]):
                remaining = chain([row], remaining)
                break
            yield self._without(row[1], "blank")
        sample = list(islice(remaining, SAMPLE_ROWS))
        filled = [row for row in sample if not _blank(row[2])]
        if not filled:
            return
        names = self._header(filled)
        first, second = self._chosen(filled, names)
        self._check_width(filled, max(first, second) + 1)
        header = filled[0][0] if names else None
        for number, text, cells in chain(sample, remaining):
            if number == header:
                yield self._without(text, "header")
            elif _blank(cells):
                yield self._without(text, "blank")
            elif len(cells) <= max(first, second):
                yield self._without(text, "short")
            else:
                yield Row(text, (cells[first], cells[second]))

    def _without(self, text: str, why: str) -> Row:
        self.left_out[why] += 1
        return Row(text, None, why)

    def cells(self) -> Iterator[Cells]:
        """Yield the cells of all rows, whatever they hold."""
        unreadable = (lambda error: self.left_out.update(["unreadable"])) if self.skip_unreadable else None
        lines = read_lines(self.path, self.is_sentence, unreadable)
        if CSV_NAME.search(str(self.path)):
            return _csv_rows(self.path, lines)
        return ((number, line, line.split("\t")) for number, line in enumerate(lines, start=1))

    def _header(self, rows: list[Cells]) -> list[str]:
        """Return the names of the columns; none where the first row holds a pair."""
        first, *others = (cells for _, _, cells in rows)
        names = [cell.strip().strip('"').lstrip("# ") for cell in first]
        if self.columns and any(isinstance(column, str) for column in self.columns):
            return names
        if others and any(name and name == below for name, below in zip(first, others[0], strict=False)):
            return []  # the codes of two languages, in every row
        return names if self._named(names) or self._languages(names, others) or _above_codes(names, others) else []

    def _languages(self, names: list[str], others: list[list[str]]) -> bool:
        """Return whether the first row names two languages; above words alone, two codes may be a pair of words."""
        codes = {place: code for place, name in enumerate(names) if (code := language_of_column(name))}
        if not others or len(set(codes.values())) < 2:
            return False
        below = [cells[place] for cells in others for place in codes if place < len(cells)]
        return all(len(names[place]) > 3 for place in codes) or 2 * sum(len(cell) < 8 for cell in below) < len(below)

    def _chosen(self, rows: list[Cells], names: list[str]) -> tuple[int, int]:
        """Return the places of source and target, from 0."""
        if self.columns:
            first, second = (self._place(column, names) for column in self.columns)
            if first == second:
                raise InputError(f"{self.path}: --columns {first + 1} for both sides; expected two columns")
            return first, second
        places = self._named(names) or self._by_language(names) or self._of_text(rows[bool(names) :] or rows)
        if not self._said and (names or places != (0, 1)):
            self._said = True
            header = f"line {rows[0][0]} is a header ({', '.join(names):.60}), " if names else ""
            say(f"{self.path}: {header}sentences in columns {places[0] + 1} and {places[1] + 1}; or give --columns")
        return places

    def _place(self, column: int | str, names: list[str]) -> int:
        if isinstance(column, int):
            return column - 1
        folded = [name.casefold() for name in names]
        for known, wanted in ((names, column), (folded, column.casefold())):
            if known.count(wanted) == 1:
                return known.index(wanted)
        there = ", ".join(f"{name!r:.30}" for name in names[:20])
        raise InputError(f"{self.path}: --columns {column!r:.60}; expected a number, or one of its first row: {there}")

    def _named(self, names: list[str]) -> tuple[int, int] | None:
        """Return the places that names tell: of the two languages, or of source and target."""
        languages = [parse_tag(language).language for language in self.languages or ()]
        codes = [language_of_column(name, languages) for name in names]
        if languages and all(codes.count(language) == 1 for language in languages):
            return codes.index(languages[0]), codes.index(languages[1])
        sides = [side_of_column(name) for name in names]
        return (sides.index(0), sides.index(1)) if {0, 1} <= set(sides) else None

    def _by_language(self, names: list[str]) -> tuple[int, int] | None:
        """Return the first two columns that a header names after languages, which no pair was named for."""
        places = [place for place, name in enumerate(names) if language_of_column(name)]
        if len(places) < 2:
            return None
        if self.languages:
            there = ", ".join(names[place] for place in places)
            raise InputError(
                f"{self.path}: columns of {there:.60}; expected {' and '.join(self.languages)}, or --columns I,J"
            )
        return places[0], places[1]

    def _of_text(self, rows: list[Cells]) -> tuple[int, int]:
        """Return the first two columns that hold text."""
        width = max(len(cells) for _, _, cells in rows)
        if width <= 2:
            return 0, 1
        columns = [[cells[place] for _, _, cells in rows if place < len(cells)] for place in range(width)]
        text = [place for place, cells in enumerate(columns) if not _codes(cells, 0) and not _is_constant(cells)]
        if len(text) < 2:
            raise InputError(
                f"{self.path}, line {rows[0][0]}: {rows[0][1]!r:.60} has {width} columns, {len(text)} of them with "
                "text; expected two: name them, --columns I,J"
            )
        return text[0], text[1]

    def _check_width(self, rows: list[Cells], least: int) -> None:
        """Refuse a table of which no row is long enough."""
        if not any(len(cells) >= least for _, _, cells in rows):
            number, text, cells = rows[0]
            raise InputError(
                f"{self.path}, line {number:,}: {len(cells)} column{'s' * (len(cells) > 1)} in {text!r:.60}; expected "
                f"at least {least}, separated by {'commas' if CSV_NAME.search(str(self.path)) else 'tabs'}"
            )


def _blank(cells: Sequence[str]) -> bool:
    return all(map(is_blank, cells))


def _bare(name: str) -> list[str]:
    """Return the words of the name of a column without those like `sentence`: `en` of `en_sentence`."""
    words = re.findall(r"[^\W_]+", name.casefold())
    return [word for word in words if word not in _KIND] or words


def language_of_column(name: str, known: Sequence[str] = ()) -> str:
    """Return the language that a column is named after: `fr` for French, fra_Latn, text_fr; empty where none.

    Codes of small languages are words of large ones, so that they count only where they are among the `known`.
    """
    words = _bare(name)
    if len(words) == 1 and words[0] in _LANGUAGES:
        return _LANGUAGES[words[0]]
    code = parse_tag("-".join(words)).language if len(words) == 1 or " " not in name.strip() else ""
    return code if code in known or code in _LANGUAGES.values() else ""


def side_of_column(name: str) -> int | None:
    """Return the side that a column is named after: 0 for source, src, sentence1; 1 for target, tgt; None for none."""
    return next((side for side, known in enumerate(_SIDES) if " ".join(_bare(name)) in known), None)


def _codes(cells: Sequence[str], least: int = 2) -> bool:
    """Return whether the cells of a column, where they are not blank, are no text."""
    filled = [cell.strip() for cell in cells if not is_blank(cell)]
    return len(filled) >= least and all(map(_CODE.fullmatch, filled))


def _above_codes(names: list[str], others: list[list[str]]) -> bool:
    """Return whether the first row of three columns or more has words above numbers, addresses or identifiers."""
    if len(names) < 3 or not all(not name or _NAME.fullmatch(name) for name in names):
        return False
    columns = ([cells[place] for cells in others if place < len(cells)] for place in range(len(names)))
    return any(name and not _CODE.fullmatch(name) and _codes(cells) for name, cells in zip(names, columns, strict=True))


def _is_constant(cells: Sequence[str]) -> bool:
    """Return whether a column says one word in all rows, as that of a language does."""
    return len(cells) > 2 and len(set(cells)) == 1 and " " not in cells[0]


def _csv_rows(path: str | Path, lines: Iterator[str]) -> Iterator[Cells]:
    """Split the rows of a CSV; a cell in quotes may hold line ends, which become blanks."""
    csv.field_size_limit(RECORD_BYTES)
    sample = list(islice(lines, SAMPLE_ROWS))
    while all(map(is_blank, sample[-SAMPLE_ROWS:])) and (more := list(islice(lines, SAMPLE_ROWS))):
        sample += more
    told = re.fullmatch(r"sep=(.)", sample[0]) if sample else None  # written by a spreadsheet
    delimiter = told[1] if told else _delimiter(sample)
    skipped = int(told is not None)
    reader = csv.reader((f"{line}\n" for line in chain(sample[skipped:], lines)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + skipped + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"{path}, line {number:,}: not a row of CSV ({error}); expected a quote inside a cell as two"
            ) from None
        if cells is None:
            return
        cells = [single_line(cell) for cell in cells]
        yield number, "\t".join(cells), cells


def _delimiter(sample: list[str]) -> str:
    """Return the delimiter by which most rows have the same number of cells, two or more.

    A blank follows the commas of a text, and rarely those between cells.
    """

    def alike(delimiter: str) -> tuple[int, int]:
        try:
            rows = [cells for cells in csv.reader(sample, delimiter=delimiter) if len(cells) > 1]
        except csv.Error:
            return 0, 0
        tight = Counter(len(cells) for cells in rows if not any(cell.startswith(" ") for cell in cells[1:]))
        return max(tight.values(), default=0), max(Counter(map(len, rows)).values(), default=0)

    return max(DELIMITERS, key=alike)
