"""Forms of words from spelling dictionaries and lists, for the teacher: text never has all of an inflected language.

python examples/pretrained/forms.py --dictionary tr=dictionary-tr/index ar=/usr/share/hunspell/ar --output DIR/forms
python examples/pretrained/forms.py --list zh=jieba/dict.txt --output DIR/forms

A dictionary is Hunspell's, PREFIX.aff and PREFIX.dic: each word gives itself and some of its forms, drawn. A list has a
word a line, before a blank or a comma; of a long one the first words are taken. DIR/forms/LANG.txt gets them, shuffled.
"""

import argparse
import random
import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import is_missing

WORD = re.compile(r"[^\W\d_]+(?:['\u2019\-][^\W\d_]+)*")
SHORTEST, LONGEST = 2, 40  # letters
TRIES = 8  # affixes of a kind that are tried: many fit another ending
MOST = 70_000


def drawn_form(affixes: dict[str, list[Any]], word: str, flags: Collection[str], rng: random.Random) -> str | None:
    """Draw one form of a word; an affix may take another one, whose form is as likely."""
    kinds = sorted(flag for flag in flags if flag in affixes)
    for kind in rng.sample(kinds, len(kinds)):
        for affix in rng.choices(affixes[kind], k=TRIES):
            first = type(affix).__name__ == "Prefix"
            rest = word.removeprefix(affix.strip) if first else word.removesuffix(affix.strip)
            if affix.cond_regexp.search(word) and len(rest) == len(word) - len(affix.strip):
                form = affix.add + rest if first else rest + affix.add
                further = affix.flags and rng.random() < 0.5
                return (further and drawn_form(affixes, form, affix.flags, rng)) or form
    return None


def forms(prefix: str, number: int, rng: random.Random) -> Iterator[str]:
    """Yield the words of a Hunspell dictionary in a random order, each with at most `number` of its forms."""
    from spylls.hunspell import Dictionary

    dictionary = Dictionary.from_files(prefix)
    aff = dictionary.aff
    affixes = {**aff.SFX, **aff.PFX}
    for word in rng.sample(dictionary.dic.words, len(dictionary.dic.words)):
        if word.flags.isdisjoint((aff.FORBIDDENWORD, aff.ONLYINCOMPOUND)):
            drawn = [drawn_form(affixes, word.stem, word.flags, rng) for _ in range(number)]
            yield from (form for form in drawn if form)
            if aff.NEEDAFFIX not in word.flags:
                yield word.stem


def listed(path: str) -> Iterator[str]:
    """Yield the first field of each line."""
    return (re.split(r"[\s,]", line, maxsplit=1)[0] for line in read_lines(path))


def write_words(words: Iterator[str], path: Path, rng: random.Random) -> None:
    """Write the first words of their kind, in a random order."""
    found = dict.fromkeys(
        word
        for word in (unicodedata.normalize("NFC", word) for word in words)
        if WORD.fullmatch(word) and SHORTEST <= len(word) < LONGEST
    )
    chosen = list(found)[:MOST]
    rng.shuffle(chosen)
    with atomic_write(path) as stream:
        stream.writelines(f"{word}\n" for word in chosen)
    print(f"{path}: {len(chosen):,} words")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dictionary", nargs="+", default=[], metavar="LANG=PREFIX", help="of Hunspell")
    parser.add_argument("--list", nargs="+", default=[], metavar="LANG=FILE", help="a word a line")
    parser.add_argument("--forms", type=int, default=2, metavar="N", help="of each word (default: 2)")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write")
    args = parser.parse_args()
    with exit_on_input_error("forms.py"):
        if args.dictionary and is_missing("spylls"):
            raise InputError("forms.py reads Hunspell dictionaries with spylls: pip install spylls")
        for named in (*args.dictionary, *args.list):
            language, equals, source = named.partition("=")
            if not (language and equals and source):
                raise InputError(f"{named}: expected LANG=PREFIX or LANG=FILE")
            rng = random.Random(0)
            words = forms(source, args.forms, rng) if named in args.dictionary else listed(source)
            write_words(words, args.output / f"{language}.txt", rng)


if __name__ == "__main__":
    main()
