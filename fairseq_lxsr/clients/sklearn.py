"""The transformer for scikit-learn."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from fairseq_lxsr.clients import DEFAULT, cached_encoder, unit_vectors


class SentenceVectors(TransformerMixin, BaseEstimator):
    """Embeds sentences in a pipeline; a classifier trained on one language then works in others.

        classifier = make_pipeline(SentenceVectors(), LogisticRegression())

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def fit(self, X: Any = None, y: Any = None) -> "SentenceVectors":  # noqa: N803 -- as scikit-learn has it
        """Return the object itself, as there is nothing to learn."""
        return self

    def transform(self, X: Iterable[str]) -> Any:  # noqa: N803
        """Embed N sentences as [N, D]."""
        return unit_vectors(self.model, X, self.dimensions)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the D columns."""
        width = self.dimensions or cached_encoder(self.model).output_dim
        return np.array([f"sentencevectors{column}" for column in range(width)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True
