"""Charts and tables of the page, with captions, descriptions and data for screen readers."""

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
# Points of a curve: (update, value) pairs.
Points = Sequence[tuple[int, float]]

COLOURS = ("#2a6f97", "#c1502e", "#588157", "#8a5a9e", "#b08900", "#5c677d")
# Names of the losses to plot: the total loss of any criterion, followed by its terms.
LOSSES = ("loss", "gen", "align", "sim", "distill", "nll_loss", "pair", "negative")
ACCURACY = "Fraction of sentences that find their translation in their batch"
LAYOUT = {
    "template": "plotly_white",
    # The top margin leaves space for the toolbar above the curves.
    "margin": {"l": 65, "r": 15, "t": 36, "b": 45},
    "height": 396,
    "legend": {"orientation": "h", "y": -0.2},
    "font": {"family": "system-ui, sans-serif", "size": 13},
}
LABEL_LENGTH = 90
# Approximate maximum number of table rows per curve.
TABLE_ROWS = 20
# Maximum number of curves that a chart description lists; the table lists all of them.
DESCRIBED_CURVES = 6


@dataclass(frozen=True)
class Chart:
    """A plotly chart, with a description and a table for readers who cannot see it.

    Attributes:
        title: chart title.
        figure: plotly figure.
        summary: text that describes the chart.
        head: column names of the table.
        rows: table rows.
        digits: number of decimals in the table.
    """

    title: str
    figure: Any
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 1


def named(model: str) -> str:
    """Format a model's fingerprint as `trained (03aaeaa19eee)` or `untrained (03aaeaa19eee)`."""
    fingerprint = model.removesuffix("-untrained")
    state = "trained" if fingerprint == model else "untrained"
    return f"{state} ({fingerprint})"


def html_table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], digits: int = 1
) -> str:
    """Format a table that can be scrolled with the keyboard.

    Args:
        caption: table caption.
        head: column names.
        rows: table rows. The first cell is the row name, and None stands for an empty cell.
        digits: number of decimals.
    """
    # The first column always has text.
    text_columns = {0}
    for row in rows:
        for column, cell in enumerate(row):
            if isinstance(cell, str):
                text_columns.add(column)
    names = ""
    for column, name in enumerate(head):
        names += f'<th scope="col"{_class("text", column in text_columns)}>{escape(name)}</th>'
    body = "".join(_table_row(row, digits) for row in rows)
    has_text = len(text_columns) > 1
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{_class('sentences', has_text)}><caption>{escape(caption)}</caption>"
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _table_row(row: Sequence[Cell], digits: int) -> str:
    name, *cells = row
    html = f'<tr><th scope="row">{escape(_format_cell(name, digits))}</th>'
    for cell in cells:
        text = escape(_format_cell(cell, digits))
        html += f"<td{_class('text', isinstance(cell, str))}>{text}</td>"
    return html + "</tr>"


def drawing(chart: Chart) -> str:
    """Return the HTML of a chart with its description and table; a script draws the chart."""
    # Without this, `</script>` in the JSON would end the script element.
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


def _format_cell(cell: Cell, digits: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.{digits}f}"
    return str(cell)


def _class(name: str, is_set: bool) -> str:
    return f' class="{name}"' if is_set else ""


