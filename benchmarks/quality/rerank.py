"""The value of re-ranking by word pieces: forms of the score, weight, depth and time.

python -m benchmarks.quality.rerank --model FOLDER --data DIR --work FOLDER \
    --output benchmarks/quality/results/rerank.json

The model has no layers, reads English and French, and was trained by quality.run; DIR and FOLDER
are those of quality.run. The default of the package was chosen on the sets `tuning` and `other`.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.sets import (
    CANDIDATES,
    Sets,
    distractors,
    eval_sets,
    minimal_pairs,
    nearest_in,
    percent,
    rows_of,
    tuning_sets,
)
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.evaluation.protocols.minimal_pairs import preferred
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import mine_neighbours, nearest_neighbours, normalise_rows, pieces

PAIR = ("en", "fr")
# Numbers of neighbours to re-rank, and weights of the new score.
DEPTHS = (5, 10, 20)
WEIGHTS = (0.25, 0.5, 1.0, 2.0)
DEFAULT = "default"
# Number of pairs of each file of large/. The model was not trained on these files.
OTHER_PAIRS = 500
# Limits of these pairs: words and characters of the English sentence.
LEAST_WORDS = 4
MOST_CHARACTERS = 399
# The size of the neighbourhoods of mining.
MINING_K = 4


@dataclass(frozen=True)
class Similarity:
    """How two word pieces are compared, see `fairseq_lxsr.vectors.pieces`.

    Attributes:
        adjacent: weight of the adjacent pieces.
        distance: how much the distance of the positions counts.
        power: a piece is weighted by the length of its vector to this power.
    """

    adjacent: float = pieces.ADJACENT_WEIGHT
    distance: float = pieces.DISTANCE_PENALTY
    power: float = 1


SIMILARITIES = {
    DEFAULT: Similarity(),
    "without adjacent pieces": Similarity(adjacent=0),
    "without positions": Similarity(distance=0),
    "without both": Similarity(adjacent=0, distance=0),
    "position factor 1 - d": Similarity(distance=1),
    "pieces weigh alike": Similarity(power=0),
    "pieces weigh the square of their length": Similarity(power=2),
}


def _power_mean(a: np.ndarray, b: np.ndarray, power: float) -> np.ndarray:
    larger = np.maximum(a, b)
    return larger * ((1 + (np.minimum(a, b) / larger) ** power) / 2) ** (1 / power)


# How MaxSim in both directions (sums over pieces) and the weights of both sentences make a score.
FORMS: dict[str, Callable] = {
    DEFAULT: lambda forth, back, a, b: (forth + back) / (2 * _power_mean(a, b, pieces.EXPONENT)),
    "over the power mean with exponent 4": lambda forth, back, a, b: (
        (forth + back) / (2 * _power_mean(a, b, 4))
    ),
    "over the larger weight": lambda forth, back, a, b: (forth + back) / (2 * np.maximum(a, b)),
    "over both weights": lambda forth, back, a, b: (forth + back) / (a + b),
    "mean of the two directions": lambda forth, back, a, b: (forth / a + back / b) / 2,
    "the smaller direction": lambda forth, back, a, b: np.minimum(forth / a, back / b),
    "query to candidate": lambda forth, back, a, b: forth / a,
    "candidate to query": lambda forth, back, a, b: back / b,
}
# The forms that are also evaluated with similarities other than the default.
FEW_FORMS = (DEFAULT, "over the larger weight", "over both weights")


class Pieces(NamedTuple):
    """The word pieces of a sentence.

    Attributes:
        vectors: unit vectors [P, D].
        weights: weights of the pieces [P].
        positions: relative positions, from 0 to 1 [P].
    """

    vectors: np.ndarray
    weights: np.ndarray
    positions: np.ndarray


class PieceScorer:
    """Computes MaxSim of the word pieces of two sentences.

    Args:
        table: vectors of the word pieces [V, D].
        similarity: how two pieces are compared.
    """

    def __init__(self, table: np.ndarray, similarity: Similarity):
        self.table = table
        self.similarity = similarity

    def read(self, ids: np.ndarray) -> Pieces:
        """Return the pieces of a sentence."""
        rows = self.table[ids]
        vectors = rows.copy()
        vectors[1:] += self.similarity.adjacent * rows[:-1]
        vectors[:-1] += self.similarity.adjacent * rows[1:]
        weights = np.linalg.norm(rows, axis=1) ** self.similarity.power
        positions = (np.arange(len(ids)) + 0.5) / len(ids)
        return Pieces(normalise_rows(vectors), weights, positions)

    def max_sims(self, query: Pieces, candidates: Sequence[Pieces]) -> np.ndarray:
        """Return MaxSim in both directions, and the weights of the query and of the candidates.

        Returns:
            The four values for each of the k candidates [4, k].
        """
        vectors = np.concatenate([candidate.vectors for candidate in candidates])
        weights = np.concatenate([candidate.weights for candidate in candidates])
        positions = np.concatenate([candidate.positions for candidate in candidates])
        lengths = [len(candidate.weights) for candidate in candidates]
        starts = np.cumsum([0, *lengths])[:-1]
        distances = np.abs(query.positions[:, None] - positions)
        similarities = query.vectors @ vectors.T * (1 - self.similarity.distance * distances)
        forth = query.weights @ np.maximum.reduceat(similarities, starts, axis=1)
        back = np.add.reduceat(similarities.max(axis=0) * weights, starts)
        query_weight = np.full(len(starts), query.weights.sum())
        return np.stack([forth, back, query_weight, np.add.reduceat(weights, starts)])

    def all_max_sims(
        self, queries: list[np.ndarray], candidates: dict[int, np.ndarray], rows: np.ndarray
    ) -> np.ndarray:
        """Return the values of `max_sims` for N queries [4, N, k].

        Args:
            queries: ids of the pieces of each query.
            candidates: ids of the pieces of each candidate, by its row.
            rows: candidate rows of each query [N, k].
        """
        read = {row: self.read(ids) for row, ids in candidates.items()}
        values = []
        for ids, neighbours in zip(queries, rows.tolist(), strict=True):
            values.append(self.max_sims(self.read(ids), [read[row] for row in neighbours]))
        return np.stack(values, axis=1)


def other_sets(data: Path) -> Sets:
    """Draw pairs of each file of large/ with distinct sentences on both sides."""
    sets: Sets = {}
    for path in sorted((data / "large").glob("*.en-fr.en.txt.gz")):
        pairs = list(read_parallel(path, path.with_name(path.name.replace(".en.txt", ".fr.txt"))))
        random.Random(1).shuffle(pairs)
        chosen: dict[str, str] = {}
        french_sentences: set[str] = set()
        for english, french in pairs:
            is_new = english not in chosen and french not in french_sentences
            if is_new and is_ordinary(english, french) and len(chosen) < OTHER_PAIRS:
                chosen[english] = french
                french_sentences.add(french)
        sets[path.name.split(".")[0]] = {"en": list(chosen), "fr": list(chosen.values())}
    return sets


def is_ordinary(english: str, french: str) -> bool:
    """Return whether a pair is neither short nor long, and not the same in both languages."""
    is_long_enough = len(english.split()) >= LEAST_WORDS
    return is_long_enough and len(english) <= MOST_CHARACTERS and english != french


class Neighbours(NamedTuple):
    """The nearest neighbours of the queries of a set in one direction.

    Attributes:
        name: set and direction.
        queries: the queries.
        cosines: cosine similarities of the neighbours [N, k].
        rows: their rows [N, k].
        lines: text of the candidates.
    """

    name: str
    queries: list[str]
    cosines: np.ndarray
    rows: np.ndarray
    lines: list[str]


def neighbours_of(encoder: SentenceEncoder, sets: Sets, data: Path) -> Iterator[Neighbours]:
    """Yield the nearest neighbours in each set and 150,000 distractors."""
    crowd = {}
    crowd_vectors = {}
    for language in PAIR:
        sentences = {line for sides in sets.values() for line in sides[language]}
        crowd[language] = distractors(data, language, "en-fr", CANDIDATES, sentences)
        crowd_vectors[language] = normalise_rows(encoder.encode(crowd[language]))
    for name, sides in sets.items():
        vectors = {language: normalise_rows(encoder.encode(sides[language])) for language in PAIR}
        for source, target in (PAIR, PAIR[::-1]):
            parts = [vectors[target], crowd_vectors[target]]
            cosines, rows = nearest_in(vectors[source], parts, max(DEPTHS))
            lines = [*sides[target], *crowd[target]]
            yield Neighbours(f"{name} {source}-{target}", sides[source], cosines, rows, lines)


class Scores:
    """The scores of each setting of similarity, form, weight and depth.

    The scores are P@1 by set and direction, and the accuracy on minimal pairs, in percent.
    """

    def __init__(self, encoder: SentenceEncoder):
        self.encoder = encoder
        self.by_setting: dict[str, dict] = {}

    def add(self, setting: str, name: str, value: float | None) -> None:
        """Add a score."""
        self.by_setting.setdefault(setting, {})[name] = value

    def add_retrieval(self, neighbours: Neighbours) -> None:
        """Add P@1 by cosine similarity and by all settings."""
        name, queries, cosines, rows, lines = neighbours
        numbers = np.arange(len(rows))
        is_translation = rows == numbers[:, None]
        self.add("cosine", name, percent(is_translation[:, 0]))
        for depth in DEPTHS:
            is_among = is_translation[:, :depth].any(axis=1)
            self.add(f"among the first {depth}", name, percent(is_among))
        distinct = np.unique(rows).tolist()
        ids = self.encoder.tokenizer.encode(rows_of(lines, distinct))
        candidates = dict(zip(distinct, ids, strict=True))
        for setting, depth, scores in all_scores(self.encoder, queries, candidates, cosines, rows):
            best = rows[numbers, scores[:, :depth].argmax(axis=1)]
            self.add(f"{setting}; {depth}", name, percent(best == numbers))

    def add_means(self) -> None:
        """Add the mean over sets and directions, in front of them."""
        for setting, values in self.by_setting.items():
            self.by_setting[setting] = {"mean": round(fmean(values.values()), 2), **values}

    def add_minimal_pairs(self, sets: Sets) -> None:
        """Add the accuracy on minimal pairs."""
        for rule, triples in minimal_pairs(sets, "fr").items():
            foreign, true, changed = (list(column) for column in zip(*triples, strict=True))
            queries = normalise_rows(self.encoder.encode(foreign))
            cosines = []
            for sentences in (true, changed):
                vectors = normalise_rows(self.encoder.encode(sentences))
                cosines.append((queries * vectors).sum(axis=1))
            both_cosines = np.stack(cosines, axis=1)
            self.add("cosine", rule, told_apart(both_cosines))
            candidates = dict(enumerate(self.encoder.tokenizer.encode(true + changed)))
            rows = np.arange(len(candidates)).reshape(2, -1).T
            scored = all_scores(self.encoder, foreign, candidates, both_cosines, rows)
            for setting, depth, scores in scored:
                self.add(f"{setting}; {depth}", rule, told_apart(scores))


def measure(encoder: SentenceEncoder, sets: Sets, data: Path) -> dict:
    """Map each setting to its scores on some sets."""
    scores = Scores(encoder)
    for neighbours in neighbours_of(encoder, sets, data):
        scores.add_retrieval(neighbours)
    scores.add_means()
    scores.add_minimal_pairs(sets)
    return scores.by_setting


def all_scores(
    encoder: SentenceEncoder,
    queries: list[str],
    candidates: dict[int, np.ndarray],
    cosines: np.ndarray,
    rows: np.ndarray,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield the scores of every setting.

    Args:
        encoder: model without layers.
        queries: the queries.
        candidates: ids of the pieces of each candidate, by its row.
        cosines: cosine similarities of the neighbours [N, k].
        rows: row indices of the neighbours [N, k].

    Yields:
        The setting, the number of neighbours to re-rank, and the scores [N, k].
    """
    ids = encoder.tokenizer.encode(queries)
    for name, similarity in SIMILARITIES.items():
        max_sims = PieceScorer(encoder.table, similarity).all_max_sims(ids, candidates, rows)
        for form, weight, depth in settings(name):
            scores = cosines + weight * FORMS[form](*max_sims)
            yield f"{name}; {form}; weight {weight:g}", depth, scores


