"""The components for Haystack."""

from dataclasses import replace

from haystack import Document, component

from fairseq_lxsr.clients import DEFAULT, unit_vectors


@component
class HaystackTextEmbedder:
    """Embeds a query in a pipeline of Haystack: `HaystackTextEmbedder().run("a dog")["embedding"]`.

    Args:
        model: folder or name of the model.
        dimensions: number of leading dimensions to keep; None keeps all.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model, self.dimensions = model, dimensions

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a text."""
        return {"embedding": unit_vectors(self.model, [text], self.dimensions)[0].tolist()}


@component
class HaystackDocumentEmbedder:
    """Embeds documents in a pipeline of Haystack; its options are those of
    `HaystackTextEmbedder`.
    """

    def __init__(self, model: str = DEFAULT, dimensions: int | None = None):
        self.model, self.dimensions = model, dimensions

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents with embeddings; one without content has zeros."""
        rows = unit_vectors(
            self.model, [document.content or "" for document in documents], self.dimensions
        ).tolist()
        return {
            "documents": [
                replace(one, embedding=row) for one, row in zip(documents, rows, strict=True)
            ]
        }
