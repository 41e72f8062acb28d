"""examples/pretrained/names.py pairs names of the same thing."""

import struct

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_parallel

PEOPLE = {
    **{
        "wd_arabic_80": "a\tب\t1\n",
        "wd_arabic_20": "",
        "wd_chinese_80": "a\t阿\t1\n",
        "wd_chinese_20": "",
    },
    **{
        "wd_japanese_80": "a\tア\t1\n",
        "wd_japanese_20": "",
        "wd_korean": "Anna Smith\t애나 스미스\n",
    },
    **{"wd_hebrew": "Dov Levi\tגג, דב\nDov\tדב\n", "wd_russian_80": "rare\tж и д к\t1\n"},
    "wd_russian_20": "often\tф и л\t7\n",
}
TERMS = {  # country, region, language, currency, unit, cat
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
    """A language of CLDR: its names, and text that is none."""
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
    """A compiled catalogue of messages and their translations."""
    messages = {"": "Content-Type: text/plain; charset=UTF-8\n"} | messages
    texts = [
        text.encode() + b"\0" for side in (messages.keys(), messages.values()) for text in side
    ]
    start, tables = 28 + 8 * len(texts), b""
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
    """Each source in all languages, alike but for a few."""
    codes = {
        code
        for language in script.LANGUAGES
        for code in script.CLDR_CODES.get(language, [language])
    }
    for code in {*codes, "en"}:
        for part, content in cldr_files(code).items():
            write(tmp_path / "cldr" / part / f"{code}.xml", f"<ldml>{content}</ldml>".encode())
    for code in ("en", *script.LANGUAGES):
        write(
            tmp_path / script.GEONAMES_FILE.format(code),
            catalogue(CITIES.get(code, {"2": f"in {code}"})),
        )
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
    return sorted(
        read_parallel(
            *(
                sources / "words" / f"{source}.en-{language}.{code}.txt.gz"
                for code in ("en", language)
            )
        )
    )


def test_names_of_cldr_are_paired_by_what_they_name(script, sources):
    """In lower case; what is the same in both languages, or inherited, teaches nothing. Keywords
    are in a row.
    """
    make(script, sources)
    assert read(sources, "cldr", "nb") == [
        *[
            ("cat", "katt"),
            ("danish", "dansk"),
            ("meters", "meter"),
            ("norway", "norge"),
            ("pet in en", "pet in no"),
        ],
        ("viken", "viken fylke"),
    ]
    serbian = read(sources, "cldr", "sr")
    assert [other for english, other in serbian if english == "norway"] == ["norveška", "норвешка"]
    assert [other for english, other in serbian if english == "meters"] == ["metri"]


def test_a_region_that_says_where_it_is_or_is_numbered_is_left_out(script, sources):
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
    found = {
        code: [o for e, o in read(sources, "cldr", code) if e == "centre"]
        for code in ("it", "fr", "de", "es")
    }
    assert found == {"it": [], "fr": ["le centre"], "de": [], "es": []}


def test_names_of_geonames_are_paired_by_their_number(script, sources):
    """None is in another script or says where the place is; blanks and invisible characters are
    mended.
    """
    make(script, sources)
    assert read(sources, "geonames", "it") == [("cologne", "colonia"), ("essen", "essen di sopra")]
    assert read(sources, "geonames", "ko") == [("oslo", "오슬로")]


def test_whole_names_keep_their_blanks_and_single_ones_are_joined(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "ko") == [("anna smith", "애나 스미스")]
    assert read(sources, "wikidata", "ru") == [("often", "фил"), ("rare", "жидк")]


def test_a_family_name_that_is_first_in_one_language_only(script, sources):
    make(script, sources)
    assert read(sources, "wikidata", "he") == [("dov", "דב")]


def test_the_most_frequent_people_stay(script, sources, monkeypatch):
    monkeypatch.setattr(script, "MOST_PEOPLE", 1)
    make(script, sources)
    assert read(sources, "wikidata", "ru") == [("often", "фил")]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "people/wd_russian_20",
            b"often\n",
            "wd_russian_20, line 1: 'often'",
        ),
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
def test_a_source_that_is_missing_or_of_another_form(script, sources, file, content, said):
    """Nothing is written, though the other languages are well."""
    if content is None:
        (sources / file).unlink()
    else:
        (sources / file).write_bytes(content)
    refused(make(script, sources, check=False), said)
    assert not (sources / "words").exists()
