"""Tables and plots of the results of quality.run.

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

# The ticks of P@1, on an axis that is logarithmic in the errors.
TICKS = [20, 40, 60, 70, 80, 85, 90, 92, 94]
SHORT_NAMES = {"XQuAD questions": "XQuAD q.", "XQuAD paragraphs": "XQuAD par."}
CLASSIFICATION = ("ha-intents", "xlmt-sentiment")
# Results that agree in these fields share a table.
SETTINGS = ("file", "pair", "trained on", "minutes", "max_updates", "vocab_size", "text")
P_AT_1 = "P@1 among 150,000, mean of all sets, %"

# The values of a result, by the name of their row.
Values = Callable[[dict], dict[str, float]]


def read(path: Path) -> list[dict]:
    """Read the results of a file, with its name."""
    return [{"file": path.stem} | json.loads(line) for line in path.read_text().splitlines()]


def short_name(name: str) -> str:
    """Return the name of a set in tables."""
    return SHORT_NAMES.get(name, name)


def all_values(result: dict) -> dict[str, float]:
    """Return all values of a result."""
    values = {}
    for name, directions in result["retrieval"].items():
        for direction, scores in directions.items():
            values[f"{short_name(name)} {direction}"] = scores["P@1"]
    contrast = result.get("contrast") or {}
    values |= contrast
    if contrast:
        values["minimal pairs, mean"] = fmean(contrast.values())
    for name in CLASSIFICATION:
        for language, accuracy in result.get(name, {}).items():
            values[f"{name} {language}"] = accuracy
    values["folder, MB"] = result["bytes"] / 1e6
    return values


def values_by_kind(result: dict) -> dict[str, float]:
    """Return P@1 by kinds of queries, as means over both directions.

    The kinds are thirds of the length, and whether all words are in the training text.
    """
    by_kind: dict[str, list[float]] = {}
    for name, directions in result["retrieval"].items():
        for scores in directions.values():
            kinds = dict(zip(("short", "middle", "long"), scores["by length"], strict=True))
            kinds["all words seen"] = scores["all seen"]
            kinds["some unseen"] = scores["some unseen"]
            for kind, value in kinds.items():
                by_kind.setdefault(f"{short_name(name)}, {kind}", []).append(value)
    return {row: fmean(values) for row, values in by_kind.items() if None not in values}


def by_run(results: Iterable[dict]) -> dict[str, list[dict]]:
    """Return the results of each run, one for each seed."""
    runs: dict[str, list[dict]] = {}
    for result in results:
        runs.setdefault(result["name"], []).append(result)
    return runs


def table(results: Sequence[dict], values_of: Values = all_values) -> str:
    """Return a table with a column for each run: means over the seeds, and their range."""
    runs = {}
    for name, run_results in by_run(results).items():
        runs[name] = [values_of(result) for result in run_results]
    rows = dict.fromkeys(row for values in runs.values() for seed in values for row in seed)
    lines = [f"| | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}"]
    for row in rows:
        cells = []
        for values in runs.values():
            cells.append(_cell([seed[row] for seed in values if seed.get(row) is not None]))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def brief(results: Sequence[dict]) -> str:
    """Return a table with a row for each run: the sets, the minimal pairs and the updates."""
    sets = results[0]["retrieval"]
    rules = results[0]["contrast"] or {}
    heads = [short_name(name) for name in (*sets, *rules, "updates")]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name, seeds in by_run(results).items():
        cells = [_directions_cell(seeds, set_name, list(sets[set_name])) for set_name in sets]
        for rule in rules:
            cells.append(_cell([seed["contrast"][rule] for seed in seeds]))
        cells.append(", ".join("+".join(map(str, seed["updates"])) for seed in seeds))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _directions_cell(seeds: Sequence[dict], set_name: str, directions: Sequence[str]) -> str:
    """Return P@1 of each direction of a set."""
    cells = []
    for direction in directions:
        cells.append(_cell([seed["retrieval"][set_name][direction]["P@1"] for seed in seeds]))
    return " / ".join(cells)


def _cell(values: Sequence[float]) -> str:
    """Return the mean of the seeds, and their range if there are several."""
    if not values:
        return ""
    spread = f" ({min(values):.1f} - {max(values):.1f})" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


FORMS: dict[str, Callable[[list[dict]], str]] = {
    "all": table,
    "brief": brief,
    "kinds": partial(table, values_of=values_by_kind),
}


def plot(results: Sequence[dict], path: Path) -> None:
    """Plot retrieval against minimal pairs, with a point for each result."""
    import matplotlib.pyplot as plt

    pairs = list(dict.fromkeys(result["pair"] for result in results if result["contrast"]))
    size = (4.5 * len(pairs), 4)
    figure, axes = plt.subplots(1, len(pairs), figsize=size, squeeze=False, sharey=True)
    for axis, pair in zip(axes[0], pairs, strict=True):
        for result in results:
            if result["pair"] != pair:
                continue
            point = mean_retrieval(result), fmean(result["contrast"].values())
            axis.scatter(*point, color="#2a6f97", zorder=2)
            offset = {"xytext": (3, 3), "textcoords": "offset points"}
            axis.annotate(result["name"], point, fontsize=7, **offset)
        axis.set(title=pair, xlabel=P_AT_1)
        axis.margins(x=0.2, y=0.1)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("minimal pairs, mean of the rules, %")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def plot_corpus(results: Sequence[dict], lines: Sequence[Sequence[str]], path: Path) -> None:
    """Plot retrieval by the number of training pairs.

    Args:
        results: the results.
        lines: for each line of the plot its label and its runs, see `is_run`.
        path: file of the plot.
    """
    points_by_label: dict[str, dict[float, list[float]]] = {}
    for label, *runs in lines:
        points = points_by_label.setdefault(label, {})
        for run in runs:
            seeds = [result for result in results if is_run(result, run)]
            settings = {
                (seed.get("minutes"), seed.get("max_updates"), seed.get("vocab_size"))
                for seed in seeds
            }
            if len(settings) != 1:
                sys.exit(
                    f"--line {label}: {len(seeds)} results of {run};"
                    " specify the seeds of one run with one setting"
                )
            for seed in seeds:
                points.setdefault(seed["pairs"], []).append(mean_retrieval(seed))
    _plot_lines(points_by_label, "training pairs", path)


def is_run(result: dict, run: str) -> bool:
    """Return whether a result belongs to FILE/NAME or FILE/NAME:FIELD=VALUE:...

    FILE is given without `.jsonl`.
    """
    name, *settings = run.split(":")
    if name != f"{result['file']}/{result['name']}":
        return False
    for setting in settings:
        key, value = setting.split("=")
        if str(result.get(key)) != value:
            return False
    return True


def plot_curves(results: Iterable[dict], path: Path) -> None:
    """Plot retrieval by the minutes of training, of runs that were evaluated with --curve."""
    seeds: dict[str, list[list[dict]]] = {}
    for result in results:
        if result.get("curve"):
            minutes = result.get("minutes of training")
            minutes = minutes or result["minutes"] or result["seconds"] / 60
            points = [*result["curve"], result | {"minutes": minutes}]
            seeds.setdefault(f"{result['name']}, {result['pair']}", []).append(points)
    lines = {}
    for name, curves in seeds.items():
        lengths = sorted(map(len, curves))
        if len(set(lengths)) > 1:
            sys.exit(
                f"--plot-curves: {name}: seeds with {lengths} points;"
                " use the same --curve for all seeds"
            )
        # Seeds that take turns on a machine need different times for the same updates.
        lines[name] = {
            fmean(point["minutes"] for point in points): list(map(mean_retrieval, points))
            for points in zip(*curves, strict=True)
        }
    _plot_lines(lines, "minutes of training", path)


def _plot_lines(lines: Mapping[str, Mapping[float, list[float]]], xlabel: str, path: Path) -> None:
    """Plot a line for each name through the means over the seeds.

    The axis of P@1 is logarithmic in the errors.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    # This size is legible on a page of 360 pixels.
    figure, axis = plt.subplots(figsize=(4.8, 4 + 0.25 * len(lines)))
    for name, points in lines.items():
        places = sorted(points)
        means = [fmean(points[place]) for place in places]
        axis.plot(places, means, marker="o", markersize=4, label=name)
    axis.set(xscale="log", xlabel=xlabel, ylabel=P_AT_1)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_yscale(
        "function",
        functions=(
            lambda percent: -np.log(100 - percent),
            lambda height: 100 - np.exp(-height),
        ),
    )
    axis.set_yticks(TICKS)
    axis.grid(alpha=0.3)
    # The legend is below the plot, because the lines reach every corner.
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def mean_retrieval(result: dict) -> float:
    """Return the mean P@1 over all sets and directions."""
    values = []
    for directions in result["retrieval"].values():
        values += [scores["P@1"] for scores in directions.values()]
    return fmean(values)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE.jsonl", help="results")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs to show (default: all)")
    parser.add_argument("--pair", metavar="PAIR", help="language pair to show (default: all)")
    parser.add_argument(
        "--form",
        choices=FORMS,
        default="all",
        help="brief: a row for each run; kinds: by length and by known words (default: all)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="plot retrieval against minimal pairs"
    )
    parser.add_argument(
        "--plot-corpus",
        type=Path,
        metavar="FILE.svg",
        help="plot retrieval by the number of training pairs",
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
        "--plot-curves",
        type=Path,
        metavar="FILE.svg",
        help="plot retrieval by the minutes of training",
    )
    args = parser.parse_args()
    if args.plot_corpus and not args.line:
        parser.error("--plot-corpus requires --line: specify a label and its runs for each line")
    return args


