"""Text that nobody wrote: sentence pairs of two made-up languages, as many as are asked for, the
same every time.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

SYLLABLES = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
WORDS = 20_000
AVERAGE, SHORTEST, LONGEST = 11, 3, 60  # words of a sentence
BLOCK = 10_000  # sentences made at a time
LANGUAGES = ("en", "fr")


def words(seed: int) -> list[str]:
    """Different words of two to four syllables."""
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < WORDS:
        parts = rng.integers(0, len(SYLLABLES), rng.integers(2, 5))
        found.setdefault("".join(SYLLABLES[part] for part in parts))
    return list(found)


def pairs(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Sentences and their translations word by word; words are as frequent as in real text, by
    Zipf's law.
    """
    dictionaries, rng = [words(1), words(2)], np.random.default_rng(seed)
    share = 1 / np.arange(1, WORDS + 1)
    share = np.cumsum(share / share.sum())
    while count > 0:
        lengths = np.clip(rng.poisson(AVERAGE, min(count, BLOCK)), SHORTEST, LONGEST)
        numbers = np.searchsorted(share, rng.random(lengths.sum())).tolist()
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
            row = numbers[end - length : end]
            source, target = (" ".join([known[number] for number in row]) for known in dictionaries)
            yield f"{source}.", f"{target}."
        count -= BLOCK


def write_pairs(prefix: Path, count: int, seed: int = 1) -> None:
    """PREFIX.en and PREFIX.fr."""
    with open(f"{prefix}.en", "w") as left, open(f"{prefix}.fr", "w") as right:
        for source, target in pairs(count, seed):
            left.write(f"{source}\n")
            right.write(f"{target}\n")


def write_gz(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=1) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_documents(path: Path, lines: Sequence[str], length: int = 10) -> None:
    """Documents of so many sentences, with an empty line between them."""
    starts = range(0, len(lines), length)
    write_gz(path, ("\n".join([*lines[start : start + length], ""]) for start in starts))


def write_studies(folder: Path, count: int) -> None:
    """A folder of text as the studies read it: train/, eval/, valid/, docs/ and classification/.

    Args:
        folder: to write.
        count: number of training pairs; the other files have a tenth of it, labelled text a
            hundredth.
    """
    sets = (
        "eval/pud.{}",
        "eval/xquad-questions.{}",
        "eval/xquad-paragraphs.{}",
        "valid/tech.en-fr.{}",
        "novels",
        "labelled",
    )
    texts = {"train/made-up.en-fr.{}": list(pairs(count))}
    texts |= {name: list(pairs(count // 10, seed)) for seed, name in enumerate(sets, 2)}
    for side, language in enumerate(LANGUAGES):
        lines = {name: [pair[side] for pair in text] for name, text in texts.items()}
        write_documents(folder / "docs" / f"novels.{language}.txt.gz", lines.pop("novels"))
        labelled = [
            f"{row % 2}\t{line}" for row, line in enumerate(lines.pop("labelled")[: count // 100])
        ]
        for name, part in product(("ha-intents", "xlmt-sentiment"), ("train", "test")):
            write_gz(folder / "classification" / name / f"{language}.{part}.tsv.gz", labelled)
        for name, text in lines.items():
            write_gz(folder / f"{name.format(language)}.txt.gz", text)
