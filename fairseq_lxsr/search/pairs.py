"""Scores aligned sentence pairs by cosine or margin.

Margins compare a pair with neighbours in indexes, or in the pairs themselves (Artetxe and Schwenk
2019a, section 3.1).
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairseq_lxsr.embeddings import Encoder, Text, check_same_width, first_dimensions
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.options import PairScoring
from fairseq_lxsr.search.resumable import SEARCH_ROWS
from fairseq_lxsr.vectors import (
    margin_scores,
    nearest_neighbours,
    neighbourhood,
    normalise_rows,
)
from fairseq_lxsr.vectors.rows import FloatArray

# Number of pairs to encode together.
PAIR_BLOCK = 8_192
# Score of a pair in which one side has no known word pieces.
UNKNOWN_SCORE = 0.0

# A source sentence, its target, and a value that is returned unchanged with the score.
Pair = tuple[str, str, Any]
# The arrays of the source side and the target side.
BothSides = tuple[FloatArray, FloatArray]
Scored = Iterator[tuple[list[Pair], FloatArray]]


@dataclass
class PairEncoder:
    """Embeds both sides of pairs.

    Attributes:
        encoder: embeds sentences of both sides.
        languages: languages of the sides, for encoders that depend on them.
        unknown_pairs: number of scored pairs in which one side has no known word pieces.
    """

    encoder: Encoder
    languages: tuple[str, str] = ("", "")
    unknown_pairs: int = field(default=0, init=False)

    def embed(self, sentences: list[str], side: int) -> FloatArray:
        """Embed sentences of one side (0 or 1), and return unit vectors [n, D].

        A sentence without known word pieces gives zeros.

        Args:
            sentences: n sentences.
            side: 0 for source, 1 for target.

        Returns:
            Unit vectors, float32 [n, D].
        """
        text = Text(sentences, self.languages[side])
        rows = np.asarray(self.encoder.embed(text), dtype=np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        is_finite = np.isfinite(norms[:, 0])
        if not is_finite.all():
            sentence = sentences[int((~is_finite).argmax())]
            raise InputError(
                f"the embedding of {sentence!r:.60} contains NaN or infinity; correct the encoder"
            )
        return rows / np.where(norms > 0, norms, 1)

    def score(self, vectors: BothSides, means: BothSides, margin: str) -> FloatArray:
        """Compute the margin of each pair of rows. A pair with a zero row scores 0.

        Args:
            vectors: unit vectors of both sides [n, D].
            means: mean cosines of both sides to their neighbours [n].
            margin: see `vectors.margin_scores`.

        Returns:
            Scores, float32 [n].
        """
        source, target = vectors
        check_same_width(source.shape[1], target.shape[1], ("the sources", "the targets"))
        cosines = np.einsum("nd,nd->n", source, target)
        scores = margin_scores(cosines, *means, margin)
        is_unknown = ~(source.any(axis=1) & target.any(axis=1))
        self.unknown_pairs += int(is_unknown.sum())
        return np.where(is_unknown, np.float32(UNKNOWN_SCORE), scores)


def score_pairs(
    pairs: Iterable[Pair],
    encode: PairEncoder,
    options: PairScoring | None = None,
    indexes: tuple[CorpusIndex, CorpusIndex] | None = None,
) -> Scored:
    """Score sentence pairs in blocks, so that memory does not grow with the number of pairs.

        encode = PairEncoder(load("lxsr-static"))
        for block, scores in score_pairs([("a dog", "un chien", 1)], encode):
            for (source, target, number), score in zip(block, scores):
                print(number, score, source, target)

    Args:
        pairs: tuples of source, target and a third value that is returned unchanged; read once.
        encode: embeds both sides.
        options: margin and neighbourhood size; None for the cosine.
        indexes: indexes of source and target language text, to search for neighbours. The margins
            `ratio` and `distance` require them.

    Yields:
        A list of n pairs, and their scores, float32 [n]. A pair scores 0 if one side is empty or
        has no known word.

    Raises:
        InputError: if the margin requires indexes and none are given, if the model of an index
            differs from that of `encode`, if an index has several vectors for a text, if the widths
            of the sides differ, or if an embedding contains NaN or infinity. The error is raised
            when the first block is requested.
    """
    options = options or PairScoring()
    if options.margin != "absolute" and indexes is None:
        raise InputError(
            f"margin {options.margin!r} requires neighbours: pass indexes, call "
            "score_pairs_among_themselves, or set margin='absolute'"
        )
    for index in indexes or ():
        index.check_model(encode.encoder)
        if index.num_passages:
            raise InputError(
                f"{index.folder}: {index.num_passages:,} texts have several vectors; margins need "
                "one vector per sentence: build the index with --plain"
            )
    for block in _blocks(pairs):
        source = encode.embed([pair[0] for pair in block], 0)
        target = encode.embed([pair[1] for pair in block], 1)
        if indexes:
            source_index, target_index = indexes
            source = normalise_rows(first_dimensions(source, source_index.truncate_dim))
            target = normalise_rows(first_dimensions(target, target_index.truncate_dim))
            source_means = _means_in(target_index, source, options.k)
            target_means = _means_in(source_index, target, options.k)
        else:
            source_means = np.zeros(len(block), np.float32)
            target_means = source_means
        scores = encode.score((source, target), (source_means, target_means), options.margin)
        yield block, scores


def score_pairs_among_themselves(
    pairs: Callable[[], Iterable[Pair]],
    encode: PairEncoder,
    options: PairScoring | None = None,
) -> Scored:
    """Yield blocks of pairs and their margins. The pairs themselves provide the neighbours.

    Repeated sentences count once in a neighbourhood. Vectors are stored in temporary files, which
    take at most 8D bytes per pair.

    Args:
        pairs: returns the pairs; called twice, and must return the same pairs each time.
        encode: embeds both sides.
        options: margin and number of neighbours; None for `ratio` and the default number.

    Yields:
        A list of n pairs, and their margins, float32 [n].

    Raises:
        InputError: if there are no pairs or fewer than k distinct sentences, if the widths of the
            sides differ, or if an embedding contains NaN or infinity.
    """
    options = options or PairScoring("ratio")
    with tempfile.TemporaryDirectory() as temporary:
        source = DistinctVectors(Path(temporary) / "source")
        target = DistinctVectors(Path(temporary) / "target")
        for block in _blocks(pairs()):
            source.add([pair[0] for pair in block], partial(encode.embed, side=0))
            target.add([pair[1] for pair in block], partial(encode.embed, side=1))
        source_means = source.means(target, options.k)
        target_means = target.means(source, options.k)
        for block in _blocks(pairs()):
            source_rows = source.rows_of([pair[0] for pair in block])
            target_rows = target.rows_of([pair[1] for pair in block])
            vectors = (source.vectors[source_rows], target.vectors[target_rows])
            means = (source_means[source_rows], target_means[target_rows])
            yield block, encode.score(vectors, means, options.margin)


def _means_in(index: CorpusIndex, embeddings: FloatArray, k: int) -> FloatArray:
    """Compute the mean cosine of embeddings to their k nearest neighbours in an index [n].

    A neighbour that an approximate index does not find counts as 0.
    """
    cosines, ids = index.neighbours(embeddings, k)
    return neighbourhood(np.where(ids < 0, np.float32(0), cosines))


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    remaining = iter(pairs)
    while block := list(islice(remaining, PAIR_BLOCK)):
        yield block


class DistinctVectors:
    """Vectors of the distinct sentences of one side, stored in a file.

    Sentences are identified by 16-byte hashes.

    Attributes:
        path: the file.
        width: width D of the vectors.
        numbers: row index of each sentence, keyed by its hash.
    """

    def __init__(self, path: Path):
        self.path = path
        self.width = 0
        self.numbers: dict[bytes, int] = {}
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed in `vectors`)
        self._vectors: FloatArray | None = None

    def add(self, sentences: list[str], embed: Callable[[list[str]], FloatArray]) -> None:
        """Embed and store the sentences that are not stored yet.

        Args:
            sentences: sentences, which may repeat.
            embed: embeds n sentences as [n, D].
        """
        new: dict[bytes, str] = {}
        for sentence in sentences:
            key = _key(sentence)
            if key not in self.numbers:
                new[key] = sentence
        if not new:
            return
        vectors = embed(list(new.values()))
        self.width = vectors.shape[1]
        self._file.write(np.ascontiguousarray(vectors).tobytes())
        for number, key in enumerate(new, len(self.numbers)):
            self.numbers[key] = number

    @property
    def vectors(self) -> FloatArray:
        """All vectors [N, D], memory-mapped."""
        if self._vectors is None:
            self._file.close()
            if not self.numbers:
                raise InputError("no pairs; expected one pair per line")
            shape = (len(self.numbers), self.width)
            self._vectors = np.memmap(self.path, np.float32, "r", shape=shape)
        return self._vectors

    def rows_of(self, sentences: list[str]) -> np.ndarray:
        """Return the row index of each sentence.

        Args:
            sentences: N sentences that were added.

        Returns:
            Row indices [N].
        """
        return np.array([self.numbers[_key(sentence)] for sentence in sentences])

    def means(self, candidates: "DistinctVectors", k: int) -> FloatArray:
        """Compute the mean cosine [N] of each sentence to its k neighbours on the other side.

        Args:
            candidates: the sentences of the other side.
            k: number of neighbours.

        Returns:
            Mean cosines, float32 [N].
        """
        means = np.empty(len(self.vectors), np.float32)
        for start in range(0, len(means), SEARCH_ROWS):
            block = self.vectors[start : start + SEARCH_ROWS]
            cosines, _ = nearest_neighbours(block, candidates.vectors, k)
            means[start : start + SEARCH_ROWS] = neighbourhood(cosines)
        return means


def _key(sentence: str) -> bytes:
    return blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=16).digest()
