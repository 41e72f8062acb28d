"""Generated sentence pairs of two artificial languages: any number, the same every time."""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstv" for vowel in "aeiou"]
# The number of words of each language.
WORDS = 20_000
# Words of a sentence.
AVERAGE, SHORTEST, LONGEST = 11, 3, 60
# Sentences that are generated at a time.
BLOCK = 10_000
LANGUAGES = ("en", "fr")
# Sentences of a generated document.
DOCUMENT_LENGTH = 10


def words(seed: int) -> list[str]:
    """Return distinct words of two to four syllables."""
    rng = np.random.default_rng(seed)
    distinct: dict[str, None] = {}
    while len(distinct) < WORDS:
        syllables = rng.integers(0, len(SYLLABLES), rng.integers(2, 5))
        distinct.setdefault("".join(SYLLABLES[number] for number in syllables))
    return list(distinct)


def pairs(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield sentences and their word-by-word translations.

    The frequencies of the words follow Zipf's law, as in natural text.
    """
    source_words = words(1)
    target_words = words(2)
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, WORDS + 1)
    share = np.cumsum(share / share.sum())
    while count > 0:
        lengths = np.clip(rng.poisson(AVERAGE, min(count, BLOCK)), SHORTEST, LONGEST)
        numbers = np.searchsorted(share, rng.random(lengths.sum())).tolist()
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
            row = numbers[end - length : end]
            source = " ".join([source_words[number] for number in row])
            target = " ".join([target_words[number] for number in row])
            yield f"{source}.", f"{target}."
        count -= BLOCK


def write_pairs(prefix: Path, count: int, seed: int = 1) -> None:
    """Write pairs to PREFIX.en and PREFIX.fr."""
    with open(f"{prefix}.en", "w") as source_file, open(f"{prefix}.fr", "w") as target_file:
        for source, target in pairs(count, seed):
            source_file.write(f"{source}\n")
            target_file.write(f"{target}\n")


def write_gz(path: Path, lines: Iterable[str]) -> None:
    """Write a compressed file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=1) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_documents(path: Path, lines: Sequence[str]) -> None:
    """Write sentences as documents of equal length, separated by empty lines."""
    starts = range(0, len(lines), DOCUMENT_LENGTH)
    documents = ("\n".join([*lines[start : start + DOCUMENT_LENGTH], ""]) for start in starts)
    write_gz(path, documents)


def write_studies(folder: Path, count: int) -> None:
    """Write text in the form that the quality benchmarks read.

    The folder gets train/, eval/, valid/, docs/ and classification/.

    Args:
        folder: the output folder.
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
    for seed, name in enumerate(sets, start=2):
        texts[name] = list(pairs(count // 10, seed))
    for side, language in enumerate(LANGUAGES):
        lines = {name: [pair[side] for pair in text] for name, text in texts.items()}
        write_documents(folder / "docs" / f"novels.{language}.txt.gz", lines.pop("novels"))
        labelled = lines.pop("labelled")[: count // 100]
        rows = [f"{number % 2}\t{line}" for number, line in enumerate(labelled)]
        for name, part in product(("ha-intents", "xlmt-sentiment"), ("train", "test")):
            write_gz(folder / "classification" / name / f"{language}.{part}.tsv.gz", rows)
        for name, text in lines.items():
            write_gz(folder / f"{name.format(language)}.txt.gz", text)
