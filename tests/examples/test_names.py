"""examples/pretrained/names.py pairs names of the same thing."""

import struct

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_parallel

PEOPLE = {
    "wd_arabic_80": "a\tب\t1\n",
    "wd_arabic_20": "",
    "wd_chinese_80": "a\t阿\t1\n",
    "wd_chinese_20": "",
    "wd_japanese_80": "a\tア\t1\n",
    "wd_japanese_20": "",
    "wd_korean": "Anna Smith\t애나 스미스\n",
    "wd_hebrew": "Dov Levi\tגג, דב\nDov\tדב\n",
    "wd_russian_80": "rare\tж и д к\t1\n",
    "wd_russian_20": "often\tф и л\t7\n",
}
# The names of a country, a region, a language, a currency, a unit, and a cat.
TERMS = {
    "en": ("Norway", "Viken", "Danish", "Krone", "meters", "cat"),
    "no": ("Norge", "Viken fylke", "dansk", "krone", "meter", "katt"),
    "sr": ("Норвешка", "Викен", "дански", "круна", "↑↑↑", "мачка"),
    "sr_Latn": ("Norveška", "Viken", "danski", "kruna", "metri", "mačka"),
}
CITIES = {
    "en": {"2": "Oslo", "1": "Cologne", "3": "Bonn", "4": "Alton", "5": "Essen", "NO": "Norway"},
    "it": {"1": "Colonia", "3": "Bonn", "4": "Alton (Illinois)", "5": "\u200eEssen  di\nsopra"},
    "ko": {"1": "Köln", "2": "오슬로"},
}


def cldr_files(code):
    """Return the files of a language of CLDR, with its names and with text that is no name."""
    country, region, language, currency, unit, cat = TERMS.get(code, "uvwxyz")
    return {
        "main": f'<localeDisplayNames><languages><language type="da">{language}</language></languages><territories>'
        f'<territory draft="x{code}" type="NO">{country}</territory></territories><keys><key type="k">of {code}</key>'
        f'</keys></localeDisplayNames><numbers><currencies><currency type="NOK"><displayName>{currency}</displayName>'
        f"<symbol>kr {code}</symbol></currency></currencies></numbers>"
        f'<units><unitLength type="long"><unit type="m"><displayName>{unit}</displayName><unitPattern>{{0}} {code}'
        f'</unitPattern></unit></unitLength><unitLength type="short"><unit type="m"><displayName>m {code}</displayName>'
        "</unit></unitLength></units>",
        "subdivisions": "<localeDisplayNames><subdivisions>"
        f'<subdivision type="no30">{region}</subdivision></subdivisions></localeDisplayNames>',
        "annotations": f'<annotations><annotation cp="🐱">pet | in {code}</annotation>'
        f'<annotation cp="🐱" type="tts">{cat}</annotation></annotations>',
    }


def catalogue(messages):
    """Return a compiled catalogue of messages and their translations."""
    messages = {"": "Content-Type: text/plain; charset=UTF-8\n"} | messages
    texts = [text.encode() + b"\0" for text in (*messages.keys(), *messages.values())]
    start = 28 + 8 * len(texts)
    tables = b""
    for text in texts:
        tables += struct.pack("<2I", len(text) - 1, start)
        start += len(text)
    header = struct.pack("<7I", 0x950412DE, 0, len(messages), 28, 28 + 4 * len(texts), 0, 0)
    return header + tables + b"".join(texts)


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "pretrained" / "names.py")


