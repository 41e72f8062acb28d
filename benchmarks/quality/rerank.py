"""What re-ranking by pieces gives: forms of the score, its weight, how many are scored again, and
the time it takes.

python -m benchmarks.quality.rerank --model FOLDER --data DIR --work FOLDER \
    --output benchmarks/quality/results/rerank.json

The model is one without layers, of English and French, that `run` trained; DIR and FOLDER are those
of `run`. The default was chosen on the kinds `tuning` and `other`.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.sets import (
    CANDIDATES,
    distractors,
    eval_sets,
    minimal_pairs,
    nearest_in,
    percent,
    tuning_sets,
)
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder
from fairseq_lxsr.evaluation.protocols.minimal_pairs import preferred
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import mine_neighbours, nearest_neighbours, normalise_rows
from fairseq_lxsr.vectors import pieces as rerank

PAIR = ("en", "fr")
DEPTHS, WEIGHTS = (5, 10, 20), (0.25, 0.5, 1.0, 2.0)
OTHER = 500  # pairs of each file of large/, which the model was not trained on
Sets = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Similarity:
    """How two pieces are compared, see `retrieval.rerank`, and what a piece weighs: its length to a
    power.
    """

    adjacent: float = rerank.ADJACENT_WEIGHT
    distance: float = rerank.DISTANCE_PENALTY
    power: float = 1


SIMILARITIES = {
    "default": Similarity(),
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


# how MaxSim there and back (sums over pieces) and the weights of both sentences make a score
FORMS: dict[str, Callable] = {
    "default": lambda there, back, a, b: (there + back) / (2 * _power_mean(a, b, rerank.EXPONENT)),
    "over the power mean with exponent 4": lambda there, back, a, b: (
        (there + back) / (2 * _power_mean(a, b, 4))
    ),
    "over the larger weight": lambda there, back, a, b: (there + back) / (2 * np.maximum(a, b)),
    "over both weights": lambda there, back, a, b: (there + back) / (a + b),
    "mean of the two directions": lambda there, back, a, b: (there / a + back / b) / 2,
    "the smaller direction": lambda there, back, a, b: np.minimum(there / a, back / b),
    "query to candidate": lambda there, back, a, b: there / a,
    "candidate to query": lambda there, back, a, b: back / b,
}


class Vectors:
    """What the pieces of a sentence are compared by, their weights and their positions."""

    def __init__(self, table: np.ndarray, similarity: Similarity):
        self.table, self.similarity = table, similarity

    def of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = self.table[ids]
        vectors = rows.copy()
        vectors[1:] += self.similarity.adjacent * rows[:-1]
        vectors[:-1] += self.similarity.adjacent * rows[1:]
        weights = np.linalg.norm(rows, axis=1) ** self.similarity.power
        return normalise_rows(vectors), weights, (np.arange(len(ids)) + 0.5) / len(ids)

    def max_sims(self, query, candidates) -> np.ndarray:
        """MaxSim there and back, and the weights of query and candidate, of one query and its
        candidates [4, k].
        """
        rows, weights, positions = (np.concatenate(part) for part in zip(*candidates, strict=True))
        lengths = [len(part) for _, part, _ in candidates]
        starts = np.cumsum([0, *lengths])[:-1]
        alike = (query[0] @ rows.T) * (
            1 - self.similarity.distance * np.abs(query[2][:, None] - positions)
        )
        there = query[1] @ np.maximum.reduceat(alike, starts, axis=1)
        back = np.add.reduceat(alike.max(axis=0) * weights, starts)
        return np.stack(
            [there, back, np.full(len(starts), query[1].sum()), np.add.reduceat(weights, starts)]
        )

    def sims(self, queries: list, candidates: dict[int, np.ndarray], ids: np.ndarray) -> np.ndarray:
        """The same of N queries and their candidates by number [4, N, k]."""
        known = {row: self.of(pieces) for row, pieces in candidates.items()}
        pairs = zip(map(self.of, queries), ids.tolist(), strict=True)
        return np.stack(
            [self.max_sims(query, [known[row] for row in near]) for query, near in pairs], axis=1
        )


def other_sets(data: Path) -> Sets:
    """500 pairs of each file: of more than three words, neither side twice, and not the same in
    both languages.
    """
    found: Sets = {}
    for path in sorted((data / "large").glob("*.en-fr.en.txt.gz")):
        pairs = list(read_parallel(path, path.with_name(path.name.replace(".en.txt", ".fr.txt"))))
        random.Random(1).shuffle(pairs)
        kept: dict[str, str] = {}
        seen: set[str] = set()
        for english, french in pairs:
            usual = len(english.split()) > 3 and len(english) < 400 and english != french
            if usual and english not in kept and french not in seen and len(kept) < OTHER:
                kept[english] = french
                seen.add(french)
        found[path.name.split(".")[0]] = {"en": list(kept), "fr": list(kept.values())}
    return found


def neighbours(encoder: SentenceEncoder, sets: Sets, data: Path) -> Iterator[tuple]:
    """Set, direction, queries, their 20 nearest among its own and 150,000 others, and the text of
    these.
    """
    known = {
        language: {line for sides in sets.values() for line in sides[language]} for language in PAIR
    }
    crowd = {
        language: distractors(data, language, "en-fr", CANDIDATES, known[language])
        for language in PAIR
    }
    far = {language: normalise_rows(encoder.encode(lines)) for language, lines in crowd.items()}
    for name, sides in sets.items():
        near = {language: normalise_rows(encoder.encode(sides[language])) for language in PAIR}
        for source, target in (PAIR, PAIR[::-1]):
            cosines, ids = nearest_in(near[source], [near[target], far[target]], max(DEPTHS))
            lines = [*sides[target], *crowd[target]]
            yield name, f"{source}-{target}", sides[source], cosines, ids, lines


def measure(encoder: SentenceEncoder, sets: Sets, data: Path) -> dict:
    """P@1, and minimal pairs told apart, in percent: similarity, form, weight, depth -> set and
    direction.
    """
    found: dict[str, dict] = {}
    for name, direction, queries, cosines, ids, lines in neighbours(encoder, sets, data):
        where = f"{name} {direction}"
        truth = np.arange(len(ids))[:, None]
        found.setdefault("cosine", {})[where] = percent(ids[:, 0] == truth[:, 0])
        for depth in DEPTHS:
            found.setdefault(f"among the first {depth}", {})[where] = percent(
                (ids[:, :depth] == truth).any(axis=1)
            )
        rows = np.unique(ids)
        pieces = dict(
            zip(rows.tolist(), encoder.tokenizer.encode([lines[row] for row in rows]), strict=True)
        )
        for key, depth, scores in scored(encoder, queries, pieces, cosines, ids):
            best = ids[truth[:, 0], scores[:, :depth].argmax(axis=1)]
            found.setdefault(f"{key}; {depth}", {})[where] = percent(best == truth[:, 0])
    result = {
        key: {"mean": round(fmean(values.values()), 2), **values} for key, values in found.items()
    }
    for rule, triples in minimal_pairs(sets, "fr").items():
        foreign, true, changed = (list(column) for column in zip(*triples, strict=True))
        vectors = [normalise_rows(encoder.encode(column)) for column in (foreign, true, changed)]
        cosines = np.stack([(vectors[0] * other).sum(axis=1) for other in vectors[1:]], axis=1)
        result["cosine"][rule] = told_apart(cosines)
        pieces = dict(enumerate(encoder.tokenizer.encode(true + changed)))
        both = np.arange(len(pieces)).reshape(2, -1).T
        for key, depth, scores in scored(encoder, foreign, pieces, cosines, both):
            result[f"{key}; {depth}"][rule] = told_apart(scores)
    return result


def scored(
    encoder: SentenceEncoder,
    queries: list[str],
    pieces: dict[int, np.ndarray],
    cosines: np.ndarray,
    ids: np.ndarray,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Similarity, form and weight; how many are scored again; and the scores [N, k]."""
    asked = encoder.tokenizer.encode(queries)
    for similarity in SIMILARITIES:
        sims = Vectors(encoder.table, SIMILARITIES[similarity]).sims(asked, pieces, ids)
        for form, weight, depth in settings(similarity):
            yield (
                f"{similarity}; {form}; weight {weight:g}",
                depth,
                cosines + weight * FORMS[form](*sims),
            )


