"""Embedding function for LanceDB."""

from typing import Any

from lancedb.embeddings import TextEmbeddingFunction, register

from fairseq_lxsr.clients.shared import DEFAULT, cached_encoder, unit_vectors


@register("fairseq-lxsr")
class LanceEmbeddingFunction(TextEmbeddingFunction):
    """Embedding function for LanceDB, which stores its options with each table.

        function = LanceEmbeddingFunction.create(model="lxsr-static")

    Attributes:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    model: str = DEFAULT
    dimensions: int | None = None

    def generate_embeddings(self, texts: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Embed texts.

        Args:
            texts: N texts.
            *args (Any): ignored.
            **kwargs (Any): ignored.

        Returns:
            N float32 embeddings [D].
        """
        return list(unit_vectors(self.model, texts, self.dimensions))

    def ndims(self) -> int:
        """Return the width D of an embedding.

        Returns:
            The width.
        """
        return self.dimensions or cached_encoder(self.model).output_dim
