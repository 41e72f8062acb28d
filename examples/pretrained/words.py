"""Pairs of words of English and other languages, from the Open Multilingual Wordnet.

python examples/pretrained/words.py --wordnets omw-data/wns --english dict --output DIR/words

WNS is the folder `wns` of the repository omwn/omw-data, DICT the folder of WordNet 3.0 with
data.noun and cntlist.rev (in Debian's wordnet-base /usr/share/wordnet). Only wordnets are used
whose licence requires at most attribution. A word is paired with one English word of its
synset: of those that occur in WordNet's own texts, the one with the fewest other senses.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write

WORDNETS = {
    "bg": ["bul/wn-data-bul"],
    "ca": ["mcr/wn-data-cat"],
    "da": ["dan/wn-data-dan"],
    "el": ["ell/wn-data-ell"],
    "he": ["heb/wn-data-heb"],
    "hr": ["hrv/wn-data-hrv"],
    "id": ["msa/wn-data-ind"],
    "is": ["isl/wn-data-isl"],
    "it": ["ita/wn-data-ita", "iwn/wn-data-ita"],
    "nb": ["nor/wn-data-nob"],
    "pl": ["pol/wn-data-pol"],
    "sv": ["swe/wn-data-swe"],
    "zh": ["cow/wn-data-cmn"],
}
# The parts of speech of WordNet's files, and their letters in synsets.
PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
# Exclusive maximum length of a word in characters; longer ones are phrases.
LONGEST = 40
# Hebrew vowel points, which ordinary text does not contain.
HEBREW_POINTS = re.compile("[\u0591-\u05c7]")


def english_words(folder: Path) -> dict[str, str]:
    """Return the English word of each synset.

    Synsets are named as in the wordnets: by their number and part of speech.
    """
    synsets = read_synsets(folder)
    occurrences = Counter[str]()
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, _, count = line.split(" ")
        occurrences[key.split("%")[0]] += int(count)
    senses = Counter(word.lower() for words in synsets.values() for word in words)

    def preference(word: str) -> tuple[bool, int]:
        return occurrences[word.lower()] > 0, -senses[word.lower()]

    return {name: max(words, key=preference) for name, words in synsets.items()}


def read_synsets(folder: Path) -> dict[str, list[str]]:
    """Return the English words of each synset."""
    synsets = {}
    for part, letter in PARTS.items():
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            # The licence is indented.
            if line.startswith("  "):
                continue
            fields = line.split(" ")
            count = int(fields[3], 16)
            words = fields[4 : 4 + 2 * count : 2]
            synsets[f"{fields[0]}-{letter}"] = [re.sub(r"\(.*\)", "", word) for word in words]
    return synsets


def word_pairs(files: list[Path], english: dict[str, str]) -> list[tuple[str, str]]:
    """Return distinct pairs of English words and words of a language, lower-cased and shuffled.

    Args:
        files: wordnets of the language.
        english: English word of each synset.
    """
    pairs: dict[tuple[str, str], None] = {}
    for file in files:
        for synset, word in lemmas(file):
            source = english.get(synset)
            if source and word and len(word) < LONGEST:
                pairs[source.replace("_", " ").lower(), word.lower()] = None
    different = [(source, target) for source, target in pairs if source != target]
    random.Random(0).shuffle(different)
    return different


def lemmas(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the words of a wordnet, each after its synset."""
    for line in file.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) < 3 or not fields[1].endswith("lemma"):
            continue
        # Satellite adjectives are adjectives in WordNet's files.
        synset = fields[0].replace("-s", "-a")
        word = HEBREW_POINTS.sub("", fields[2]).replace("_", " ").replace("+", "").strip()
        yield synset, word


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--wordnets", type=Path, required=True, metavar="WNS", help="folder of the wordnets"
    )
    parser.add_argument(
        "--english", type=Path, required=True, metavar="DICT", help="folder of WordNet 3.0"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("words.py"):
        for folder, name in ((args.english, "data.noun"), (args.wordnets, "ita/wn-data-ita.tab")):
            if not (folder / name).is_file():
                raise InputError(f"{folder} does not contain {name}; see --help")
        english = english_words(args.english)
        for language, names in WORDNETS.items():
            pairs = word_pairs([args.wordnets / f"{name}.tab" for name in names], english)
            for code, words in zip(("en", language), zip(*pairs, strict=True), strict=True):
                with atomic_write(args.output / f"wordnet.en-{language}.{code}.txt.gz") as stream:
                    stream.writelines(f"{word}\n" for word in words)
            print(f"en-{language}: {len(pairs):,} pairs of words")


if __name__ == "__main__":
    main()
