"""Writes the table of numbers of layers on the page of results.

python -m benchmarks.quality.layers_table

It reads layers.jsonl and layers_million.jsonl, which `run` wrote, and language_means.jsonl. P@1 is
the mean of both directions and of all trainings, with the lowest and highest training if there are
several.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.script import read_results

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
# The table of the page stands between these comments.
BEGIN = "<!-- layers: python -m benchmarks.quality.layers_table writes this table -->\n"
END = "<!-- end of layers -->"
# Name of each run, and what the table says of it.
ROWS = {
    "tuned_layers_0": ("inner product", "0"),
    "tuned_gated_0": ("inner product", "0, embeddings not normalized (`--gated`)"),
    "tuned_layers_1": ("inner product", "1"),
    "tuned_layers_2": ("inner product", "2"),
    "tuned_layers_3": ("inner product", "3"),
    "tuned_cosine_0": ("cosine", "0"),
    "tuned_cosine_2": ("cosine", "2"),
}
SETS = ("PUD", "Tatoeba", "Multi30k 2017")
SHORT_NAMES = {"Multi30k 2017": "captions"}

# Scores of one training: by set and direction.
Scores = Mapping[str, Mapping[str, Mapping[str, float]]]


def precision(scores: Scores, name: str) -> float:
    """Return P@1 of a set, the mean of both directions."""
    return fmean(direction["P@1"] for direction in scores[name].values())


def cell(runs: Sequence[Scores], name: str) -> str:
    """Return the mean of some trainings, with their range if there are several."""
    values = [precision(scores, name) for scores in runs]
    if not values:
        return ""
    mean = f"{fmean(values):.1f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.1f} to {max(values):.1f})"


def table(results: Sequence[dict], means: Sequence[dict], million: Sequence[dict]) -> str:
    """Return the table: a row for each run that has results.

    Args:
        results: trainings on 168,925 pairs.
        means: scores of one of them, with the mean vector of each language subtracted.
        million: trainings on a million pairs.
    """
    names = [SHORT_NAMES.get(name, name) for name in SETS]
    centred_names = [f"{name}, centred" for name in names]
    header = ["align by", "layers", "pairs", *names, *centred_names, "runs"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for run, about in ROWS.items():
        centred = [line["centred"] for line in means if line["run"].split(".")[0] == run]
        for part, its_centred in ((results, centred), (million, [])):
            trainings = [result for result in part if result["name"] == run]
            if not trainings:
                continue
            scores = [training["retrieval"] for training in trainings]
            pairs = f"{trainings[0]['pairs']:,}"
            cells = [cell(scores, name) for name in SETS]
            cells += [cell(its_centred, name) for name in SETS]
            lines.append(f"| {' | '.join([*about, pairs, *cells, str(len(trainings))])} |")
    return "\n".join([*lines, ""])


def write_page() -> None:
    """Write the table into the page, between its comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{read_table()}\n{END}{after}", encoding="utf-8")


def read_table() -> str:
    """Return the table of the result files."""
    files = ("layers.jsonl", "language_means.jsonl", "layers_million.jsonl")
    return table(*(read_results(RESULTS / name) for name in files))


if __name__ == "__main__":
    write_page()
