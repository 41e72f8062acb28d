"""An encoder for Bertalign, which aligns the sentences of two documents."""

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from fairseq_lxsr.clients import DEFAULT
from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.errors import check_text_list
from fairseq_lxsr.vectors.rows import unit_rows


class BertalignEncoder:
    """Embeds for Bertalign and its derivatives, which call `encode` of a SentenceTransformer.

    Args:
        model: name of any encoder, see `embeddings.load`.
    """

    def __init__(self, model: str = DEFAULT):
        self.encoder = load(model)

    def encode(self, sentences: Sequence[str], **options: Any) -> Any:
        """Embed sentences with unit length, because Bertalign takes dot products for cosines.

        Args:
            sentences: the sentences [N], or one sentence.
            **options: ignored.

        Returns:
            float32 embeddings [N, D]; [D] for one sentence.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        check_text_list("sentences", sentences)
        return unit_rows(self.encoder.embed(Text(list(sentences))))


def bertalign_with(model: str = DEFAULT) -> ModuleType:
    """Import Bertalign 1.1 with another model than LaBSE.

        aligner = bertalign_with("work/en-fr/model").Bertalign(source, target, is_split=True)

    Bertalign has no option for the model, and asks a server for the languages. Only its sentence
    splitter needs them, so the text must have one sentence per line.

    Args:
        model: name of any encoder, see `embeddings.load`.

    Returns:
        The module `bertalign.aligner`.
    """
    import sentence_transformers

    encoder = BertalignEncoder(model)
    for unused in ("googletrans", "sentence_splitter"):
        sys.modules.setdefault(unused, mock.MagicMock())
    with mock.patch.object(sentence_transformers, "SentenceTransformer", return_value=encoder):
        aligner = importlib.import_module("bertalign.aligner")
    # Only messages of Bertalign show the language.
    aligner.detect_lang = lambda text: "en"  # type: ignore[attr-defined]
    return aligner
