"""Embedding class for LlamaIndex."""

from llama_index.core.embeddings import BaseEmbedding

from fairseq_lxsr.clients.shared import DEFAULT, unit_vectors


class LlamaIndexEmbedding(BaseEmbedding):
    """Embedding class for LlamaIndex.

        Settings.embed_model = LlamaIndexEmbedding(model_name="lxsr-static")

    Attributes:
        model_name: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    model_name: str = DEFAULT
    dimensions: int | None = None

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return unit_vectors(self.model_name, texts, self.dimensions).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)
