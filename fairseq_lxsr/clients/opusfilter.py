"""A filter for OpusFilter that scores a pair by its cosine similarity.

In the configuration of OpusFilter:

    - LxsrFilter: {model: /path/to/model, threshold: 0.5}
      module: fairseq_lxsr.clients.opusfilter
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from opusfilter import CLEAN_HIGH, FilterABC

from fairseq_lxsr.clients import DEFAULT, unit_vectors

# Number of pairs that are encoded together
PAIRS_AT_ONCE = 1024


class LxsrFilter(FilterABC):
    """Scores a pair by the cosine similarity of its two sentences.

    Args:
        model: folder or name of the model.
        threshold: smallest cosine similarity of an accepted pair.
        **kwargs: options of every filter of OpusFilter.
    """

    score_direction = CLEAN_HIGH
    accept_threshold = -1 - 10**-6
    reject_threshold = 1 + 10**-6

    def __init__(self, model: str = DEFAULT, threshold: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.model = model
        self.threshold = threshold

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
        remaining = iter(pairs)
        while chunk := list(islice(remaining, PAIRS_AT_ONCE)):
            source, target = (
                unit_vectors(self.model, list(side)) for side in zip(*chunk, strict=True)
            )
            yield from (source * target).sum(axis=1).tolist()

    def accept(self, score: float) -> bool:
        return score >= self.threshold

    def filter(self, pairs):
        return (pair for pair, accepted in self._decided(pairs) if accepted)

    def filterfalse(self, pairs):
        return (pair for pair, accepted in self._decided(pairs) if not accepted)

    def _decided(self, pairs):
        """Score pairs in chunks; the methods of the base class would score them one by one."""
        remaining = iter(pairs)
        while chunk := list(islice(remaining, PAIRS_AT_ONCE)):
            yield from zip(chunk, map(self.accept, self.score(chunk)), strict=True)
