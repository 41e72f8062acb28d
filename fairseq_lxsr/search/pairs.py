"""Scores sentence pairs that are aligned already: by cosine, or by margin against an index or their
own text.

Source of the margins: Artetxe and Schwenk 2019a, section 3.1.
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

from fairseq_lxsr.embeddings import Encoder, Text, check_same_width
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.options import PairScoring
from fairseq_lxsr.search.resumable import SEARCH_ROWS
from fairseq_lxsr.vectors import margin_scores, nearest_neighbours, neighbourhood
from fairseq_lxsr.vectors.rows import FloatArray

PAIRS_TOGETHER = 8_192  # pairs encoded together
UNKNOWN_SCORE = 0.0  # score of a pair of which a side has no known piece

Pair = tuple[str, str, Any]  # source, target, and what the caller wants back with the score
Two = tuple[FloatArray, FloatArray]  # of the sources and of the targets
Scored = Iterator[tuple[list[Pair], FloatArray]]


@dataclass
class PairEncoder:
    """Embeds both sides of pairs."""

    encoder: Encoder
    languages: tuple[str, str] = ("", "")  # of the two sides, for encoders that depend on them
    unknown_pairs: int = field(
        default=0, init=False
    )  # scored pairs of which a side had no known piece

    def embed(self, sentences: list[str], side: int) -> FloatArray:
        """Embed sentences of one side, rows of length one [n, D]; a sentence without known pieces
        gives zeros.
        """
        rows = np.asarray(
            self.encoder.embed(Text(sentences, self.languages[side])), dtype=np.float32
        )
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.isfinite(norms).all():
            number = int((~np.isfinite(norms[:, 0])).argmax())
            raise InputError(
                f"the embedding of {sentences[number]!r:.60} has NaN or infinity; correct the encoder"
            )
        return rows / np.where(norms > 0, norms, 1)

    def score(self, vectors: Two, means: Two, margin: str) -> FloatArray:
        """Compute the margin of each pair of rows of two [n, D], given the means of both [n]; a
        zero row scores 0.
        """
        source, target = vectors
        check_same_width(source.shape[1], target.shape[1], ("the sources", "the targets"))
        scores = margin_scores(np.einsum("nd,nd->n", source, target), *means, margin)
        lost = ~(source.any(axis=1) & target.any(axis=1))
        self.unknown_pairs += int(lost.sum())
        return np.where(lost, np.float32(UNKNOWN_SCORE), scores)


def score_pairs(
    pairs: Iterable[Pair],
    encode: PairEncoder,
    options: PairScoring | None = None,
    indexes: tuple[CorpusIndex, CorpusIndex] | None = None,
) -> Scored:
    """Yield blocks of pairs and their scores [n]; memory does not grow with the number of pairs.

    Args:
        pairs: source, target and anything else of each pair, read once.
        encode: embeds both sides.
        options: the margin, of which `absolute` needs no index, and the size of the neighbourhoods.
        indexes: text of the source and of the target language, in which the neighbourhoods are
            looked for.
    """
    options = options or PairScoring()
    for index in indexes or ():
        index.check_model(encode.encoder)
    for block in _blocks(pairs):
        source, target = (encode.embed([pair[side] for pair in block], side) for side in (0, 1))
        means = (np.zeros(len(block), np.float32),) * 2
        if indexes:
            of_source, of_target = indexes
            means = _means_in(of_target, source, options.k), _means_in(of_source, target, options.k)
        yield block, encode.score((source, target), means, options.margin)


def score_pairs_among_themselves(
    pairs: Callable[[], Iterable[Pair]],
    encode: PairEncoder,
    options: PairScoring | None = None,
    folder: str | Path | None = None,
) -> Scored:
    """Yield blocks of pairs and their margins [n], with the neighbourhoods among all sentences of
    the pairs.

    Equal sentences count once in a neighbourhood. The vectors lie in a temporary file, 8D bytes a
    pair at most.

    Args:
        pairs: returns the pairs, the same each time; it is called twice.
        encode: embeds both sides.
        options: the margin and the size of the neighbourhoods; None for `ratio` and the default
            size.
        folder: folder of the temporary file; None for the system's.
    """
    options = options or PairScoring("ratio")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        sides = [DistinctVectors(Path(temporary) / name) for name in ("source", "target")]
        for block in _blocks(pairs()):
            for number, side in enumerate(sides):
                side.add([pair[number] for pair in block], partial(encode.embed, side=number))
        source, target = sides
        means = source.means(target, options.k), target.means(source, options.k)
        for block in _blocks(pairs()):
            here, there = (
                side.rows_of([pair[number] for pair in block]) for number, side in enumerate(sides)
            )
            vectors = source.vectors[here], target.vectors[there]
            yield block, encode.score(vectors, (means[0][here], means[1][there]), options.margin)


def _means_in(index: CorpusIndex, embeddings: FloatArray, k: int) -> FloatArray:
    """Compute the mean cosine to the k nearest in an index [n]; a neighbour that the index does not
    find counts 0.
    """
    cosines, found = index.neighbours(embeddings, k)
    return neighbourhood(np.where(found < 0, np.float32(0), cosines))


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    remaining = iter(pairs)
    return iter(lambda: list(islice(remaining, PAIRS_TOGETHER)), [])


class DistinctVectors:
    """Vectors of the distinct sentences of a side in a file; sentences are told apart by 16 bytes
    of their hash.
    """

    def __init__(self, path: Path):
        self.path, self.width = path, 0
        self.numbers: dict[bytes, int] = {}
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed in `vectors`)
        self._vectors: FloatArray | None = None

    def add(self, sentences: list[str], embed: Callable[[list[str]], FloatArray]) -> None:
        """Embed the sentences that are not there yet."""
        new = {
            key: sentence for sentence in sentences if (key := _key(sentence)) not in self.numbers
        }
        if new:
            vectors = embed(list(new.values()))
            self.width = vectors.shape[1]
            self._file.write(np.ascontiguousarray(vectors).tobytes())
            self.numbers |= {key: len(self.numbers) + number for number, key in enumerate(new)}

    @property
    def vectors(self) -> FloatArray:
        """All vectors [N, D], memory-mapped."""
        if self._vectors is None:
            self._file.close()
            if not self.numbers:
                raise InputError("no pairs; expected one a line")
            shape = len(self.numbers), self.width
            self._vectors = np.memmap(self.path, np.float32, "r", shape=shape)
        return self._vectors

    def rows_of(self, sentences: list[str]) -> np.ndarray:
        return np.array([self.numbers[_key(sentence)] for sentence in sentences])

    def means(self, other: "DistinctVectors", k: int) -> FloatArray:
        """Compute the mean cosine of each sentence to its k nearest on the other side [N]."""
        means = np.empty(len(self.vectors), np.float32)
        for start in range(0, len(means), SEARCH_ROWS):
            block = self.vectors[start : start + SEARCH_ROWS]
            means[start : start + SEARCH_ROWS] = neighbourhood(
                nearest_neighbours(block, other.vectors, k)[0]
            )
        return means


def _key(sentence: str) -> bytes:
    return blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=16).digest()