@pytest.fixture
def sources(tmp_path, script):
    """The files of each source in all languages, with content of their own for a few languages."""
    codes = {"en"}
    for language in script.LANGUAGES:
        codes.update(script.CLDR_CODES.get(language, [language]))
    for code in codes:
        for part, content in cldr_files(code).items():
            write(tmp_path / "cldr" / part / f"{code}.xml", f"<ldml>{content}</ldml>".encode())
    for code in ("en", *script.LANGUAGES):
        cities = CITIES.get(code, {"2": f"in {code}"})
        write(tmp_path / script.GEONAMES_FILE.format(code), catalogue(cities))
    for name, text in PEOPLE.items():
        write(tmp_path / "people" / name, text.encode())
    return tmp_path


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def make(script, sources, check=True):
    words = ("--cldr", sources / "cldr", "--geonames", sources, "--people", sources / "people")
    return main_here(script, *words, "--output", sources / "words", check=check)


def read(sources, source, language):
    prefix = sources / "words" / f"{source}.en-{language}"
    return sorted(read_parallel(f"{prefix}.en.txt.gz", f"{prefix}.{language}.txt.gz"))


def translations(pairs, word):
    return [translation for english, translation in pairs if english == word]


def test_names_of_cldr_are_paired_by_their_type_in_lower_case(script, sources):
    """Names that are equal in both languages, or inherited, are left out; keywords are one name."""
    make(script, sources)
    assert read(sources, "cldr", "nb") == [
        ("cat", "katt"),
        ("danish", "dansk"),
        ("meters", "meter"),
        ("norway", "norge"),
        ("pet in en", "pet in no"),
        ("viken", "viken fylke"),
    ]
    serbian = read(sources, "cldr", "sr")
    assert translations(serbian, "norway") == ["norveška", "норвешка"]
    assert translations(serbian, "meters") == ["metri"]


def test_names_of_regions_with_another_place_or_a_number_are_left_out(script, sources):
    regions = {
        "en": "Centre",
        "it": "Centre (Haiti)",
        "fr": "Le centre",
        "de": "Mitte²",
        "es": "Centro, Haiti",
    }
    for code, region in regions.items():
        content = f'<ldml><subdivision type="htce">{region}</subdivision></ldml>'
        (sources / "cldr" / "subdivisions" / f"{code}.xml").write_text(content)
    make(script, sources)
    assert translations(read(sources, "cldr", "fr"), "centre") == ["le centre"]
    for code in ("it", "de", "es"):
        assert translations(read(sources, "cldr", code), "centre") == [], code


def test_names_of_geonames_are_paired_by_their_number(script, sources):
    """Names in another script, or with another place, are left out; blanks are normalised."""
    make(script, sources)
    assert read(sources, "geonames", "it") == [("cologne", "colonia"), ("essen", "essen di sopra")]
    assert read(sources, "geonames", "ko") == [("oslo", "오슬로")]


def test_spaced_letters_of_a_name_are_joined(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "ko") == [("anna smith", "애나 스미스")]
    assert read(sources, "wikidata", "ru") == [("often", "фил"), ("rare", "жидк")]


def test_a_name_whose_order_differs_is_left_out(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "he") == [("dov", "דב")]


def test_only_the_most_frequent_people_are_written(script, sources, monkeypatch):
    monkeypatch.setattr(script, "MOST_PEOPLE", 1)
    make(script, sources)
    assert read(sources, "wikidata", "ru") == [("often", "фил")]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("people/wd_russian_20", b"often\n", "wd_russian_20, line 1: 'often'"),
        ("zh/LC_MESSAGES/geonames.mo", b"no catalogue", "geonames.mo: "),
        ("cldr/annotations/zh.xml", b"<ldml>", "zh.xml: ParseError"),
        (
            "cldr/annotations/zh.xml",
            b'<?xml version="1.0" encoding="none"?><ldml/>',
            "zh.xml: LookupError",
        ),
        ("cldr/subdivisions/zh.xml", b"<ldml/>", "zh.xml: "),
        ("cldr/main/en.xml", None, "en.xml: "),
    ],
)
def test_a_missing_or_invalid_source_is_refused_before_writing(
    script, sources, file, content, message
):
    if content is None:
        (sources / file).unlink()
    else:
        (sources / file).write_bytes(content)
    refused(make(script, sources, check=False), message)
    assert not (sources / "words").exists()
