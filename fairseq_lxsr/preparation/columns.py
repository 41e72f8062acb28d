"""Reads ids and texts from the columns of CSV, TSV and JSON lines."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, listed, shown
from fairseq_lxsr.files.lines import is_blank, read_lines, single_line
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.preparation.articles import titled
from fairseq_lxsr.preparation.tables import CSV_NAME, Column, Table

JSON_LINES = re.compile(r"\.(jsonl|ndjson)(\.\w+)?$", re.IGNORECASE)


def needs_columns(path: str | Path) -> bool:
    """Return whether a file is a table whose columns must be chosen: CSV or JSON lines."""
    return bool(CSV_NAME.search(str(path)) or JSON_LINES.search(str(path)))


def read_columns(path: str | Path, columns: Sequence[Column]) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each row.

        for name, text in read_columns("faq.csv", parse_column_list("id,question,answer")):
            print(name, text)  # 17 When is the pool open? At ten.

    Blank rows are skipped.

    Args:
        path: CSV, JSON lines, or otherwise a table separated by tabs. If a column is given by its
            name, the first row of a table is a header.
        columns: one column is the text, and the ids are numbers from 1. Of several columns, the
            first is the id; the others are joined to one text.

    Raises:
        InputError: if a column does not exist, a row is too short or not valid, or the file is
            empty.
    """
    rows = _json_rows(path, columns) if JSON_LINES.search(str(path)) else _rows(path, columns)
    numbers = count(1)
    number = 0
    for number, cells in zip(numbers, rows, strict=False):
        name = str(number) if len(columns) == 1 else cells[0]
        text = ""
        for cell in cells[-1:] if len(columns) == 1 else cells[1:]:
            text = titled(text, single_line(cell))
        yield name, text
    if not number:
        raise InputError(f"{path}: no rows; expected rows below a header")


def column_names(path: str | Path) -> list[str]:
    """Return the cells of the first row, or the keys of the first JSON object."""
    if JSON_LINES.search(str(path)):
        return list(next(_objects(path), (0, {}))[1])
    return next(Table(path).cells(), (0, "", []))[2]


def _rows(path: str | Path, columns: Sequence[Column]) -> Iterator[list[str]]:
    table = Table(path, is_sentence=True)
    rows = (row for row in table.cells() if not all(map(is_blank, row[2])))
    header: list[str] = []
    if any(isinstance(column, str) for column in columns):
        header = [name.strip() for name in next(rows, (0, "", []))[2]]
    positions = [table.position(column, header) for column in columns]
    for line, text, cells in rows:
        if len(cells) <= max(positions):
            raise InputError(
                f"{path}, line {line:,}: {len(cells)} columns in {text!r:.60}; expected at least "
                f"{max(positions) + 1}"
            )
        yield [cells[position] for position in positions]


def _json_rows(path: str | Path, columns: Sequence[Column]) -> Iterator[list[str]]:
    for number, record in _objects(path):
        cells = []
        for column in columns:
            if column not in record:
                raise InputError(
                    f"{path}, line {number:,}: unknown --columns {shown(column)}; expected a name "
                    f"of this object: {listed(record)}"
                )
            cell = record[column]  # type: ignore[index]
            if isinstance(cell, bool) or not isinstance(cell, str | int | None):
                raise InputError(
                    f"{path}, line {number:,}: {shown(column)} is {shown(cell)}; expected text"
                )
            cells.append("" if cell is None else str(cell))
        yield cells


def _objects(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = read_lines(path, is_table=True)
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            continue
        try:
            yield number, parse_json(line)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number:,}: {line!r:.60} is not a JSON object ({error!s:.80}); "
                "expected one object per line"
            ) from None
