"""Language pairs as the user writes them: the one parser of SRC-TGT and of lists of them."""

from fairseq_lxsr.errors import InputError


def split_pair(text: str) -> tuple[str, str]:
    """Split a language pair into its two languages.

    Args:
        text: SRC-TGT, for example `en-fr`; blanks around it do not matter.
    Raises:
        InputError: for anything else, and for a language paired with itself.
    """
    source, _, target = text.strip().partition("-")
    if not source or not target or "-" in target or source == target:
        raise InputError(f"{text.strip()!r}; expected SRC-TGT, for example en-fr")
    return source, target


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Split a list of language pairs with commas between them, for example `en-fr,en-de`.

    Raises:
        InputError: as `split_pair`, and for a pair that stands there twice.
    """
    pairs = [split_pair(name) for name in text.split(",")]
    for number, pair in enumerate(pairs):
        if pair in pairs[:number]:
            raise InputError(f"{'-'.join(pair)!r} stands twice in {text!r}; expected each pair once")
    return pairs