def told_apart(scores: np.ndarray) -> float:
    """Return the percentage of minimal pairs whose true sentence has the higher score.

    A tie counts half.

    Args:
        scores: [P, 2], of the true and the changed sentence of each pair.
    """
    return round(preferred(scores[:, 0] - scores[:, 1]).value, 2)


def settings(similarity: str) -> Iterator[tuple[str, float, int]]:
    """Yield the forms, weights and depths to evaluate with a similarity.

    The default similarity is evaluated with every form, and its default form with every depth.
    """
    is_default = similarity == DEFAULT
    for form in FORMS if is_default else FEW_FORMS:
        depths = DEPTHS if is_default and form == DEFAULT else (10,)
        for weight in WEIGHTS:
            for depth in depths:
                yield form, weight, depth


def speed(encoder: SentenceEncoder, data: Path, sets: Sets) -> dict:
    """Return the processor milliseconds of a query among 150,000 candidates, by set.

    They are given for the search, and for re-ranking ten neighbours from their text.
    """
    crowd = distractors(data, "fr", "en-fr", CANDIDATES, set())
    vectors = normalise_rows(encoder.encode(crowd))
    reranker = Reranker(ModelFolder(encoder), 10)
    milliseconds = {}
    for name, sides in sets.items():
        queries = normalise_rows(encoder.encode(sides["en"]))
        times: dict[str, list[float]] = {"search": [], "rerank": []}
        for _ in range(3):
            start = time.process_time()
            neighbours = nearest_neighbours(queries, vectors, 10)
            middle = time.process_time()
            reranker.best(sides["en"], partial(rows_of, crowd), *neighbours)
            times["search"].append(middle - start)
            times["rerank"].append(time.process_time() - middle)
        milliseconds[name] = {
            part: round(1000 * min(values) / len(queries), 3) for part, values in times.items()
        }
    return milliseconds


