"""The filter for OpusFilter: the cosine of a pair.

In its configuration:

    - LxsrFilter: {model: /path/to/model, threshold: 0.5}
      module: fairseq_lxsr.clients.opusfilter
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from opusfilter import CLEAN_HIGH, FilterABC

from fairseq_lxsr.clients import DEFAULT, unit_vectors

PAIRS_AT_ONCE = 1024  # pairs encoded together


class LxsrFilter(FilterABC):
    """Scores a pair by the cosine of its two sentences.

    Args:
        model: folder or name of the model.
        threshold: least cosine of an accepted pair.
    """

    score_direction = CLEAN_HIGH
    accept_threshold = -1 - 10**-6
    reject_threshold = 1 + 10**-6

    def __init__(self, model: str = DEFAULT, threshold: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.model, self.threshold = model, threshold

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
        """Score whole chunks; the methods of the base class score pair by pair."""
        remaining = iter(pairs)
        while chunk := list(islice(remaining, PAIRS_AT_ONCE)):
            yield from zip(chunk, map(self.accept, self.score(chunk)), strict=True)
