"""Components for pipelines of Haystack."""

from dataclasses import replace

from haystack import Document, component

from fairseq_lxsr.clients import DEFAULT, unit_vectors


@component
class HaystackTextEmbedder:
    """Embeds a query in a pipeline of Haystack.

        HaystackTextEmbedder().run("a dog")["embedding"]

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Return the embedding of a text."""
        return {"embedding": unit_vectors(self.model, [text], self.dimensions)[0].tolist()}


@component
class HaystackDocumentEmbedder:
    """Embeds documents in a pipeline of Haystack.

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model = model
        self.dimensions = dimensions

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents with embeddings; zeros for a document without content."""
        texts = [document.content or "" for document in documents]
        rows = unit_vectors(self.model, texts, self.dimensions).tolist()
        embedded = []
        for document, row in zip(documents, rows, strict=True):
            embedded.append(replace(document, embedding=row))
        return {"documents": embedded}
