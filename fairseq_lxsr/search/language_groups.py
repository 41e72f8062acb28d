"""Groups the candidates of a query by their language.

A query shares many pieces with texts in its own language, and with texts in another language only
similar pieces: `dog` has cosine 1 with itself, and about 0.6 with `chien`. So in a collection of
several languages, unrelated texts in the language of the query would be ranked above the answer in
another language. Rankings therefore compare each candidate with others in its language.
"""

from functools import cached_property

import numpy as np

from fairseq_lxsr.vectors.rows import FloatArray, IntArray


class LanguageGroups:
    """Languages of W candidates.

        groups = LanguageGroups(np.array([17, 17, 22]))
        groups.largest(np.array([[0.5, 0.9, 0.6]]))  # [[0.9, 0.6]]

    Attributes:
        numbers: group of each candidate, from 0 [W].
        sizes: number of candidates in each group [G].

    Args:
        languages: language of each candidate, as any number [W].
    """

    def __init__(self, languages: IntArray):
        _, self.numbers, self.sizes = np.unique(languages, return_inverse=True, return_counts=True)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.sizes)

    @cached_property
    def _order(self) -> IntArray:
        return np.argsort(self.numbers, kind="stable")

    @cached_property
    def _starts(self) -> IntArray:
        return self.sizes.cumsum() - self.sizes

    def largest(self, values: FloatArray) -> FloatArray:
        """Return the largest value of each group [..., G] of values [..., W]."""
        return np.maximum.reduceat(values[..., self._order], self._starts, axis=-1)

    def means(self, values: FloatArray, prior: float) -> FloatArray:
        """Return the mean of each group [..., G] of values [..., W].

        Args:
            values: values of the candidates.
            prior: number of candidates that the mean of all candidates counts as, so that small
                groups are not estimated from few values.
        """
        sums = np.add.reduceat(values[..., self._order], self._starts, axis=-1)
        means = values.mean(axis=-1, keepdims=True)
        return (sums + prior * means) / (self.sizes + prior)
