"""What re-ranking by pieces gives: forms of the score, its weight, how many are scored again, and the time it takes.

python benchmarks/rerank.py --model FOLDER --data DIR --work FOLDER --output benchmarks/results/rerank.json

The model is one without layers, of English and French, that benchmarks/quality.py trained; DIR and FOLDER are those of
quality.py. The default form was chosen on the kinds `tuning` and `other`, the weight on them and on the minimal pairs.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from machine import machine
from quality_sets import (
    CANDIDATES,
    contrast,
    distractors,
    eval_sets,
    minimal_pairs,
    nearest_in,
    percent,
    tuning_sets,
)

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import ModelFolder, Reranker
from fairseq_lxsr.lines import read_parallel
from fairseq_lxsr.retrieval import mine_neighbours, nearest_neighbours, normalise_rows

PAIR = ("en", "fr")
DEPTHS, WEIGHTS = (5, 10, 20), (0.25, 0.5, 1.0, 2.0)
OTHER = 500  # pairs of each file of large/, which the model was not trained on
Sets = dict[str, dict[str, list[str]]]

# how MaxSim there and back (means over pieces) and the weights of both sentences make a score
FORMS: dict[str, Callable] = {
    "both, of the heavier": lambda there, back, a, b: (a * there + b * back) / (2 * np.maximum(a, b)),
    "both, mean": lambda there, back, a, b: (there + back) / 2,
    "both, pooled": lambda there, back, a, b: (a * there + b * back) / (a + b),
    "both, the smaller": lambda there, back, a, b: np.minimum(there, back),
    "query to candidate": lambda there, back, a, b: there,
    "candidate to query": lambda there, back, a, b: back,
}


class Vectors:
    """Vectors of the pieces of a sentence, one a row, in several ways; each gives rows and their weights."""

    def __init__(self, encoder: SentenceEncoder):
        self.encoder, self.table = encoder, encoder.table
        self.ways = {
            "norm": self.by_norm,
            "evenly": lambda ids: (self.table[ids], np.ones(len(ids))),
            "norm squared": lambda ids: (self.table[ids], (self.table[ids] ** 2).sum(axis=1)),
            "in their places": lambda ids: self.by_norm(ids, self.in_place(len(ids))),
            "words": self.words,
        }
        self.starts = np.array([symbol.startswith("▁") for symbol in encoder.tokenizer.symbols])

    def by_norm(self, ids: np.ndarray, factors: np.ndarray | float = 1.0):
        rows = self.table[ids] * factors
        return rows, np.linalg.norm(rows, axis=1)

    def in_place(self, length: int) -> np.ndarray:
        """What a piece at each place contributes to the embedding, with the order coefficients [T, D]."""
        order = self.encoder.model.order.detach().numpy()
        angle = np.pi * (np.arange(length) + 0.5) / length
        return 1 + np.cos((np.arange(len(order)) + 1)[:, None] * angle).T.astype(np.float32) @ order

    def words(self, ids: np.ndarray):
        """A word is the sum of its pieces."""
        word = np.cumsum(self.starts[ids])
        rows = np.zeros((word[-1] - word[0] + 1, self.table.shape[1]), np.float32)
        np.add.at(rows, word - word[0], self.table[ids])
        return rows, np.linalg.norm(rows, axis=1)


def max_sims(query, candidates) -> np.ndarray:
    """MaxSim there and back, and the weights of query and candidate, of one query and its candidates [4, k]."""
    rows, weights = zip(*candidates, strict=True)
    starts = np.cumsum([0, *map(len, weights)])[:-1]
    cosines = normalise_rows(query[0]) @ normalise_rows(np.concatenate(rows)).T
    flat = np.concatenate(weights)
    there = query[1] @ np.maximum.reduceat(cosines, starts, axis=1) / query[1].sum()
    total = np.add.reduceat(flat, starts)
    back = np.add.reduceat(cosines.max(axis=0) * flat, starts) / total
    return np.stack([there, back, np.full(len(total), query[1].sum()), total])


def other_sets(data: Path) -> Sets:
    """500 pairs of each file: of more than three words, neither side twice, and not the same in both languages."""
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
    """Set, direction, queries, their 20 nearest among its own and 150,000 others, and the text of these."""
    known = {language: {line for sides in sets.values() for line in sides[language]} for language in PAIR}
    crowd = {language: distractors(data, language, "en-fr", CANDIDATES, known[language]) for language in PAIR}
    far = {language: normalise_rows(encoder.encode(lines)) for language, lines in crowd.items()}
    for name, sides in sets.items():
        near = {language: normalise_rows(encoder.encode(sides[language])) for language in PAIR}
        for source, target in (PAIR, PAIR[::-1]):
            cosines, ids = nearest_in(near[source], [near[target], far[target]], max(DEPTHS))
            lines = [*sides[target], *crowd[target]]
            yield name, f"{source}-{target}", sides[source], cosines, ids, lines


def measure(encoder: SentenceEncoder, sets: Sets, data: Path, ways: list[str]) -> dict:
    """P@1 in percent: way of the vectors, form, weight, depth -> set and direction -> P@1."""
    vectors = Vectors(encoder)
    found: dict[str, dict] = {}
    for name, direction, queries, cosines, ids, lines in neighbours(encoder, sets, data):
        where = f"{name} {direction}"
        truth = np.arange(len(ids))[:, None]
        found.setdefault("cosine", {})[where] = percent(ids[:, 0] == truth[:, 0])
        for depth in DEPTHS:
            found.setdefault(f"among the first {depth}", {})[where] = percent((ids[:, :depth] == truth).any(axis=1))
        rows = np.unique(ids)
        pieces = dict(zip(rows.tolist(), encoder.tokenizer.encode([lines[row] for row in rows]), strict=True))
        for way in ways:
            known = {row: vectors.ways[way](some) for row, some in pieces.items()}
            asked = map(vectors.ways[way], encoder.tokenizer.encode(queries))
            sims = np.stack(
                [
                    max_sims(query, [known[row] for row in near.tolist()])
                    for query, near in zip(asked, ids, strict=True)
                ],
                1,
            )
            for form, weight, depth in settings(way):
                scores = cosines + weight * FORMS[form](*sims)
                best = ids[truth[:, 0], scores[:, :depth].argmax(axis=1)]
                found.setdefault(f"{way}; {form}; weight {weight:g}; {depth}", {})[where] = percent(best == truth[:, 0])
    return {key: {"mean": round(fmean(values.values()), 2), **values} for key, values in found.items()}


def settings(way: str) -> Iterator[tuple[str, float, int]]:
    """Every depth of the default form and vectors, depth 10 of the others."""
    for form in FORMS:
        for weight in WEIGHTS:
            for depth in DEPTHS if (way, form) == ("norm", next(iter(FORMS))) else (10,):
                yield form, weight, depth


def speed(encoder: SentenceEncoder, data: Path, sets: Sets) -> dict:
    """Processor milliseconds a query among 150,000: search of ten, and reading, splitting and scoring them again."""
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
        found[name] = {part: round(1000 * min(values) / len(queries), 3) for part, values in times.items()}
    return found


def mining(encoder: SentenceEncoder, sets: Sets) -> dict[str, float]:
    """Best F1 in percent of mining by ratio margin, k 4: a third of the sentences of a side has no translation."""
    english, french = ([line for sides in sets.values() for line in sides[language]] for language in PAIR)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="of the pair: FOLDER of quality.py/en-fr"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
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
    pairs = minimal_pairs(kinds["eval"], "fr")
    result["minimal pairs"] = {"cosine": contrast(encoder.encode, pairs)} | {
        f"weight {weight:g}": contrast(encoder.encode, pairs, Reranker(ModelFolder(encoder), 10, weight))
        for weight in WEIGHTS
    }
    for kind, sets in kinds.items():
        ways = list(Vectors(encoder).ways) if kind == "eval" else ["norm", "in their places"]
        result[kind] = measure(encoder, sets, args.data, ways)
        args.output.write_text(json.dumps(result, indent=1) + "\n")  # as far as it is


if __name__ == "__main__":
    main()
