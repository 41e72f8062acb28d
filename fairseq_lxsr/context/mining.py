"""Mines sentence pairs from random samples of monolingual text (Wang et al., stage 2a)."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import Lines
from fairseq_lxsr.files.progress import Progress
from fairseq_lxsr.files.write import naming, reserve
from fairseq_lxsr.vectors import csls_pairs, normalise_rows

# Mining stops after this many passes over all language pairs without a new sentence pair.
MAX_EMPTY_ROUNDS = 20


@dataclass(frozen=True)
class MinedPair:
    """A mined sentence pair.

    Attributes:
        score: CSLS score of the pair.
        cosine: cosine similarity of the two embeddings.
        languages: languages of the two sentences.
        sentences: zero-based line number of each sentence in the text file for its language.
    """

    score: float
    cosine: float
    languages: tuple[str, str]
    sentences: tuple[int, int]


class LazyEmbeddings:
    """Normalized sentence embeddings of one language, computed on first access.

    The embeddings are stored in a file that has space for all sentences from the start.

    Args:
        encoder: encoder of the sentences.
        sentences: all sentences of the language.
        dtype: encoding precision.
        file: path of the new file.
    """

    def __init__(self, encoder: SentenceEncoder, sentences: Lines, dtype: str, file: Path):
        self.encoder = encoder
        self.sentences = sentences
        self.dtype = dtype
        shape = (len(sentences), encoder.output_dim)
        with naming(file), open(file, "wb") as stream:
            reserve(stream, shape[0] * shape[1] * np.dtype(np.float32).itemsize)
        self.vectors = np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
        self.is_computed = np.zeros(len(sentences), dtype=bool)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """Return the embeddings of the selected sentences, as float32 [n, D]."""
        missing = np.sort(index[~self.is_computed[index]])
        if len(missing):
            sentences = [self.sentences[number] for number in missing]
            vectors = self.encoder.encode(sentences, dtype=self.dtype)
            self.vectors[missing] = normalise_rows(vectors)
            self.is_computed[missing] = True
        return self.vectors[index]


def mine_draws(
    embedded: Mapping[str, LazyEmbeddings],
    draw: int,
    best: int,
    count: int,
    seed: int,
    neighbours: int = 10,
) -> tuple[list[MinedPair], dict[str, float]]:
    """Sample sentences in two languages repeatedly, and keep the pairs with the best CSLS scores.

    Mining cycles through the language pairs.

    Args:
        embedded: embeddings of each language.
        draw: number of sentences sampled per language (m in the paper); all sentences if there are
            fewer.
        best: maximum number of pairs to keep from each sample.
        count: number of distinct pairs to mine.
        seed: random seed of the samples.
        neighbours: number of neighbours for CSLS.

    Returns:
        The pairs in mining order, and a dictionary with the seconds spent on
        `encode` and `search` and the number of `draws`.

    Raises:
        InputError: if the samples stop yielding new pairs.
    """
    rng = np.random.default_rng(seed)
    mined: dict[tuple, MinedPair] = {}
    seconds = {"encode": 0.0, "search": 0.0, "draws": 0.0}
    empty_draws = 0
    with Progress(total=count, desc="mine", unit=" pairs", disable=None) as bar:
        turns = list(itertools.combinations(embedded, 2))
        for languages in itertools.cycle(turns):
            start = time.perf_counter()
            sides = []
            vectors = []
            for language in languages:
                side = _draw(rng, len(embedded[language].sentences), draw)
                sides.append(side)
                vectors.append(embedded[language][side])
            encoded = time.perf_counter()
            count_before = len(mined)
            for pair in _best_pairs(languages, sides, vectors, best, neighbours):
                if len(mined) < count:
                    mined.setdefault((pair.languages, pair.sentences), pair)
            seconds["encode"] += encoded - start
            seconds["search"] += time.perf_counter() - encoded
            seconds["draws"] += 1
            bar.update(len(mined) - count_before)
            empty_draws = 0 if len(mined) > count_before else empty_draws + 1
            if len(mined) == count:
                return list(mined.values()), seconds
            if empty_draws == MAX_EMPTY_ROUNDS * len(turns):
                raise InputError(
                    f"pairs {count:,}: only {len(mined):,} distinct pairs could be mined; request "
                    "fewer, or add more text"
                )
    # The loop ends only by returning or by the exception above.
    raise AssertionError


def _draw(rng: np.random.Generator, size: int, draw: int) -> np.ndarray:
    return rng.choice(size, min(draw, size), replace=False)


def _best_pairs(
    languages: tuple[str, str],
    sides: Sequence[np.ndarray],
    vectors: Sequence[np.ndarray],
    best: int,
    neighbours: int,
) -> Iterator[MinedPair]:
    """Yield the pairs with the highest CSLS scores in one sample.

    Args:
        languages: the two languages.
        sides: line numbers of the sampled sentences in each language.
        vectors: embeddings of the sampled sentences in each language: [sentences, dimensions].
        best: maximum number of pairs.
        neighbours: number of neighbours for CSLS.
    """
    source, target = vectors
    limit = min(best, len(source) * len(target))
    k = min(neighbours, len(source), len(target))
    scores, rows, columns = csls_pairs(source, target, limit, k)
    cosines = (source[rows] * target[columns]).sum(axis=1)
    for score, cosine, row, column in zip(scores, cosines, rows, columns, strict=True):
        sentences = (int(sides[0][row]), int(sides[1][column]))
        yield MinedPair(float(score), float(cosine), languages, sentences)


def precision(
    pairs: Sequence[MinedPair], texts: Mapping[str, Lines], gold: frozenset[tuple[str, str]]
) -> float:
    """Return the fraction of correct pairs among the mined pairs that can be judged.

    A pair can be judged if one of its sentences occurs in the reference pairs.

    Args:
        pairs: mined pairs.
        texts: sentences of each language.
        gold: reference pairs, in either direction.

    Returns:
        The precision from 0 to 1; NaN if no pair can be judged.
    """
    gold_sentences = set(itertools.chain.from_iterable(gold))
    judged = 0
    correct = 0
    for pair in pairs:
        first = texts[pair.languages[0]][pair.sentences[0]]
        second = texts[pair.languages[1]][pair.sentences[1]]
        judged += first in gold_sentences or second in gold_sentences
        correct += (first, second) in gold or (second, first) in gold
    if not judged:
        return float("nan")
    return correct / judged
