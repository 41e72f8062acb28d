"""Lightweight cross-lingual sentence representations: train with fairseq, use without it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SentenceEncoder", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because torch takes seconds to load.
    if name == "SentenceEncoder":
        from fairseq_lxsr.encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
