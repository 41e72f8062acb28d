"""OpusFilter filter that scores a sentence pair by cosine similarity.

In an OpusFilter configuration:

    - LxsrFilter: {model: /path/to/model, threshold: 0.5}
      module: fairseq_lxsr.clients.opusfilter
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from opusfilter import CLEAN_HIGH, FilterABC

from fairseq_lxsr.clients.shared import DEFAULT, unit_vectors

# Number of pairs to encode in one batch.
PAIRS_AT_ONCE = 1024


class LxsrFilter(FilterABC):
    """Filter that keeps a pair if the cosine similarity of its sentences reaches a threshold.

    Args:
        model: model folder or model name.
        threshold: minimum cosine similarity of an accepted pair.
        **kwargs: options that all OpusFilter filters accept.
    """

    score_direction = CLEAN_HIGH
    accept_threshold = -1 - 10**-6
    reject_threshold = 1 + 10**-6

    def __init__(self, model: str = DEFAULT, threshold: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.model = model
        self.threshold = threshold

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
        """Score pairs.

        Args:
            pairs: source and target sentences.

        Yields:
            The cosine similarity of each pair, or 0 if a side is empty.
        """
        remaining = iter(pairs)
        while chunk := list(islice(remaining, PAIRS_AT_ONCE)):
            source, target = (
                unit_vectors(self.model, list(side)) for side in zip(*chunk, strict=True)
            )
            yield from (source * target).sum(axis=1).tolist()

    def accept(self, score: float) -> bool:
        """Return whether a score is at least the threshold."""
        return score >= self.threshold

    def filter(self, pairs):
        """Yield the accepted pairs."""
        return (pair for pair, accepted in self._decided(pairs) if accepted)

    def filterfalse(self, pairs):
        """Yield the rejected pairs."""
        return (pair for pair, accepted in self._decided(pairs) if not accepted)

    def _decided(self, pairs):
        """Yield each pair, and whether it is accepted. Pairs are scored in batches."""
        remaining = iter(pairs)
        while chunk := list(islice(remaining, PAIRS_AT_ONCE)):
            yield from zip(chunk, map(self.accept, self.score(chunk)), strict=True)