def short(text: str) -> str:
    """Shorten and escape a chart label, because plotly interprets some HTML."""
    if len(text) > LABEL_LENGTH:
        text = text[: LABEL_LENGTH - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _figure(x: dict[str, Any], y: dict[str, Any], **layout: Any) -> go.Figure:
    return go.Figure(layout=LAYOUT | {"xaxis": x, "yaxis": y} | layout)


def training_chart(logs: Sequence[Curves], is_loss: bool) -> Chart:
    """Plot curves over the updates; validation curves are dashed, exported updates are marked.

    Args:
        logs: training logs.
        is_loss: whether to plot the loss and its terms, instead of the accuracy within the batch.
    """
    title = ACCURACY
    names: tuple[str, ...] = ("accuracy",)
    scale = {"type": "linear", "title": "share"}
    if is_loss:
        title = "Loss"
        names = LOSSES
        scale = {"type": "log", "title": "loss (logarithmic scale)"}
    figure = _figure({"title": "updates"}, scale)
    rows: list[tuple[Cell, ...]] = []
    not_finite = 0
    logs_and_names = [(log, name) for log in logs for name in names]
    for number, (log, name) in enumerate(logs_and_names):
        colour = COLOURS[number % len(COLOURS)]
        for kind, curves, dash in (
            ("training", log.train, "solid"),
            ("validation", log.valid, "dash"),
        ):
            values = curves.get(name, {})
            not_finite += sum(not isfinite(value) for value in values.values())
            points = _points(values, is_loss)
            if not points:
                continue
            label = f"{name} ({kind})"
            if len(logs) > 1:
                label = f"{log.name}: {label}"
            _add_curve(figure, points, label, {"color": colour, "dash": dash})
            rows.append(_curve_row(points, label, is_loss))
    summary = _describe_curves(rows, not_finite)
    if rows:
        summary += _mark_exported(figure, logs)
    best = "lowest" if is_loss else "highest"
    head = ("curve", "points", "last update", "first", best, "last")
    return Chart(title, figure, summary, head, rows, digits=3)


def _mark_exported(figure: go.Figure, logs: Sequence[Curves]) -> str:
    """Draw a line at the exported update of each log, and return a sentence for each."""
    last_update = max(max(curve.x) for curve in figure.data)
    sentences = ""
    for log in logs:
        if log.exported is None:
            continue
        label = f"exported: update {log.exported:,}"
        sentence = f" The exported model comes from update {log.exported:,}."
        if len(logs) > 1:
            label = f"{log.name} {label}"
            sentence = f" The exported model of {log.name} comes from update {log.exported:,}."
        # Place the label on the side towards the middle of the chart, where there is space.
        position = "top right"
        if 2 * log.exported > last_update:
            position = "top left"
        figure.add_vline(
            log.exported,
            line={"dash": "dot"},
            annotation_text=short(label),
            annotation_position=position,
        )
        sentences += sentence
    return sentences


def _points(values: Mapping[int, float], is_loss: bool) -> Points:
    """Return the points of a curve that can be plotted, sorted by update.

    A log that contains several runs may not be sorted.
    """
    points = []
    for update, value in sorted(values.items()):
        # A logarithmic axis needs positive values.
        if isfinite(value) and (value > 0 or not is_loss):
            points.append((update, value))
    return points


def _add_curve(figure: go.Figure, points: Points, label: str, line: dict[str, str]) -> None:
    updates, values = zip(*points, strict=True)
    mode = "lines+markers" if len(points) < 3 else "lines"
    figure.add_scatter(x=updates, y=values, name=short(label), mode=mode, line=line)


def _curve_row(points: Points, label: str, is_loss: bool) -> tuple[Cell, ...]:
    values = [value for _, value in points]
    best = min(values) if is_loss else max(values)
    last_update = points[-1][0]
    return label, len(points), last_update, float(values[0]), float(best), float(values[-1])


def _describe_curves(rows: Sequence[Sequence[Any]], not_finite: int) -> str:
    """Describe curves by their first and last values, from the rows of `_curve_row`."""
    descriptions = []
    for row in rows[:DESCRIBED_CURVES]:
        descriptions.append(f"{row[0]} goes from {row[3]:.3g} to {row[5]:.3g}")
    summary = "; ".join(descriptions)
    if len(rows) > len(descriptions):
        summary += f"; {len(rows) - len(descriptions)} more in the table"
    summary += "."
    if not_finite:
        summary += f" {not_finite} values are not finite and not drawn: the training diverged."
    return summary


def threshold_chart(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Chart:
    """Plot precision and recall of mined pairs against the threshold.

    Args:
        curves: threshold curves of the scores, keyed by row name.
    """
    figure = _figure({"title": "minimum score"}, {"title": "percent", "range": [0, 101]})
    rows: list[tuple[Cell, ...]] = []
    descriptions = []
    for colour, (name, curve) in zip(cycle(COLOURS), curves.items(), strict=False):
        thresholds = curve["threshold"]
        for kind, dash in (("precision", "solid"), ("recall", "dash")):
            line = {"color": colour, "dash": dash}
            figure.add_scatter(
                x=thresholds, y=curve[kind], name=short(f"{name}: {kind}"), mode="lines", line=line
            )
        points = list(zip(thresholds, curve["precision"], curve["recall"], strict=True))
        rows += [(name, *point) for point in points[:: max(1, len(points) // TABLE_ROWS)]]
        # Find the point with the highest F1; precision and recall may both be 0.
        best = max(points, key=lambda point: point[1] * point[2] / (point[1] + point[2] or 1))
        descriptions.append(
            f"{name}: at {best[0]:.3f} precision {best[1]:.1f}, recall {best[2]:.1f} percent"
        )
    return Chart(
        "Precision and recall by threshold",
        figure,
        "; ".join(descriptions) + ".",
        ("task", "minimum score", "precision", "recall"),
        rows,
        digits=3,
    )


def length_chart(sample: Sample) -> Chart:
    """Plot the accuracy against the number of words in the query."""
    words = {
        "title": "words",
        "type": "category",
        "categoryorder": "array",
        "categoryarray": BUCKETS,
    }
    figure = _figure(words, {"title": "percent", "range": [0, 100]})
    rows: list[tuple[Cell, ...]] = []
    descriptions = []
    for colour, direction in zip(COLOURS, sample.directions, strict=False):
        name = direction.name.replace("->", " → ")
        figure.add_bar(
            x=direction.buckets,
            y=direction.accuracy,
            name=_label_with_model(name, sample.model),
            marker_color=colour,
            customdata=direction.counts,
            hovertemplate="%{x} words: %{y:.1f} percent of %{customdata} queries"
            "<extra>%{fullData.name}</extra>",
        )
        rows += zip(
            repeat(name), direction.buckets, direction.counts, direction.accuracy, strict=False
        )
        measured = list(zip(direction.accuracy, direction.buckets, strict=True))
        worst = min(measured, key=itemgetter(0))
        best = max(measured, key=itemgetter(0))
        descriptions.append(
            f"{name}: from {worst[0]:.1f} percent ({worst[1]} words) to {best[0]:.1f} "
            f"({best[1]} words)"
        )
    return Chart(
        "Queries whose nearest neighbour is the translation, by words",
        figure,
        "; ".join(descriptions) + ".",
        ("direction", "words", "queries", "percent"),
        rows,
    )


def _label_with_model(name: str, model: str) -> str:
    """Return the label of a series, with the model if it is known."""
    if model:
        name = f"{name}, {named(model)}"
    return short(name)


def heatmap_chart(sample: Sample) -> Chart:
    """Draw a heat map of the cosines between some sentences and their translations.

    The diagonal has the cosine of each sentence and its own translation, ideally the highest.
    """
    left, right = sample.heatmap_sentences
    cosines = sample.heatmap.astype(float)
    texts = []
    for source in left:
        texts.append([f"{short(source)}<br>{short(target)}" for target in right])
    figure = _figure(
        {"showticklabels": False}, {"showticklabels": False, "autorange": "reversed"}, height=480
    )
    figure.add_heatmap(
        z=np.round(cosines, 3).tolist(),
        colorscale="Viridis",
        text=texts,
        hovertemplate="%{z:.2f}<br>%{text}<extra></extra>",
    )
    diagonal = cosines.diagonal()
    count = len(diagonal)
    highest_wrong = np.where(np.eye(count, dtype=bool), -np.inf, cosines).max(axis=1)
    correct = int((diagonal > highest_wrong).sum())
    mean_off_diagonal = (cosines.sum() - diagonal.sum()) / (cosines.size - count)
    summary = (
        f"The mean cosine is {diagonal.mean():.2f} on the diagonal and {mean_off_diagonal:.2f} "
        f"elsewhere; {correct} of {count} sentences are closer to their translation than to any "
        "other sentence shown."
    )
    first, second = sample.languages
    rows = []
    for source, target, cosine, wrong in zip(left, right, diagonal, highest_wrong, strict=True):
        rows.append((source, target, float(cosine), float(wrong)))
    return Chart(
        f"Cosines of {count} pairs: {first} down, {second} across, translations on the diagonal",
        figure,
        summary,
        (first, second, "cosine", "highest other cosine"),
        rows,
        digits=2,
    )


def map_chart(sample: Sample) -> Chart:
    """Draw the embeddings in two dimensions, with a line from each sentence to its translation."""
    count = len(sample.map) // 2
    points = sample.map.astype(float)
    axis = {"showticklabels": False}
    figure = _figure(axis, axis, height=540, legend={"orientation": "h", "y": 0})
    figure.add_scatter(
        x=_line_ends(points[:, 0]),
        y=_line_ends(points[:, 1]),
        mode="lines",
        line={"color": "#bbbbbb", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    for side, language in enumerate(sample.languages):
        part = points[side * count : (side + 1) * count]
        figure.add_scatter(
            x=part[:, 0].tolist(),
            y=part[:, 1].tolist(),
            mode="markers",
            name=_label_with_model(language, sample.model),
            marker={"color": COLOURS[side], "size": 7, "symbol": ("circle", "diamond")[side]},
            text=[short(sentence) for sentence in sample.map_sentences[side]],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
        )
    distances = np.linalg.norm(points[:count] - points[count:], axis=1)
    # All points of a map may be identical.
    width = np.linalg.norm(np.ptp(points, axis=0)) or 1
    percent = 100 * distances / width
    summary = (
        f"Each line joins a sentence and its translation; half of the {count} pairs are at most "
        f"{np.median(percent):.1f} percent of the map's diagonal apart, the widest "
        f"{percent.max():.1f}."
    )
    first, second = sample.languages
    rows = list(zip(*sample.map_sentences, percent.tolist(), strict=True))
    head = (first, second, "distance, percent of the diagonal")
    return Chart(f"Map of {count} pairs (t-SNE)", figure, summary, head, rows)


def _line_ends(coordinates: np.ndarray) -> list[float | None]:
    """Return the coordinates of the two ends of each line, separated by None.

    Args:
        coordinates: one coordinate of all sentences, then of their translations: [2 P].
    """
    count = len(coordinates) // 2
    ends: list[float | None] = []
    for source, target in zip(coordinates[:count], coordinates[count:], strict=True):
        ends += [source, target, None]
    return ends
