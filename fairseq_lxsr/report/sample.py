"""Detailed measurements on one language pair: accuracy by length, cosines and errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.texts import identities
from fairseq_lxsr.vectors import nearest_neighbours, normalise_rows
from fairseq_lxsr.vectors.rows import FloatArray

LENGTHS = (1, 4, 8, 12, 16, 24, 32)  # smallest number of words of a bucket
BUCKETS = [*(f"{low}-{high - 1}" for low, high in pairwise(LENGTHS)), f"{LENGTHS[-1]}+"]
HEATMAP_PAIRS, MAP_PAIRS, ERRORS = 40, 150, 25
MIN_PAIRS = 10


@dataclass(frozen=True)
class Direction:
    """Accuracy by length of the query: buckets, number of queries, accuracy in percent."""

    name: str
    buckets: list[str]
    counts: list[int]
    accuracy: list[float]


@dataclass(frozen=True)
class Error:
    """A sentence whose nearest neighbour is not its translation; `rank` is the translation's rank,
    from 1.
    """

    query: str
    found: str
    found_cosine: float
    wanted: str
    wanted_cosine: float
    rank: int


@dataclass(frozen=True)
class Sample:
    """Data that the page shows of a language pair; heat map and map use sentences spread evenly
    over the text.
    """

    languages: tuple[str, str]
    pairs: int
    directions: list[Direction]
    errors: list[Error]
    heatmap: FloatArray  # cosines [H, H], a row for each source sentence
    heatmap_sentences: tuple[list[str], list[str]]
    map: FloatArray  # [2 P, 2], source sentences first
    map_sentences: tuple[list[str], list[str]]
    model: str = ""  # fingerprint of the model


def measure_sample(
    source: Sequence[str],
    target: Sequence[str],
    source_embeddings: FloatArray,
    target_embeddings: FloatArray,
    languages: tuple[str, str],
    model: str = "",
) -> Sample:
    """Measure aligned sentences and their embeddings [N, D]; `model` is the fingerprint of the
    model.
    """
    if len(source) < MIN_PAIRS:
        raise InputError(
            f"{len(source)} sentence pairs; a report expects at least {MIN_PAIRS}: give more text"
        )
    from sklearn.manifold import TSNE

    left, right = normalise_rows(source_embeddings), normalise_rows(target_embeddings)
    forward = _direction("->".join(languages), source, target, left, right)
    backward = _direction("->".join(reversed(languages)), target, source, right, left)
    few, more = _spread(len(source), HEATMAP_PAIRS), _spread(len(source), MAP_PAIRS)
    heatmap_sentences, map_sentences = (
        ([source[i] for i in rows], [target[i] for i in rows]) for rows in (few, more)
    )
    both = np.concatenate([left[more], right[more]])
    # van der Maaten and Hinton 2008
    project = TSNE(
        metric="cosine", init="random", perplexity=min(20, (len(both) - 1) / 3), random_state=1
    )
    return Sample(
        languages,
        len(source),
        [forward, backward],
        _errors(source, target, left, right),
        left[few] @ right[few].T,
        heatmap_sentences,
        project.fit_transform(both),
        map_sentences,
        model,
    )


def _spread(count: int, wanted: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(int)).tolist()


def _direction(
    name: str, queries, candidates, query_rows: FloatArray, candidate_rows: FloatArray
) -> Direction:
    _, found = nearest_neighbours(query_rows, candidate_rows, 1)
    same = identities(candidates)
    hits = same[found[:, 0]] == same
    words = np.array([len(query.split()) for query in queries])
    bucket = np.searchsorted(LENGTHS, words, side="right") - 1
    used, counts = np.unique(bucket, return_counts=True)
    accuracy = [float(100 * hits[bucket == b].mean()) for b in used]
    return Direction(name, [BUCKETS[b] for b in used], counts.tolist(), accuracy)


def _errors(source, target, left: FloatArray, right: FloatArray) -> list[Error]:
    """List the errors of source sentences by how far the cosine of the wrong neighbour exceeds the
    translation's.
    """
    cosines, found = nearest_neighbours(left, right, 1)
    same = identities(target)
    gold = (left * right).sum(axis=1)
    wrong = np.flatnonzero(same[found[:, 0]] != same)
    chosen = wrong[np.argsort(gold[wrong] - cosines[wrong, 0], kind="stable")][:ERRORS]
    products = left[chosen] @ right.T
    ranks = 1 + (products > products[np.arange(len(chosen)), chosen][:, None]).sum(axis=1)
    return [
        Error(
            source[i],
            target[found[i, 0]],
            float(cosines[i, 0]),
            target[i],
            float(gold[i]),
            int(rank),
        )
        for i, rank in zip(chosen.tolist(), ranks.tolist(), strict=True)
    ]
