"""Pairs of names and terms of English and other languages, from Unicode's CLDR, GeoNames and
Wikidata.

python examples/pretrained/names.py --cldr /usr/share/unicode/cldr/common --geonames
/usr/share/locale \
    --people PEOPLE --output text/words

The first two folders are those of Debian's packages unicode-cldr-core and libgeonames-common. CLDR
names countries, their regions, languages, scripts, currencies, units and emoji; the keywords of an
emoji are in a row. GeoNames names cities, regions and countries. PEOPLE is the folder `data` of the
repository steveash/NETransliteration-COLING2018; it has names of people from Wikidata. Pairs are
written in lower case, as SOURCE.en-LANG.en.txt.gz and SOURCE.en-LANG.LANG.txt.gz.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from fairseq_lxsr.characters import visible
from fairseq_lxsr.errors import InputError, exit_on_input_error, shown
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.catalogues import read_catalogue
from fairseq_lxsr.preparation.clean import alphabets

LANGUAGES = (
    *(
        "ar",
        "bg",
        "ca",
        "cs",
        "da",
        "de",
        "el",
        "es",
        "et",
        "fa",
        "fi",
        "fr",
        "he",
        "hi",
        "hr",
        "hu",
        "id",
        "is",
        "it",
    ),
    *(
        "ja",
        "ko",
        "lt",
        "lv",
        "nb",
        "nl",
        "pl",
        "pt",
        "ro",
        "ru",
        "sk",
        "sl",
        "sr",
        "sv",
        "th",
        "tr",
        "uk",
        "vi",
        "zh",
    ),
)
ENGLISH = "en"
CLDR_CODES = {"nb": ["no"], "sr": ["sr", "sr_Latn"]}  # where they are not ours
ALPHABETS = {"sr": ["sr", "hr"]}  # where a language has two
CLDR_FILES = ("main/{}.xml", "subdivisions/{}.xml", "annotations/{}.xml")
TERM = re.compile(
    r"/(?:language|script|territory|subdivision|annotation) [^/]*$|/currency [^/]*/displayName $"
    r"|/unitLength type=long/unit [^/]*/displayName $"
)
# in place of a name: that of the parent locale; between keywords
INHERITED, KEYWORDS = ("↑↑↑", " | ")
REGION = "/subdivision "
GEONAMES_FILE = "{}/LC_MESSAGES/geonames.mo"
PEOPLE = {
    **{
        "ar": ["wd_arabic_80", "wd_arabic_20"],
        "he": ["wd_hebrew"],
        "ja": ["wd_japanese_80", "wd_japanese_20"],
    },
    **{
        "ko": ["wd_korean"],
        "ru": ["wd_russian_80", "wd_russian_20"],
        "zh": ["wd_chinese_80", "wd_chinese_20"],
    },
}
PERSON = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d{1,9}))?")
MOST_PEOPLE = 30_000  # so that they leave room for other words: the most frequent names
ADDED = re.compile("[,،、(]")  # before the region or country that a place is in
NUMBERED = re.compile("[¹²³]$")  # CLDR tells regions of the same name apart, and not always rightly
Pairs = Iterator[tuple[str, str]]


def texts_of(element: ElementTree.Element, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of an XML element after its path, the tags and their attributes."""
    attributes = [
        f"{name}={value}"
        for name, value in sorted(element.items())
        if name not in ("draft", "references")
    ]
    path = f"{path}/{element.tag} {' '.join(attributes)}"
    if element.text and not len(element):
        yield path, element.text
    for inner in element:
        yield from texts_of(inner, path)


