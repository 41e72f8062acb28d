"""How many of the pairs that a model mines are right, by the threshold of the margin.

python -m benchmarks.quality.mined --model FOLDER --corpus FOLDER/en-fr \
    --output benchmarks/quality/results/mined.json

FOLDER/en-fr has train.en and train.fr; the model was trained on a tenth of their pairs (`corpus:
0.1` of quality.yaml). From the rest, it mines a random half of the English and a random half of the
French sentences, with and without re-ranking.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.corpora import chosen_rows
from benchmarks.machine import machine
from benchmarks.script import command_line, lxsr, write_results
from fairseq_lxsr.files.lines import read_lines, read_parallel

# The share of the pairs that the model was trained on.
SHARE = 0.1
THRESHOLDS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4)


def halves(corpus: Path) -> tuple[list[str], list[str], set[tuple[str, str]]]:
    """Return distinct sentences of both languages that are not aligned.

    Returns:
        The sentences of each language, and the pairs among them that are translations.
    """
    source_language, target_language = corpus.name.split("-")
    files = corpus / f"train.{source_language}", corpus / f"train.{target_language}"
    pairs = []
    for source, target in read_parallel(*files):
        pairs.append((" ".join(source.split()), " ".join(target.split())))
    rest = np.setdiff1d(np.arange(len(pairs)), chosen_rows(len(pairs), SHARE))
    half = len(rest) // 2
    rng = np.random.default_rng(2)
    source_rows = rng.permutation(rest)[:half].tolist()
    target_rows = rng.permutation(rest)[:half].tolist()
    sources = dict.fromkeys(pairs[row][0] for row in source_rows)
    targets = dict.fromkeys(pairs[row][1] for row in target_rows)
    translations = set()
    for row in rest.tolist():
        source, target = pairs[row]
        if source in sources and target in targets:
            translations.add((source, target))
    return list(sources), list(targets), translations


def mined(
    model: Path, sides: tuple[list[str], list[str]], folder: Path, rerank: int
) -> list[tuple[float, str, str]]:
    """Return the margin and both sides of the mined pairs; all files are in a folder."""
    source, target = folder / "source", folder / "target"
    for file, lines in zip((source, target), sides, strict=True):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    output = folder / f"{rerank}.tsv"
    options = ["--source", source, "--target", target, "--output", output]
    if rerank:
        options += ["--rerank", rerank]
    lxsr("mine", "--model", model, *options)
    pairs = []
    for line in read_lines(output, is_sentence=False):
        margin, source_line, target_line = line.split("\t")
        pairs.append((float(margin), source_line, target_line))
    return pairs


def percent(part: int, total: int) -> float:
    """Return a share in percent, rounded to one digit."""
    return round(100 * part / max(1, total), 1)


def threshold_rows(
    pairs: list[tuple[float, str, str]], translations: set[tuple[str, str]]
) -> list[dict]:
    """Return precision and recall of the mined pairs for each threshold of the margin."""
    rows = []
    for threshold in THRESHOLDS:
        chosen = [(source, target) for margin, source, target in pairs if margin >= threshold]
        hits = len(translations.intersection(chosen))
        row = {
            "threshold": threshold,
            "pairs": len(chosen),
            "right": percent(hits, len(chosen)),
            "found": percent(hits, len(translations)),
        }
        rows.append(row)
    return rows


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="model folder")
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="corpus folder of a language pair, named after the pair",
    )
    parser.add_argument(
        "--rerank",
        type=int,
        nargs="+",
        default=[0, 10],
        help="numbers of neighbours to re-rank; 0: cosine similarity alone (default: 0 10)",
    )
    args = parser.parse_args()
    sources, targets, translations = halves(args.corpus)
    result: dict = {
        "sentences": [len(sources), len(targets)],
        "translations": len(translations),
        "machine": machine(),
    }
    for depth in args.rerank:
        with tempfile.TemporaryDirectory() as folder:
            pairs = mined(args.model, (sources, targets), Path(folder), depth)
        result[f"rerank {depth}"] = threshold_rows(pairs, translations)
        # After each, in case the next fails.
        write_results(args.output, result)


if __name__ == "__main__":
    main()
