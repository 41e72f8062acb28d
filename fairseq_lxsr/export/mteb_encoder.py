"""Adapts a model folder to mteb 2: `mteb.evaluate(MtebEncoder.from_pretrained("model"), tasks)`."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.vectors.rows import unit_rows


class MtebEncoder:
    """An encoder for mteb, which implements its `EncoderProtocol`.

    Use it for mteb tasks that `lxsr eval` does not support; `lxsr eval` also writes its own scores
    in mteb's formats. mteb itself is imported only for the description of the model.

        mteb.evaluate(MtebEncoder.from_pretrained("model"), mteb.get_tasks(["Tatoeba"]))

    Args:
        encoder: encoder of the sentences.
        name: model name in results, in the form `organisation/model`.
    """

    def __init__(self, encoder: SentenceEncoder, name: str = "fairseq-lxsr/model"):
        self.encoder = encoder
        self.name = name

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | None = None) -> "MtebEncoder":
        """Load a model folder; its name is used as the model name in the results.

        Args:
            folder: model folder, or the name of a model.
            device: device to run on; see `SentenceEncoder.from_pretrained`.
        """
        folder = find_model(folder)
        encoder = SentenceEncoder.from_pretrained(folder, device)
        return cls(encoder, f"fairseq-lxsr/{folder.resolve().name}")

    def encode(self, inputs: Any, *, batch_size: int = 256, **options: Any) -> np.ndarray:
        """Embed batches of sentences; prompts and other options of mteb are ignored.

        Args:
            inputs (Iterable): batches `{"text": [...]}` with N sentences in all.
            batch_size: number of sentences encoded together.
            **options (Any): only `show_progress_bar` is used.

        Returns:
            float32 embeddings [N, D].
        """
        sentences = [sentence for batch in inputs for sentence in batch["text"]]
        return self.encoder.encode(
            sentences, batch_size, show_progress=options.get("show_progress_bar", False)
        )

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compute the cosine similarities of all pairs: [N, D], [M, D] -> [N, M]."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compute the cosine similarities of aligned pairs: [N, D], [N, D] -> [N]."""
        return np.einsum("nd,nd->n", _unit(embeddings1), _unit(embeddings2))

    @cached_property
    def mteb_model_meta(self):
        """Description of the model for mteb, with its fingerprint as the revision."""
        from mteb.models import ModelMeta

        values = {
            "name": self.name,
            "revision": self.encoder.fingerprint,
            "embed_dim": self.encoder.output_dim,
            "max_tokens": self.encoder.max_seq_length,
            "n_parameters": self.encoder.parameters,
            "similarity_fn_name": "cosine",
            "use_instructions": False,
            "framework": ["PyTorch"],
        }
        return ModelMeta.create_empty(values)


def _unit(embeddings: Any) -> np.ndarray:
    """Scale one or more embeddings to unit length; a zero vector stays zero."""
    return unit_rows(np.atleast_2d(np.asarray(embeddings, dtype=np.float32)))
