"""Writes one self-contained HTML file; its content security policy forbids requests to other
hosts.
"""

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
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 1rem; max-width: 1000px; }
h1, h2, h3, p, summary, figcaption { overflow-wrap: anywhere; } h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #eee; vertical-align: top; }
th[scope=row], .text { text-align: left; } th[scope=row] { font-weight: normal; }
.sentences th[scope=row], td.text { min-width: 9rem; overflow-wrap: anywhere; }
figure { margin: 0; } figcaption { font-size: .9rem; color: #444; } summary { cursor: pointer; padding: .25rem 0; }
details .scroll { max-height: 30rem; overflow-y: auto; }
.signature { font: .75rem/1.4 ui-monospace, monospace; color: #555; overflow-wrap: anywhere; }
.verdict { font-size: 1.15rem; font-weight: 600; }
th[scope=row] { position: sticky; left: 0; background: #fff; max-width: 45vw; }
.published th[scope=row] { background: #fbf6ea; }
.published { background: #fbf6ea; border-left: 4px solid #b08900; padding: .2rem 1rem; }
"""
THRESHOLD_CURVE = {"threshold", "precision", "recall"}
# plotly's own buttons are hidden, because one of them uploads the chart
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
    """Write the page; sections without content are omitted, and no content at all is an
    `InputError`.
    """
    if not (logs or scores or samples):
        raise InputError(
            "nothing to report: no training log, no scores, no model with text to look at"
        )
    texts = [f"{training_pairs:,} training pairs"] if training_pairs else []
    texts += [
        f"{sample.pairs:,} test pairs of {' and '.join(sample.languages)}" for sample in samples
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape('; '.join([datetime.date.today().isoformat(), *texts]))}</p>",
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
        + f'\n<p class="signature">fairseq-lxsr {__version__}</p>\n</main><script>{DRAW}</script>\n</body></html>\n'
    )
    with atomic_write(output, "wb") as stream:
        stream.write(page.encode("utf-8", "replace"))  # names of files may not be valid text


def verdict(logs: Sequence[Curves], scores: Sequence[Score], samples: Sequence[Sample]) -> str:
    """What the page shows, in one sentence: how many translations are found, else the first score,
    else the loss.
    """
    if samples:
        found = [
            sum(
                count * share
                for count, share in zip(direction.counts, direction.accuracy, strict=True)
            )
            for sample in samples
            for direction in sample.directions
        ]
        sentences = sum(2 * sample.pairs for sample in samples)
        pairs = " or ".join(dict.fromkeys(f"{sample.pairs:,}" for sample in samples))
        return f"{sum(found) / sentences:.1f} % of the sentences find their translation first, among {pairs}."
    if scores:
        name, value = next(iter(scores[0].values.items()), ("no value", 0.0))
        return f"{scores[0].protocol} {scores[0].task.replace('->', ' → ')}: {name} is {value:.1f}."
    losses = sorted(next((log.train["loss"] for log in logs if log.train.get("loss")), {}).items())
    if not losses:
        return "The logs have no loss."
    return f"The loss went from {losses[0][1]:.3g} to {losses[-1][1]:.3g} in {losses[-1][0]:,} updates."


def content_policy(*scripts: str) -> str:
    """Allow these scripts, the page's own styles and images, and no other host (Content Security
    Policy 3, W3C).
    """
    hashes = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "style-src": "'unsafe-inline'",  # plotly writes inline styles
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _training(logs: Sequence[Curves]) -> list[str]:
    drawings = [
        drawing(chart)
        for is_loss in (True, False)
        if (chart := charts.training_chart(logs, is_loss)).rows
    ]
    return ["<h2>Training</h2>", *drawings] if drawings else []


def _scores(scores: Sequence[Score]) -> list[str]:
    parts = ["<h2>Scores</h2>"] if scores else []
    for protocol in dict.fromkeys(score.protocol for score in scores):
        own = [score for score in scores if score.protocol == protocol]
        rows = {_row_name(score, own): score.values for score in own}
        models = sorted(
            {named(str(score.settings["model"])) for score in own if "model" in score.settings}
        )
        caption = (
            f"{protocol}, measured with the model {models[0]}"
            if len(models) == 1
            else f"{protocol}, measured"
        )
        parts += [f"<h3>{escape(protocol)}</h3>", _values_tables(caption, "task", rows)]
        signatures = dict.fromkeys(score.signature for score in own)
        parts.append('<p class="signature">' + "<br>".join(map(escape, signatures)) + "</p>")
        curves = {
            _row_name(score, own): score.curve
            for score in own
            if score.curve.keys() >= THRESHOLD_CURVE
        }
        drawn = {name: curve for name, curve in curves.items() if curve["threshold"]}
        parts += [drawing(charts.threshold_chart(drawn))] if drawn else []
    return parts


def _row_name(score: Score, others: Sequence[Score]) -> str:
    """Name a row: the task, the settings in which its scores differ, and the model where there are
    several.
    """
    alike = [other.signed_settings for other in others if other.task == score.task]
    varying = []
    for name, value in score.signed_settings.items():
        compared = [other.settings for other in others] if name == "model" else alike
        if len({str(settings.get(name)) for settings in compared}) > 1:
            varying.append(named(str(value)) if name == "model" else f"{name} {value}")
    return ", ".join([score.task.replace("->", " → "), *varying])


def _published(scores: Sequence[Score]) -> list[str]:
    """What papers report that measured as these scores."""
    shown, left_out = comparable_published(scores)
    parts = []
    for (protocol, value), rows in shown.items():
        sources = "; ".join(dict.fromkeys(row.source for row in rows))
        values = {row.system: row.values for row in rows}
        parts.append(
            f'<div class="published"><p>{escape(CAUTION)}: {escape(protocol)}, {escape(value)} ({escape(sources)})'
            f"</p>{_values_tables(f'{protocol}, published: {value}', 'system', values)}</div>"
        )
    parts += [f"<p>{escape(line)}.</p>" for line in left_out]
    return ["<h2>Published scores</h2>", *parts] if parts else []


def _values_tables(caption: str, kind: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format the values in percent as a table, and those that are not as another with more
    digits.
    """
    names = dict.fromkeys(name for row in rows.values() for name in row)
    percent, others = (
        [name for name in names if (name in NOT_PERCENT) == apart] for apart in (False, True)
    )
    captions = (
        (percent, f"{caption} (percent)", 1),
        (others, f"{caption}: {', '.join(others)}", 4),
    )
    return "".join(
        html_table(
            title,
            (kind, *columns),
            [(name, *map(row.get, columns)) for name, row in rows.items()],
            digits,
        )
        for columns, title, digits in captions
        if columns
    )


def _sample(sample: Sample) -> list[str]:
    first, second = sample.languages
    what = f"{first} and {second}, {sample.pairs:,} pairs" + (
        f", model {named(sample.model)}" if sample.model else ""
    )
    return [
        f"<h2>A closer look: {escape(what)}</h2>",
        *(
            drawing(chart(sample))
            for chart in (charts.length_chart, charts.heatmap_chart, charts.map_chart)
        ),
        f"<h3>Errors to read: {escape(first)} → {escape(second)}</h3>",
        _errors(sample),
    ]


def _errors(sample: Sample) -> str:
    if not sample.errors:
        return "<p>None: every sentence finds its translation first.</p>"
    first, second = sample.languages
    names = ("sentence", "nearest neighbour", "cosine", "translation", "its cosine", "its rank")
    rows = [
        (e.query, e.found, e.found_cosine, e.wanted, e.wanted_cosine, e.rank) for e in sample.errors
    ]
    return html_table(
        f"Errors, {first} → {second}: those furthest from right first", names, rows, digits=2
    )
