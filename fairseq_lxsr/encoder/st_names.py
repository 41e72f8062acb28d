"""Names that sentence-transformers has for what a `SentenceEncoder` does: habits and code for it go
on to work.
"""

import shutil
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as arrays

from fairseq_lxsr.encoder.model_folder import (
    CARD_FILE,
    CONFIG_FILE,
    DICTIONARY_FILE,
    MODEL_FILES,
    write_folder,
)
from fairseq_lxsr.encoder.sentence_transformers_folder import of_sentence_transformers, text_files
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require
from fairseq_lxsr.text.tokenizer import Tokenizer
from fairseq_lxsr.vectors.rows import FloatArray, unit_rows

OWN_NAMES = {"sentences": "texts", "inputs": "texts", "normalize_embeddings": "normalize"}
OWN_NAMES["show_progress_bar"] = "show_progress"
SWITCHES = ("normalize_embeddings", "show_progress_bar", "convert_to_numpy", "convert_to_tensor")
WITHOUT_EFFECT = {
    "prompt": None,
    "prompt_name": None,
    "output_value": "sentence_embedding",
    "pool": None,
}
WITHOUT_EFFECT |= {"chunk_size": None, "task": None}
PRECISIONS: dict[
    str, Callable[[FloatArray], np.ndarray]
] = {  # of `precision`, as `quantize_embeddings` has them
    "float32": lambda embeddings: embeddings,
    "float16": lambda embeddings: embeddings.astype(np.float16),
    "binary": lambda embeddings: (np.packbits(embeddings > 0, axis=1) - np.uint8(128)).view(
        np.int8
    ),
    "ubinary": lambda embeddings: np.packbits(embeddings > 0, axis=1),
}


def as_list(texts: Iterable[str]) -> list[str]:
    """Return texts of any iterable, an array of numpy or Arrow among them, as a list.

    Raises:
        InputError: naming by its index what is no text, as None and NaN of a table.
    """
    convert = getattr(texts, "tolist", None) or getattr(texts, "to_pylist", None)
    found = convert() if convert else list(texts)
    if not isinstance(found, list):
        raise InputError(f"texts is {shown(texts)}; expected texts")
    kinds = set(map(type, found))
    if not all(issubclass(kind, str) for kind in kinds):
        row = next(row for row, text in enumerate(found) if not isinstance(text, str))
        raise InputError(
            f"texts[{row}] is {shown(found[row])}; expected a text: leave it out, or write ''"
        )
    return found


def with_names_of_st(encode: Callable[..., FloatArray]) -> Callable[..., np.ndarray]:
    """Let `encode` take one text too, which gives [D], and the options of sentence-transformers by
    their names.
    """

    @wraps(encode)
    def encode_with_names(self: Any, *arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in [*options] if name in ACCEPTED}
        options |= own_options(given, options, bool(arguments))
        if not arguments and "texts" in options:
            arguments = (options.pop("texts"),)
        is_one = bool(arguments) and isinstance(arguments[0], str)
        embeddings: Any = (
            encode(self, [arguments[0]], *arguments[1:], **options)
            if is_one
            else encode(self, *arguments, **options)
        )
        for name in ("precision", "output_dtype"):
            embeddings = PRECISIONS[given.get(name) or "float32"](embeddings)
        if given.get("convert_to_tensor") or given.get("convert_to_numpy") is False:
            require("torch", "torch", "a tensor")
            import torch

            tensors = torch.from_numpy(embeddings)
            embeddings = tensors if given.get("convert_to_tensor") else list(tensors)
        return embeddings[0] if is_one else embeddings

    return encode_with_names


ACCEPTED = {*OWN_NAMES, *SWITCHES, *WITHOUT_EFFECT, "precision", "output_dtype"}


def own_options(given: dict[str, Any], options: dict[str, Any], has_texts: bool) -> dict[str, Any]:
    """Check options of sentence-transformers, and return them under our names."""
    for name, value in given.items():
        if name in SWITCHES and not (
            isinstance(value, bool | np.bool_) or (value is None and name == "show_progress_bar")
        ):
            raise InputError(f"{name} {shown(value)}; expected True or False")
        if name in WITHOUT_EFFECT and value != WITHOUT_EFFECT[name]:
            raise InputError(
                f"{name} {shown(value)}; expected {WITHOUT_EFFECT[name]!r}, as this model has no other"
            )
        if name in ("precision", "output_dtype") and value not in (None, *PRECISIONS):
            advice = (
                "; for bytes see lxsr embed --output-dtype int8" if "int8" in str(value) else ""
            )
            raise InputError(
                f"{name} {shown(value)}; expected one of {', '.join(PRECISIONS)}{advice}"
            )
    if given.get("precision") and given.get("output_dtype"):
        raise InputError("output_dtype beside precision; expected one of the two")
    found: dict[str, Any] = {}
    for name, own in OWN_NAMES.items():
        if name not in given:
            continue
        if own in options or own in found or (own == "texts" and has_texts):
            raise InputError(f"{name} beside {own}; expected one of the two")
        found[own] = bool(given[name]) if name in SWITCHES else given[name]
    return found


