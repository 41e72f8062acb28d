"""How many of the pairs that a model mines are right, by the threshold of the margin, with
re-ranking and without.

python -m benchmarks.quality.mined --model FOLDER --corpus FOLDER/en-fr --output
benchmarks/quality/results/mined.json

FOLDER/en-fr has train.en and train.fr, of which the model has read a tenth (`corpus: 0.1` of
quality.yaml). It mines a random half of the English and a random half of the French sentences of
the rest.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.corpora import chosen_rows
from benchmarks.machine import machine
from benchmarks.script import command_line, lxsr, write_results
from fairseq_lxsr.files.lines import read_lines, read_parallel

SHARE = 0.1  # of the pairs, which the model was trained on
THRESHOLDS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4)


def halves(corpus: Path) -> tuple[list[str], list[str], set[tuple[str, str]]]:
    """English and French sentences that are not aligned, each once, and the pairs among them that
    are translations.
    """
    source, target = (corpus / f"train.{language}" for language in corpus.name.split("-"))
    pairs = [
        tuple(" ".join(side.split()) for side in pair) for pair in read_parallel(source, target)
    ]
    rest = np.setdiff1d(np.arange(len(pairs)), chosen_rows(len(pairs), SHARE))
    random = np.random.default_rng(2)
    sides = []
    for side in range(2):
        rows = random.permutation(rest)[: len(rest) // 2]
        sides.append(list(dict.fromkeys(pairs[row][side] for row in rows.tolist())))
    known = [set(side) for side in sides]
    right = {
        (one, other)
        for one, other in (pairs[row] for row in rest)
        if one in known[0] and other in known[1]
    }
    return sides[0], sides[1], right


def mined(
    model: Path, sides: tuple[list[str], list[str]], folder: Path, rerank: int
) -> list[tuple[float, str, str]]:
    """Margin and both sides of the mined pairs."""
    files = [folder / name for name in ("source", "target")]
    for file, lines in zip(files, sides, strict=True):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    output = folder / f"{rerank}.tsv"
    options = ("--rerank", rerank) if rerank else ()
    lxsr(
        "mine",
        "--model",
        model,
        "--source",
        files[0],
        "--target",
        files[1],
        "--output",
        output,
        *options,
    )
    rows = (line.split("\t") for line in read_lines(output, is_sentence=False))
    return [(float(margin), source, target) for margin, source, target in rows]


def percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="FOLDER", help="its name is that of the pair"
    )
    parser.add_argument(
        "--rerank",
        type=int,
        nargs="+",
        default=[0, 10],
        help="0: margins of cosines (default: 0 10)",
    )
    args = parser.parse_args()
    source, target, right = halves(args.corpus)
    result: dict = {
        "sentences": [len(source), len(target)],
        "translations": len(right),
        "machine": machine(),
    }
    for depth in args.rerank:
        with tempfile.TemporaryDirectory() as folder:
            pairs = mined(args.model, (source, target), Path(folder), depth)
        rows = []
        for threshold in THRESHOLDS:
            kept = [(one, other) for margin, one, other in pairs if margin >= threshold]
            hits = len(right.intersection(kept))
            row = {"threshold": threshold, "pairs": len(kept)}
            rows.append(
                row | {"right": percent(hits, len(kept)), "found": percent(hits, len(right))}
            )
        result[f"rerank {depth}"] = rows
        write_results(args.output, result)


if __name__ == "__main__":
    main()
