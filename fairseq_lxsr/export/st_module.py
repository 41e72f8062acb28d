"""Any of our encoders as a module of sentence-transformers, whose modules.json names the class by
its import path.
"""

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import TEXT_FILES
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    MODULES_FILE,
    is_sentence_transformers_folder,
    module_folder,
    text_files,
)
from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.text.tokenizer import TextOptions

HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")


class SentenceModule(Module):
    """From sentences to `sentence_embedding` [B, E], with the weights of a `SentenceEncoder`.

    For training with the losses of sentence-transformers, and for encoders that its own modules do
    not compute.

        module = SentenceModule(SentenceEncoder.from_pretrained("model"))
        SentenceTransformer(modules=[module]).encode(["A dog."])

    Args:
        encoder: an encoder of a model folder; training changes its weights.

    Raises:
        InputError: for an encoder that was not read from a folder.
    """

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        if encoder.folder is None:
            raise InputError(
                "an encoder without a folder; expected one of SentenceEncoder.from_pretrained"
            )
        self._encoder = encoder
        self.network, self.tokenizer, self.description = (
            encoder.model,
            encoder.tokenizer,
            encoder.config,
        )
        self.texts = dict(
            zip(TEXT_FILES, text_files(encoder.folder, encoder.tokenizer), strict=True)
        )

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "SentenceModule":
        """Load the module from a folder of sentence-transformers or its hub; called by
        `SentenceTransformer`.
        """
        known = {name: options[name] for name in HUB_OPTIONS if name in options}
        if (backend := options.get("backend", "torch")) != "torch":
            raise InputError(
                f"backend {shown(backend)}; expected torch: `lxsr export onnx` is for ONNX Runtime"
            )
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **known)
        return cls(SentenceEncoder.from_pretrained(folder or subfolder, "cpu"))

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Write a model folder with weights of float32."""
        config = self.description
        with tempfile.TemporaryDirectory() as temporary:
            dictionary, pieces = (Path(temporary) / name for name in TEXT_FILES)
            for path in (dictionary, pieces):
                path.write_bytes(self.texts[path.name])
            text = TextOptions(**config["text"])
            save_folder(output_path, self.network, dictionary, pieces, text, config["training"])

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Tensor]:
        """Split sentences into pieces: `input_ids` [B, T], padded at the end; the end of longer
        ones is cut.
        """
        pieces, lengths = self.tokenizer.encode_known([(prompt or "") + text for text in inputs])
        rows = np.split(pieces, lengths.cumsum()[:-1])
        lengths = np.minimum(lengths, self.max_seq_length).astype(int)
        tokens = np.full((len(rows), lengths.max(initial=0)), self.network.config.padding_idx)
        for row, ids, length in zip(tokens, rows, lengths, strict=True):
            row[:length] = ids[:length]
        return {"input_ids": torch.from_numpy(tokens)}

    tokenize = preprocess  # the older name

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add `sentence_embedding` [B, E] to the features; an empty sentence gives zeros."""
        tokens = features["input_ids"]
        padding = self.network.config.padding_idx
        # networks take at least one position
        tokens = torch.nn.functional.pad(tokens, (0, int(not tokens.shape[1])), value=padding)
        embeddings = self.network.embed_padded(tokens)
        features["sentence_embedding"] = torch.where(
            tokens.ne(padding).any(dim=1, keepdim=True), embeddings, 0
        )
        return features

    @property
    def max_seq_length(self) -> float:
        """Largest number of pieces, infinity where there is no limit; not more than the model was
        trained with.
        """
        return self._encoder.max_seq_length or math.inf

    @max_seq_length.setter
    def max_seq_length(self, pieces: int | None) -> None:
        self._encoder.max_seq_length = pieces

    def get_embedding_dimension(self) -> int:
        """Return E, the width of an embedding."""
        return self.network.config.output_dim

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name


def load_sentence_transformer(folder: str | Path, device: str | None = None) -> SentenceTransformer:
    """Load a model folder of ours, or what `SentenceTransformer.save` wrote of it, without
    `trust_remote_code`.

    Args:
        folder: model folder of `lxsr export folder`, its name or address as in
            `encoder.locate.find_model`, or a folder with the module in a sub-folder.
        device: as in `SentenceTransformer`.
    """
    folder = find_model(folder)
    encoder = SentenceEncoder.from_pretrained(module_folder(folder), "cpu")
    named = (
        json.loads((folder / MODULES_FILE).read_text("utf-8"))
        if is_sentence_transformers_folder(folder)
        else []
    )
    normalize = any(str(module.get("type", "")).endswith(".Normalize") for module in named)
    modules = [SentenceModule(encoder), *([Normalize()] if normalize else [])]
    return SentenceTransformer(modules=modules, device=device)
