"""Rule-based forms of the Italian words of a wordnet, for the teacher and the word pieces.

python examples/pretrained/italian.py work/sources/omw/wns/ita/wn-data-ita.tab ... --output DIR

No Italian spelling dictionary has a suitable licence. Verbs are conjugated as regular ones, with
pronouns attached to the infinitive; nouns and adjectives get their endings. The forms of irregular
words are wrong, but no text has them. DIR/forms/it.txt is written, shuffled; if there are too many
forms, the words with the fewest meanings are left out.
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

# Maximum number of forms.
MOST = 150_000
LEMMA = re.compile(r"\d+-([nvars])\t(?:ita:)?lemma\t([a-zàèéìòù]{2,})$")
INFINITIVE = re.compile("(.+)([aei])re")
# Endings after the vowel of the infinitive: imperfect, past, participle, pronouns.
AFTER_VOWEL = re.findall(
    r"\S+",
    "vo vi va vamo vate vano te sti mmo ste ssi sse ssimo ssero rono ndo to ta ti "
    "rmi rti rsi rci rvi rlo rla rli rle rne re",
)
FUTURE = re.findall(r"\S+", "rò rai rà remo rete ranno rei resti rebbe remmo reste rebbero")
# Endings that replace the vowel of the infinitive.
ENDINGS = {
    "a": re.findall(r"\S+", "o i a iamo ano ino iate ai ò"),
    "e": re.findall(r"\S+", "o i e iamo ono a ano iate ei é ette etti ettero uto uta uti ute"),
    "i": re.findall(
        r"\S+", "o i e iamo ono a ano iate ii ì isco isci isce iscono isca iscano endo"
    ),
}
# Endings of nouns (n), adjectives (a) and adverbs (r), by the last letters of the word.
NOUN_ENDINGS = {
    "co": ("chi", "ci"),
    "go": ("ghi", "gi"),
    "ca": ("che",),
    "ga": ("ghe",),
    "io": ("i",),
    "o": ("i",),
    "e": ("i",),
    "ista": ("isti", "iste"),
    "a": ("e",),
}
ADJECTIVE_ENDINGS = {
    "co": ("ca", "ci", "chi", "che"),
    "go": ("ga", "ghi", "ghe"),
    "o": ("a", "i", "e"),
    "e": ("i",),
}
OTHER_ENDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "n": NOUN_ENDINGS,
    "a": ADJECTIVE_ENDINGS,
    "r": {},
}


def joined(stem: str, ending: str) -> str:
    """Join a stem and an ending by Italian spelling, as in mangiare, mangi, mangerò."""
    drops_i = ending[0] == "i" or (ending[0] == "e" and stem[-2:-1] in "cg")
    if stem[-1:] == "i" and drops_i:
        stem = stem[:-1]
    return stem + ending


def conjugated(verb: str) -> Iterator[str]:
    """Yield the forms of a regular verb."""
    infinitive = INFINITIVE.fullmatch(re.sub("rsi$", "re", verb))
    if not infinitive:
        return
    stem, vowel = infinitive.groups()
    # Before e and i, an h keeps the sound of c and g: cercare, cerchi.
    hard = "h" if vowel == "a" and stem[-1] in "cg" else ""
    for ending in ENDINGS[vowel]:
        yield joined(stem + hard if ending[0] in "ei" else stem, ending)
    future = "e" if vowel == "a" else vowel
    for ending in FUTURE:
        yield joined(stem + hard, future + ending)
    for ending in AFTER_VOWEL:
        yield stem + vowel + ending


def declined(word: str, kind: str) -> Iterator[str]:
    """Yield a word and the word with other endings.

    Args:
        word: the word.
        kind: n for a noun, a for an adjective, r for an adverb.
    """
    yield word
    for last in sorted(OTHER_ENDINGS[kind], key=len, reverse=True):
        if word.endswith(last):
            for ending in OTHER_ENDINGS[kind][last]:
                yield word.removesuffix(last) + ending
            return


def forms(files: list[Path]) -> list[str]:
    """Return the forms of all words, those of frequent words with many meanings first."""
    meanings = Counter[tuple[str, str]]()
    for path in files:
        for line in read_lines(path, is_sentence=False):
            lemma = LEMMA.match(line.lower())
            if lemma:
                kind, word = lemma.groups()
                meanings[kind, word] += 1
    distinct: dict[str, None] = {}
    for (kind, word), _ in meanings.most_common():
        if kind == "v":
            distinct |= dict.fromkeys(conjugated(word))
        else:
            # Satellite adjectives (s) have the endings of adjectives.
            distinct |= dict.fromkeys(declined(word, kind.replace("s", "a")))
    return list(distinct)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "wordnets",
        type=Path,
        nargs="+",
        metavar="FILE.tab",
        help="Italian files of the Open Multilingual Wordnet",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("italian.py"):
        words = forms(args.wordnets)
        if not words:
            raise InputError(
                f"{args.wordnets[0]}: no lemmas;"
                " expected lines with a number, `lemma` and an Italian word"
            )
        chosen = random.Random(0).sample(words[:MOST], min(len(words), MOST))
        path = args.output / "forms" / "it.txt"
        with atomic_write(path) as stream:
            stream.writelines(f"{word}\n" for word in chosen)
        print(f"{path}: {len(chosen):,} words of {len(words):,}")


if __name__ == "__main__":
    main()
