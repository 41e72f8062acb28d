"""Accessible parts of the page: tables with captions and scopes, charts with descriptions and
tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle, repeat
from math import isfinite
from operator import itemgetter
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fairseq_lxsr.report.sample import BUCKETS, Sample
from fairseq_lxsr.report.training_log import Curves

Cell = str | int | float | None


@dataclass(frozen=True)
class Chart:
    """A drawing by plotly, and the same data in words and as a table for readers who cannot see
    it.
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


def html_table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], digits: int = 1
) -> str:
    """Format a table that the keyboard can reach; the first cell of a row names it, and None gives
    an empty cell.
    """
    texts = {
        column
        for row in rows
        for column, cell in enumerate(row)
        if column and isinstance(cell, str)
    }
    names = "".join(
        f'<th scope="col"{_class("text", not column or column in texts)}>{escape(name)}</th>'
        for column, name in enumerate(head)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(_written(first, digits))}</th>'
        + "".join(
            f"<td{_class('text', isinstance(cell, str))}>{escape(_written(cell, digits))}</td>"
            for cell in cells
        )
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{_class('sentences', bool(texts))}><caption>{escape(caption)}</caption>"
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def drawing(chart: Chart) -> str:
    """Format a chart, which the script of the page draws from JSON, with its description and its
    table.
    """
    # the JSON must not end the script element
    figure = chart.figure.to_json().replace("<", "\\u003c")
    caption = f"{chart.title}: as a table"
    return (
        f"<figure><h3>{escape(chart.title)}</h3>\n"
        f'<div class="chart" data-label="{escape(chart.title)}. {escape(chart.summary)}"></div>'
        f'<script type="application/json">{figure}</script>\n'
        f"<figcaption>{escape(chart.summary)}</figcaption>\n"
        f"<details><summary>{escape(caption)}</summary>"
        f"{html_table(caption, chart.head, chart.rows, chart.digits)}</details>"
        "</figure>"
    )


def _written(cell: Cell, digits: int) -> str:
    if cell is None:
        return ""
    return f"{cell:,.{digits}f}" if isinstance(cell, float) else str(cell)


def _class(name: str, wanted: bool) -> str:
    return f' class="{name}"' if wanted else ""


COLOURS = ("#2a6f97", "#c1502e", "#588157", "#8a5a9e", "#b08900", "#5c677d")
# of all criterions: the whole, then its parts
LOSSES = ("loss", "gen", "align", "sim", "distill", "nll_loss", "pair", "negative")
ACCURACY = "Share of sentences that find their translation in their batch"
LAYOUT = {
    "template": "plotly_white",
    "margin": {"l": 65, "r": 15, "t": 36, "b": 45},  # the toolbar stands above the curves
    "height": 396,
    "legend": {"orientation": "h", "y": -0.2},
    "font": {"family": "system-ui, sans-serif", "size": 13},
}
SHOWN_LETTERS = 90
TABLE_ROWS = 20  # of a curve in its table
SPOKEN_CURVES = 6  # curves of a chart that its description lists; its table has all


def short(text: str) -> str:
    """Shorten a label of a drawing, and remove HTML characters, because plotly interprets some
    HTML, links included.
    """
    cut = text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _figure(x: dict[str, Any], y: dict[str, Any], **layout: Any) -> go.Figure:
    return go.Figure(layout=LAYOUT | {"xaxis": x, "yaxis": y} | layout)


