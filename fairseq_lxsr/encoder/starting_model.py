"""Models that training goes on from: without layers, so that an embedding is a weighted sum of rows
of the table.
"""

from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.text.data_folder import find_dictionary
from fairseq_lxsr.text.languages import is_same_language, split_pair, split_pairs
from fairseq_lxsr.text.tokenizer import MASK, read_dictionary


def open_starting_model(model: str | Path) -> SentenceEncoder:
    """Open a model to go on from, stored in any precision; `model` as for
    `SentenceEncoder.from_pretrained`.

    Raises:
        InputError: as there, and for a model with layers, or without the mean of plain rows.

    Example:
        >>> open_starting_model("lxsr-static").size.embed_dim
        256
    """
    encoder = SentenceEncoder.from_pretrained(model, device="cpu")
    if not getattr(encoder.size, "is_bag", False):
        raise InputError(
            f"{model}: a model with layers; expected one without (recipe best), whose rows add up"
        )
    return encoder


def starting_options(model: str, data: Path) -> dict[str, bool | int | float | str]:
    """Return the options of fairseq-train with which it goes on from a model, as of a recipe.

    These are the sizes that the model has and, where the data folder has pieces more than it, the
    number of its own, which are kept.
    """
    encoder = open_starting_model(model)
    symbols = read_dictionary(find_dictionary(data))
    own = count_old_symbols(encoder, symbols)
    trained = encoder.config.get("training", {}).get("options") or {}
    return {
        "from-model": model,
        "encoder-embed-dim": encoder.size.embed_dim,
        "order-coefficients": encoder.size.order_coefficients,
        "max-positions": encoder.size.max_positions,
        "matryoshka": trained.get("matryoshka") or False,
        "frozen-pieces": own if own < len(symbols) else False,
    }


def count_old_symbols(encoder: SentenceEncoder, symbols: Sequence[str]) -> int:
    """Return how many entries of a dictionary, without <mask>, are those of a model: the first
    ones, all it has.
    """
    own = [symbol for symbol in encoder.tokenizer.symbols if symbol != MASK]
    if list(symbols[: len(own)]) != own:
        raise InputError(
            f"{encoder.folder}: its {len(own):,} symbols are not the first of the {len(symbols):,} of the data; "
            f"expected text that was prepared with lxsr prepare --from-model {encoder.folder}"
        )
    return len(own)


def trained_pairs(encoder: SentenceEncoder) -> str:
    """Return the language pairs that a model was trained on, as `--lang-pairs`; empty where its
    folder does not say.
    """
    training = encoder.config.get("training", {})
    return training.get("lang_pairs") or ",".join(training.get("pairs") or ())


def new_languages(encoder: SentenceEncoder, pairs: list[str], model: str | Path) -> list[str]:
    """List the languages of pairs SRC-TGT that a model lacks, each of which must be paired with one
    that it has.

    A model that does not say its languages has the first of each pair.
    """
    trained = trained_pairs(encoder)
    known = (
        [side for pair in split_pairs(trained, distinct=False) for side in pair] if trained else []
    )
    known = list(dict.fromkeys(known or (split_pair(pair)[0] for pair in pairs)))
    found: dict[str, None] = {}
    for pair in pairs:
        new = [
            side
            for side in split_pair(pair)
            if not any(is_same_language(side, other) for other in known)
        ]
        if len(new) == 2:
            raise InputError(
                f"{pair}: {model} has neither of these languages; expected one of {', '.join(known)}"
            )
        found |= dict.fromkeys(new)
    return list(found)