def told_apart(scores: np.ndarray) -> float:
    """Per cent of minimal pairs [P, 2] whose true sentence, the first, scores more; a tie counts
    half.
    """
    return round(preferred(scores[:, 0] - scores[:, 1]).value, 2)


def settings(similarity: str) -> Iterator[tuple[str, float, int]]:
    """Every form of the default similarity, and every depth of the default form; three forms of the
    others.
    """
    for form in FORMS:
        if similarity != "default" and form not in (
            "default",
            "over the larger weight",
            "over both weights",
        ):
            continue
        for weight in WEIGHTS:
            for depth in DEPTHS if (similarity, form) == ("default", "default") else (10,):
                yield form, weight, depth


def speed(encoder: SentenceEncoder, data: Path, sets: Sets) -> dict:
    """Processor milliseconds a query among 150,000: search of ten, and reading, splitting and
    scoring them again.
    """
    crowd = distractors(data, "fr", "en-fr", CANDIDATES, set())
    vectors, found = normalise_rows(encoder.encode(crowd)), {}
    reranker = Reranker(ModelFolder(encoder), 10)
    for name, sides in sets.items():
        queries = normalise_rows(encoder.encode(sides["en"]))
        times: dict[str, list[float]] = {"search": [], "rerank": []}
        for _ in range(3):
            start = time.process_time()
            near = nearest_neighbours(queries, vectors, 10)
            middle = time.process_time()
            reranker.best(sides["en"], lambda rows: [crowd[row] for row in rows], *near)
            times["search"].append(middle - start)
            times["rerank"].append(time.process_time() - middle)
        found[name] = {
            part: round(1000 * min(values) / len(queries), 3) for part, values in times.items()
        }
    return found


