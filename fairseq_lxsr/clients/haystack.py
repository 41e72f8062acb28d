"""Haystack pipeline components."""

from dataclasses import replace

from haystack import Document, component

from fairseq_lxsr.clients.shared import DEFAULT, unit_vectors


@component
class HaystackTextEmbedder:
    """Haystack component that embeds a query.

        HaystackTextEmbedder().run("a dog")["embedding"]

    Args:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a text.

        Args:
            text: a query.

        Returns:
            A dictionary with `embedding`, D numbers.
        """
        return {"embedding": unit_vectors(self.model, [text], self.dimensions)[0].tolist()}


@component
class HaystackDocumentEmbedder:
    """Haystack component that embeds documents.

    Args:
        model: model folder or model name.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Embed documents.

        Args:
            documents: N documents.

        Returns:
            A dictionary with `documents`: copies of the documents, with embeddings. The embedding
            of a document without content consists of zeros.
        """
        texts = [document.content or "" for document in documents]
        rows = unit_vectors(self.model, texts, self.dimensions).tolist()
        embedded = []
        for document, row in zip(documents, rows, strict=True):
            embedded.append(replace(document, embedding=row))
        return {"documents": embedded}
