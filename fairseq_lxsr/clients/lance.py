"""The embedding function for LanceDB."""

from typing import Any

from lancedb.embeddings import TextEmbeddingFunction, register

from fairseq_lxsr.clients import DEFAULT, cached_encoder, unit_vectors


@register("fairseq-lxsr")
class LanceEmbeddingFunction(TextEmbeddingFunction):
    """Embeds for LanceDB, which stores the options with a table.

        function = LanceEmbeddingFunction.create(model="lxsr-static")

    Attributes:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    model: str = DEFAULT
    dimensions: int | None = None

    def generate_embeddings(self, texts: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Embed texts."""
        return list(unit_vectors(self.model, texts, self.dimensions))

    def ndims(self) -> int:
        """Return the dimension of an embedding."""
        return self.dimensions or cached_encoder(self.model).output_dim
