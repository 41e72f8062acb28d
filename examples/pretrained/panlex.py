"""Pairs of everyday words of languages with little text, from dictionaries of PanLex.

python examples/pretrained/panlex.py --lexicons panlex-bli/lexicons --output DIR/words

The repository cambridgeltl/panlex-bli has the frequent words of 15 languages and their
translations, without English. So a language with little text is paired with two languages that the
model already knows well.
"""

import argparse
import io
import random
import zipfile
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.write import atomic_write

# Languages with little text, and the languages that they are paired with.
PARTNERS = {"et": ("fi", "nb"), "he": ("id", "tr"), "ko": ("id", "tr"), "lt": ("hu", "nb")}
# Codes of languages in the repository, where they differ.
CODES = {"nb": "no"}
# The files with the most words: the words to train on, and other words to test on.
FILES = ("train.5000", "test.2000")


def read_lexicon(archive: Path, names: str) -> list[tuple[str, str]]:
    """Return distinct pairs of words, sorted.

    Args:
        archive: zip file of the repository, such as et-l2.zip.
        names: the language pair in the names of its files, such as et-fi.

    Raises:
        InputError: if the archive lacks one of the files.
    """
    pairs = set()
    with zipfile.ZipFile(archive) as files:
        for part in FILES:
            name = f"{names}/{names}.{part}.cc.trans"
            try:
                file = files.open(name)
            except KeyError:
                raise InputError(
                    f"{archive}: no file {name}; expected the archives of cambridgeltl/panlex-bli"
                ) from None
            with file, io.TextIOWrapper(file, encoding="utf-8") as lines:
                for line in lines:
                    first, second = line.rstrip("\n").split("\t")
                    has_letters = any(character.isalpha() for character in first + second)
                    if has_letters and first.lower() != second.lower():
                        pairs.add((first, second))
    return sorted(pairs)


def write_lexicons(lexicons: Path, output: Path) -> None:
    """Write OUTPUT/panlex.SRC-TGT.LANG.txt.gz for each language and its partners."""
    for language, partners in PARTNERS.items():
        for partner in partners:
            names = f"{language}-{CODES.get(partner, partner)}"
            pairs = read_lexicon(lexicons / f"{language}-l2.zip", names)
            random.Random(0).shuffle(pairs)
            pair = f"{partner}-{language}"
            for place, code in enumerate((language, partner)):
                with atomic_write(output / f"panlex.{pair}.{code}.txt.gz") as stream:
                    stream.writelines(f"{words[place]}\n" for words in pairs)
            print(f"{pair}: {len(pairs):,} pairs of words")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lexicons", type=Path, required=True, metavar="DIR", help="folder of the zip files"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("panlex.py"):
        write_lexicons(args.lexicons, args.output)


if __name__ == "__main__":
    main()
