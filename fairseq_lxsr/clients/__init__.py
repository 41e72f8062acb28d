"""Adapters for other libraries; each class imports its library when it is first used.

    from fairseq_lxsr.clients import LangChainEmbeddings

Each class accepts a model folder or a model name. Embeddings have unit length, except that an empty
text, or one without a known word, gives zeros. A text that exceeds the length limit of the model is
truncated, with a warning. A model is loaded once per process and shared by all instances of a
class.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError

if TYPE_CHECKING:
    from fairseq_lxsr.clients.bertalign import BertalignEncoder
    from fairseq_lxsr.clients.chroma import ChromaEmbeddingFunction
    from fairseq_lxsr.clients.haystack import HaystackDocumentEmbedder, HaystackTextEmbedder
    from fairseq_lxsr.clients.lance import LanceEmbeddingFunction
    from fairseq_lxsr.clients.langchain import LangChainEmbeddings
    from fairseq_lxsr.clients.llama_index import LlamaIndexEmbedding
    from fairseq_lxsr.clients.opusfilter import LxsrFilter
    from fairseq_lxsr.clients.sklearn import SentenceVectors

# Module of each adapter class, and PyPI package of the library it adapts.
CLASSES = {
    "BertalignEncoder": ("bertalign", "bertalign"),
    "ChromaEmbeddingFunction": ("chroma", "chromadb"),
    "HaystackDocumentEmbedder": ("haystack", "haystack-ai"),
    "HaystackTextEmbedder": ("haystack", "haystack-ai"),
    "LanceEmbeddingFunction": ("lance", "lancedb"),
    "LangChainEmbeddings": ("langchain", "langchain-core"),
    "LlamaIndexEmbedding": ("llama_index", "llama-index-core"),
    "LxsrFilter": ("opusfilter", "opusfilter"),
    "SentenceVectors": ("sklearn", "scikit-learn"),
}
__all__ = [
    "BertalignEncoder",
    "ChromaEmbeddingFunction",
    "HaystackDocumentEmbedder",
    "HaystackTextEmbedder",
    "LanceEmbeddingFunction",
    "LangChainEmbeddings",
    "LlamaIndexEmbedding",
    "LxsrFilter",
    "SentenceVectors",
    "filters_of_opuscleaner",
]


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; choose from {', '.join(CLASSES)}"
        )
    module, package = CLASSES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fairseq_lxsr"):
            raise
        raise InputError(
            f"{name} needs {error.name}, which is not installed: pip install {package}"
        ) from None


def filters_of_opuscleaner() -> Path:
    """Return the folder to pass to `opuscleaner-clean --filters FOLDER/*.json`.

    Returns:
        The folder.
    """
    return Path(__file__).parent
