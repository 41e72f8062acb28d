"""Encoder for Bertalign, a tool that aligns the sentences of two documents."""

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

from fairseq_lxsr.clients.shared import DEFAULT
from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.errors import check_text_list
from fairseq_lxsr.vectors.rows import unit_rows

_load_once = cache(load)


class BertalignEncoder:
    """Replacement for the `SentenceTransformer` in Bertalign and derived tools.

    Models of other libraries handle long texts in their own way.

    Args:
        model: name of any encoder; see `embeddings.load`.
    """

    def __init__(self, model: str = DEFAULT):
        self.encoder = _load_once(model)

    def encode(self, sentences: Sequence[str], **options: Any) -> Any:
        """Compute unit-length embeddings, because Bertalign uses dot products as cosines.

        Args:
            sentences: N sentences, or a single sentence.
            **options: ignored.

        Returns:
            float32 embeddings [N, D]; [D] for a single sentence. An empty sentence gives zeros.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        check_text_list("sentences", sentences)
        return unit_rows(self.encoder.embed(Text(list(sentences))))


def bertalign_with(model: str = DEFAULT) -> ModuleType:
    """Import Bertalign 1.1 with a given model instead of LaBSE.

        aligner = bertalign_with("work/en-fr/model").Bertalign(source, target, is_split=True)

    Bertalign has no model option, and detects languages through an online service. Only its
    sentence splitter needs the languages, so here the text must have one sentence per line.

    Args:
        model: name of any encoder; see `embeddings.load`.

    Returns:
        The module `bertalign.aligner`.
    """
    import sentence_transformers

    encoder = BertalignEncoder(model)
    for unused in ("googletrans", "sentence_splitter"):
        sys.modules.setdefault(unused, mock.MagicMock())
    with mock.patch.object(sentence_transformers, "SentenceTransformer", return_value=encoder):
        aligner = importlib.import_module("bertalign.aligner")
    # Bertalign uses the language only in printed messages.
    aligner.detect_lang = lambda text: "en"  # type: ignore[attr-defined]
    return aligner
