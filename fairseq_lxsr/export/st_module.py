"""A sentence-transformers module for any encoder of this package.

Exported folders contain the import path of the class, so the class must not be moved.
"""

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
    is_sentence_transformers_folder,
    module_folder,
    normalizes,
    text_files,
)
from fairseq_lxsr.encoder.st_checksums import check_export
from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.text.tokenizer import TextOptions

# Options of `SentenceTransformer` that select files on a hub.
HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")


class SentenceModule(Module):
    """Computes the `sentence_embedding` [B, E] of sentences with a `SentenceEncoder`.

    Use it to train with sentence-transformers losses, and for encoders that no
    sentence-transformers module can represent.

        module = SentenceModule(SentenceEncoder.from_pretrained("model"))
        SentenceTransformer(modules=[module]).encode(["A dog."])

    Args:
        encoder: an encoder from a model folder; training changes its weights.

    Raises:
        InputError: if the encoder was not read from a folder.
    """

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        if encoder.folder is None:
            raise InputError(
                "the encoder has no folder; use an encoder from SentenceEncoder.from_pretrained"
            )
        self._encoder = encoder
        self.network = encoder.model
        self.tokenizer = encoder.tokenizer
        self.description = encoder.config
        # The files are kept in memory, because the folder may be gone when the module is saved.
        contents = text_files(encoder.folder, encoder.tokenizer)
        self.texts = dict(zip(TEXT_FILES, contents, strict=True))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "SentenceModule":
        """Load the module; `SentenceTransformer` calls this.

        Args:
            model_name_or_path: sentence-transformers folder, or its name on the hub.
            subfolder: module folder inside it.
            **options: options of `SentenceTransformer`; only hub options are used.

        Raises:
            InputError: for a backend other than torch.
        """
        backend = options.get("backend", "torch")
        if backend != "torch":
            raise InputError(
                f"unsupported backend {shown(backend)}; use torch, or `lxsr export onnx` for "
                "ONNX Runtime"
            )
        hub_options = {name: options[name] for name in HUB_OPTIONS if name in options}
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub_options)
        return cls(SentenceEncoder.from_pretrained(folder or subfolder, "cpu"))

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Write a model folder with float32 weights."""
        text = TextOptions(**self.description["text"])
        training = self.description["training"]
        with tempfile.TemporaryDirectory() as temporary:
            dictionary, pieces = (Path(temporary) / name for name in TEXT_FILES)
            for path in (dictionary, pieces):
                path.write_bytes(self.texts[path.name])
            save_folder(output_path, self.network, dictionary, pieces, text, training)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Tensor]:
        """Split sentences into word pieces, truncated to `max_seq_length` pieces.

        Args:
            inputs: the sentences [B].
            prompt: text to put before every sentence.
            **options: ignored.

        Returns:
            `input_ids` [B, T], padded at the end.
        """
        sentences = [(prompt or "") + text for text in inputs]
        pieces, lengths = self.tokenizer.encode_known(sentences)
        rows = np.split(pieces, lengths.cumsum()[:-1])
        lengths = np.minimum(lengths, self.max_seq_length).astype(int)
        tokens = np.full((len(rows), lengths.max(initial=0)), self.network.config.padding_idx)
        for row, ids, length in zip(tokens, rows, lengths, strict=True):
            row[:length] = ids[:length]
        return {"input_ids": torch.from_numpy(tokens)}

    # The name of this method in older versions of sentence-transformers.
    tokenize = preprocess

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add `sentence_embedding` [B, E] to the features; it is zero for an empty sentence.

        Args:
            features: `input_ids` [B, T] from `preprocess`.
            **options: ignored.

        Returns:
            The same dict.
        """
        tokens = features["input_ids"]
        padding = self.network.config.padding_idx
        # Networks need at least one position.
        tokens = torch.nn.functional.pad(tokens, (0, int(not tokens.shape[1])), value=padding)
        embeddings = self.network.embed_padded(tokens)
        has_pieces = tokens.ne(padding).any(dim=1, keepdim=True)
        features["sentence_embedding"] = torch.where(has_pieces, embeddings, 0)
        return features

    @property
    def max_seq_length(self) -> float:
        """Maximum number of pieces per sentence; infinity without a limit.

        It can be lowered, but not raised above the maximum of the model.
        """
        return self._encoder.max_seq_length or math.inf

    @max_seq_length.setter
    def max_seq_length(self, pieces: int | None) -> None:
        self._encoder.max_seq_length = pieces

    def get_embedding_dimension(self) -> int:
        """Return E, the dimension of an embedding."""
        return self.network.config.output_dim

    # The name of this method in older versions of sentence-transformers.
    get_sentence_embedding_dimension = get_embedding_dimension


def load_sentence_transformer(folder: str | Path, device: str | None = None) -> SentenceTransformer:
    """Load a model of this package as a `SentenceTransformer`, without `trust_remote_code`.

        model = load_sentence_transformer("lxsr-static")
        model.encode(["A dog."])

    Args:
        folder: model folder, name or URL of a model as for `SentenceEncoder.from_pretrained`,
            or a folder that `SentenceTransformer.save` wrote.
        device: device to run on; see `SentenceTransformer`.
    """
    folder = find_model(folder)
    if is_sentence_transformers_folder(folder):
        check_export(folder)
    encoder = SentenceEncoder.from_pretrained(module_folder(folder), "cpu")
    modules: list[Any] = [SentenceModule(encoder)]
    if is_sentence_transformers_folder(folder) and normalizes(folder):
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device=device)
