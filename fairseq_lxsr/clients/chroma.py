"""The embedding function for Chroma."""

from typing import Any

from chromadb import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from fairseq_lxsr.clients import DEFAULT, unit_vectors


@register_embedding_function
class ChromaEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeds for Chroma, which stores the options with a collection.

        client.create_collection("notes", embedding_function=ChromaEmbeddingFunction())

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def __call__(self, input: Documents) -> Embeddings:
        return list(unit_vectors(self.model, input, self.dimensions))

    @staticmethod
    def name() -> str:
        """Return the name of the function, which Chroma stores with a collection."""
        return "fairseq-lxsr"

    def default_space(self) -> Any:
        """Return the default similarity of a collection."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Return the options, which Chroma stores with a collection."""
        return {"model": self.model, "dimensions": self.dimensions}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "ChromaEmbeddingFunction":
        """Create the function from stored options."""
        return ChromaEmbeddingFunction(**config)
