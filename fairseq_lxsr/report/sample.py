"""Detailed results on one language pair: accuracy by length, cosines and errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.texts import identities
from fairseq_lxsr.vectors import nearest_neighbours, normalise_rows
from fairseq_lxsr.vectors.rows import FloatArray

# Buckets of query lengths: the minimum number of words in each.
LENGTHS = (1, 4, 8, 12, 16, 24, 32)
BUCKETS = [*(f"{low}-{high - 1}" for low, high in pairwise(LENGTHS)), f"{LENGTHS[-1]}+"]
HEATMAP_PAIRS = 40
MAP_PAIRS = 150
MAX_ERRORS = 25
MIN_PAIRS = 10


@dataclass(frozen=True)
class Direction:
    """Accuracy by query length, in one direction.

    Attributes:
        name: direction, SOURCE->TARGET.
        buckets: ranges of query lengths in words, for example `4-7`; empty ranges are omitted.
        counts: number of queries in each bucket.
        accuracy: accuracy of each bucket, in percent.
    """

    name: str
    buckets: list[str]
    counts: list[int]
    accuracy: list[float]


@dataclass(frozen=True)
class RetrievalError:
    """A sentence whose nearest neighbour is not its translation.

    Attributes:
        query: source sentence.
        neighbour: nearest neighbour of the sentence.
        neighbour_cosine: cosine similarity of the sentence and its nearest neighbour.
        translation: correct translation.
        translation_cosine: cosine similarity of the sentence and its translation.
        rank: rank of the translation among the neighbours; the nearest neighbour has rank 1.
    """

    query: str
    neighbour: str
    neighbour_cosine: float
    translation: str
    translation_cosine: float
    rank: int


@dataclass(frozen=True)
class Sample:
    """Results on one language pair, as shown on the page.

    The heat map and the map use sentences that are spread evenly over the text.

    Attributes:
        languages: names of the source and target languages.
        pairs: number of sentence pairs.
        directions: accuracy in both directions.
        errors: largest retrieval errors of source sentences.
        heatmap: cosine similarities [H, H], one row per source sentence.
        heatmap_sentences: source and target sentences of the heat map.
        map: positions [2 P, 2] of the P source sentences, followed by the P target sentences.
        map_sentences: source and target sentences of the map.
        model: model fingerprint, if known.
    """

    languages: tuple[str, str]
    pairs: int
    directions: list[Direction]
    errors: list[RetrievalError]
    heatmap: FloatArray
    heatmap_sentences: tuple[list[str], list[str]]
    map: FloatArray
    map_sentences: tuple[list[str], list[str]]
    model: str = ""


def measure_sample(
    source: Sequence[str],
    target: Sequence[str],
    source_embeddings: FloatArray,
    target_embeddings: FloatArray,
    languages: tuple[str, str],
    model: str = "",
) -> Sample:
    """Compute the results of a model on aligned sentences.

    Args:
        source: N source sentences.
        target: translations of the source sentences [N].
        source_embeddings: embeddings [N, D] of the source sentences.
        target_embeddings: embeddings [N, D] of the translations.
        languages: names of the source and target languages.
        model: model fingerprint.

    Returns:
        The results, to be shown in a report.

    Raises:
        InputError: if there are too few sentences.
    """
    if len(source) < MIN_PAIRS:
        raise InputError(
            f"found {len(source)} sentence pairs; expected at least {MIN_PAIRS} for a report: "
            "add more text"
        )
    from sklearn.manifold import TSNE

    left = normalise_rows(source_embeddings)
    right = normalise_rows(target_embeddings)
    heatmap_rows = _spread(len(source), HEATMAP_PAIRS)
    map_rows = _spread(len(source), MAP_PAIRS)
    map_vectors = np.concatenate([left[map_rows], right[map_rows]])
    # t-SNE (van der Maaten and Hinton 2008).
    projection = TSNE(
        metric="cosine",
        init="random",
        perplexity=min(20, (len(map_vectors) - 1) / 3),
        random_state=1,
    )
    return Sample(
        languages=languages,
        pairs=len(source),
        directions=[
            _direction("->".join(languages), source, target, left, right),
            _direction("->".join(reversed(languages)), target, source, right, left),
        ],
        errors=_errors(source, target, left, right),
        heatmap=left[heatmap_rows] @ right[heatmap_rows].T,
        heatmap_sentences=_sentences_of(heatmap_rows, source, target),
        map=projection.fit_transform(map_vectors),
        map_sentences=_sentences_of(map_rows, source, target),
        model=model,
    )


def _spread(count: int, limit: int) -> list[int]:
    """Return at most `limit` row indices, spread evenly over `count` rows."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(int)).tolist()


def _sentences_of(
    rows: Sequence[int], source: Sequence[str], target: Sequence[str]
) -> tuple[list[str], list[str]]:
    return [source[row] for row in rows], [target[row] for row in rows]


def _direction(
    name: str,
    queries: Sequence[str],
    candidates: Sequence[str],
    query_rows: FloatArray,
    candidate_rows: FloatArray,
) -> Direction:
    """Compute the accuracy of retrieval by query length."""
    _, neighbours = nearest_neighbours(query_rows, candidate_rows, 1)
    # Identical candidates count as one candidate, because any of them is a correct translation.
    identity = identities(candidates)
    is_hit = identity[neighbours[:, 0]] == identity
    words = np.array([len(query.split()) for query in queries])
    bucket_of_query = np.searchsorted(LENGTHS, words, side="right") - 1
    buckets, counts = np.unique(bucket_of_query, return_counts=True)
    accuracy = [float(100 * is_hit[bucket_of_query == bucket].mean()) for bucket in buckets]
    return Direction(name, [BUCKETS[bucket] for bucket in buckets], counts.tolist(), accuracy)


def _errors(
    source: Sequence[str], target: Sequence[str], left: FloatArray, right: FloatArray
) -> list[RetrievalError]:
    """Return the `MAX_ERRORS` largest retrieval errors of source sentences, largest first.

    The size of an error is the neighbour's cosine minus the translation's cosine.
    """
    cosines, neighbours = nearest_neighbours(left, right, 1)
    identity = identities(target)
    gold = (left * right).sum(axis=1)
    wrong = np.flatnonzero(identity[neighbours[:, 0]] != identity)
    largest = wrong[np.argsort(gold[wrong] - cosines[wrong, 0], kind="stable")][:MAX_ERRORS]
    products = left[largest] @ right.T
    ranks = 1 + (products > products[np.arange(len(largest)), largest][:, None]).sum(axis=1)
    errors = []
    for row, rank in zip(largest.tolist(), ranks.tolist(), strict=True):
        error = RetrievalError(
            query=source[row],
            neighbour=target[neighbours[row, 0]],
            neighbour_cosine=float(cosines[row, 0]),
            translation=target[row],
            translation_cosine=float(gold[row]),
            rank=int(rank),
        )
        errors.append(error)
    return errors
