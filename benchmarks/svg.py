"""Draws charts as SVG files that follow the colour scheme of the reader, light or dark.

All pictures are 400 units wide, so that their letters are legible on a phone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Points of a line: (x, y) pairs of values.
Points = Sequence[tuple[float, float]]

WIDTH = 400
# Width in pixels where the page has enough space.
SHOWN_WIDTH = 520
LETTER = 13
# Colours of the series, which have different markers, too.
LIGHT = ("#1f6fa8", "#c1502e", "#3f7d46", "#7d4f9a", "#8f6a00")
DARK = ("#7cc0ea", "#f2936f", "#93cf8f", "#cba6e3", "#e3c04b")
# Markers around the origin.
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-3.7-3.7h7.4v7.4h-7.4z",
    "M0-4.8 4.6 3.6h-9.2z",
    "M0-5.2 5.2 0 0 5.2-5.2 0z",
    "M-4.6-2 -2-4.6 0-2.6 2-4.6 4.6-2 2.6 0 4.6 2 2 4.6 0 2.6-2 4.6-4.6 2-2.6 0z",
)
NEUTRAL = """
    .page { fill: PAGE } .text { fill: TEXT } .pale { fill: PALE }
    .grid { stroke: GRID; fill: none }"""
SCHEMES = {
    "light": {"PAGE": "#ffffff", "TEXT": "#1b1f24", "PALE": "#57606a", "GRID": "#d8dee4"},
    "dark": {"PAGE": "#1e2129", "TEXT": "#e6e8ee", "PALE": "#aab2c0", "GRID": "#3a404d"},
}


def _style(scheme: str, colours: Sequence[str]) -> str:
    """Return the CSS rules of a colour scheme."""
    rules = NEUTRAL
    for name, colour in SCHEMES[scheme].items():
        rules = rules.replace(name, colour)
    for number, colour in enumerate(colours):
        rules += f"\n    .fill{number} {{ fill: {colour} }} .line{number} {{ stroke: {colour} }}"
    return rules


@dataclass(frozen=True)
class Axis:
    """Maps values to places in a picture.

    Attributes:
        low: least value.
        high: greatest value.
        start: place of the least value.
        end: place of the greatest value.
        ticks: values to mark.
        is_log: whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


class Picture:
    """A drawing to which elements are added.

        picture = Picture(200, "Two points")
        picture.marker(100, 50, series=0)
        picture.save(Path("two.svg"))

    Args:
        height: height in units.
        title: what the picture shows, for screen readers that open the file.
    """

    def __init__(self, height: float, title: str):
        self._height = height
        self._title = title
        self._elements: list[str] = []

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", style: str = "text"
    ) -> None:
        """Write words with their base line at `y`; `anchor` is start, middle or end."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._elements.append(f'<text class="{style}" {place}>{escape(words)}</text>')

    def path(self, points: Points, style: str) -> None:
        """Draw a line through points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._elements.append(f'<polyline class="{style}" points="{places}"/>')

    def bar(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """Draw a filled rectangle."""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._elements.append(f'<rect class="{style}" {size}/>')

    def marker(self, x: float, y: float, series: int) -> None:
        """Draw the marker of a series."""
        place = f'transform="translate({x:.1f} {y:.1f})"'
        self._elements.append(f'<path class="fill{series}" {place} d="{MARKERS[series]}"/>')

    def legend(self, names: Sequence[str], y: float, columns: int = 1) -> None:
        """Write the names of the series beside their markers, in rows from `y` on."""
        for series, name in enumerate(names):
            row, column = divmod(series, columns)
            x = 16 + column * (WIDTH - 16) / columns
            self.marker(x, y + 20 * row, series)
            self.text(x + 12, y + 20 * row + 4.5, name)

    def save(self, path: Path) -> None:
        """Write the file."""
        body = "\n".join(self._elements)
        shown_height = self._height * SHOWN_WIDTH / WIDTH
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{SHOWN_WIDTH}"'
            f' height="{shown_height:.0f}" viewBox="0 0 {WIDTH} {self._height:g}"'
            f' font-family="system-ui, Helvetica, Arial, sans-serif" font-size="{LETTER}">\n'
            f"<title>{escape(self._title)}</title>\n<style>"
            f"{_style('light', LIGHT)}\n    polyline {{ fill: none; stroke-width: 1.8 }}"
            " .grid { stroke-width: 1 } .soft { opacity: .5 }\n"
            f"    @media (prefers-color-scheme: dark) {{{_style('dark', DARK)}\n    }}\n</style>\n"
            f'<rect class="page" width="{WIDTH}" height="{self._height:g}" rx="8"/>\n'
            f"{body}\n</svg>\n",
            encoding="utf-8",
        )


def label(value: float) -> str:
    """Write a value of an axis: 0.1, 95, 168,925."""
    return f"{value:,g}" if value < 1000 else f"{value:,.0f}"


def draw_axes(picture: Picture, x: Axis, y: Axis, x_name: str, y_name: str) -> None:
    """Draw the grid, the values of the axes and their names; the name of `y` is above it."""
    picture.text(10, y.end - 14, y_name, style="pale")
    for tick in y.ticks:
        place = y.place(tick)
        picture.path([(x.start, place), (x.end, place)], "grid")
        picture.text(x.start - 6, place + 4.5, label(tick), "end", "pale")
    for tick in x.ticks:
        place = x.place(tick)
        picture.path([(place, y.start), (place, y.end)], "grid")
        picture.text(place, y.start + 18, label(tick), "middle", "pale")
    picture.text((x.start + x.end) / 2, y.start + 38, x_name, "middle", "pale")


def draw_lines(picture: Picture, x: Axis, y: Axis, lines: Mapping[str, Points]) -> None:
    """Draw a line with markers for each series."""
    for series, points in enumerate(lines.values()):
        places = [(x.place(first), y.place(second)) for first, second in points]
        picture.path(places, f"line{series}")
        for place in places:
            picture.marker(*place, series)


def line_chart(
    title: str, x: Axis, y: Axis, names: tuple[str, str], lines: Mapping[str, Points]
) -> Picture:
    """Return a chart with the legend above it.

    Args:
        title: what the picture shows.
        x: horizontal axis.
        y: vertical axis, whose start is below its end.
        names: names of both axes.
        lines: points of each line by its name.
    """
    picture = Picture(y.start + 50, title)
    picture.legend(list(lines), 20)
    draw_axes(picture, x, y, *names)
    draw_lines(picture, x, y, lines)
    return picture
