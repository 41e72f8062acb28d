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
from fairseq_lxsr.vectors import csls_best, csls_pairs, normalise_rows

# Mining stops after this many passes over all language pairs without a new sentence pair.
MAX_EMPTY_ROUNDS = 20
# Number of neighbours for CSLS.
NEIGHBOURS = 10


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


@dataclass(frozen=True)
class Sample:
    """S sentences drawn at random, with their embeddings.

    Attributes:
        languages: language of each sentence.
        sentences: zero-based line number of each sentence in the text file for its language.
        vectors: normalized embeddings [S, D].
    """

    languages: list[str]
    sentences: list[int]
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.sentences)


def mine_draws(
    embedded: Mapping[str, LazyEmbeddings],
    draw: int,
    best: int,
    count: int,
    seed: int,
    candidates: int = 0,
    pair_languages: str = "different",
) -> tuple[list[MinedPair], dict[str, float]]:
    """Draw two samples of sentences repeatedly, and keep the pairs with the best CSLS scores.

    A pair consists of one sentence from each sample.

    Args:
        embedded: embeddings of each language.
        draw: number of sentences in each sample (m in the paper); all sentences if there are
            fewer.
        best: maximum number of pairs to keep from the two samples.
        count: number of distinct pairs to mine.
        seed: random seed of the samples.
        candidates: number of sentences in the second sample (b in the paper). Each sentence of the
            first sample is then only paired with the best of them. If 0, both samples have `draw`
            sentences, and a sentence may be in several pairs.
        pair_languages: `different`: each sample is of one language, and mining cycles through the
            language pairs; `any`: both samples are drawn from the text of all languages, and no
            sentence is in both.

    Returns:
        The pairs in mining order, and a dictionary with the seconds spent on
        `encode` and `search` and the number of `draws`.

    Raises:
        InputError: if the samples stop yielding new pairs.
    """
    rng = np.random.default_rng(seed)
    mined: dict[frozenset[tuple[str, int]], MinedPair] = {}
    seconds = {"encode": 0.0, "search": 0.0, "draws": 0.0}
    empty_draws = 0
    sizes = {language: len(side.sentences) for language, side in embedded.items()}
    counts = (draw, candidates or draw)
    turns: list[tuple[str, ...]] = list(itertools.combinations(embedded, 2))
    draw_places = _draw_by_language
    if pair_languages == "any":
        turns = [tuple(embedded)]
        draw_places = _draw_from_all
    with Progress(total=count, desc="mine", unit=" pairs") as bar:
        for languages in itertools.cycle(turns):
            start = time.perf_counter()
            places = draw_places(rng, sizes, languages, counts)
            first = _sample(embedded, places[0])
            second = _sample(embedded, places[1])
            encoded = time.perf_counter()
            count_before = len(mined)
            for pair in _best_pairs(first, second, best, candidates > 0):
                if len(mined) < count:
                    key = frozenset(zip(pair.languages, pair.sentences, strict=True))
                    mined.setdefault(key, pair)
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
    # The loop above only ends by returning or raising an exception.
    raise AssertionError


# Maps a language to the zero-based line numbers of its sentences in a sample.
Places = dict[str, np.ndarray]


def _draw_by_language(
    rng: np.random.Generator,
    sizes: Mapping[str, int],
    languages: Sequence[str],
    counts: tuple[int, int],
) -> list[Places]:
    """Draw a sample from each of two languages; `counts` limits the number of sentences in each."""
    sides = []
    for language, count in zip(languages, counts, strict=True):
        size = sizes[language]
        sides.append({language: rng.choice(size, min(count, size), replace=False)})
    return sides


def _draw_from_all(
    rng: np.random.Generator,
    sizes: Mapping[str, int],
    languages: Sequence[str],
    counts: tuple[int, int],
) -> list[Places]:
    """Draw two samples from the combined text of all languages; no sentence is in both.

    `counts` limits the number of sentences in each sample.
    """
    total = sum(sizes[language] for language in languages)
    first = min(counts[0], total // 2)
    second = min(counts[1], total - first)
    rows = rng.choice(total, first + second, replace=False)
    sides: list[Places] = []
    for side in (rows[:first], rows[first:]):
        places = {}
        start = 0
        for language in languages:
            size = sizes[language]
            is_in_language = (side >= start) & (side < start + size)
            places[language] = side[is_in_language] - start
            start += size
        sides.append(places)
    return sides


def _sample(embedded: Mapping[str, LazyEmbeddings], places: Places) -> Sample:
    """Create a sample from line numbers; missing embeddings are computed."""
    languages: list[str] = []
    sentences: list[int] = []
    vectors = []
    for language, rows in places.items():
        languages += [language] * len(rows)
        sentences += rows.tolist()
        vectors.append(embedded[language][rows])
    return Sample(languages, sentences, np.concatenate(vectors))


def _best_pairs(first: Sample, second: Sample, best: int, one_each: bool) -> Iterator[MinedPair]:
    """Yield the pairs with the highest CSLS scores in descending order.

    Args:
        first: one sample.
        second: the other sample, which contains the candidates for the first.
        best: maximum number of pairs.
        one_each: pair each sentence of the first sample with its best candidate only.
    """
    k = min(NEIGHBOURS, len(first), len(second))
    if one_each:
        best_scores, best_columns = csls_best(first.vectors, second.vectors, k)
        rows = np.argsort(-best_scores, kind="stable")[:best]
        scores = best_scores[rows]
        columns = best_columns[rows]
    else:
        limit = min(best, len(first) * len(second))
        scores, rows, columns = csls_pairs(first.vectors, second.vectors, limit, k)
    cosines = (first.vectors[rows] * second.vectors[columns]).sum(axis=1)
    for score, cosine, row, column in zip(scores, cosines, rows, columns, strict=True):
        languages = (first.languages[row], second.languages[column])
        sentences = (first.sentences[row], second.sentences[column])
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
