"""Adapts a model folder to mteb 2: `mteb.evaluate(MtebEncoder.from_pretrained("model"), tasks)`."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.vectors.rows import unit_rows


class MtebEncoder:
    """Implements mteb's `EncoderProtocol`; mteb itself is imported only for the model description.

    For tasks of mteb beyond this package's protocols, whose scores `lxsr eval` also gives in mteb's
    forms.

        mteb.evaluate(MtebEncoder.from_pretrained("model"), mteb.get_tasks(["Tatoeba"]))

    Args:
        encoder: encoder of the sentences.
        name: name of the model in results, as `organisation/model`.
    """

    def __init__(self, encoder: SentenceEncoder, name: str = "fairseq-lxsr/model"):
        self.encoder, self.name = encoder, name

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | None = None) -> "MtebEncoder":
        """Load a model folder; results bear its name."""
        folder = find_model(folder)
        return cls(
            SentenceEncoder.from_pretrained(folder, device), f"fairseq-lxsr/{folder.resolve().name}"
        )

    def encode(self, inputs, *, batch_size: int = 256, **options) -> np.ndarray:
        """Embed batches of {"text": [...]} to float32 [N, D]; prompts and mteb's other options are
        ignored.
        """
        sentences = [sentence for batch in inputs for sentence in batch["text"]]
        return self.encoder.encode(
            sentences, batch_size, show_progress=options.get("show_progress_bar", False)
        )

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compute the cosine of all pairs: [N, D], [M, D] -> [N, M]."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compute the cosine of aligned pairs: [N, D], [N, D] -> [N]."""
        return np.einsum("nd,nd->n", _unit(embeddings1), _unit(embeddings2))

    @cached_property
    def mteb_model_meta(self):
        """mteb's description of the model, with the fingerprint as its revision."""
        from mteb.models import ModelMeta

        known = {
            "name": self.name,
            "revision": self.encoder.fingerprint,
            "embed_dim": self.encoder.output_dim,
        }
        known |= {
            "max_tokens": self.encoder.size.max_positions,
            "n_parameters": self.encoder.parameters,
        }
        about = {
            "similarity_fn_name": "cosine",
            "use_instructions": False,
            "framework": ["PyTorch"],
        }
        return ModelMeta.create_empty(known | about)


def _unit(embeddings: Any) -> np.ndarray:
    """Scale one vector or many, as array or tensor, to length one; zero vectors stay zero."""
    return unit_rows(np.atleast_2d(np.asarray(embeddings, dtype=np.float32)))
