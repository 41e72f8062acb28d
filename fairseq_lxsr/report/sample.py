"""Positions of some sentences and their translations on a map."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.vectors.rows import FloatArray

# Maximum number of sentence pairs on a map.
MAP_PAIRS = 150
MIN_PAIRS = 10


@dataclass(frozen=True)
class Sample:
    """Sentence pairs of one text, as shown on the page.

    Attributes:
        languages: names of the source and target languages.
        pairs: number of sentence pairs in the text.
        sentences: P source sentences and their P translations.
        positions: positions [2 P, 2] of the source sentences, followed by the translations.
    """

    languages: tuple[str, str]
    pairs: int
    sentences: tuple[Sequence[str], Sequence[str]]
    positions: FloatArray


def sample_rows(rows: Sequence[int], path: str) -> list[int]:
    """Select at most `MAP_PAIRS` rows, spread evenly over a text.

    Args:
        rows: indices of the rows that can be shown.
        path: file name, for the error message.

    Raises:
        InputError: if there are too few rows.
    """
    if len(rows) < MIN_PAIRS:
        raise InputError(
            f"{path}: {len(rows)} sentence pairs; expected at least {MIN_PAIRS} for a report: add "
            "more text"
        )
    spread = np.linspace(0, len(rows) - 1, min(len(rows), MAP_PAIRS))
    return [rows[index] for index in spread.astype(int)]


def measure_sample(
    sentences: tuple[Sequence[str], Sequence[str]],
    embeddings: tuple[FloatArray, FloatArray],
    languages: tuple[str, str],
    pairs: int,
) -> Sample:
    """Compute the positions of sentence pairs on a map.

    Args:
        sentences: P source sentences and their P translations.
        embeddings: embeddings [P, D] of the source sentences and of the translations.
        languages: names of the source and target languages.
        pairs: number of sentence pairs in the text from which these were selected.
    """
    from sklearn.manifold import TSNE

    vectors = np.concatenate(embeddings)
    # t-SNE (van der Maaten and Hinton 2008).
    projection = TSNE(
        metric="cosine",
        init="random",
        perplexity=min(20, (len(vectors) - 1) / 3),
        random_state=1,
    )
    return Sample(languages, pairs, sentences, projection.fit_transform(vectors))
