"""Tables and plots of what `run` measured.

python -m benchmarks.quality.tables benchmarks/quality/results/quality.jsonl \
    --plot benchmarks/notebook/quality.svg > tables.md
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

TICKS = [20, 40, 60, 70, 80, 85, 90, 92, 94]  # of P@1, on an axis that is logarithmic in the errors
SHORT = {"XQuAD questions": "XQuAD q.", "XQuAD paragraphs": "XQuAD par."}


def read(path: Path) -> list[dict]:
    return [{"file": path.stem} | json.loads(line) for line in path.read_text().splitlines()]


def columns_of(result: dict) -> dict[str, float]:
    """The figures of a line by the name of their column."""
    found = {
        f"{SHORT.get(name, name)} {direction}": scores["P@1"]
        for name, directions in result["retrieval"].items()
        for direction, scores in directions.items()
    }
    contrast = result.get("contrast") or {}
    found |= contrast
    if contrast:
        found["minimal pairs, mean"] = fmean(contrast.values())
    for name in ("ha-intents", "xlmt-sentiment"):
        found |= {f"{name} {language}": value for language, value in result.get(name, {}).items()}
    found["folder, MB"] = result["bytes"] / 1e6
    return found


def kinds_of(result: dict) -> dict[str, float]:
    """P@1 by thirds of the queries' length and by whether all their words were seen, means of both
    directions.
    """
    found: dict[str, list[float]] = {}
    for name, directions in result["retrieval"].items():
        for way in directions.values():
            kinds = dict(zip(("short", "middle", "long"), way["by length"], strict=True))
            kinds |= {"all words seen": way["all seen"], "some unseen": way["some unseen"]}
            for kind, value in kinds.items():
                found.setdefault(f"{SHORT.get(name, name)}, {kind}", []).append(value)
    return {row: fmean(values) for row, values in found.items() if None not in values}


def table(results: Sequence[dict], columns: Callable[[dict], dict[str, float]] = columns_of) -> str:
    """Figures down, runs across: the mean over seeds, and how far they lie apart."""
    names = list(dict.fromkeys(result["name"] for result in results))
    runs = {
        name: [columns(result) for result in results if result["name"] == name] for name in names
    }
    rows = list(dict.fromkeys(column for found in runs.values() for run in found for column in run))
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for row in rows:
        cells = (
            _cell([run[row] for run in found if run.get(row) is not None])
            for found in runs.values()
        )
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def brief(results: Sequence[dict]) -> str:
    """Runs down: both directions of each set and the minimal pairs, means over seeds."""
    runs: dict[str, list[dict]] = {}
    for result in results:
        runs.setdefault(result["name"], []).append(result)
    sets, rules = results[0]["retrieval"], results[0]["contrast"] or {}
    lines = [f"| | {' | '.join(SHORT.get(name, name) for name in [*sets, *rules, 'updates'])} |"]
    lines.append(f"|---|{'---|' * (len(sets) + len(rules) + 1)}")
    for name, found in runs.items():
        ways = [
            [[run["retrieval"][part][way]["P@1"] for run in found] for way in sets[part]]
            for part in sets
        ]
        cells = [" / ".join(map(_cell, part)) for part in ways]
        cells += [_cell([run["contrast"][rule] for run in found]) for rule in rules]
        updates = ", ".join("+".join(map(str, run["updates"])) for run in found)
        lines.append(f"| {name} | {' | '.join(cells)} | {updates} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ({min(values):.1f} - {max(values):.1f})" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


FORMS: dict[str, Callable[[list[dict]], str]] = {
    "all": table,
    "brief": brief,
    "kinds": partial(table, columns=kinds_of),
}


def plot(results: Iterable[dict], path: Path) -> None:
    """Retrieval among many against minimal pairs, one point a run."""
    import matplotlib.pyplot as plt

    pairs = list(dict.fromkeys(result["pair"] for result in results if result["contrast"]))
    figure, axes = plt.subplots(
        1, len(pairs), figsize=(4.5 * len(pairs), 4), squeeze=False, sharey=True
    )
    for axis, pair in zip(axes[0], pairs, strict=True):
        for result in (result for result in results if result["pair"] == pair):
            point = mean_retrieval(result), fmean(result["contrast"].values())
            axis.scatter(*point, color="#2a6f97", zorder=2)
            axis.annotate(
                result["name"], point, fontsize=7, xytext=(3, 3), textcoords="offset points"
            )
        axis.set(title=pair, xlabel="P@1 among 150,000, mean of all sets, %")
        axis.margins(x=0.2, y=0.1)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("minimal pairs, mean of the rules, %")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def plot_corpus(results: Sequence[dict], of_lines: Sequence[Sequence[str]], path: Path) -> None:
    """Retrieval among many by the number of training pairs.

    Args:
        results: lines of results.
        of_lines: for each line of the plot its label, and its runs, see `is_run`.
        path: file of the plot.
    """
    lines: dict[str, dict[float, list[float]]] = {}
    for label, *runs in of_lines:
        points = lines.setdefault(label, {})
        for run in runs:
            found = [result for result in results if is_run(result, run)]
            if (
                len(
                    {
                        tuple(map(result.get, ("minutes", "max_updates", "vocab_size")))
                        for result in found
                    }
                )
                != 1
            ):
                sys.exit(
                    f"--line {label}: {run}: {len(found)} results; expected those of one run, its seeds"
                )
            for result in found:
                points.setdefault(result["pairs"], []).append(mean_retrieval(result))
    _plot_lines(lines, "training pairs", path)


def is_run(result: dict, run: str) -> bool:
    """Whether a result is one of FILE/NAME or FILE/NAME:FIELD=VALUE:... (the file without
    `.jsonl`).
    """
    name, *settings = run.split(":")
    fields = (setting.split("=") for setting in settings)
    return name == f"{result['file']}/{result['name']}" and all(
        str(result.get(key)) == value for key, value in fields
    )


def plot_curves(results: Iterable[dict], path: Path) -> None:
    """Retrieval among many by the minutes of training, of runs that were measured on the way
    (--curve).
    """
    seeds: dict[str, list[list[dict]]] = {}
    for result in results:
        if stops := result.get("curve"):
            minutes = (
                result.get("minutes of training") or result["minutes"] or result["seconds"] / 60
            )
            stops = [*stops, result | {"minutes": minutes}]
            seeds.setdefault(f"{result['name']}, {result['pair']}", []).append(stops)
    for name, runs in seeds.items():
        if len({len(stops) for stops in runs}) > 1:
            sys.exit(
                f"--plot-curves: {name}: seeds with {sorted(map(len, runs))} points; expected one --curve for all"
            )
    lines = {  # seeds that take turns on a machine need other minutes for the same updates
        name: {
            fmean(stop["minutes"] for stop in stops): [mean_retrieval(stop) for stop in stops]
            for stops in zip(*runs, strict=True)
        }
        for name, runs in seeds.items()
    }
    _plot_lines(lines, "minutes of training", path)


def _plot_lines(lines: Mapping[str, Mapping[float, list[float]]], of: str, path: Path) -> None:
    """One line a name, through the mean over seeds at each place; P@1 is drawn by the logarithm of
    its errors.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    # legible where a page is 360 px wide
    figure, axis = plt.subplots(figsize=(4.8, 4 + 0.25 * len(lines)))
    for name, points in lines.items():
        places = sorted(points)
        axis.plot(
            places, [fmean(points[place]) for place in places], marker="o", markersize=4, label=name
        )
    axis.set(xscale="log", xlabel=of, ylabel="P@1 among 150,000, mean of all sets, %")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_yscale(
        "function",
        functions=(lambda found: -np.log(100 - found), lambda height: 100 - np.exp(-height)),
    )
    axis.set_yticks(TICKS)
    axis.grid(alpha=0.3)
    # below the lines, which reach every corner
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def mean_retrieval(result: dict) -> float:
    """P@1 among many, mean of all sets and directions."""
    return fmean(way["P@1"] for ways in result["retrieval"].values() for way in ways.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE.jsonl")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default: all runs")
    parser.add_argument("--pair", metavar="PAIR", help="that was measured (default: all)")
    parser.add_argument(
        "--form",
        choices=FORMS,
        default="all",
        help="brief: runs down; kinds: by length and by words seen (default: all)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="retrieval against minimal pairs"
    )
    parser.add_argument(
        "--plot-corpus", type=Path, metavar="FILE.svg", help="retrieval by the number of pairs"
    )
    parser.add_argument(
        "--line",
        nargs="+",
        action="append",
        default=[],
        metavar=("LABEL", "FILE/NAME[:FIELD=VALUE ...]"),
        help="a line of --plot-corpus and its runs",
    )
    parser.add_argument(
        "--plot-curves", type=Path, metavar="FILE.svg", help="retrieval by the minutes of training"
    )
    args = parser.parse_args()
    if args.plot_corpus and not args.line:
        parser.error("--plot-corpus without --line; expected a label and runs for each line")
    results = [
        line
        for path in args.results
        for line in read(path)
        if not args.only or line["name"] in args.only
    ]
    results = [line for line in results if args.pair in (None, line["pair"])]
    settings = ("file", "pair", "trained on", "minutes", "max_updates", "vocab_size", "text")
    for setting in dict.fromkeys(tuple(map(r.get, settings)) for r in results):
        same = [r for r in results if tuple(map(r.get, settings)) == setting]
        file, pair, trained, minutes, updates, pieces, text = setting
        length = f"{updates:,} updates" if updates else f"{minutes:g} minutes"
        what = f"{file}: " if len(args.results) > 1 else ""
        what += f"{pair}, trained on {trained} for {length}, {pieces:,} word pieces"
        what += f", text of {text}" if text else ""
        print(f"\n{what}\n\n{FORMS[args.form](same)}")
    if args.plot:
        plot(results, args.plot)
    if args.plot_corpus:
        plot_corpus(results, args.line, args.plot_corpus)
    if args.plot_curves:
        plot_curves(results, args.plot_curves)


if __name__ == "__main__":
    main()