def mining(encoder: SentenceEncoder, sets: Sets) -> dict[str, float]:
    """Best F1 in percent of mining by ratio margin, k 4: a third of the sentences of a side has no
    translation.
    """
    english, french = (
        [line for sides in sets.values() for line in sides[language]] for language in PAIR
    )
    order = np.random.default_rng(0).permutation(len(english))
    here, there = order[: len(order) * 2 // 3], order[len(order) // 3 :]
    lines = [english[row] for row in here], [french[row] for row in there]
    x, y = map(encoder.encode, lines)
    found = {}
    for depth in (0, 10):
        forward, backward = (nearest_neighbours(*two, depth or 4) for two in ((x, y), (y, x)))
        if depth:
            again = Reranker(ModelFolder(encoder), depth)
            forward = again.best(lines[0], lambda rows: [lines[1][row] for row in rows], *forward)
            backward = again.best(lines[1], lambda rows: [lines[0][row] for row in rows], *backward)
        (cosines, there_ids), (back, here_ids) = forward, backward
        pairs = mine_neighbours(cosines[:, :4], there_ids[:, :4], back[:, :4], here_ids[:, :4])
        right = (here[pairs.source] == there[pairs.target]).cumsum()
        gold = len(set(here.tolist()) & set(there.tolist()))
        f1 = 2 * right / (np.arange(1, len(right) + 1) + gold)
        found[again.name if depth else "cosine"] = round(100 * float(f1.max()), 2)
    return found


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="of the pair: FOLDER/en-fr of `run`",
    )
    args = parser.parse_args()
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
    }
    result["mining of other"] = mining(encoder, kinds["other"])
    for kind, sets in kinds.items():
        result[kind] = measure(encoder, sets, args.data)
        write_results(args.output, result)  # as far as it is


if __name__ == "__main__":
    main()
