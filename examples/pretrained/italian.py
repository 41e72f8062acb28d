"""Forms of the Italian words of a wordnet, by rule, for the teacher and the pieces.

python examples/pretrained/italian.py work/sources/omw/wns/ita/wn-data-ita.tab ... --output DIR

No Italian spelling dictionary has a fitting licence. Verbs are conjugated as regular ones, with
pronouns at the infinitive; nouns and adjectives get their endings. The forms of irregular words
come out wrong, but no text has them. Writes DIR/forms/it.txt, shuffled; where there are too many,
the words with the fewest meanings are left out.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write

MOST = 150_000
LEMMA = re.compile(r"\d+-([nvars])\t(?:ita:)?lemma\t([a-zàèéìòù]{2,})$")
# endings after the vowel of the infinitive, and those that replace it
OF_VOWEL = re.findall(
    r"\S+",
    "vo vi va vamo vate vano te sti mmo ste ssi sse ssimo ssero rono ndo to ta ti "  # imperfect, past, participle
    "rmi rti rsi rci rvi rlo rla rli rle rne re",
)
FUTURE = re.findall(r"\S+", "rò rai rà remo rete ranno rei resti rebbe remmo reste rebbero")
ENDINGS = {
    "a": re.findall(r"\S+", "o i a iamo ano ino iate ai ò"),
    "e": re.findall(r"\S+", "o i e iamo ono a ano iate ei é ette etti ettero uto uta uti ute"),
    "i": re.findall(
        r"\S+", "o i e iamo ono a ano iate ii ì isco isci isce iscono isca iscano endo"
    ),
}
PLURALS = {  # of nouns and adjectives, by their last letters
    "n": {
        "co": ("chi", "ci"),
        "go": ("ghi", "gi"),
        "ca": ("che",),
        "ga": ("ghe",),
        "io": ("i",),
        "o": ("i",),
        "e": ("i",),
    }
    | {"ista": ("isti", "iste"), "a": ("e",)},
    "a": {
        "co": ("ca", "ci", "chi", "che"),
        "go": ("ga", "ghi", "ghe"),
        "o": ("a", "i", "e"),
        "e": ("i",),
    },
    "r": {},
}


def joined(stem: str, ending: str) -> str:
    """Join a stem and an ending as Italian spells them: cercare, cerchi; mangiare, mangi,
    mangerò.
    """
    if stem[-1:] == "i" and (ending[0] == "i" or (ending[0] == "e" and stem[-2:-1] in "cg")):
        stem = stem[:-1]
    return stem + ending


def conjugated(verb: str) -> Iterator[str]:
    """Yield the forms of a regular verb."""
    verb = re.sub("rsi$", "re", verb)
    stem, vowel = verb[:-3], verb[-3:-2]
    if not (verb.endswith("re") and stem and vowel in ENDINGS):
        return
    hard = "h" if vowel == "a" and stem[-1] in "cg" else ""  # before e and i
    for ending in ENDINGS[vowel]:
        yield joined(stem + (hard if ending[0] in "ei" else ""), ending)
    future = "e" if vowel == "a" else vowel
    yield from (joined(stem + hard, future + ending) for ending in FUTURE)
    yield from (stem + vowel + ending for ending in OF_VOWEL)


def declined(word: str, kind: str) -> Iterator[str]:
    """Yield a word and its other endings."""
    yield word
    for last in sorted(PLURALS[kind], key=len, reverse=True):
        if word.endswith(last):
            yield from (word.removesuffix(last) + ending for ending in PLURALS[kind][last])
            return


def forms(files: list[Path]) -> list[str]:
    """Return the forms of all words; those of words with many meanings, which are frequent ones,
    come first.
    """
    lines = (line.lower() for path in files for line in read_lines(path, is_sentence=False))
    meanings = Counter(lemma.groups() for line in lines if (lemma := LEMMA.match(line)))
    found: dict[str, None] = {}
    for (kind, word), _ in meanings.most_common():
        found |= dict.fromkeys(
            conjugated(word) if kind == "v" else declined(word, kind.replace("s", "a"))
        )
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "wordnets",
        type=Path,
        nargs="+",
        metavar="FILE.tab",
        help="of the Open Multilingual Wordnet",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("italian.py"):
        words = forms(args.wordnets)
        if not words:
            raise InputError(
                f"{args.wordnets[0]}: no lemmas; expected lines of a number, `lemma` and an Italian word"
            )
        chosen = random.Random(0).sample(words[:MOST], min(len(words), MOST))
        with atomic_write(args.output / "forms" / "it.txt") as stream:
            stream.writelines(f"{word}\n" for word in chosen)
        print(f"{args.output / 'forms' / 'it.txt'}: {len(chosen):,} words of {len(words):,}")


if __name__ == "__main__":
    main()
