"""Sentence embedding transformer for scikit-learn."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from fairseq_lxsr.clients.shared import DEFAULT, cached_encoder, unit_vectors


class SentenceVectors(TransformerMixin, BaseEstimator):
    """Scikit-learn transformer that computes sentence embeddings.

    A classifier trained on embeddings of one language can be applied to other languages.

        classifier = make_pipeline(SentenceVectors(), LogisticRegression())

    Args:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def fit(self, X: Any = None, y: Any = None) -> "SentenceVectors":  # noqa: N803 -- name in scikit-learn
        """Do nothing except return the transformer itself, because the model is already trained.

        Args:
            X: ignored.
            y: ignored.

        Returns:
            The transformer.
        """
        return self

    def transform(self, X: Iterable[str]) -> Any:  # noqa: N803
        """Embed sentences.

        Args:
            X: N sentences.

        Returns:
            float32 embeddings [N, D].
        """
        return unit_vectors(self.model, X, self.dimensions)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the column names, such as `sentencevectors0`.

        Args:
            input_features: ignored.

        Returns:
            An array of D strings.
        """
        width = self.dimensions or cached_encoder(self.model).output_dim
        return np.array([f"sentencevectors{column}" for column in range(width)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True