class NamesOfST:
    """What sentence-transformers names otherwise, or has beside `encode`."""

    tokenizer: Tokenizer
    folder: Path | None
    untrained: bool
    _max_seq_length: int | None = None

    def encode_query(self, texts: Any, *arguments: Any, **options: Any) -> Any:
        """Do what `encode` does: queries and documents are not told apart."""
        return self.encode(texts, *arguments, **options)  # type: ignore[attr-defined]

    encode_document = encode_query

    def similarity(self, first: Any, second: Any) -> FloatArray:
        """Compute the cosines of all pairs.

            encoder.similarity(encoder.encode(queries), encoder.encode(documents))

        Args:
            first: embeddings [N, D] or one [D].
            second: embeddings [M, D] or one [D].

        Returns:
            float32 [N, M]; 0 for an embedding of zeros.
        """
        one, two = _unit_rows(first, "first"), _unit_rows(second, "second")
        if one.shape[1] != two.shape[1]:
            raise InputError(
                f"embeddings of width {one.shape[1]} and of width {two.shape[1]}; expected one width"
            )
        return one @ two.T

    def similarity_pairwise(self, first: Any, second: Any) -> FloatArray:
        """Compute the cosine of each row with the same row of the other: [N, D], [N, D] -> [N]."""
        one, two = _unit_rows(first, "first"), _unit_rows(second, "second")
        if one.shape != two.shape:
            raise InputError(
                f"embeddings of shape {one.shape} and of shape {two.shape}; expected the same"
            )
        return np.einsum("nd,nd->n", one, two)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the width D of an embedding."""
        return self.output_dim  # type: ignore[attr-defined]

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts: str | Iterable[str]) -> dict[str, np.ndarray]:
        """Split texts into the pieces that `encode` reads.

        Returns:
            `input_ids`, ids of the dictionary, int64 [N, longest], and `attention_mask`, 1 where a
            text has a piece.
        """
        sentences = as_list([texts] if isinstance(texts, str) else texts)
        ids, lengths = self.split(sentences)  # type: ignore[attr-defined]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        rows = np.full(mask.shape, self.size.padding_idx, dtype=np.int64)  # type: ignore[attr-defined]
        rows[mask] = ids
        return {"input_ids": rows, "attention_mask": mask.astype(np.int64)}

    @property
    def max_seq_length(self) -> int | None:
        """Pieces of a text that are read, at most those that the model was trained with; None for
        no limit.
        """
        return self._max_seq_length or self.size.max_positions or None  # type: ignore[attr-defined]

    @max_seq_length.setter
    def max_seq_length(self, pieces: int | None) -> None:
        most = self.size.max_positions or None  # type: ignore[attr-defined]
        if pieces is not None and (
            type(pieces) is not int or pieces < 1 or (most and pieces > most)
        ):
            limit = f"1 to {most}" if most else "1 or more"
            raise InputError(
                f"max_seq_length {shown(pieces)}; expected {limit}, or None for all that the model reads"
            )
        self._max_seq_length = None if pieces == most else pieces

    def save(self, folder: str | Path) -> None:
        """Copy the model folder, or write one of a folder of sentence-transformers.

        `lxsr export sentence-transformers` writes one for that library.

        Raises:
            InputError: for a model of random weights, and where `folder` is no model folder that
                may be replaced.
        """
        if self.folder is None or self.untrained:
            raise InputError("a model of random weights has no folder to copy; save a trained one")
        if of_sentence_transformers(self.folder):
            config: dict[str, Any] = self.config  # type: ignore[attr-defined]
            description = {
                name: config[name] for name in ("architecture", "encoder", "text", "training")
            }
            texts = text_files(self.folder, self.tokenizer)
            write_folder(folder, texts, description, partial(arrays.save, self.weights))  # type: ignore[attr-defined]
            return
        with atomic_folder(folder, CONFIG_FILE, DICTIONARY_FILE, sign='"format_version"') as work:
            for name in (*MODEL_FILES, CARD_FILE):
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, work / name)

    save_pretrained = save

    def __repr__(self) -> str:
        training = self.config.get("training") or {}  # type: ignore[attr-defined]
        pairs = [*(training.get("pairs") or {}), *(training.get("lang_pairs") or "").split(",")]
        languages = sorted(
            {language for pair in pairs for language in pair.strip().split("-") if language}
        )
        name = "untrained" if self.untrained else self.folder.name if self.folder else "no folder"
        sizes = f"{self.output_dim} wide, {self.size.vocab_size:,} pieces, {self.parameters:,} parameters"  # type: ignore[attr-defined]
        return f"SentenceEncoder({name!r}: {' '.join(languages) or 'languages unknown'}; {sizes})"


def _unit_rows(embeddings: Any, name: str) -> FloatArray:
    rows = np.atleast_2d(np.asarray(embeddings))
    if rows.ndim != 2:
        raise InputError(f"{name} embeddings of shape {rows.shape}; expected [N, D] or [D]")
    if rows.dtype.itemsize == 1:
        raise InputError(
            f"{name} embeddings are {rows.dtype}; expected floating-point numbers, not codes"
        )
    return unit_rows(rows, name=f"{name} embeddings")
