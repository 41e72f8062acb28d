"""Embedding function for Chroma."""

from typing import Any

from chromadb import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from fairseq_lxsr.clients.shared import DEFAULT, unit_vectors


@register_embedding_function
class ChromaEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embedding function for Chroma, which stores its options with each collection.

        client.create_collection("notes", embedding_function=ChromaEmbeddingFunction())

    Args:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def __call__(self, input: Documents) -> Embeddings:
        """Embed documents.

        Args:
            input: N texts.

        Returns:
            N float32 embeddings [D].
        """
        return list(unit_vectors(self.model, input, self.dimensions))

    @staticmethod
    def name() -> str:
        """Return the name under which Chroma registers this function.

        Returns:
            The name.
        """
        return "fairseq-lxsr"

    def default_space(self) -> Any:
        """Return `cosine`, the default similarity of new collections.

        Returns:
            The similarity.
        """
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Return the options that Chroma stores with a collection, as a dictionary.

        Returns:
            The options by name.
        """
        return {"model": self.model, "dimensions": self.dimensions}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "ChromaEmbeddingFunction":
        """Create the function from the result of `get_config`.

        Args:
            config: options by name.

        Returns:
            The function.
        """
        return ChromaEmbeddingFunction(**config)
