"""Accessible parts of the page: tables with captions and scopes, charts with descriptions and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True)
class Chart:
    """A drawing and its alternative for readers who cannot see it.

    Args:
        title: title of the drawing.
        figure: figure of plotly.
        summary: description of the drawing in one or two sentences.
        head: column names of the same data as a table.
        rows: rows of that table; the first cell of a row names it.
        digits: digits after the point of floats in the table.
    """

    title: str
    figure: Any  # figure of plotly
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 1


def named(model: str) -> str:
    """Describe a fingerprint: `trained (03aaeaa19eee)` or `untrained (03aaeaa19eee)`."""
    fingerprint = model.removesuffix("-untrained")
    return f"{'trained' if fingerprint == model else 'untrained'} ({fingerprint})"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], digits: int = 1) -> str:
    """Format a table that the keyboard can reach and scroll.

    Args:
        caption: caption of the table.
        head: names of the columns.
        rows: cells of each row; the first cell names the row, and None gives an empty cell.
        digits: digits after the point of a float.
    """
    texts = {column for row in rows for column, cell in enumerate(row) if column and isinstance(cell, str)}
    names = "".join(
        f'<th scope="col"{_class("text", not column or column in texts)}>{escape(name)}</th>'
        for column, name in enumerate(head)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(_written(first, digits))}</th>'
        + "".join(f"<td{_class('text', isinstance(cell, str))}>{escape(_written(cell, digits))}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{_class('sentences', bool(texts))}><caption>{escape(caption)}</caption>"
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def drawing(chart: Chart) -> str:
    """Format a chart with its description and a table that can be opened.

    The script of the page draws the chart from JSON and labels it.
    """
    figure = chart.figure.to_json().replace("<", "\\u003c")  # the JSON must not end the script element
    caption = f"{chart.title}: as a table"
    return (
        f"<figure><h3>{escape(chart.title)}</h3>\n"
        f'<div class="chart" data-label="{escape(chart.title)}. {escape(chart.summary)}"></div>'
        f'<script type="application/json">{figure}</script>\n'
        f"<figcaption>{escape(chart.summary)}</figcaption>\n"
        f"<details><summary>{escape(caption)}</summary>{table(caption, chart.head, chart.rows, chart.digits)}</details>"
        "</figure>"
    )


def _written(cell: Cell, digits: int) -> str:
    if cell is None:
        return ""
    return f"{cell:,.{digits}f}" if isinstance(cell, float) else str(cell)


def _class(name: str, wanted: bool) -> str:
    return f' class="{name}"' if wanted else ""
