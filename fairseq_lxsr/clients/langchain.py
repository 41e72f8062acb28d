"""The embeddings class for LangChain."""

from langchain_core.embeddings import Embeddings

from fairseq_lxsr.clients import DEFAULT, unit_vectors


class LangChainEmbeddings(Embeddings):
    """Embeds for LangChain and its vector stores.

        store = InMemoryVectorStore(LangChainEmbeddings())

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts."""
        return unit_vectors(self.model, texts, self.dimensions).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query, in the same way as other texts."""
        return self.embed_documents([text])[0]
