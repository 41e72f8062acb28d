"""A small artificial corpus of two languages, which a model can learn."""

import gzip
import itertools
import random
from collections.abc import Iterable
from pathlib import Path

NUMBERS = {
    "one": "un",
    "two": "deux",
    "three": "trois",
    "four": "quatre",
    "five": "cinq",
    "six": "six petits",
}
COLOURS = {
    "red": "rouge",
    "blue": "bleu",
    "green": "vert",
    "black": "noir",
    "white": "blanc",
    "grey": "gris",
}
NOUNS = {
    "dog": "chien",
    "cat": "chat",
    "horse": "cheval",
    "bird": "oiseau",
    "fish": "poisson",
    "mouse": "souris",
}
VERBS = {"sees": "voit", "follows": "suit", "finds": "trouve", "loses": "perd", "hears": "entend"}


def sentences(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Return distinct sentence pairs in random order."""
    parts = itertools.product(NUMBERS, COLOURS, NOUNS, VERBS, NOUNS)
    chosen = random.Random(seed).sample(list(parts), count)
    return [
        (
            f"{number.capitalize()} {colour} {subject} {verb} the {object_}.",
            f"{NUMBERS[number].capitalize()} {NOUNS[subject]} {COLOURS[colour]} "
            f"{VERBS[verb]} le {NOUNS[object_]}.",
        )
        for number, colour, subject, verb, object_ in chosen
    ]


def lines(count: int, seed: int = 1) -> list[str]:
    """Both sides of `count` sentence pairs, one after the other."""
    return [side for pair in sentences(count, seed) for side in pair]


def write(
    prefix: Path, pairs: list[tuple[str, str]], languages: tuple[str, str] = ("en", "fr")
) -> None:
    """Write PREFIX.SRC and PREFIX.TGT."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        Path(f"{prefix}.{language}").write_text(
            "".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8"
        )


def pack(path: Path, lines: Iterable[object]) -> None:
    """Write PATH.txt.gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.txt.gz").write_bytes(
        gzip.compress("".join(f"{line}\n" for line in lines).encode())
    )


def write_dataset(
    folder: Path, dataset, languages: tuple[str, str] = ("en", "fr"), count: int | None = None
) -> None:
    """Write as many sentences as a named test set of `lxsr eval` has, in its archive's layout."""
    pairs = sentences(count or dataset.sentences)
    archive_pair = f"{dataset.code(languages[1])}-eng"
    for side, language in enumerate(languages):
        code = dataset.code(language)
        path = folder / dataset.files.get(code, dataset.file.format(code=code, pair=archive_pair))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
