"""Pairs of names and terms of English and other languages, from CLDR, GeoNames and Wikidata.

python examples/pretrained/names.py --cldr /usr/share/unicode/cldr/common \
    --geonames /usr/share/locale --people PEOPLE --output text/words

The first two folders are those of Debian's packages unicode-cldr-core and libgeonames-common. CLDR
has names of countries, their regions, languages, scripts, currencies, units and emoji; the keywords
of an emoji are joined. GeoNames has names of cities, regions and countries. PEOPLE is the folder
`data` of the repository steveash/NETransliteration-COLING2018 with names of people from Wikidata.
Pairs are written in lower case, as SOURCE.en-LANG.en.txt.gz and SOURCE.en-LANG.LANG.txt.gz.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from fairseq_lxsr.characters import visible
from fairseq_lxsr.errors import InputError, exit_on_input_error, shown
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.catalogues import read_catalogue
from fairseq_lxsr.preparation.clean import alphabets

LANGUAGES = (
    *("ar", "bg", "ca", "cs", "da", "de", "el", "es", "et", "fa", "fi", "fr", "he"),
    *("hi", "hr", "hu", "id", "is", "it", "ja", "ko", "lt", "lv", "nb", "nl", "pl"),
    *("pt", "ro", "ru", "sk", "sl", "sr", "sv", "th", "tr", "uk", "vi", "zh"),
)
ENGLISH = "en"
# Languages that have other codes, or two scripts, in CLDR.
CLDR_CODES = {"nb": ["no"], "sr": ["sr", "sr_Latn"]}
# Languages with two alphabets.
ALPHABETS = {"sr": ["sr", "hr"]}
CLDR_FILES = ("main/{}.xml", "subdivisions/{}.xml", "annotations/{}.xml")
TERM = re.compile(
    r"/(?:language|script|territory|subdivision|annotation) [^/]*$"
    r"|/currency [^/]*/displayName $"
    r"|/unitLength type=long/unit [^/]*/displayName $"
)
# Placeholder for the name in the parent locale.
INHERITED = "↑↑↑"
# The separator of keywords.
KEYWORDS = " | "
REGION = "/subdivision "
GEONAMES_FILE = "{}/LC_MESSAGES/geonames.mo"
PEOPLE = {
    "ar": ["wd_arabic_80", "wd_arabic_20"],
    "he": ["wd_hebrew"],
    "ja": ["wd_japanese_80", "wd_japanese_20"],
    "ko": ["wd_korean"],
    "ru": ["wd_russian_80", "wd_russian_20"],
    "zh": ["wd_chinese_80", "wd_chinese_20"],
}
PERSON = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d{1,9}))?")
# Maximum number of names of people, so that they leave room for other words.
MOST_PEOPLE = 30_000
# The characters before the region or country of a place.
ADDED = re.compile("[,،、(]")
# CLDR numbers regions of the same name, and not always correctly.
NUMBERED = re.compile("[¹²³]$")
SEE_HELP = "see --help"
Pair = tuple[str, str]


def texts_of(element: ElementTree.Element, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of an XML element, each with its path of tags and attributes."""
    attributes = []
    for name, value in sorted(element.items()):
        if name not in ("draft", "references"):
            attributes.append(f"{name}={value}")
    path = f"{path}/{element.tag} {' '.join(attributes)}"
    if element.text and not len(element):
        yield path, element.text
    for child in element:
        yield from texts_of(child, path)


def terms(folder: Path, code: str) -> dict[str, str]:
    """Map the XML paths of a language's items in CLDR to their names."""
    names: dict[str, str] = {}
    for pattern in CLDR_FILES:
        names |= terms_of_file(folder / pattern.format(code))
    return names


def terms_of_file(path: Path) -> dict[str, str]:
    """Map the XML paths of the items in a CLDR file to their names."""
    try:
        texts = dict(texts_of(ElementTree.parse(path).getroot()))
    except (ElementTree.ParseError, LookupError, ValueError, RecursionError) as error:
        message = f"{path}: {error!r:.100}; expected XML of CLDR: {SEE_HELP}"
        raise InputError(message) from None
    names = {}
    for term, name in texts.items():
        if TERM.search(term) and name != INHERITED:
            names[term] = name.replace(KEYWORDS, " ")
    if not names:
        raise InputError(f"{path}: no names; expected XML of CLDR: {SEE_HELP}")
    return names


def places(folder: Path, code: str) -> dict[str, str]:
    """Map GeoNames numbers and codes to the names of cities, regions and countries."""
    path = folder / GEONAMES_FILE.format(code)
    names = read_catalogue(path, Counter[str]())
    if not names:
        raise InputError(
            f"{path}: no catalogue of names; expected that of libgeonames-common: {SEE_HELP}"
        )
    return names


