"""sentence-transformers options and methods for `SentenceEncoder`.

They let code written for sentence-transformers run unchanged.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from safetensors import numpy as arrays

from fairseq_lxsr.encoder.model_folder import (
    CARD_FILES,
    CONFIG_FILE,
    DICTIONARY_FILE,
    MODEL_FILES,
    write_folder,
)
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    is_sentence_transformers_folder,
    text_files,
)
from fairseq_lxsr.errors import InputError, check_strings, check_text_list, shown
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require
from fairseq_lxsr.modules.sizes import piece_limit
from fairseq_lxsr.text.tokenizer import Tokenizer
from fairseq_lxsr.vectors.rows import FloatArray, unit_rows

# Maps sentence-transformers options to the corresponding `encode` options.
OPTION_NAMES = {
    "sentences": "texts",
    "inputs": "texts",
    "normalize_embeddings": "normalize",
    "show_progress_bar": "show_progress",
}
SWITCHES = ("normalize_embeddings", "show_progress_bar", "convert_to_numpy", "convert_to_tensor")
# Options that these models cannot change, each with its only accepted value.
FIXED_OPTIONS = {
    "prompt": None,
    "prompt_name": None,
    "output_value": "sentence_embedding",
    "pool": None,
    "chunk_size": None,
    "task": None,
}
PRECISION_OPTIONS = ("precision", "output_dtype")
ACCEPTED = {*OPTION_NAMES, *SWITCHES, *FIXED_OPTIONS, *PRECISION_OPTIONS}


class LibraryOptions(TypedDict, total=False):
    """Options of sentence-transformers that `encode` accepts."""

    normalize_embeddings: bool
    show_progress_bar: bool | None
    precision: str | None
    output_dtype: str | None
    prompt: None
    prompt_name: None
    output_value: str
    pool: None
    chunk_size: None
    task: None


class EncodeOptions(LibraryOptions, total=False):
    """All options of `encode`: those of this package, and those of sentence-transformers."""

    device: str | None
    dtype: str
    normalize: bool
    truncate_dim: int | None
    show_progress: bool
    on_long: str
    counts: Counter[str] | None


def _binary(embeddings: FloatArray) -> np.ndarray:
    codes = np.packbits(embeddings > 0, axis=1)
    return (codes - np.uint8(128)).view(np.int8)


# Conversions for each `precision`, equivalent to `quantize_embeddings` of sentence-transformers.
PRECISIONS: dict[str, Callable[[FloatArray], np.ndarray]] = {
    "float32": lambda embeddings: embeddings,
    "float16": lambda embeddings: embeddings.astype(np.float16),
    "binary": _binary,
    "ubinary": lambda embeddings: np.packbits(embeddings > 0, axis=1),
}


def as_list(texts: Iterable[str]) -> list[str]:
    """Return texts as a list.

    Args:
        texts: any iterable of strings, such as a NumPy array, a pandas Series or an Arrow array.

    Raises:
        InputError: if an element is not a string, such as None or NaN from a table (the message
            contains its index), or if `texts` is a table, a mapping, a set or a single string.
    """
    check_text_list("texts", texts)
    convert = getattr(texts, "tolist", None) or getattr(texts, "to_pylist", None)
    text_list = convert() if convert else list(texts)
    if not isinstance(text_list, list):
        raise InputError(f"texts is {shown(texts)}; expected a sequence of strings")
    check_strings("texts", text_list)
    return text_list


def accept_sentence_transformers_options(
    encode: Callable[..., FloatArray],
) -> Callable[..., Any]:
    """Decorator that lets `encode` also accept a single text and sentence-transformers options.

    For a single text, the result is one embedding [D] instead of [N, D].
    """

    @wraps(encode)
    def encode_with_options(self: Any, *arguments: Any, **options: Any) -> Any:
        library_options = {}
        for name in list(options):
            if name in ACCEPTED:
                library_options[name] = options.pop(name)
        _check_options(library_options)
        options |= _translate_options(library_options, options, has_texts=bool(arguments))
        if not arguments and "texts" in options:
            arguments = (options.pop("texts"),)

        is_single = bool(arguments) and isinstance(arguments[0], str)
        if is_single:
            arguments = ([arguments[0]], *arguments[1:])
        embeddings = _convert(encode(self, *arguments, **options), library_options)
        return embeddings[0] if is_single else embeddings

    return encode_with_options


def _check_options(library_options: dict[str, Any]) -> None:
    """Check the values of sentence-transformers options."""
    for name, value in library_options.items():
        if name in SWITCHES:
            _check_switch(name, value)
        elif name in FIXED_OPTIONS:
            if value != FIXED_OPTIONS[name]:
                advice = "omit it"
                if FIXED_OPTIONS[name] is not None:
                    advice = f"this model only supports {FIXED_OPTIONS[name]!r}"
                raise InputError(f"{name} {shown(value)} is not supported; {advice}")
        elif name in PRECISION_OPTIONS:
            _check_precision(name, value)
    if library_options.get("precision") and library_options.get("output_dtype"):
        raise InputError("output_dtype and precision are both set; use only one")


def _check_switch(name: str, value: Any) -> None:
    # If show_progress_bar is None, sentence-transformers decides by the log level.
    if name == "show_progress_bar" and value is None:
        return
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}; expected True or False")


def _check_precision(name: str, value: Any) -> None:
    if value in (None, *PRECISIONS):
        return
    message = f"invalid {name} {shown(value)}; choose from {', '.join(PRECISIONS)}"
    if "int8" in str(value):
        message += ": for int8 codes, use `lxsr embed --output-dtype int8`"
    raise InputError(message)


def _translate_options(
    library_options: dict[str, Any], options: dict[str, Any], has_texts: bool
) -> dict[str, Any]:
    """Translate sentence-transformers options to the corresponding `encode` options.

    Args:
        library_options: sentence-transformers options, already checked.
        options: other options of the call, under their names in `encode`.
        has_texts: whether the texts were passed as a positional argument.

    Raises:
        InputError: if an option is given under both names.
    """
    translated: dict[str, Any] = {}
    for library_name, name in OPTION_NAMES.items():
        if library_name not in library_options:
            continue
        if name in options or name in translated or (name == "texts" and has_texts):
            raise InputError(f"{library_name} and {name} are both set; use only one")
        value = library_options[library_name]
        if library_name in SWITCHES:
            value = bool(value)
        translated[name] = value
    return translated


def _convert(embeddings: FloatArray, library_options: dict[str, Any]) -> Any:
    """Convert embeddings [N, D] to the requested precision, and to tensors if requested."""
    converted: Any = embeddings
    for name in PRECISION_OPTIONS:
        converted = PRECISIONS[library_options.get(name) or "float32"](converted)
    as_tensor = library_options.get("convert_to_tensor")
    if not as_tensor and library_options.get("convert_to_numpy") is not False:
        return converted
    require("torch", "torch", "a tensor")
    import torch

    tensor = torch.from_numpy(converted)
    return tensor if as_tensor else list(tensor)


class SentenceTransformersMethods:
    """Methods and properties of sentence-transformers models, except for `encode`."""

    tokenizer: Tokenizer
    folder: Path | None
    untrained: bool
    _max_seq_length: int | None = None

    def encode_query(self, texts: Any, *arguments: Any, **options: Any) -> Any:
        """Like `encode`, because queries and documents are encoded in the same way.

            queries = encoder.encode_query(["sleeping animals"])
            documents = encoder.encode_document(["The dog sleeps.", "It rains."])
            nearest = encoder.similarity(queries, documents).argmax(axis=1)

        Args:
            texts: N sentences, or a single sentence.
            *arguments (Any): additional arguments of `encode`.
            **options (Any): additional options of `encode`.

        Returns:
            Embeddings, float32 [N, D]; [D] for a single sentence.

        Raises:
            InputError: see `encode`.
        """
        return self.encode(texts, *arguments, **options)  # type: ignore[attr-defined]

    encode_document = encode_query

    @property
    def languages(self) -> list[str]:
        """Languages of the training text, as sorted codes such as `en`.

        The list is empty if the languages are unknown. Embeddings of text in other languages are of
        little use.
        """
        training = self.config.get("training") or {}  # type: ignore[attr-defined]
        pairs = list(training.get("pairs") or {})
        pairs += (training.get("lang_pairs") or "").split(",")
        languages = set()
        for pair in pairs:
            languages.update(pair.strip().split("-"))
        return sorted(languages - {""})

    def similarity(self, first: Any, second: Any) -> FloatArray:
        """Return the cosine similarities between all pairs of rows.

            queries = encoder.encode(["A dog.", "A cat."])
            documents = encoder.encode(["Le chien dort.", "Le chat dort.", "Il pleut."])
            nearest = encoder.similarity(queries, documents).argmax(axis=1)

        Args:
            first: embeddings [N, D], or a single embedding [D].
            second: embeddings [M, D], or a single embedding [D].

        Returns:
            Similarities, float32 [N, M]. The similarity to a zero embedding is 0.

        Raises:
            InputError: if the widths differ, or an embedding contains NaN or infinity.
        """
        first_rows = _unit_rows(first, "first")
        second_rows = _unit_rows(second, "second")
        if first_rows.shape[1] != second_rows.shape[1]:
            raise InputError(
                f"embedding widths {first_rows.shape[1]} and {second_rows.shape[1]} do not match"
            )
        return first_rows @ second_rows.T

    def similarity_pairwise(self, first: Any, second: Any) -> FloatArray:
        """Return the cosine similarity of each pair of corresponding rows.

            english = encoder.encode(["The dog sleeps.", "It rains."])
            french = encoder.encode(["Le chien dort.", "Il pleut."])
            scores = encoder.similarity_pairwise(english, french)

        Args:
            first: embeddings [N, D].
            second: embeddings [N, D].

        Returns:
            Similarities, float32 [N]. The similarity to a zero embedding is 0.

        Raises:
            InputError: if the shapes differ, or an embedding contains NaN or infinity.
        """
        first_rows = _unit_rows(first, "first")
        second_rows = _unit_rows(second, "second")
        if first_rows.shape != second_rows.shape:
            raise InputError(
                f"embedding shapes {first_rows.shape} and {second_rows.shape} do not match"
            )
        return np.einsum("nd,nd->n", first_rows, second_rows)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the embedding width D."""
        return self.output_dim  # type: ignore[attr-defined]

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts: str | Iterable[str]) -> dict[str, np.ndarray]:
        """Split texts into the word pieces that `encode` uses.

        Args:
            texts: N sentences, or a single sentence.

        Returns:
            Dictionary with the dictionary ids as `input_ids`, int64 [N, pieces of the longest
            text], and `attention_mask`, int64 of the same shape, 1 for pieces and 0 for padding.

        Raises:
            InputError: if a text is not a string.
        """
        sentences = as_list([texts] if isinstance(texts, str) else texts)
        ids, lengths = self.split(sentences)  # type: ignore[attr-defined]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        padding = self.size.padding_idx  # type: ignore[attr-defined]
        rows = np.full(mask.shape, padding, dtype=np.int64)
        rows[mask] = ids
        return {"input_ids": rows, "attention_mask": mask.astype(np.int64)}

    @property
    def max_seq_length(self) -> int | None:
        """Maximum number of word pieces per sentence in `encode`.

        It is None if there is no limit, for example for models without layers.

        Set a smaller value to truncate long sentences earlier, or None to restore the model's
        limit. Other values raise `InputError`.
        """
        return self._max_seq_length or piece_limit(self.size)  # type: ignore[attr-defined]

    @max_seq_length.setter
    def max_seq_length(self, pieces: int | None) -> None:
        maximum = piece_limit(self.size)  # type: ignore[attr-defined]
        is_valid = pieces is None or (
            type(pieces) is int and pieces >= 1 and (maximum is None or pieces <= maximum)
        )
        if not is_valid:
            limits = f"1 to {maximum}" if maximum else "1 or more"
            raise InputError(
                f"max_seq_length is {shown(pieces)}; expected {limits}, or None for the model's "
                "limit"
            )
        self._max_seq_length = None if pieces == maximum else pieces

    def save(self, folder: str | Path) -> None:
        """Save the model as a model folder, which `from_pretrained` can load.

            encoder = SentenceEncoder.from_pretrained("lxsr-static")
            encoder.save("copy")
            same_encoder = SentenceEncoder.from_pretrained("copy")

        For a folder that sentence-transformers can load, use `lxsr export sentence-transformers`.

        Args:
            folder: output folder; an existing model folder is replaced.

        Raises:
            InputError: if the model has random weights, or `folder` exists and is not a model
                folder.
        """
        if self.folder is None or self.untrained:
            raise InputError("a model with random weights cannot be saved; load a trained model")
        if is_sentence_transformers_folder(self.folder):
            config: dict[str, Any] = self.config  # type: ignore[attr-defined]
            description = {
                name: config[name] for name in ("architecture", "encoder", "text", "training")
            }
            texts = text_files(self.folder, self.tokenizer)
            save_weights = partial(arrays.save, self.weights)  # type: ignore[attr-defined]
            write_folder(folder, texts, description, save_weights)
            return
        with atomic_folder(folder, CONFIG_FILE, DICTIONARY_FILE, sign='"format_version"') as work:
            for name in (*MODEL_FILES, *CARD_FILES):
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, work / name)

    save_pretrained = save

    def __repr__(self) -> str:
        if self.untrained:
            name = "untrained"
        elif self.folder:
            name = self.folder.name
        else:
            name = "no folder"
        languages = " ".join(self.languages) or "languages unknown"
        sizes = (
            f"{self.output_dim} wide, "  # type: ignore[attr-defined]
            f"{self.size.vocab_size:,} pieces, "  # type: ignore[attr-defined]
            f"{self.parameters:,} parameters"  # type: ignore[attr-defined]
        )
        return f"SentenceEncoder({name!r}: {languages}; {sizes})"


def _unit_rows(embeddings: Any, name: str) -> FloatArray:
    rows = np.atleast_2d(np.asarray(embeddings))
    if rows.dtype.kind in "US":
        raise InputError(
            f"{name} embeddings are text; expected vectors: pass encoder.encode(texts)"
        )
    if rows.ndim != 2:
        raise InputError(f"{name} embeddings have shape {rows.shape}; expected [N, D] or [D]")
    if rows.dtype.itemsize == 1:
        raise InputError(
            f"{name} embeddings have type {rows.dtype}; pass floating-point embeddings, not "
            "quantized codes"
        )
    return unit_rows(rows, name=f"{name} embeddings")
