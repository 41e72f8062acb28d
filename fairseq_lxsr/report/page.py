"""Writes one self-contained HTML file. Its content security policy forbids network requests."""

import base64
import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import CAUTION, NOT_PERCENT, comparable_published
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.report import charts
from fairseq_lxsr.report.charts import drawing, html_table, named
from fairseq_lxsr.report.sample import Sample
from fairseq_lxsr.report.training_log import Curves

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { margin: 0 auto; padding: 1rem; max-width: 1000px; }
h1, h2, h3, p, summary, figcaption { overflow-wrap: anywhere; } h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #eee; }
th, td { vertical-align: top; }
th[scope=row], .text { text-align: left; } th[scope=row] { font-weight: normal; }
.sentences th[scope=row], td.text { min-width: 9rem; overflow-wrap: anywhere; }
figure { margin: 0; } figcaption { font-size: .9rem; color: #444; }
summary { cursor: pointer; padding: .25rem 0; }
details .scroll { max-height: 30rem; overflow-y: auto; }
.signature { font: .75rem/1.4 ui-monospace, monospace; color: #555; overflow-wrap: anywhere; }
.verdict { font-size: 1.15rem; font-weight: 600; }
th[scope=row] { position: sticky; left: 0; background: #fff; max-width: 45vw; }
.published th[scope=row] { background: #fbf6ea; }
.published { background: #fbf6ea; border-left: 4px solid #b08900; padding: .2rem 1rem; }
"""
THRESHOLD_CURVE = {"threshold", "precision", "recall"}
# Plotly's own buttons are hidden, because one of them uploads the chart.
BUTTONS = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]]
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": BUTTONS,
    "plotlyServerURL": "",
}
DRAW = """
for (const place of document.querySelectorAll(".chart")) {
  const { data, layout } = JSON.parse(place.nextElementSibling.textContent);
  Plotly.newPlot(place, data, layout, CONFIG).then(() => {
    const [image, ...others] = place.querySelectorAll(".main-svg");
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", place.dataset.label);
    others.forEach((other) => other.setAttribute("aria-hidden", "true"));
  });
}
""".replace("CONFIG", json.dumps(CONFIG))


def write_report(
    output: str | Path,
    title: str,
    logs: Sequence[Curves],
    scores: Sequence[Score],
    samples: Sequence[Sample],
    training_pairs: int = 0,
) -> None:
    """Write the page; sections without content are omitted.

    Args:
        output: path of the HTML file.
        title: page title.
        logs: training curves.
        scores: scores from `lxsr eval`.
        samples: detailed results on language pairs.
        training_pairs: number of training pairs; 0 if unknown.

    Raises:
        InputError: if there is no content.
    """
    if not (logs or scores or samples):
        raise InputError(
            "nothing to report: specify a training log, scores, or a model and text to "
            "evaluate it on"
        )
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_date_and_sizes(samples, training_pairs))}</p>",
        f'<p class="verdict">{escape(verdict(logs, scores, samples))}</p>',
        *_training(logs),
        *_scores(scores),
    ]
    for sample in samples:
        parts += _sample(sample)
    parts += _published(scores)
    library = get_plotlyjs()
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(library, DRAW)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style>\n'
        f"<script>{library}</script></head>\n<body><main>\n"
        + "\n".join(parts)
        + f'\n<p class="signature">fairseq-lxsr {__version__}</p>\n</main>'
        f"<script>{DRAW}</script>\n</body></html>\n"
    )
    with atomic_write(output, "wb") as stream:
        # A file name may contain bytes that are not valid text.
        stream.write(page.encode("utf-8", "replace"))


def _date_and_sizes(samples: Sequence[Sample], training_pairs: int) -> str:
    """Return the subtitle: the date and the numbers of pairs."""
    texts = [datetime.date.today().isoformat()]
    if training_pairs:
        texts.append(f"{training_pairs:,} training pairs")
    for sample in samples:
        texts.append(f"{sample.pairs:,} test pairs of {' and '.join(sample.languages)}")
    return "; ".join(texts)


def verdict(logs: Sequence[Curves], scores: Sequence[Score], samples: Sequence[Sample]) -> str:
    """Summarize the results in one sentence.

    The sentence reports retrieval accuracy if available, otherwise the first score, otherwise the
    loss.
    """
    if samples:
        return _retrieval_verdict(samples)
    if scores:
        score = scores[0]
        name, value = next(iter(score.values.items()), ("no value", 0.0))
        return f"{score.protocol} {_arrow(score.task)}: {name} is {value:.1f}."
    losses: dict[int, float] = {}
    for log in logs:
        losses = losses or log.train.get("loss", {})
    if not losses:
        return "The logs contain no loss."
    points = sorted(losses.items())
    first = points[0][1]
    updates, last = points[-1]
    return f"The loss went from {first:.3g} to {last:.3g} in {updates:,} updates."


def _retrieval_verdict(samples: Sequence[Sample]) -> str:
    percent = 0.0
    sentences = 0
    for sample in samples:
        # Both sides of each pair are used as queries.
        sentences += 2 * sample.pairs
        for direction in sample.directions:
            for count, accuracy in zip(direction.counts, direction.accuracy, strict=True):
                percent += count * accuracy
    pairs = " or ".join(dict.fromkeys(f"{sample.pairs:,}" for sample in samples))
    return (
        f"For {percent / sentences:.1f} % of the sentences, the translation is the nearest of "
        f"{pairs} candidates."
    )


def _arrow(task: str) -> str:
    """Return the display name of a task, for example `en → fr`."""
    return task.replace("->", " → ")


def content_policy(*scripts: str) -> str:
    """Return a Content Security Policy that allows only these scripts, inline styles and images.

    The page cannot load anything from another host (Content Security Policy 3, W3C).

    Args:
        scripts: text of each script, without the script element.
    """
    hashes = []
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(hashes),
        # plotly writes inline styles.
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _training(logs: Sequence[Curves]) -> list[str]:
    """Format the section with the training curves."""
    drawings = []
    for is_loss in (True, False):
        chart = charts.training_chart(logs, is_loss)
        if chart.rows:
            drawings.append(drawing(chart))
    return ["<h2>Training</h2>", *drawings] if drawings else []


def _scores(scores: Sequence[Score]) -> list[str]:
    """Format the section with the scores, one table per protocol."""
    parts = ["<h2>Scores</h2>"] if scores else []
    by_protocol: dict[str, list[Score]] = {}
    for score in scores:
        by_protocol.setdefault(score.protocol, []).append(score)
    for protocol, group in by_protocol.items():
        parts += _scores_of_protocol(protocol, group)
    return parts


def _scores_of_protocol(protocol: str, scores: Sequence[Score]) -> list[str]:
    rows: dict[str, Mapping[str, float]] = {}
    curves: dict[str, Mapping[str, Sequence[float]]] = {}
    models = set()
    for score in scores:
        name = _row_name(score, scores)
        rows[name] = score.values
        if score.curve.keys() >= THRESHOLD_CURVE:
            curves[name] = score.curve
        if "model" in score.settings:
            models.add(named(str(score.settings["model"])))
    caption = f"{protocol}, measured"
    if len(models) == 1:
        caption += f" with the model {models.pop()}"
    signatures = dict.fromkeys(score.signature for score in scores)
    parts = [
        f"<h3>{escape(protocol)}</h3>",
        _values_tables(caption, "task", rows),
        '<p class="signature">' + "<br>".join(map(escape, signatures)) + "</p>",
    ]
    # A curve may have no points.
    curves = {name: curve for name, curve in curves.items() if curve["threshold"]}
    if curves:
        parts.append(drawing(charts.threshold_chart(curves)))
    return parts


def _row_name(score: Score, scores: Sequence[Score]) -> str:
    """Return the row label of a score.

    The label is the task, followed by the settings that distinguish its scores, and by the model if
    there are several.
    """
    same_task = [row.signed_settings for row in scores if row.task == score.task]
    all_tasks = [row.settings for row in scores]
    parts = [_arrow(score.task)]
    for name, value in score.signed_settings.items():
        compared = all_tasks if name == "model" else same_task
        if len({str(settings.get(name)) for settings in compared}) == 1:
            continue
        parts.append(named(str(value)) if name == "model" else f"{name} {value}")
    return ", ".join(parts)


def _published(scores: Sequence[Score]) -> list[str]:
    """Format the section with published scores for the same settings."""
    comparable, left_out = comparable_published(scores)
    parts = []
    for (protocol, value), rows in comparable.items():
        sources = "; ".join(dict.fromkeys(row.source for row in rows))
        values = {row.system: row.values for row in rows}
        caution = f"{CAUTION}: {protocol}, {value} ({sources})"
        table = _values_tables(f"{protocol}, published: {value}", "system", values)
        parts.append(f'<div class="published"><p>{escape(caution)}</p>{table}</div>')
    parts += [f"<p>{escape(line)}.</p>" for line in left_out]
    return ["<h2>Published scores</h2>", *parts] if parts else []


def _values_tables(caption: str, kind: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format percentages as one table, and other values as a second table with more digits.

    Args:
        caption: caption of both tables.
        kind: name of the first column.
        rows: numbers by row name and column name.
    """
    percents: list[str] = []
    numbers: list[str] = []
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        columns = numbers if name in NOT_PERCENT else percents
        columns.append(name)
    tables = ""
    if percents:
        tables += _values_table(f"{caption} (percent)", kind, rows, percents, digits=1)
    if numbers:
        tables += _values_table(f"{caption}: {', '.join(numbers)}", kind, rows, numbers, digits=4)
    return tables


def _values_table(
    caption: str,
    kind: str,
    rows: Mapping[str, Mapping[str, float]],
    columns: Sequence[str],
    digits: int,
) -> str:
    cells = [(name, *map(row.get, columns)) for name, row in rows.items()]
    return html_table(caption, (kind, *columns), cells, digits)


def _sample(sample: Sample) -> list[str]:
    """Format the section with detailed results on one language pair."""
    first, second = sample.languages
    title = f"{first} and {second}, {sample.pairs:,} pairs"
    if sample.model:
        title += f", model {named(sample.model)}"
    return [
        f"<h2>A closer look: {escape(title)}</h2>",
        drawing(charts.length_chart(sample)),
        drawing(charts.heatmap_chart(sample)),
        drawing(charts.map_chart(sample)),
        f"<h3>Retrieval errors: {escape(first)} → {escape(second)}</h3>",
        _errors(sample),
    ]


def _errors(sample: Sample) -> str:
    if not sample.errors:
        return "<p>None: the nearest neighbour of every sentence is its translation.</p>"
    first, second = sample.languages
    names = ("sentence", "nearest neighbour", "cosine", "translation", "its cosine", "its rank")
    rows = []
    for error in sample.errors:
        neighbour = (error.neighbour, error.neighbour_cosine)
        translation = (error.translation, error.translation_cosine, error.rank)
        rows.append((error.query, *neighbour, *translation))
    caption = f"Errors, {first} → {second}, largest first"
    return html_table(caption, names, rows, digits=2)