def is_same_form(english: str, name: str) -> bool:
    """Return whether both names add a region or country or neither does, and none is numbered."""
    if NUMBERED.search(english + name):
        return False
    return bool(ADDED.search(english)) == bool(ADDED.search(name))


def cldr_pairs(english: Mapping[str, str], folder: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of names of CLDR."""
    for code in CLDR_CODES.get(language, [language]):
        names = terms(folder, code)
        for term in english.keys() & names.keys():
            if REGION not in term or is_same_form(english[term], names[term]):
                yield english[term], names[term]


def geonames_pairs(english: Mapping[str, str], folder: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of names of GeoNames."""
    names = places(folder, language)
    for number in english.keys() & names.keys():
        if is_same_form(english[number], names[number]):
            yield english[number], names[number]


class Person(NamedTuple):
    """A name of a person.

    Attributes:
        count: number of occurrences, 0 if unknown.
        english: the English name.
        name: the name in the other language.
    """

    count: int
    english: str
    name: str


def people(path: Path) -> Iterator[Person]:
    """Yield the names of a file.

    Names are left out if only one side has a comma, because it has the family name first. In files
    with counts, blanks separate the letters and are removed.
    """
    for number, line in enumerate(read_lines(path), start=1):
        row = PERSON.fullmatch(line)
        if not row:
            raise InputError(
                f"{path}, line {number}: {shown(line)};"
                " expected NAME, tab, NAME, and perhaps tab and count"
            )
        english, name, count = row.groups()
        if ("," in english) == ("," in name):
            if count:
                name = name.replace(" ", "")
            yield Person(int(count or 0), english, name)


def people_pairs(folder: Path, language: str) -> Iterator[Pair]:
    """Yield the pairs of the most frequent names of people."""
    persons: list[Person] = []
    for name in PEOPLE[language]:
        persons += people(folder / name)
    persons.sort(key=lambda person: -person.count)
    for person in persons[:MOST_PEOPLE]:
        yield person.english, person.name


def letter_of(language: str) -> re.Pattern[str]:
    """Return the pattern of one letter of a language."""
    codes = ALPHABETS.get(language, [language])
    return re.compile(f"[{''.join(alphabets()[code] for code in codes)}]")


def cleaned(pairs: Iterator[Pair], language: str) -> list[Pair]:
    """Return distinct pairs in lower case and random order.

    Pairs are left out if both names are the same, or if the second has no letter of its language.
    """
    letter = letter_of(language)
    distinct = set()
    for raw_english, raw_name in pairs:
        english = tidy(raw_english)
        name = tidy(raw_name)
        if english != name and letter.search(name):
            distinct.add((english, name))
    ordered = sorted(distinct)
    random.Random(0).shuffle(ordered)
    return ordered


def tidy(name: str) -> str:
    """Return a name in lower case, with single spaces and without invisible characters."""
    return " ".join(visible(name).lower().split())


def write_pairs(output: Path, source: str, language: str, pairs: list[Pair]) -> None:
    """Write the pairs of a source and a language."""
    for side, code in enumerate((ENGLISH, language)):
        path = output / f"{source}.{ENGLISH}-{language}.{code}.txt.gz"
        with atomic_write(path) as stream:
            stream.writelines(f"{pair[side]}\n" for pair in pairs)
    print(f"{ENGLISH}-{language}: {len(pairs):,} pairs of {source}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cldr", type=Path, required=True, metavar="FOLDER", help="folder of unicode-cldr-core"
    )
    parser.add_argument(
        "--geonames",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of libgeonames-common",
    )
    parser.add_argument(
        "--people", type=Path, required=True, metavar="PEOPLE", help="folder of names of people"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    with exit_on_input_error("names.py"):
        english_terms = terms(args.cldr, ENGLISH)
        english_places = places(args.geonames, ENGLISH)
        # All sources are read first, so that nothing is written if one is invalid.
        pairs = {}
        for language in LANGUAGES:
            raw_pairs = cldr_pairs(english_terms, args.cldr, language)
            pairs["cldr", language] = cleaned(raw_pairs, language)
            raw_pairs = geonames_pairs(english_places, args.geonames, language)
            pairs["geonames", language] = cleaned(raw_pairs, language)
            if language in PEOPLE:
                raw_pairs = people_pairs(args.people, language)
                pairs["wikidata", language] = cleaned(raw_pairs, language)
        for (source, language), source_pairs in pairs.items():
            write_pairs(args.output, source, language, source_pairs)


if __name__ == "__main__":
    main()
