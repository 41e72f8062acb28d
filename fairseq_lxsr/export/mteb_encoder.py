"""Adapts a model folder to mteb 2: `mteb.evaluate(MtebEncoder.from_pretrained("model"), tasks)`."""

from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model, name_of
from fairseq_lxsr.text.languages import parse_tag, script_of
from fairseq_lxsr.vectors.rows import unit_rows


class MtebEncoder:
    """An encoder for mteb, which implements its `EncoderProtocol`.

    Use it for mteb tasks that `lxsr eval` does not support. mteb itself is imported only for the
    description of the model.

        mteb.evaluate(MtebEncoder.from_pretrained("model"), mteb.get_tasks(["Tatoeba"]))

    To load the model by its name in mteb, as `mteb.get_model("ORG/NAME")`, register its
    description:

        meta = MtebEncoder.from_pretrained("hub:ORG/NAME").mteb_model_meta
        mteb.models.model_implementations.MODEL_REGISTRY[meta.name] = meta

    Args:
        encoder: encoder of the sentences.
        name: model name in results, in the form `organisation/model`.
    """

    def __init__(self, encoder: SentenceEncoder, name: str = "fairseq-lxsr/model"):
        self.encoder = encoder
        self.name = name

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | None = None) -> "MtebEncoder":
        """Load a model; its name is used as the model name in the results.

        Args:
            folder: model folder, or the name of a model in this package or on a hub.
            device: device to run on; see `SentenceEncoder.from_pretrained`.

        Returns:
            The encoder for mteb.
        """
        folder = find_model(folder)
        encoder = SentenceEncoder.from_pretrained(folder, device)
        name = name_of(folder)
        if "/" not in name:
            name = f"fairseq-lxsr/{name}"
        return cls(encoder, name)

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
        """Compute the cosine similarities of all pairs: [N, D], [M, D] -> [N, M].

        Args:
            embeddings1: embeddings [N, D].
            embeddings2: embeddings [M, D].

        Returns:
            Cosines, float32 [N, M].
        """
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Compute the cosine similarities of aligned pairs: [N, D], [N, D] -> [N].

        Args:
            embeddings1: embeddings [N, D].
            embeddings2: embeddings [N, D].

        Returns:
            Cosines, float32 [N].
        """
        return np.einsum("nd,nd->n", _unit(embeddings1), _unit(embeddings2))

    @cached_property
    def mteb_model_meta(self):
        """Description of the model for mteb (`ModelMeta`), with its fingerprint as the revision.

        It loads the model again from its folder, if mteb asks for it.
        """
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        parameters = self.encoder.parameters
        is_static = getattr(self.encoder.size, "is_bag", False)
        values = {
            "name": self.name,
            "revision": self.encoder.fingerprint,
            "languages": _mteb_languages(self.encoder.languages),
            "embed_dim": self.encoder.output_dim,
            "max_tokens": self.encoder.max_seq_length,
            "n_parameters": parameters,
            "n_embedding_parameters": parameters if is_static else None,
            "open_weights": True,
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": False,
            "framework": ["NumPy" if is_static else "PyTorch"],
        }
        if self.encoder.folder is not None:
            values["loader"] = partial(load_mteb_encoder, self.encoder.folder, self.name)
        return ModelMeta.create_empty(values)


def load_mteb_encoder(
    folder: Path,
    name: str,
    mteb_name: str,
    revision: str | None = None,
    device: str | None = None,
    **options: Any,
) -> MtebEncoder:
    """Load the model that mteb asks for by its name; its other options are ignored."""
    return MtebEncoder(SentenceEncoder.from_pretrained(folder, device), name)


def _mteb_languages(languages: Iterable[str]) -> list[str] | None:
    """Return the codes of languages in mteb, such as `eng-Latn`; None if there are no languages.

    mteb uses several codes for some languages, such as `ara` and `arb`. All of them are listed.
    """
    from mteb.languages import ISO_TO_LANGUAGE

    scripts = {}
    for language in languages:
        tag = parse_tag(language)
        scripts[tag] = script_of(tag)
    codes = []
    for code in ISO_TO_LANGUAGE:
        script = scripts.get(parse_tag(code))
        if script:
            codes.append(f"{code}-{script}")
    return sorted(codes) or None


def _unit(embeddings: Any) -> np.ndarray:
    """Scale one or more embeddings to unit length; a zero vector stays zero."""
    return unit_rows(np.atleast_2d(np.asarray(embeddings, dtype=np.float32)))
