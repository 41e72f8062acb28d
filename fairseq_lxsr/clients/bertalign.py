"""The encoder for Bertalign, which aligns the sentences of two documents."""

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from fairseq_lxsr.clients import DEFAULT
from fairseq_lxsr.embeddings import Text, load
from fairseq_lxsr.vectors.rows import unit_rows


class BertalignEncoder:
    """Embeds for Bertalign and what is derived from it: `encode` of a SentenceTransformer.

    Args:
        model: any encoder by its name, as for `embeddings.load`.
    """

    def __init__(self, model: str = DEFAULT):
        self.encoder = load(model)

    def encode(self, sentences: Sequence[str], **options: Any) -> Any:
        """Embed sentences, float32 [N, D], of length one, as Bertalign takes products for cosines;
        no option counts.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        return unit_rows(self.encoder.embed(Text(list(sentences))))


def bertalign_with(model: str = DEFAULT) -> ModuleType:
    """Import Bertalign 1.1 with a model of yours.

        aligner = bertalign_with("work/en-fr/model").Bertalign(source, target, is_split=True)

    It loads LaBSE when it is imported, has no option for another model, and asks a server for the
    languages, which only its splitter of sentences needs: the text must be split, a sentence a
    line.
    """
    import sentence_transformers

    encoder = BertalignEncoder(model)
    for unused in ("googletrans", "sentence_splitter"):
        sys.modules.setdefault(unused, mock.MagicMock())
    with mock.patch.object(sentence_transformers, "SentenceTransformer", return_value=encoder):
        aligner = importlib.import_module("bertalign.aligner")
    aligner.detect_lang = lambda text: "en"  # type: ignore[attr-defined]  # for its messages alone
    return aligner
