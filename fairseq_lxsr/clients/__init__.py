"""Classes for other tools; each is imported with its tool when it is first used.

    from fairseq_lxsr.clients import LangChainEmbeddings

All take a model folder or the name of a model, and return embeddings of unit length. A text that is
longer than the model reads is split, and its embedding is the mean of the parts. A model is loaded
once per process.
"""

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError, check_text_list

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.vectors.rows import FloatArray

DEFAULT = "lxsr-static"
# The module of each class, and the package of its tool
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
__all__ = [*CLASSES, "filters_of_opuscleaner"]


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; expected one of {', '.join(CLASSES)}"
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
    """Return the folder of the filter for `opuscleaner-clean --filters FOLDER/*.json`."""
    return Path(__file__).parent


@cache
def cached_encoder(model: str) -> "SentenceEncoder":
    """Load a model, once per process."""
    from fairseq_lxsr.encoder import SentenceEncoder

    return SentenceEncoder.from_pretrained(model)


def unit_vectors(model: str, texts: Iterable[str], dimensions: int | None = None) -> "FloatArray":
    """Embed texts with unit length.

    Args:
        model: folder or name of the model.
        texts: the texts [N].
        dimensions: number of leading dimensions to keep; None keeps all.

    Returns:
        float32 embeddings [N, D].

    Raises:
        InputError: the texts are a single string, a table, a mapping or a set.
    """
    check_text_list("texts", texts)
    return cached_encoder(str(model)).encode(
        texts, normalize=True, truncate_dim=dimensions, on_long="split-mean"
    )