class MinedSides:
    """English and French sentences of some sets; a third of each side has no translation.

    Attributes:
        english_rows: rows of the chosen English sentences.
        french_rows: rows of the chosen French sentences.
        english: the English sentences.
        french: the French sentences.
    """

    def __init__(self, sets: Sets):
        english = [line for sides in sets.values() for line in sides["en"]]
        french = [line for sides in sets.values() for line in sides["fr"]]
        order = np.random.default_rng(0).permutation(len(english))
        self.english_rows = order[: len(order) * 2 // 3]
        self.french_rows = order[len(order) // 3 :]
        self.english = rows_of(english, self.english_rows.tolist())
        self.french = rows_of(french, self.french_rows.tolist())

    def best_f1(self, source: np.ndarray, target: np.ndarray) -> float:
        """Return the best F1 in percent over all thresholds.

        Args:
            source: English sentence of each mined pair, the best pair first.
            target: French sentence of each mined pair.
        """
        right = (self.english_rows[source] == self.french_rows[target]).cumsum()
        gold = len(np.intersect1d(self.english_rows, self.french_rows))
        f1 = 2 * right / (np.arange(1, len(right) + 1) + gold)
        return round(100 * float(f1.max()), 2)


def mining(encoder: SentenceEncoder, sets: Sets) -> dict[str, float]:
    """Return the best F1 in percent of mining by ratio margin, with and without re-ranking."""
    sides = MinedSides(sets)
    english = encoder.encode(sides.english)
    french = encoder.encode(sides.french)
    scores = {}
    for depth in (0, 10):
        name = "cosine"
        forward = nearest_neighbours(english, french, depth or MINING_K)
        backward = nearest_neighbours(french, english, depth or MINING_K)
        if depth:
            reranker = Reranker(ModelFolder(encoder), depth)
            name = reranker.name
            forward = reranker.best(sides.english, partial(rows_of, sides.french), *forward)
            backward = reranker.best(sides.french, partial(rows_of, sides.english), *backward)
        cosines, french_rows = forward
        back_cosines, english_rows = backward
        pairs = mine_neighbours(
            cosines[:, :MINING_K],
            french_rows[:, :MINING_K],
            back_cosines[:, :MINING_K],
            english_rows[:, :MINING_K],
        )
        scores[name] = sides.best_f1(pairs.source, pairs.target)
    return scores


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, required=True)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="model without layers"
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="text, as for quality.run"
    )
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="work folder of the language pair, FOLDER/en-fr of quality.run",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    encoder = SentenceEncoder.from_pretrained(args.model)
    kinds = {
        "tuning": tuning_sets(args.data, args.work, "en-fr"),
        "other": other_sets(args.data),
        "eval": eval_sets(args.data, "en-fr"),
    }
    result: dict = {
        "model": encoder.fingerprint,
        "machine": machine(),
        "speed": speed(encoder, args.data, kinds["eval"]),
        "mining of other": mining(encoder, kinds["other"]),
    }
    for kind, sets in kinds.items():
        result[kind] = measure(encoder, sets, args.data)
        # After each kind, in case the run is interrupted.
        write_results(args.output, result)


if __name__ == "__main__":
    main()
