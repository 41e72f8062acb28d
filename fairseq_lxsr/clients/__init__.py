"""Classes for other tools, each imported when it is asked for, with the tool itself.

    from fairseq_lxsr.clients import LangChainEmbeddings

All embed with a model folder, or a model of this package by its name, to vectors of length one; a
text that is longer than the model reads is read to its end. A model is loaded once a process.
"""

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.vectors.rows import FloatArray

DEFAULT = "lxsr-static"
CLASSES = {  # their modules, and the package of the tool
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
    """Return the folder whose lxsr.json is a filter of OpusCleaner: `opuscleaner-clean --filters
    FOLDER/*.json`.
    """
    return Path(__file__).parent


@cache
def cached_encoder(model: str) -> "SentenceEncoder":
    """Load a model once a process."""
    from fairseq_lxsr.encoder import SentenceEncoder

    return SentenceEncoder.from_pretrained(model)


def unit_vectors(model: str, texts: list[str], dimensions: int | None = None) -> "FloatArray":
    """Embed texts: float32 [N, D], or the first `dimensions` of them, of length one."""
    return cached_encoder(str(model)).encode(
        texts, normalize=True, truncate_dim=dimensions, on_long="split-mean"
    )
