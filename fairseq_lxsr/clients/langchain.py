"""Embeddings class for LangChain."""

from langchain_core.embeddings import Embeddings

from fairseq_lxsr.clients.shared import DEFAULT, unit_vectors


class LangChainEmbeddings(Embeddings):
    """Embeddings class for LangChain and its vector stores.

        store = InMemoryVectorStore(LangChainEmbeddings())

    Args:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts.

        Args:
            texts: N texts.

        Returns:
            N lists of D numbers.
        """
        return unit_vectors(self.model, texts, self.dimensions).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query; queries and documents are encoded alike.

        Args:
            text: a query.

        Returns:
            A list of D numbers.
        """
        return self.embed_documents([text])[0]
