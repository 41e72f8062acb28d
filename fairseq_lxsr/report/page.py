"""The page: one HTML file with everything in it."""

import importlib.util
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fairseq_lxsr import __version__
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.published import CAUTION, published
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.files import atomic_write
from fairseq_lxsr.report.sample import Sample
from fairseq_lxsr.report.training_log import Curves

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 1rem; max-width: 1000px; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, .text td { text-align: left; } .text td { vertical-align: top; }
.text td:not(.number) { min-width: 9rem; } .text th { text-align: left; }
.signature { font: .75rem/1.4 ui-monospace, monospace; color: #555; overflow-wrap: anywhere; }
.published { background: #fbf6ea; border-left: 4px solid #b08900; padding: .2rem 1rem; }
"""


def write_report(
    output: str | Path, title: str, logs: Sequence[Curves], scores: Sequence[Score], samples: Sequence[Sample]
) -> None:
    """Write the page; what there is nothing of is left out.

    Raises: InputError where there is nothing at all, or the libraries that draw are missing.
    """
    if not (logs or scores or samples):
        raise InputError("nothing to report: no training log, no scores, no model with text to look at")
    require_libraries()
    parts = [f"<h1>{escape(title)}</h1>", *_training(logs), *_scores(scores)]
    for sample in samples:
        parts += _sample(sample)
    with atomic_write(output) as stream:
        stream.write(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style>\n'
            f"<script>{_library()}</script></head>\n<body>\n" + "\n".join(parts)
        )
        stream.write(f'\n<p class="signature">fairseq-lxsr {__version__}</p>\n</body></html>\n')


def require_libraries() -> None:
    """Raises: InputError where one that draws is missing."""
    for library, module in (("plotly", "plotly"), ("scikit-learn", "sklearn")):
        if importlib.util.find_spec(module) is None:
            raise InputError(f"a report needs {library}, which is not installed: pip install 'fairseq-lxsr[report]'")


def _library() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _drawing(title: str, figure) -> str:
    config = {"responsive": True, "displaylogo": False}
    return f"<h3>{escape(title)}</h3>" + figure.to_html(full_html=False, include_plotlyjs=False, config=config)


def _training(logs: Sequence[Curves]) -> list[str]:
    from fairseq_lxsr.report.figures import accuracy_figure, loss_figure

    if not logs:
        return []
    return [
        "<h2>Training</h2>",
        _drawing("Loss per pair", loss_figure(logs)),
        _drawing("Share of sentences that find their translation in their batch", accuracy_figure(logs)),
    ]


def _scores(scores: Sequence[Score]) -> list[str]:
    parts = ["<h2>Scores</h2>"] if scores else []
    for protocol in dict.fromkeys(score.protocol for score in scores):
        own = [score for score in scores if score.protocol == protocol]
        rows: dict[str, dict[str, float]] = {}
        for score in own:
            rows[_row_name(score, own)] = score.values
        parts += [f"<h3>{escape(protocol)}</h3>", _table(rows)]
        signatures = dict.fromkeys(score.signature for score in own)
        parts.append('<p class="signature">' + "<br>".join(map(escape, signatures)) + "</p>")
        parts += _published(protocol)
    return parts


def _row_name(score: Score, others: Sequence[Score]) -> str:
    """Task, and the settings in which the scores of that task differ."""
    alike = [other.signed_settings for other in others if other.task == score.task]
    varying = [
        f"{name} {value}"
        for name, value in score.signed_settings.items()
        if len({str(other.get(name)) for other in alike}) > 1
    ]
    return ", ".join([score.task.replace("->", " → "), *varying])


def _published(protocol: str) -> list[str]:
    rows = published(protocol)
    parts = []
    for value in dict.fromkeys(row.value for row in rows):
        table = _table({row.system: row.values for row in rows if row.value == value})
        sources = "; ".join(dict.fromkeys(row.source for row in rows if row.value == value))
        parts.append(
            f'<div class="published"><p>{escape(CAUTION)}: {escape(protocol)}, {escape(value)} ({escape(sources)})</p>'
            f"{table}</div>"
        )
    return parts


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in ["", *columns])
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{row[column]:.1f}</td>" if column in row else "<td></td>" for column in columns)
        + "</tr>"
        for name, row in rows.items()
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _sample(sample: Sample) -> list[str]:
    from fairseq_lxsr.report.figures import heatmap_figure, length_figure, map_figure

    first, second = sample.languages
    return [
        f"<h2>A closer look: {escape(first)} and {escape(second)}, {sample.pairs:,} pairs</h2>",
        _drawing("Queries whose nearest neighbour is the translation, by words", length_figure(sample)),
        _drawing(f"Cosines: {first} down, {second} across, translations on the diagonal", heatmap_figure(sample)),
        _drawing(f"Map of {len(sample.map) // 2} pairs (t-SNE); hover to read", map_figure(sample)),
        f"<h3>Errors to read: {escape(first)} → {escape(second)}</h3>",
        _errors(sample),
    ]


def _errors(sample: Sample) -> str:
    if not sample.errors:
        return "<p>None: every sentence finds its translation first.</p>"
    rows = "".join(
        f'<tr><td>{escape(e.query)}</td><td>{escape(e.found)}</td><td class="number">{e.found_cosine:.2f}</td>'
        f'<td>{escape(e.wanted)}</td><td class="number">{e.wanted_cosine:.2f}</td><td class="number">{e.rank}</td></tr>'
        for e in sample.errors
    )
    names = ("sentence", "nearest neighbour", "cosine", "translation", "cosine", "its rank")
    head = "".join(f"<th>{name}</th>" for name in names)
    table = f'<table class="text"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<p>Those furthest from right first.</p><div class="scroll">{table}</div>'