def training_chart(logs: Sequence[Curves], is_loss: bool) -> Chart:
    """Draw the loss and its terms over updates, or how often a sentence finds its translation in
    its batch.

    Curves on validation text are dashed.
    """
    scale = (
        {"type": "log", "title": "loss (logarithmic scale)"}
        if is_loss
        else {"type": "linear", "title": "share"}
    )
    title, names = ("Loss", LOSSES) if is_loss else (ACCURACY, ("accuracy",))
    figure = _figure({"title": "updates"}, scale)
    rows: list[tuple[Cell, ...]] = []
    left_out = 0
    for number, (log, name) in enumerate((log, name) for log in logs for name in names):
        colour = COLOURS[number % len(COLOURS)]
        for kind, curves, dash in (
            ("training", log.train, "solid"),
            ("validation", log.valid, "dash"),
        ):
            found = sorted(curves.get(name, {}).items())  # a log of several runs goes back
            points = [
                (update, value)
                for update, value in found
                if isfinite(value) and (value > 0 or not is_loss)
            ]
            left_out += sum(not isfinite(value) for _, value in found)
            if not points:
                continue
            label = f"{name} ({kind})" if len(logs) == 1 else f"{log.name}: {name} ({kind})"
            updates, values = zip(*points, strict=True)
            mode = "lines+markers" if len(points) < 3 else "lines"
            line = {"color": colour, "dash": dash}
            figure.add_scatter(x=updates, y=values, name=short(label), mode=mode, line=line)
            best = min(values) if is_loss else max(values)
            rows.append(
                (label, len(points), updates[-1], float(values[0]), float(best), float(values[-1]))
            )
    spoken = [f"{row[0]} goes from {row[3]:.3g} to {row[5]:.3g}" for row in rows[:SPOKEN_CURVES]]
    more = f"; {len(rows) - len(spoken)} more in the table" if len(rows) > len(spoken) else ""
    diverged = (
        f" {left_out} values are not finite and not drawn: the training diverged."
        if left_out
        else ""
    )
    head = ("curve", "points", "last update", "first", "lowest" if is_loss else "highest", "last")
    return Chart(title, figure, f"{'; '.join(spoken)}{more}.{diverged}", head, rows, digits=3)


