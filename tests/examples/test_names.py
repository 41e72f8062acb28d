"""examples/pretrained/names.py pairs names of the same thing."""

import json

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_parallel

CITIES = {
    "1": {"name": "Small", "population": 5_000, "alternatenames": ["Смол", "Smol", "スモール", "斯莫爾", "小", "สมอล"]},
    "2": {
        "name": "Large",
        "population": 9_000_000,
        "alternatenames": ["Ларж", "Ларж q", "Ларґі", "라지", "لارج", "لارجپ"],
    },
    "3": {"name": "Third", "population": 7, "alternatenames": ["Τρίτη", "שלישי", "तीसरा", "Third", "Third"]},
}
PEOPLE = {
    **{"wd_arabic_80": "a\tب\t1\n", "wd_arabic_20": "", "wd_chinese_80": "a\t阿\t1\n", "wd_chinese_20": ""},
    **{"wd_japanese_80": "a\tア\t1\n", "wd_japanese_20": "", "wd_korean": "Anna Smith\t애나 스미스\n"},
    **{"wd_hebrew": "Dov\tדב\n", "wd_russian_80": "rare\tж и д к\t1\n", "wd_russian_20": "often\tф и л\t7\n"},
}
TEXTS = {  # country, language, currency, city, cat and its keywords
    "en": ("Norway", "Danish", "Krone", "Oslo", "cat", ["animal", "pet"]),
    "no": ("Norge", "dansk", "krone", "Oslo by", "katt", ["dyr", "kjæledyr"]),
    "sr": ("Норвешка", "дански", "круна", "Осло", "мачка", ["животиња"]),
    "sr-Latn": ("Norveška", "danski", "kruna", "Oslo grad", "mačka", ["životinja"]),
}


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "names.py")


@pytest.fixture
def sources(tmp_path, script):
    """CLDR in all languages, alike but for three, some cities, and names of people. What is no name differs, too."""
    codes = {code for language in script.LANGUAGES for code in script.CLDR_CODES.get(language, [language])}
    for code in {*codes, "en"}:
        country, language, currency, city, cat, keywords = TEXTS.get(code, ("x", "y", "z", "v", "w", ["u"]))
        zone = {"exemplarCity": city, "_type": f"zone {code}", "long": {"standard": f"time in {code}"}}
        for name, content in {
            "cldr-localenames-full/main/{}/territories.json": {"localeDisplayNames": {"territories": {"NO": country}}},
            "cldr-localenames-full/main/{}/languages.json": {"localeDisplayNames": {"languages": {"da": language}}},
            "cldr-numbers-full/main/{}/currencies.json": {
                "numbers": {"currencies": {"NOK": {"displayName": currency, "symbol": f"kr {code}"}}}
            },
            "cldr-dates-full/main/{}/timeZoneNames.json": {
                "dates": {"timeZoneNames": {"hourFormat": f"+HH {code}", "zone": {"Europe": {"Oslo": zone}}}}
            },
        }.items():
            write_json(tmp_path / name.format(code), {"main": {code: {"identity": {"language": code}} | content}})
        emoji = {"annotations": {"annotations": {"🐱": {"default": keywords, "tts": [cat]}}}}
        write_json(tmp_path / f"cldr-annotations-full/annotations/{code}/annotations.json", emoji)
    write_json(tmp_path / "cities.json", CITIES)
    (tmp_path / "people").mkdir()
    for name, text in PEOPLE.items():
        (tmp_path / "people" / name).write_text(text, encoding="utf-8")
    return tmp_path


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def make(script, sources, check=True):
    words = ("--cldr", sources, "--cities", sources / "cities.json", "--people", sources / "people")
    return main_here(script, *words, "--output", sources / "words", check=check)


def read(sources, source, language):
    return sorted(
        read_parallel(*(sources / "words" / f"{source}.en-{language}.{code}.txt.gz" for code in ("en", language)))
    )


def test_names_of_cldr_are_paired_by_what_they_name(script, sources):
    """In lower case; what is the same in both languages teaches nothing."""
    make(script, sources)
    others = [
        ("animal pet", "dyr kjæledyr"),
        ("cat", "katt"),
        ("danish", "dansk"),
        ("norway", "norge"),
        ("oslo", "oslo by"),
    ]
    assert read(sources, "cldr", "nb") == others
    assert [other for english, other in read(sources, "cldr", "sr") if english == "norway"] == ["norveška", "норвешка"]


def test_the_script_tells_the_language_of_a_city(script, sources):
    """A name with a letter of another alphabet is of no language, one Chinese letter too little."""
    make(script, sources)
    assert read(sources, "geonames", "ru") == [("large", "ларж"), ("small", "смол")]
    of_one = {
        **{"uk": ("large", "ларґі"), "ko": ("large", "라지"), "ar": ("large", "لارج"), "ja": ("small", "スモール")},
        **{"zh": ("small", "斯莫爾"), "th": ("small", "สมอล"), "el": ("third", "τρίτη"), "he": ("third", "שלישי")},
        "hi": ("third", "तीसरा"),
    }
    assert {language: read(sources, "geonames", language) for language in of_one} == {k: [v] for k, v in of_one.items()}


def test_whole_names_keep_their_blanks_and_single_ones_are_joined(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "ko") == [("anna smith", "애나 스미스")]
    assert read(sources, "wikidata", "ru") == [("often", "фил"), ("rare", "жидк")]


def test_the_most_frequent_stay(script, sources, monkeypatch):
    monkeypatch.setattr(script, "MOST", 1)
    make(script, sources)
    assert read(sources, "wikidata", "ru") == [("often", "фил")]
    assert read(sources, "geonames", "ru") == [("large", "ларж")]


def test_a_source_that_is_missing(script, sources):
    (sources / "cities.json").unlink()
    refused(make(script, sources, check=False), "cities.json", "no such file", "--help")
    (sources / "cities.json").write_text("{")
    refused(make(script, sources, check=False), "cities.json", "expected JSON")
    assert not (sources / "words").exists()


def test_a_source_of_another_form(script, sources):
    (sources / "people" / "wd_russian_20").write_text("often\n")
    refused(make(script, sources, check=False), "wd_russian_20, line 1", "'often'", "expected NAME, tab, NAME")
    write_json(sources / "cities.json", {"1": {"name": "Small"}})
    refused(make(script, sources, check=False), "geonames, ar: KeyError('population')", "--help")
