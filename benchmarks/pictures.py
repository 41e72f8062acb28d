"""The charts of the documentation, from files of results.

python -m benchmarks.pictures

It writes docs/assets/*.svg. The map of sentences has its places in results/map.json;
`--measure-map` computes them again with lxsr-static (scikit-learn is needed).
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks import ROOT
from benchmarks.svg import WIDTH, Axis, Picture, Points, draw_axes, line_chart

ASSETS = ROOT / "docs" / "assets"
QUALITY = ROOT / "benchmarks" / "quality" / "results"
SPEED = ROOT / "benchmarks" / "speed" / "results"
MAP = ROOT / "benchmarks" / "results" / "map.json"
# Lower limits of P@1 in the rows of the table of languages.
LOWER_LIMITS = (90, 85, 80, 0)
LANGUAGE_NAMES = (
    "ar:Arabic bg:Bulgarian ca:Catalan cs:Czech da:Danish de:German el:Greek es:Spanish"
    " et:Estonian fa:Persian fi:Finnish fr:French he:Hebrew hi:Hindi hr:Croatian hu:Hungarian"
    " id:Indonesian is:Icelandic it:Italian ja:Japanese ko:Korean lt:Lithuanian lv:Latvian"
    " nb:Norwegian nl:Dutch pl:Polish pt:Portuguese ro:Romanian ru:Russian sk:Slovak"
    " sl:Slovenian sr:Serbian sv:Swedish th:Thai tr:Turkish uk:Ukrainian vi:Vietnamese"
    " zh:Chinese"
)
PEERS = QUALITY / "peers.json"
NAMES = dict(item.split(":") for item in LANGUAGE_NAMES.split())
WAYS = ("cosine", "rerank 10")
# A column for each language, and a row for each meaning.
SENTENCES = ROOT / "benchmarks" / "map_sentences.tsv"


def read_json(path: Path) -> Any:
    """Read a file of results."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(name: str) -> list[dict]:
    """Read a file of results of quality with one result per line."""
    return [json.loads(line) for line in (QUALITY / name).read_text().splitlines()]


def read_sentences() -> dict[str, tuple[str, ...]]:
    """Read the sentences of the map, by language."""
    names, *rows = (line.split("\t") for line in SENTENCES.read_text("utf-8").splitlines())
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def measure_map() -> dict[str, Any]:
    """Place the sentences by t-SNE of their vectors, and compare their cosines."""
    from sklearn.manifold import TSNE

    from fairseq_lxsr import SentenceEncoder

    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    sentences = read_sentences()
    texts = [text for column in sentences.values() for text in column]
    vectors = encoder.encode(texts, normalize=True)
    # With this start, the groups are far enough from each other for their words.
    projection = TSNE(metric="cosine", init="random", perplexity=10, random_state=15)
    places = projection.fit_transform(vectors)
    cosines = vectors @ vectors.T
    meanings = np.arange(len(texts)) % len(sentences["English"])
    is_translation = meanings[:, None] == meanings
    np.fill_diagonal(cosines, np.nan)
    nearest = np.nanargmax(cosines, axis=1)
    return {
        "model": encoder.fingerprint,
        "translations, mean cosine": round(float(np.nanmean(cosines[is_translation])), 2),
        "other pairs, mean cosine": round(float(cosines[~is_translation].mean()), 2),
        "nearest sentence is a translation": int((meanings[nearest] == meanings).sum()),
        "sentences": len(texts),
        "places": np.round(places.astype(float), 2).tolist(),
    }