def threshold_chart(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Chart:
    """Draw precision and recall of mined pairs over the threshold; `curves` are those of scores, by
    their names.
    """
    figure = _figure({"title": "least score"}, {"title": "percent", "range": [0, 101]})
    rows: list[tuple[Cell, ...]] = []
    spoken = []
    for colour, (name, curve) in zip(cycle(COLOURS), curves.items(), strict=False):
        thresholds = curve["threshold"]
        for kind, dash in (("precision", "solid"), ("recall", "dash")):
            line = {"color": colour, "dash": dash}
            figure.add_scatter(
                x=thresholds, y=curve[kind], name=short(f"{name}: {kind}"), mode="lines", line=line
            )
        points = list(zip(thresholds, curve["precision"], curve["recall"], strict=True))
        rows += [(name, *point) for point in points[:: max(1, len(points) // TABLE_ROWS)]]
        best = max(points, key=lambda point: point[1] * point[2] / (point[1] + point[2] or 1))
        spoken.append(
            f"{name}: at {best[0]:.3f} precision {best[1]:.1f}, recall {best[2]:.1f} percent"
        )
    head = ("task", "least score", "precision", "recall")
    return Chart(
        "Precision and recall over the threshold",
        figure,
        "; ".join(spoken) + ".",
        head,
        rows,
        digits=3,
    )


def length_chart(sample: Sample) -> Chart:
    """Draw accuracy by number of words of the query."""
    words = {
        "title": "words",
        "type": "category",
        "categoryorder": "array",
        "categoryarray": BUCKETS,
    }
    figure = _figure(words, {"title": "percent", "range": [0, 100]})
    rows: list[tuple[Cell, ...]] = []
    spoken = []
    for colour, direction in zip(COLOURS, sample.directions, strict=False):
        name = direction.name.replace("->", " → ")
        figure.add_bar(
            x=direction.buckets,
            y=direction.accuracy,
            name=short(f"{name}, {named(sample.model)}" if sample.model else name),
            marker_color=colour,
            customdata=direction.counts,
            hovertemplate="%{x} words: %{y:.1f} percent of %{customdata} queries<extra>%{fullData.name}</extra>",
        )
        rows += zip(
            repeat(name), direction.buckets, direction.counts, direction.accuracy, strict=False
        )
        measured = list(zip(direction.accuracy, direction.buckets, strict=True))
        worst, best = min(measured, key=itemgetter(0)), max(measured, key=itemgetter(0))
        spoken.append(
            f"{name}: from {worst[0]:.1f} percent ({worst[1]} words) to {best[0]:.1f} ({best[1]} words)"
        )
    title = "Queries whose nearest neighbour is the translation, by words"
    return Chart(
        title, figure, "; ".join(spoken) + ".", ("direction", "words", "queries", "percent"), rows
    )


def heatmap_chart(sample: Sample) -> Chart:
    """Draw the cosines of some sentences and translations; the diagonal should be largest."""
    left, right = sample.heatmap_sentences
    cosines = sample.heatmap.astype(float)
    hover: dict[str, Any] = {"text": [[f"{short(a)}<br>{short(b)}" for b in right] for a in left]}
    hover["hovertemplate"] = "%{z:.2f}<br>%{text}<extra></extra>"
    figure = _figure(
        {"showticklabels": False}, {"showticklabels": False, "autorange": "reversed"}, height=480
    )
    figure.add_heatmap(z=np.round(cosines, 3).tolist(), colorscale="Viridis", **hover)
    own = cosines.diagonal()
    others = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines).max(axis=1)
    ahead = int((own > others).sum())
    beside = (cosines.sum() - own.sum()) / (cosines.size - len(own))
    summary = (
        f"The mean cosine is {own.mean():.2f} on the diagonal and {beside:.2f} beside it; {ahead} of {len(own)} "
        "sentences are nearer to their translation than to any other here."
    )
    first, second = sample.languages
    rows = [
        (a, b, float(mine), float(other))
        for a, b, mine, other in zip(left, right, own, others, strict=True)
    ]
    title = (
        f"Cosines of {len(own)} pairs: {first} down, {second} across, translations on the diagonal"
    )
    return Chart(
        title, figure, summary, (first, second, "cosine", "highest other cosine"), rows, digits=2
    )


def map_chart(sample: Sample) -> Chart:
    """Draw embeddings in two dimensions; a line joins a sentence and its translation."""
    count = len(sample.map) // 2
    points = sample.map.astype(float)
    bare = {"showticklabels": False}
    figure = _figure(bare, bare, height=540, legend={"orientation": "h", "y": 0})
    joined = [
        [value for i in range(count) for value in (*points[[i, i + count], axis], None)]
        for axis in (0, 1)
    ]
    line = {"color": "#bbbbbb", "width": 1}
    figure.add_scatter(
        x=joined[0], y=joined[1], mode="lines", line=line, hoverinfo="skip", showlegend=False
    )
    for side, language in enumerate(sample.languages):
        part = points[side * count : (side + 1) * count]
        figure.add_scatter(
            x=part[:, 0].tolist(),
            y=part[:, 1].tolist(),
            mode="markers",
            name=short(f"{language}, {named(sample.model)}" if sample.model else language),
            marker={"color": COLOURS[side], "size": 7, "symbol": ("circle", "diamond")[side]},
            text=[short(sentence) for sentence in sample.map_sentences[side]],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
        )
    apart = np.linalg.norm(points[:count] - points[count:], axis=1)
    width = np.linalg.norm(np.ptp(points, axis=0))
    percent = 100 * apart / (width or 1)
    summary = (
        f"Each line joins a sentence and its translation; half of the {count} pairs lie at most "
        f"{np.median(percent):.1f} percent of the map's diagonal apart, the widest {percent.max():.1f}."
    )
    first, second = sample.languages
    texts = zip(*sample.map_sentences, percent.tolist(), strict=True)
    head = (first, second, "distance, percent of the diagonal")
    return Chart(f"Map of {count} pairs (t-SNE)", figure, summary, head, [*texts])
