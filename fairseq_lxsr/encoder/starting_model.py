"""Loads models without layers, to continue training from them.

Their embeddings are weighted sums of word piece embeddings, so new word pieces can be added.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import WEIGHTS_FILE
from fairseq_lxsr.encoder.numpy_network import TABLE
from fairseq_lxsr.errors import InputError, listed
from fairseq_lxsr.text.data_folder import find_dictionary
from fairseq_lxsr.text.languages import is_same_language, split_pair
from fairseq_lxsr.text.tokenizer import MASK, read_dictionary

# Maps safetensors types of stored embeddings to values of `lxsr export folder --dtype`.
STORED_DTYPES = {"F16": "float16", "BF16": "bfloat16", "I8": "int8", "U8": "int4"}


def open_starting_model(model: str | Path) -> SentenceEncoder:
    """Load the model that training continues from, in any weight precision.

    Args:
        model: name, folder or URL (see `SentenceEncoder.from_pretrained`).

    Raises:
        InputError: if `SentenceEncoder.from_pretrained` rejects the model, the model has layers, or
            its embeddings are not weighted sums of word piece embeddings.

    Example:
        >>> open_starting_model("lxsr-static").size.embed_dim
        256
    """
    encoder = SentenceEncoder.from_pretrained(model, device="cpu")
    if not getattr(encoder.size, "is_bag", False):
        raise InputError(f"{model} has layers; use a model without layers (recipe best)")
    return encoder


def starting_options(model: str, data: Path) -> dict[str, bool | int | float | str]:
    """Return the fairseq-train options for continuing training from a model.

    Args:
        model: name, folder or URL (see `SentenceEncoder.from_pretrained`).
        data: data folder, prepared with the model's dictionary or an extension of that dictionary.

    Returns:
        Maps option names to the sizes of the model. If the dictionary has new word pieces,
        `frozen-pieces` is the number of old pieces, whose embeddings are not trained.

    Raises:
        InputError: if `open_starting_model` rejects the model, or the dictionary does not begin
            with the model's dictionary.
    """
    encoder = open_starting_model(model)
    symbols = read_dictionary(find_dictionary(data))
    old_count = count_old_symbols(encoder, symbols)
    training_options = encoder.config.get("training", {}).get("options") or {}
    return {
        "from-model": model,
        "encoder-embed-dim": encoder.size.embed_dim,
        "order-coefficients": encoder.size.order_coefficients,
        "max-positions": encoder.size.max_positions,
        "matryoshka": training_options.get("matryoshka") or False,
        "frozen-pieces": old_count if old_count < len(symbols) else False,
    }


def count_old_symbols(encoder: SentenceEncoder, symbols: Sequence[str]) -> int:
    """Count the dictionary symbols that a model already has, excluding <mask>.

    Args:
        encoder: the model to continue from.
        symbols: the new dictionary; it must begin with all symbols of the model.

    Raises:
        InputError: if the dictionary does not begin with the symbols of the model.
    """
    old_symbols = [symbol for symbol in encoder.tokenizer.symbols if symbol != MASK]
    if list(symbols[: len(old_symbols)]) != old_symbols:
        raise InputError(
            f"{encoder.folder}: the data's {len(symbols):,} symbols do not start with the model's "
            f"{len(old_symbols):,}; prepare the data with `lxsr prepare --from-model "
            f"{encoder.folder}`"
        )
    return len(old_symbols)


def trained_pairs(encoder: SentenceEncoder) -> str:
    """Return the language pairs that a model was trained on, in `--lang-pairs` format.

    The string is empty if the model folder does not list them.
    """
    training = encoder.config.get("training", {})
    return training.get("lang_pairs") or ",".join(training.get("pairs") or ())


def stored_dtype(encoder: SentenceEncoder) -> str:
    """Return the type of the stored embeddings of a model, such as int4.

    For sentence-transformers folders, the result is always `float32`.

    Args:
        encoder: the model, loaded from a folder.
    """
    path = (encoder.folder or Path()) / WEIGHTS_FILE
    if not path.is_file():
        return "float32"
    with safe_open(path, "np") as weights:
        names = set(weights.keys())
        if TABLE not in names:
            return "float32"
        return STORED_DTYPES.get(weights.get_slice(TABLE).get_dtype(), "float32")


def new_languages(encoder: SentenceEncoder, pairs: list[str], model: str | Path) -> list[str]:
    """Return the languages that a model was not trained on, in the order of the pairs.

    A model that does not list its languages is assumed to be trained on the first language of each
    pair.

    Args:
        encoder: the model to continue from.
        pairs: language pairs SRC-TGT.
        model: name of the model, for messages.

    Raises:
        InputError: if both languages of a pair are new.
    """
    first_languages = dict.fromkeys(split_pair(pair)[0] for pair in pairs)
    old_languages = encoder.languages or list(first_languages)
    new: dict[str, None] = {}
    for pair in pairs:
        new_sides = [side for side in split_pair(pair) if not _is_among(side, old_languages)]
        if len(new_sides) == 2:
            raise InputError(
                f"{pair}: {model} was trained on neither language; use a pair with one of "
                f"{listed(old_languages)}"
            )
        new |= dict.fromkeys(new_sides)
    return list(new)


def _is_among(language: str, languages: Sequence[str]) -> bool:
    return any(is_same_language(language, candidate) for candidate in languages)
