"""Reads the output of fairseq-preprocess: language pairs, the joined dictionary, the aligned text."""

from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

from fairseq_lxsr.data_folder import check_data_folder, read_sources
from fairseq_lxsr.datasets.indexed import read_sentences
from fairseq_lxsr.datasets.masking import MaskingVocabulary
from fairseq_lxsr.datasets.pairs import PairCorpus
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.text import MASK, SPECIAL, is_punctuation, read_dictionary
from fairseq_lxsr.words import WORD_START


def language_pairs(folder: Path, wanted: str | None) -> list[tuple[str, str]]:
    """Find the language pairs, from `--lang-pairs` or from the names of the training files.

    Args:
        folder: data folder.
        wanted: value of `--lang-pairs`; None for all pairs of the folder.

    Raises:
        InputError: for a missing folder, a name that is no pair, or a language without a dictionary.
    """
    check_data_folder(folder)
    if wanted is None:
        names = sorted({path.name.split(".")[1] for path in folder.glob("train.*-*.*.idx")})
        if not names:
            raise InputError(f"{folder}: has no train.SRC-TGT.SRC.idx; expected the output of fairseq-preprocess")
    else:
        names = [name.strip() for name in wanted.split(",")]
    pairs = []
    for name in names:
        source, dash, target = name.partition("-")
        if not (source and dash and target):
            raise InputError(f"--lang-pairs: {name!r}; expected SRC-TGT, for example en-fr")
        for language in (source, target):
            if not (folder / f"dict.{language}.txt").is_file():
                known = ", ".join(sorted(path.name.split(".")[1] for path in folder.glob("dict.*.txt"))) or "none"
                raise InputError(
                    f"--lang-pairs {name}: {folder} has no dict.{language}.txt; the languages there are: {known}"
                )
        pairs.append((source, target))
    return pairs


def joined_dictionary(folder: Path, pairs: list[tuple[str, str]]) -> Dictionary:
    """Read the dictionary, which all languages share.

    Raises:
        InputError: where two languages have different dictionaries.
    """
    languages = list(dict.fromkeys(language for pair in pairs for language in pair))
    first = folder / f"dict.{languages[0]}.txt"
    dictionary = load_dictionary(first)
    for language in languages[1:]:
        other = folder / f"dict.{language}.txt"
        if load_dictionary(other).symbols != dictionary.symbols:
            raise InputError(
                f"{other}: differs from {first}; all languages share one dictionary, run fairseq-preprocess with "
                "--joined-dictionary (and the same --srcdict for every pair)"
            )
    return dictionary


def add_mask(dictionary: Dictionary) -> MaskingVocabulary:
    """Add <mask> to a dictionary of pieces, as its last symbol."""
    punctuation = [is_punctuation(symbol) for symbol in dictionary.symbols]
    mask_idx = dictionary.add_symbol(MASK)
    return MaskingVocabulary(
        padding_idx=dictionary.pad(),
        mask_idx=mask_idx,
        first_piece=dictionary.nspecial,
        is_punctuation=np.array([*punctuation, False]),
        starts_word=np.array([symbol.startswith(WORD_START) for symbol in dictionary.symbols]),
    )


def load_dictionary(path: Path) -> Dictionary:
    """Read a dict.LANG.txt.

    Raises:
        InputError: for a file that fairseq cannot read, or that has no entry.
    """
    if len(read_dictionary(path)) == len(SPECIAL):
        raise InputError(f"{path}: empty file; expected `symbol count` in every line, a fairseq dictionary")
    return Dictionary.load(str(path))


def read_corpus(folder: Path, split: str, source: str, target: str, num_symbols: int) -> PairCorpus | None:
    """Read one split of one language pair, in whichever order fairseq-preprocess was given its languages.

    Args:
        folder: data folder.
        split: `train`, `valid` or `test`.
        source: source language.
        target: target language.
        num_symbols: number of entries of the dictionary of the text.

    Returns:
        the two sides and their sources, if known; None where the folder does not have them.

    Raises:
        InputError: for sides that are empty or of different lengths, and for sources of another text.
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        prefix = folder / f"{split}.{pair}"
        if not Path(f"{prefix}.{source}.idx").is_file():
            continue
        sides = [read_sentences(Path(f"{prefix}.{language}"), num_symbols) for language in (source, target)]
        if len(sides[0]) != len(sides[1]):
            raise InputError(
                f"{prefix}: {len(sides[0]):,} sentences in {source} and {len(sides[1]):,} in {target}; expected "
                "aligned text, run fairseq-preprocess on files of equal length"
            )
        if not len(sides[0]):
            raise InputError(f"{prefix}: no sentences; look at the text it was made from")
        sources = read_sources(Path(f"{prefix}.sources.json"), len(sides[0]))
        return PairCorpus(f"{source}-{target}", sides[0], sides[1], sources)
    return None
