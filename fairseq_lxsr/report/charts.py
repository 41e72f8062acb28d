"""Charts of the page: the training curve, and the map of a sample of sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fairseq_lxsr.report.sample import Sample
from fairseq_lxsr.report.training_log import Curves

COLOURS = ("#2a6f97", "#c1502e", "#588157", "#8a5a9e", "#b08900", "#5c677d")
LAYOUT = {
    "template": "plotly_white",
    # The top margin leaves space for the toolbar above the curves.
    "margin": {"l": 65, "r": 15, "t": 36, "b": 45},
    "height": 420,
    "legend": {"orientation": "h", "y": -0.2},
    "font": {"family": "system-ui, sans-serif", "size": 13},
}
LABEL_LENGTH = 90
VALIDATION_NOTE = (
    "Dashed validation curves are not comparable with training curves: the loss depends on the "
    "number of pairs in a batch, validation batches have other sizes, and dropout and hard "
    "negatives apply to training alone. So the validation loss may be the lower one all the way."
)


@dataclass(frozen=True)
class Chart:
    """A plotly chart.

    Attributes:
        title: chart title.
        figure: plotly figure.
        caption: description, also for readers who cannot see the chart.
    """

    title: str
    figure: go.Figure
    caption: str


def short(text: str) -> str:
    """Shorten and escape a chart label, because plotly interprets some HTML."""
    if len(text) > LABEL_LENGTH:
        text = text[: LABEL_LENGTH - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def training_chart(logs: Sequence[Curves]) -> Chart | None:
    """Plot the training and validation loss over the updates; None if the logs contain no loss.

    Args:
        logs: training logs.
    """
    loss_axis = {"type": "log", "title": "loss (logarithmic scale)"}
    figure = go.Figure(layout=LAYOUT | {"xaxis": {"title": "updates"}, "yaxis": loss_axis})
    sentences = []
    not_drawn = 0
    for number, log in enumerate(logs):
        prefix = f"{log.name}: " if len(logs) > 1 else ""
        colour = COLOURS[number % len(COLOURS)]
        for kind, curves, dash in (
            ("training", log.train, "solid"),
            ("validation", log.valid, "dash"),
        ):
            losses = curves.get("loss", {})
            points = _drawable(losses)
            not_drawn += len(losses) - len(points)
            if not points:
                continue
            label = f"{prefix}{kind}"
            _add_curve(figure, points, label, {"color": colour, "dash": dash})
            values = list(points.values())
            sentences.append(f"{label}: from {values[0]:.3g} to {values[-1]:.3g}.")
    if not sentences:
        return None
    sentences += _mark_exported(figure, logs)
    if not_drawn:
        sentences.append(
            f"{not_drawn} values are not finite or not positive and not drawn: the training "
            "may have diverged."
        )
    if any(log.valid.get("loss") for log in logs):
        sentences.append(VALIDATION_NOTE)
    return Chart("Loss", figure, " ".join(sentences))


def _drawable(losses: Mapping[int, float]) -> dict[int, float]:
    """Return the losses that a logarithmic axis can show, by update.

    The losses are sorted, because a log that contains several runs may not be.
    """
    points = {}
    for update, loss in sorted(losses.items()):
        if isfinite(loss) and loss > 0:
            points[update] = loss
    return points


def _add_curve(
    figure: go.Figure, points: Mapping[int, float], label: str, line: dict[str, str]
) -> None:
    # A line of one point would be invisible.
    mode = "lines+markers" if len(points) < 3 else "lines"
    figure.add_scatter(
        x=list(points), y=list(points.values()), name=short(label), mode=mode, line=line
    )


def _mark_exported(figure: go.Figure, logs: Sequence[Curves]) -> list[str]:
    """Draw a line at the exported update of each log, and return a sentence for each."""
    last_update = max(max(curve.x) for curve in figure.data)
    sentences = []
    for log in logs:
        if log.exported is None:
            continue
        # Place the label on the side towards the middle of the chart, where there is space.
        side = "left" if 2 * log.exported > last_update else "right"
        figure.add_vline(
            log.exported,
            line={"dash": "dot"},
            annotation_text=f"exported: update {log.exported:,}",
            annotation_position=f"top {side}",
        )
        sentences.append(f"The model of {log.name} was exported at update {log.exported:,}.")
    return sentences


def map_chart(sample: Sample) -> Chart:
    """Draw the embeddings in two dimensions, with a line from each sentence to its translation."""
    count = len(sample.sentences[0])
    points: Any = sample.positions.astype(float)
    axis = {"showticklabels": False}
    figure = go.Figure(layout=LAYOUT | {"xaxis": axis, "yaxis": axis, "height": 540})
    ends = np.full((count, 3, 2), np.nan)
    ends[:, 0] = points[:count]
    ends[:, 1] = points[count:]
    figure.add_scatter(
        # The third row of each pair is empty, which separates the lines.
        x=ends[:, :, 0].ravel(),
        y=ends[:, :, 1].ravel(),
        mode="lines",
        line={"color": "#bbbbbb", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    for side, symbol in enumerate(("circle", "diamond")):
        part = points[side * count : (side + 1) * count]
        figure.add_scatter(
            x=part[:, 0],
            y=part[:, 1],
            mode="markers",
            name=short(sample.languages[side]),
            marker={"color": COLOURS[side], "size": 7, "symbol": symbol},
            text=[short(sentence) for sentence in sample.sentences[side]],
            hovertemplate="%{text}<extra></extra>",
        )
    distances = np.linalg.norm(points[:count] - points[count:], axis=1)
    # All points of a map may be identical.
    width = np.linalg.norm(np.ptp(points, axis=0)) or 1
    percent = 100 * np.median(distances) / width
    return Chart(
        f"Map of {count} of {sample.pairs:,} sentence pairs, {' and '.join(sample.languages)}",
        figure,
        "Each line joins a sentence and its translation (t-SNE of the embeddings). Half of the "
        f"pairs are at most {percent:.1f} percent of the map's diagonal apart.",
    )
