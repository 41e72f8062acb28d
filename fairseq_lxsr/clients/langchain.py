"""The class for LangChain."""

from langchain_core.embeddings import Embeddings

from fairseq_lxsr.clients import DEFAULT, unit_vectors


class LangChainEmbeddings(Embeddings):
    """Embeds for LangChain: `InMemoryVectorStore(LangChainEmbeddings())`, or any other vector
    store.

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model, self.dimensions = model, dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts."""
        return unit_vectors(self.model, texts, self.dimensions).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed one text, as any other."""
        return self.embed_documents([text])[0]