def draw_map() -> Picture:
    """Draw the map of sentences in five languages, with the English sentence at each group."""
    sentences = read_sentences()
    places = np.array(read_json(MAP)["places"]).reshape(len(sentences), -1, 2)
    low = places.min(axis=(0, 1))
    size = np.ptp(places, axis=(0, 1))
    # Space for the words beside the outermost groups, and for the legend.
    shares = (places - low) / size
    points = shares * [WIDTH - 170, 290] + [85, 66]
    picture = Picture(400, "Map of eight sentences in five languages")
    picture.legend(list(sentences), 20, columns=3)
    for meaning, english in enumerate(sentences["English"]):
        group = points[:, meaning]
        x, _ = group.mean(axis=0)
        # Half of the width of the words in a wide font.
        margin = 3.5 * len(english)
        x = min(max(x, margin), WIDTH - margin)
        picture.text(x, group[:, 1].max() + 21, english, "middle")
    for series, language_points in enumerate(points):
        for x, y in language_points:
            picture.marker(x, y, series)
    return picture


class LanguageScores(NamedTuple):
    """Mean P@1 of both directions between a language and English, in percent.

    Attributes:
        name: name of the language.
        everyday: P@1 on Tatoeba by cosine.
        everyday_reranked: the same with `--rerank 10`.
        news: P@1 on PUD by cosine; None if not measured.
        news_reranked: the same with `--rerank 10`.
    """

    name: str
    everyday: float
    everyday_reranked: float
    news: float | None
    news_reranked: float | None


def language_scores() -> list[LanguageScores]:
    """Return the scores of all languages, the best first."""
    scores = read_json(QUALITY / "languages.json")["P@1"]
    rows = []
    for language, name in NAMES.items():
        everyday = [fmean(scores["Tatoeba"][way][language]) for way in WAYS]
        news: list[float | None] = [None, None]
        if language in scores["PUD"]["cosine"]:
            news = [fmean(scores["PUD"][way][language]) for way in WAYS]
        rows.append(LanguageScores(name, everyday[0], everyday[1], news[0], news[1]))
    return sorted(rows, key=lambda row: -row.everyday)


def language_table() -> str:
    """Return the table of the page: all languages with their P@1 on everyday sentences."""
    lines = ["| P@1 | languages |", "|---|---|"]
    upper = 100
    for lower in LOWER_LIMITS:
        items = []
        for row in language_scores():
            if lower <= row.everyday < upper:
                items.append(f"{row.name} {row.everyday:.1f}")
        lines.append(f"| {lower} to {upper} | {', '.join(items)} |")
        upper = lower
    return "\n".join(lines)


def draw_languages() -> Picture:
    """Draw a bar of everyday P@1 and a marker of news for each language."""
    rows = language_scores()
    step = 17
    top = 98
    axis = Axis(0, 100, 96, WIDTH - 16, (0, 25, 50, 75, 100))
    bottom = top + step * len(rows)
    picture = Picture(bottom + 34, "P@1 of lxsr-static in each language")
    picture.bar(16, 14, 22, 10, "fill0")
    picture.text(46, 24, "everyday sentences (Tatoeba)")
    picture.bar(16, 34, 22, 10, "fill0 soft")
    picture.text(46, 44, "what --rerank 10 adds")
    picture.marker(27, 59, 1)
    picture.text(46, 64, "news (PUD), where measured")
    picture.text(axis.start, top - 10, "P@1, %", style="pale")
    for tick in axis.ticks:
        place = axis.place(tick)
        picture.path([(place, top - 4), (place, bottom)], "grid")
        picture.text(place, bottom + 18, f"{tick}", "middle", "pale")
    for number, row in enumerate(rows):
        y = top + step * number
        end = axis.place(row.everyday)
        gain = axis.place(row.everyday_reranked) - end
        picture.text(axis.start - 7, y + 12, row.name, "end")
        picture.bar(axis.start, y + 2, end - axis.start, step - 5, "fill0")
        if gain > 0:
            picture.bar(end, y + 2, gain, step - 5, "fill0 soft")
        if row.news is not None:
            picture.marker(axis.place(row.news), y + 7.5, 1)
    return picture


