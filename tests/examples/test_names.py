"""examples/pretrained/names.py pairs names of the same thing."""

import json

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_parallel

CITIES = {
    "1": {"name": "Small", "population": 5_000, "alternatenames": ["Смол", "Smol", "スモール", "斯莫爾", "小"]},
    "2": {
        "name": "Large",
        "population": 9_000_000,
        "alternatenames": ["Ларж", "Ларж q", "Ларґі", "라지", "لارج", "لارجپ"],
    },
}
PEOPLE = {
    **{"wd_korean": "Anna Smith\t애나 스미스\n", "wd_hebrew": "Dov\tדב\n", "wd_russian_80": "rare\tж и д к\t1\n"},
    **{"wd_russian_20": "often\tф и л\t7\n"},
}


@pytest.fixture
def script(monkeypatch):
    script = load_script(ROOT / "examples" / "pretrained" / "names.py")
    monkeypatch.setattr(script, "LANGUAGES", ("ar", "he", "ja", "ko", "nb", "ru", "uk", "zh"))
    others = {language: [name for name in names if name in PEOPLE] for language, names in script.PEOPLE.items()}
    monkeypatch.setattr(script, "PEOPLE", others)
    return script


@pytest.fixture
def sources(tmp_path):
    """CLDR in two languages, two cities, and names of people."""
    texts = {"en": ("Norway", "Oslo", "cat", ["animal", "pet"]), "no": ("Norge", "Oslo", "katt", ["dyr", "kjæledyr"])}
    texts |= {code: ("x", "y", "z", ["w"]) for code in ("ar", "he", "ja", "ko", "ru", "uk", "zh")}
    for code, (country, city, cat, keywords) in texts.items():
        names = {"territories": {"NO": country}}
        zone = {"zone": {"Europe": {"Oslo": {"exemplarCity": city, "long": {"standard": "left out"}}}}}
        for name, content in {
            "cldr-localenames-full/main/{}/territories.json": {"localeDisplayNames": names},
            "cldr-localenames-full/main/{}/languages.json": {"localeDisplayNames": {"languages": {}}},
            "cldr-numbers-full/main/{}/currencies.json": {"numbers": {"currencies": {"NOK": {"symbol": "kr"}}}},
            "cldr-dates-full/main/{}/timeZoneNames.json": {"dates": {"timeZoneNames": {"hourFormat": "+HH"} | zone}},
        }.items():
            write_json(tmp_path / name.format(code), {"main": {code: content}})
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
    return set(
        read_parallel(*(sources / "words" / f"{source}.en-{language}.{code}.txt.gz" for code in ("en", language)))
    )


def test_names_of_cldr_are_paired_by_what_they_name(script, sources):
    make(script, sources)
    assert read(sources, "cldr", "nb") == {("norway", "norge"), ("cat", "katt"), ("animal pet", "dyr kjæledyr")}


def test_the_script_tells_the_language_of_a_city(script, sources):
    """A name with a letter of another alphabet is of no language, one Chinese letter too little."""
    make(script, sources)
    assert read(sources, "geonames", "ru") == {("small", "смол"), ("large", "ларж")}
    assert read(sources, "geonames", "uk") == {("large", "ларґі")}
    assert read(sources, "geonames", "ja") == {("small", "スモール")}
    assert read(sources, "geonames", "ko") == {("large", "라지")}
    assert read(sources, "geonames", "ar") == {("large", "لارج")}
    assert read(sources, "geonames", "zh") == {("small", "斯莫爾")}


def test_whole_names_keep_their_blanks_and_single_ones_are_joined(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "ko") == {("anna smith", "애나 스미스")}
    assert read(sources, "wikidata", "ru") == {("often", "фил"), ("rare", "жидк")}


def test_the_most_frequent_stay(script, sources, monkeypatch):
    monkeypatch.setattr(script, "MOST", 1)
    make(script, sources)
    assert read(sources, "wikidata", "ru") == {("often", "фил")}
    assert read(sources, "geonames", "ru") == {("large", "ларж")}


def test_a_source_that_is_missing(script, sources):
    (sources / "cities.json").unlink()
    refused(make(script, sources, check=False), "cities.json", "no such file", "--help")
    (sources / "cities.json").write_text("{")
    refused(make(script, sources, check=False), "cities.json", "expected JSON")
    assert not (sources / "words").exists()