def chosen_results(args: argparse.Namespace) -> list[dict]:
    """Read the results of the chosen runs and language pair."""
    results = []
    for path in args.results:
        for result in read(path):
            is_named = not args.only or result["name"] in args.only
            if is_named and args.pair in (None, result["pair"]):
                results.append(result)
    return results


def title(result: dict, with_file: bool) -> str:
    """Return the title of a table: the setting of its results."""
    if result.get("max_updates"):
        length = f"{result['max_updates']:,} updates"
    else:
        length = f"{result['minutes']:g} minutes"
    text = f"{result['file']}: " if with_file else ""
    text += f"{result['pair']}, trained on {result['trained on']} for {length}"
    text += f", {result['vocab_size']:,} word pieces"
    if result.get("text"):
        text += f", text of {result['text']}"
    return text


def main() -> None:
    args = parse_options()
    results = chosen_results(args)
    groups: dict[tuple, list[dict]] = {}
    for result in results:
        groups.setdefault(tuple(map(result.get, SETTINGS)), []).append(result)
    for group in groups.values():
        print(f"\n{title(group[0], len(args.results) > 1)}\n\n{FORMS[args.form](group)}")
    if args.plot:
        plot(results, args.plot)
    if args.plot_corpus:
        plot_corpus(results, args.line, args.plot_corpus)
    if args.plot_curves:
        plot_curves(results, args.plot_curves)


if __name__ == "__main__":
    main()