def terms(folder: Path, code: str) -> dict[str, str]:
    """Read the names of a language in CLDR, by what they name."""
    found: dict[str, str] = {}
    for path in (folder / name.format(code) for name in CLDR_FILES):
        try:
            texts = dict(texts_of(ElementTree.parse(path).getroot()))
        except (ElementTree.ParseError, LookupError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: {error!r:.100}; expected XML of CLDR; see --help") from None
        names = {
            what: name for what, name in texts.items() if TERM.search(what) and name != INHERITED
        }
        names = {what: name.replace(KEYWORDS, " ") for what, name in names.items()}
        if not names:
            raise InputError(f"{path}: no names; expected XML of CLDR; see --help")
        found |= names
    return found


def places(folder: Path, code: str) -> dict[str, str]:
    """Read the names of cities, regions and countries in a language, by their number or code in
    GeoNames.
    """
    path = folder / GEONAMES_FILE.format(code)
    found = read_catalogue(path, Counter[str]())
    if not found:
        raise InputError(
            f"{path}: no catalogue of names; expected that of libgeonames-common; see --help"
        )
    return found


def fits(english: str, other: str) -> bool:
    """Return False where one side adds the region or country of a place, or where CLDR has numbered
    the name.
    """
    return bool(ADDED.search(english)) == bool(ADDED.search(other)) and not NUMBERED.search(
        english + other
    )


def cldr_pairs(english: Mapping[str, str], folder: Path, language: str) -> Pairs:
    """Pair the names of CLDR."""
    for code in CLDR_CODES.get(language, [language]):
        others = terms(folder, code)
        for what in english.keys() & others.keys():
            if REGION not in what or fits(english[what], others[what]):
                yield english[what], others[what]


def geonames_pairs(english: Mapping[str, str], folder: Path, language: str) -> Pairs:
    """Pair the names of GeoNames."""
    others = places(folder, language)
    pairs = ((english[number], others[number]) for number in english.keys() & others.keys())
    return (pair for pair in pairs if fits(*pair))


def people_pairs(folder: Path, language: str) -> Pairs:
    """Pair the names of people, the most frequent first. Files with counts have blanks between
    letters: removed.
    """
    rows = []
    for path in (folder / name for name in PEOPLE[language]):
        for number, line in enumerate(read_lines(path), start=1):
            if not (row := PERSON.fullmatch(line)):
                raise InputError(
                    f"{path}, line {number}: {shown(line)}; expected NAME, tab, NAME, and perhaps tab, count"
                )
            if ("," in row[1]) == ("," in row[2]):  # else one of them has the family name first
                rows.append(
                    (int(row[3] or 0), row[1], row[2].replace(" ", "") if row[3] else row[2])
                )
    rows.sort(key=lambda row: -row[0])
    yield from ((english, other) for _, english, other in rows[:MOST_PEOPLE])


def cleaned(pairs: Pairs, language: str) -> list[tuple[str, str]]:
    """Return pairs in lower case and random order: two different names, the other with a letter of
    its language.
    """
    letter = re.compile(
        f"[{''.join(alphabets()[code] for code in ALPHABETS.get(language, [language]))}]"
    )
    tidy = ([" ".join(visible(name).lower().split()) for name in pair] for pair in pairs)
    found = sorted(
        {(english, other) for english, other in tidy if english != other and letter.search(other)}
    )
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cldr", type=Path, required=True, metavar="FOLDER", help="of unicode-cldr-core"
    )
    parser.add_argument(
        "--geonames", type=Path, required=True, metavar="FOLDER", help="of libgeonames-common"
    )
    parser.add_argument(
        "--people", type=Path, required=True, metavar="PEOPLE", help="folder of names of people"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("names.py"):
        english_terms, english_places = terms(args.cldr, ENGLISH), places(args.geonames, ENGLISH)
        found = {}
        for language in LANGUAGES:
            found["cldr", language] = cleaned(
                cldr_pairs(english_terms, args.cldr, language), language
            )
            found["geonames", language] = cleaned(
                geonames_pairs(english_places, args.geonames, language), language
            )
            if language in PEOPLE:
                found["wikidata", language] = cleaned(people_pairs(args.people, language), language)
        for (source, language), pairs in found.items():
            for side, code in enumerate((ENGLISH, language)):
                with atomic_write(
                    args.output / f"{source}.{ENGLISH}-{language}.{code}.txt.gz"
                ) as stream:
                    stream.writelines(f"{pair[side]}\n" for pair in pairs)
            print(f"{ENGLISH}-{language}: {len(pairs):,} pairs of {source}")


if __name__ == "__main__":
    main()
