"""The model that all adapters of a process share."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from fairseq_lxsr.errors import check_text_list

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.vectors.rows import FloatArray

DEFAULT = "lxsr-static"


@cache
def cached_encoder(model: str) -> "SentenceEncoder":
    """Load a model, or return the copy that this process has already loaded."""
    from fairseq_lxsr.encoder import SentenceEncoder

    return SentenceEncoder.from_pretrained(model)


def unit_vectors(model: str, texts: Iterable[str], dimensions: int | None = None) -> "FloatArray":
    """Compute unit-length embeddings of texts, like `SentenceEncoder.encode`.

    Args:
        model: model folder or model name.
        texts: N texts.
        dimensions: number of leading dimensions to keep; None keeps all.

    Returns:
        float32 embeddings [N, D].

    Raises:
        InputError: if the texts are a single string, a table, a mapping or a set.
    """
    check_text_list("texts", texts)
    return cached_encoder(str(model)).encode(texts, normalize=True, truncate_dim=dimensions)
