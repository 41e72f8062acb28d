"""The drawings of the page, by plotly."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fairseq_lxsr.report.sample import Sample
from fairseq_lxsr.report.training_log import Curves

COLOURS = ("#2a6f97", "#c1502e", "#588157", "#8a5a9e", "#b08900", "#5c677d")
LOSSES = ("loss", "gen", "align", "sim")
LAYOUT = {
    "template": "plotly_white",
    "margin": {"l": 55, "r": 15, "t": 10, "b": 45},
    "height": 370,
    "legend": {"orientation": "h", "y": -0.2},
    "font": {"family": "system-ui, sans-serif", "size": 13},
}
SHOWN_LETTERS = 90


def short(sentence: str) -> str:
    """For a label on hover; plotly reads a little HTML, so its signs are taken out."""
    cut = sentence if len(sentence) <= SHOWN_LETTERS else sentence[: SHOWN_LETTERS - 1] + "…"
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def loss_figure(logs: Sequence[Curves]) -> go.Figure:
    """Loss terms over updates; dashed on validation text."""
    return _curves(logs, LOSSES, "log")


def accuracy_figure(logs: Sequence[Curves]) -> go.Figure:
    """How often a sentence finds its translation in its batch."""
    return _curves(logs, ("accuracy",), "linear")


def _curves(logs: Sequence[Curves], names: Sequence[str], scale: str) -> go.Figure:
    figure = go.Figure(layout=LAYOUT)
    colour = 0
    for log in logs:
        for name in names:
            for kind, curves, dash in (("train", log.train, "solid"), ("valid", log.valid, "dash")):
                points = [
                    (update, value) for update, value in curves.get(name, {}).items() if scale != "log" or value > 0
                ]
                if points:
                    label = f"{name} ({kind})" if len(logs) == 1 else f"{log.name}: {name} ({kind})"
                    x, y = zip(*points, strict=True)
                    line = {"color": COLOURS[colour % len(COLOURS)], "dash": dash}
                    mode = "lines+markers" if len(x) < 3 else "lines"
                    figure.add_scatter(x=x, y=y, name=label, mode=mode, line=line)
            colour += 1
    figure.update_xaxes(title="updates")
    figure.update_yaxes(type=scale)
    return figure


def length_figure(sample: Sample) -> go.Figure:
    """Accuracy by number of words of the query."""
    figure = go.Figure(layout=LAYOUT)
    for colour, direction in zip(COLOURS, sample.directions, strict=False):
        figure.add_bar(
            x=direction.buckets,
            y=direction.accuracy,
            name=direction.name.replace("->", " → "),
            marker_color=colour,
            customdata=direction.counts,
            hovertemplate="%{x} words: %{y:.1f} % of %{customdata} queries<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title="words", type="category")
    figure.update_yaxes(title="per cent", range=[0, 100])
    return figure


def heatmap_figure(sample: Sample) -> go.Figure:
    """Cosines of some sentences and translations; the diagonal should stand out."""
    left, right = sample.heatmap_sentences
    hover = [[f"{short(a)}<br>{short(b)}" for b in right] for a in left]
    figure = go.Figure(layout=LAYOUT | {"height": 480})
    figure.add_heatmap(
        z=np.round(sample.heatmap.astype(float), 3).tolist(),
        text=hover,
        colorscale="Viridis",
        hovertemplate="%{z:.2f}<br>%{text}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", showticklabels=False)
    figure.update_xaxes(showticklabels=False)
    return figure


def map_figure(sample: Sample) -> go.Figure:
    """Embeddings in two dimensions; a line joins a sentence and its translation."""
    count = len(sample.map) // 2
    points = sample.map.astype(float)
    figure = go.Figure(layout=LAYOUT | {"height": 540, "legend": {"orientation": "h", "y": 0}})
    joined = [[value for i in range(count) for value in (*points[[i, i + count], axis], None)] for axis in (0, 1)]
    line = {"color": "#bbbbbb", "width": 1}
    figure.add_scatter(x=joined[0], y=joined[1], mode="lines", line=line, hoverinfo="skip", showlegend=False)
    for side, language in enumerate(sample.languages):
        part = points[side * count : (side + 1) * count]
        figure.add_scatter(
            x=part[:, 0].tolist(),
            y=part[:, 1].tolist(),
            mode="markers",
            name=language,
            marker={"color": COLOURS[side], "size": 7},
            text=[short(sentence) for sentence in sample.map_sentences[side]],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(showticklabels=False)
    return figure
