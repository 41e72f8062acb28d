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
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.report.charts import Chart, map_chart, training_chart
from fairseq_lxsr.report.sample import Sample
from fairseq_lxsr.report.scores import score_table
from fairseq_lxsr.report.training_log import Curves

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { margin: 0 auto; padding: 1rem; max-width: 1000px; }
h1, h2, p, figcaption { overflow-wrap: anywhere; } h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #eee; }
td { white-space: nowrap; }
th[scope=row] { text-align: left; font-weight: normal; min-width: 9rem; }
figure { margin: 0; } figcaption { font-size: .9rem; color: #444; }
.signature { font: .75rem/1.4 ui-monospace, monospace; color: #555; overflow-wrap: anywhere; }
"""
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
    const [image, ...layers] = place.querySelectorAll(".main-svg");
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", place.dataset.label);
    layers.forEach((layer) => layer.setAttribute("aria-hidden", "true"));
  });
}
""".replace("CONFIG", json.dumps(CONFIG))


def write_report(
    output: str | Path,
    title: str,
    logs: Sequence[Curves],
    scores: Sequence[Score],
    samples: Sequence[Sample],
    names: Mapping[str, str] | None = None,
    trained: str = "",
) -> None:
    """Write the page; sections without content are omitted.

    Args:
        output: path of the HTML file.
        title: page title.
        logs: training curves.
        scores: scores from `lxsr eval`.
        samples: sentence pairs to draw on a map.
        names: names of models in the scores, by fingerprint.
        trained: fingerprint of the model that the page is about; empty if unknown.

    Raises:
        InputError: if there is no content.
    """
    if not (logs or scores or samples):
        raise InputError(
            "nothing to report: specify a training log, scores, or a model and text to "
            "evaluate it on"
        )
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{datetime.date.today().isoformat()}</p>"]
    if scores:
        parts.append(_scores_section(scores, names or {}, trained))
    charts = [training_chart(logs), *map(map_chart, samples)]
    parts += [_drawing(chart) for chart in charts if chart is not None]
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


def _scores_section(scores: Sequence[Score], names: Mapping[str, str], trained: str) -> str:
    """Format the table of scores, with a note on what it compares, and the signatures."""
    table = score_table(scores, names, trained)
    note = "Scores are in percent, except thresholds."
    if table.compared:
        baseline, model = table.compared
        note += (
            f" The difference is that of the {model} to {baseline}, with its 95 % interval by "
            "paired bootstrap; an interval that contains 0 shows no difference."
        )
        if baseline in names.values():
            note += f" {baseline} was trained on the demo text, on which its scores are too high."
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = ""
    for name, *cells in table.rows:
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(name)}</th>{row}</tr>'
    signatures = dict.fromkeys(score.signature for score in scores)
    return (
        f"<h2>Scores</h2>\n<p>{escape(note)}</p>\n"
        '<div class="scroll" role="region" tabindex="0" aria-label="Scores"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>\n"
        f'<p class="signature">{"<br>".join(map(escape, signatures))}</p>'
    )


def _drawing(chart: Chart) -> str:
    """Return the HTML of a chart with its caption; a script draws the chart."""
    # Without this, `</script>` in the JSON would end the script element.
    figure = chart.figure.to_json().replace("<", "\\u003c")
    caption = escape(chart.caption)
    return (
        f"<h2>{escape(chart.title)}</h2>\n"
        f'<figure><div class="chart" data-label="{escape(chart.title)}. {caption}"></div>'
        f'<script type="application/json">{figure}</script>\n'
        f"<figcaption>{caption}</figcaption></figure>"
    )
