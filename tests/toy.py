"""A small made-up language pair: enough to learn, with nothing to download."""

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
    """Different sentence pairs, in random order."""
    parts = itertools.product(NUMBERS, COLOURS, NOUNS, VERBS, NOUNS)
    chosen = random.Random(seed).sample(list(parts), count)
    return [
        (
            f"{number.capitalize()} {colour} {noun} {verb} the {other}.",
            f"{NUMBERS[number].capitalize()} {NOUNS[noun]} {COLOURS[colour]} "
            f"{VERBS[verb]} le {NOUNS[other]}.",
        )
        for number, colour, noun, verb, other in chosen
    ]


def write(
    prefix: Path, pairs: list[tuple[str, str]], languages: tuple[str, str] = ("en", "fr")
) -> None:
    """PREFIX.SRC and PREFIX.TGT."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        Path(f"{prefix}.{language}").write_text(
            "".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8"
        )


def pack(path: Path, lines: Iterable[object]) -> None:
    """PATH.txt.gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.txt.gz").write_bytes(
        gzip.compress("".join(f"{line}\n" for line in lines).encode())
    )


def write_dataset(
    folder: Path, dataset, languages: tuple[str, str] = ("en", "fr"), count: int | None = None
) -> None:
    """As many sentences as a named test set of `lxsr eval` has, in the layout of its archive."""
    pairs = sentences(count or dataset.sentences)
    pair = f"{dataset.code(languages[1])}-eng"
    for language, lines in zip(languages, zip(*pairs, strict=True), strict=True):
        code = dataset.code(language)
        path = folder / dataset.files.get(code, dataset.file.format(code=code, pair=pair))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