def draw_pairs() -> Picture:
    """Draw P@1 by the number of training pairs."""
    runs = ("best_corpus_3_rare", "best_corpus_10_rare", "best_corpus_30_rare", "best_rare")
    sets = {
        "captions (Multi30k)": "Multi30k 2017",
        "news (PUD)": "PUD",
        "everyday (Tatoeba)": "Tatoeba",
    }
    lines: dict[str, Points] = {}
    results = read_lines("quality_rare.jsonl")
    for label, name in sets.items():
        points = []
        for run in runs:
            seeds = [result for result in results if _is_seed(result, run)]
            scores = [
                scores["P@1"] for seed in seeds for scores in seed["retrieval"][name].values()
            ]
            points.append((seeds[0]["pairs"], fmean(scores)))
        lines[label] = points
    pairs = [pair for pair, _ in lines["news (PUD)"]]
    x = Axis(4000, 200_000, 44, WIDTH - 20, pairs, is_log=True)
    y = Axis(50, 100, 350, 110, (50, 60, 70, 80, 90, 100))
    title = "P@1 by the number of training pairs"
    return line_chart(title, x, y, ("training pairs", "P@1 among 150,000, %"), lines)


def _is_seed(result: dict, run: str) -> bool:
    """Return whether a result belongs to the table of the page."""
    is_small = run in ("best_corpus_3_rare", "best_corpus_10_rare")
    return result["name"] == run and (not is_small or result["max_updates"] == 1000)


def draw_mining() -> Picture:
    """Draw precision and recall of mined pairs by threshold."""
    rows = read_json(QUALITY / "mined.json")["rerank 0"]
    lines = {
        "precision: mined pairs that are right": [(row["threshold"], row["right"]) for row in rows],
        "recall: translations that are mined": [(row["threshold"], row["found"]) for row in rows],
    }
    x = Axis(1.03, 1.42, 44, WIDTH - 20, (1.05, 1.1, 1.2, 1.3, 1.4))
    y = Axis(0, 100, 330, 90, (0, 25, 50, 75, 100))
    return line_chart("Precision and recall by threshold", x, y, ("--threshold", "%"), lines)


# Labels of models that stand under their points, and at the right; others stand at the left.
UNDER = {"bge-m3", "embeddinggemma"}
RIGHT = {"lxsr-static"}


def draw_peers() -> Picture:
    """Draw the mean F1 on Tatoeba of public models by their size."""
    results = read_json(PEERS)
    x = Axis(20, 3000, 44, WIDTH - 20, (30, 100, 300, 1000, 3000), is_log=True)
    y = Axis(40, 100, 330, 90, (40, 50, 60, 70, 80, 90, 100))
    picture = Picture(y.start + 50, "F1 on Tatoeba of public models by their size")
    kinds = ("static", "transformer")
    picture.legend(("static: a vector for each word piece", "transformer"), 20)
    draw_axes(picture, x, y, "size, MB", "F1 on Tatoeba, mean of 38 languages")
    for name, model in results["models"].items():
        scores = results["scores"][name].get("Tatoeba")
        if not scores:
            continue
        place = x.place(model["MB"]), y.place(fmean(scores.values()))
        picture.marker(*place, kinds.index(model["kind"]))
        x_place, y_place = place
        if model["label"] in UNDER:
            picture.text(x_place, y_place + 19, model["label"], "middle")
        elif model["label"] in RIGHT:
            picture.text(x_place + 9, y_place + 4.5, model["label"])
        else:
            picture.text(x_place - 9, y_place + 4.5, model["label"], "end")
    return picture


PICTURES = {
    "peers": draw_peers,
    "map": draw_map,
    "languages": draw_languages,
    "pairs": draw_pairs,
    "mining": draw_mining,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure-map", action="store_true", help="place the sentences again")
    parser.add_argument(
        "--output", type=Path, default=ASSETS, help="folder of the pictures (default: docs/assets)"
    )
    args = parser.parse_args()
    if args.measure_map:
        MAP.write_text(json.dumps(measure_map()) + "\n", encoding="utf-8")
    for name, draw in PICTURES.items():
        draw().save(args.output / f"{name}.svg")


if __name__ == "__main__":
    main()
