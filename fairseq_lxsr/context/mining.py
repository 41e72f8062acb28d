"""Mining of similar sentences of two languages from random draws (Wang et al., stage 2a)."""

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

# rounds of all language pairs without a new pair of sentences, after which mining stops
MAX_EMPTY_ROUNDS = 20


@dataclass(frozen=True)
class MinedPair:
    """A mined pair: its CSLS, the cosine of the two embeddings, and language and number of either
    sentence.
    """

    score: float
    cosine: float
    languages: tuple[str, str]
    sentences: tuple[int, int]


class LazyEmbeddings:
    """Normalized embeddings of the sentences of one language, computed on first access and kept in
    a file.
    """

    def __init__(self, encoder: SentenceEncoder, sentences: Lines, dtype: str, file: Path):
        self.encoder, self.sentences, self.dtype = encoder, sentences, dtype
        with naming(file), open(file, "wb") as stream:
            reserve(stream, len(sentences) * encoder.output_dim * np.dtype(np.float32).itemsize)
        self.vectors = np.memmap(
            file, dtype=np.float32, mode="r+", shape=(len(sentences), encoder.output_dim)
        )
        self.known = np.zeros(len(sentences), dtype=bool)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        missing = np.sort(index[~self.known[index]])
        if len(missing):
            vectors = self.encoder.encode(
                [self.sentences[number] for number in missing], dtype=self.dtype
            )
            self.vectors[missing] = normalise_rows(vectors)
            self.known[missing] = True
        return self.vectors[index]


def mine_draws(
    embedded: Mapping[str, LazyEmbeddings],
    draw: int,
    best: int,
    count: int,
    seed: int,
    neighbours: int = 10,
) -> tuple[list[MinedPair], dict[str, float]]:
    """Draw sentences of two languages and keep the best pairs by CSLS, until there are `count`
    different pairs.

    Pairs of languages take turns. `draw` is m, sentences of either side in a draw (all where there
    are fewer), and `best` the largest number of pairs kept of it. Beside the pairs, in the order
    they were found: seconds of `encode` and `search`, number of `draws`.
    """
    rng = np.random.default_rng(seed)
    found: dict[tuple, MinedPair] = {}
    seconds = {"encode": 0.0, "search": 0.0, "draws": 0.0}
    fruitless = 0
    with Progress(total=count, desc="mine", unit=" pairs", disable=None) as bar:
        turns = list(itertools.combinations(embedded, 2))
        for languages in itertools.cycle(turns):
            start = time.perf_counter()
            sides = [_draw(rng, len(embedded[language].sentences), draw) for language in languages]
            vectors = [
                embedded[language][side] for language, side in zip(languages, sides, strict=True)
            ]
            encoded = time.perf_counter()
            before = len(found)
            for pair in _best_of(languages, sides, vectors, best, neighbours):
                if len(found) < count:
                    found.setdefault((pair.languages, pair.sentences), pair)
            seconds["encode"] += encoded - start
            seconds["search"] += time.perf_counter() - encoded
            seconds["draws"] += 1
            bar.update(len(found) - before)
            fruitless = 0 if len(found) > before else fruitless + 1
            if len(found) == count:
                return list(found.values()), seconds
            if fruitless == MAX_EMPTY_ROUNDS * len(turns):
                raise InputError(
                    f"pairs {count:,}: only {len(found):,} different ones were found; ask for fewer"
                )
    raise AssertionError


def _draw(rng: np.random.Generator, size: int, draw: int) -> np.ndarray:
    return rng.choice(size, min(draw, size), replace=False)


def _best_of(languages, sides, vectors, best: int, neighbours: int) -> Iterator[MinedPair]:
    k = min(neighbours, *map(len, vectors))
    scores, rows, columns = csls_pairs(
        vectors[0], vectors[1], min(best, len(vectors[0]) * len(vectors[1])), k
    )
    cosines = (vectors[0][rows] * vectors[1][columns]).sum(axis=1)
    for score, cosine, row, column in zip(scores, cosines, rows, columns, strict=True):
        yield MinedPair(
            float(score), float(cosine), languages, (int(sides[0][row]), int(sides[1][column]))
        )


def precision(
    pairs: Sequence[MinedPair], texts: Mapping[str, Lines], gold: frozenset[tuple[str, str]]
) -> float:
    """Share of true pairs among the pairs with a sentence that occurs in the true pairs; NaN
    without any such pair.
    """
    known = {sentence for pair in gold for sentence in pair}
    judged = right = 0
    for pair in pairs:
        one, other = (
            texts[language][at] for language, at in zip(pair.languages, pair.sentences, strict=True)
        )
        judged += one in known or other in known
        right += (one, other) in gold or (other, one) in gold
    return right / judged if judged else float("nan")
