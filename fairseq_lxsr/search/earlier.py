"""Indexes of earlier versions, whose vectors may cover only the beginnings of long texts."""

import logging
from typing import Any

import numpy as np

from fairseq_lxsr.search.corpus import CorpusIndex
from fairseq_lxsr.search.index_folder import WHOLE_TEXTS

logger = logging.getLogger(__name__)
# Maximum number of sentences to check in an index.
SAMPLE = 10_000


def warn_if_cut(index: CorpusIndex, encoder: Any) -> None:
    """Warn if the index was built by a version that embedded only the beginnings of long texts.

    Models without layers now embed whole texts. Earlier versions embedded only the first
    `max_positions` word pieces, so a long text and the same query have different vectors.

    Args:
        index: index to check.
        encoder: encoder of the queries: a `SentenceEncoder`, or an encoder from `embeddings.load`.
    """
    while not hasattr(encoder, "tokenizer") and hasattr(encoder, "encoder"):
        encoder = encoder.encoder
    size: Any = getattr(encoder, "size", None)
    if index.config.get(WHOLE_TEXTS) or not getattr(size, "is_bag", False):
        return
    rows = np.unique(np.linspace(0, len(index) - 1, SAMPLE).astype(np.int64))
    # A word piece has at least one character.
    texts = [text for _, text in index.sentences(rows).values() if len(text) > size.max_positions]
    lengths = encoder.tokenizer.encode_known(texts)[1]
    count = int((lengths > size.max_positions).sum())
    if count:
        logger.warning(
            "%s: the index was built by an earlier version, which embedded only the first %s word "
            "pieces of each text; %s of %s texts are longer: build the index again",
            index.folder,
            size.max_positions,
            f"{count:,}",
            f"{len(rows):,}",
        )
