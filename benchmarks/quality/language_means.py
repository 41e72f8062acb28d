"""What the mean vector of each language costs in retrieval by cosine.

python -m benchmarks.quality.language_means --data DIR --work FOLDER --runs NAME ... \
    --output benchmarks/quality/results/language_means.jsonl

A run is a folder that `run` wrote below FOLDER/en-fr, such as `tuned_layers_2.3960u.1.16000`. Each
gives P@1 as in `run`, and P@1 once more after the mean vector of a language, that of a sample of
its training text, is subtracted from all vectors of that language. The align loss of the
paper, by inner products, does not see a vector that is added to all sentences of one language, if
it has the same inner product with all sentences of the other; cosine similarity does.

Runs that are already in the file are skipped.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.run import Measure
from benchmarks.quality.sets import nearest_is_translation, percent
from benchmarks.script import add_result, add_text_and_work, command_line, read_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.vectors import normalise_rows

LANGUAGES = ("en", "fr")
PAIR = "en-fr"
# Number of training sentences of each language whose mean is subtracted.
SAMPLE = 10_000
DTYPE = "bfloat16"

Means = dict[str, np.ndarray]


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    add_text_and_work(parser)
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME", help="folders of runs")
    return parser.parse_args()


def language_means(encoder: SentenceEncoder, corpus: Path) -> Means:
    """Return the mean vector [D] of a sample of each language's training text."""
    means = {}
    for language in LANGUAGES:
        lines = list(read_lines(corpus / f"train.{language}"))
        sample = lines[:: max(1, len(lines) // SAMPLE)]
        means[language] = encoder.encode(sample, dtype=DTYPE).mean(axis=0)
    return means


def precision(encoder: SentenceEncoder, measure: Measure, means: Means) -> dict[str, dict]:
    """Return P@1 in percent by set and direction, for vectors minus a mean of their language."""

    def embed(lines: list[str], language: str) -> np.ndarray:
        return normalise_rows(encoder.encode(lines, dtype=DTYPE) - means[language])

    crowd = {language: embed(lines, language) for language, lines in measure.crowd.items()}
    scores: dict[str, dict] = {}
    for name, sides in measure.sets.items():
        vectors = {language: embed(sides[language], language) for language in LANGUAGES}
        scores[name] = {}
        for source, target in (LANGUAGES, LANGUAGES[::-1]):
            alone, right = nearest_is_translation(vectors[source], vectors[target], crowd[target])
            direction = {"P@1": percent(right), "alone": percent(alone)}
            scores[name][f"{source}-{target}"] = direction
    return scores


def main() -> None:
    args = parse_options()
    done = {result["run"] for result in read_results(args.output)}
    work = args.work / PAIR
    measure = Measure(args.data, work, PAIR, ["train"], tune=False)
    for run in args.runs:
        if run in done:
            continue
        encoder = SentenceEncoder.from_pretrained(work / run / "model")
        means = language_means(encoder, work / "corpus" / PAIR)
        unit = {language: mean / np.linalg.norm(mean) for language, mean in means.items()}
        zeros = {language: np.zeros_like(mean) for language, mean in means.items()}
        result = {
            "run": run,
            "cosine of the means": round(float(unit["en"] @ unit["fr"]), 3),
            "retrieval": precision(encoder, measure, zeros),
            "centred": precision(encoder, measure, means),
        }
        print(result, flush=True)
        add_result(args.output, result | {"machine": machine()})


if __name__ == "__main__":
    main()
