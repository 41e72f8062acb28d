"""examples/pretrained/names.py pairs names of the same thing."""

import struct

import pytest
from conftest import ROOT, load_script, main_here, refused

from fairseq_lxsr.files.lines import read_parallel

# Files of names of people that come from Wikidata: English, another language, and in some files a
# count.
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
# The names of a country, a region, a language, a currency, a unit, and a cat; by code of CLDR. The
# unit of Serbian in Cyrillic letters is a mark of CLDR: it is that of the parent language.
TERMS = {
    "en": ("Norway", "Viken", "Danish", "Krone", "meters", "cat"),
    "no": ("Norge", "Viken fylke", "dansk", "krone", "meter", "katt"),
    "sr": ("Норвешка", "Викен", "дански", "круна", "↑↑↑", "мачка"),
    "sr_Latn": ("Norveška", "Viken", "danski", "kruna", "metri", "mačka"),
}
# Names of places by their number in GeoNames.
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
    """Return a compiled catalogue of messages and their translations, as msgfmt writes it."""
    messages = {"": "Content-Type: text/plain; charset=UTF-8\n"} | messages
    texts = [text.encode() + b"\0" for text in (*messages.keys(), *messages.values())]
    start = 28 + 8 * len(texts)
    tables = b""
    for text in texts:
        tables += struct.pack("<2I", len(text) - 1, start)
        start += len(text)
    header = struct.pack("<7I", 0x950412DE, 0, len(messages), 28, 28 + 4 * len(texts), 0, 0)
    return header + tables + b"".join(texts)


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "examples" / "pretrained" / "names.py")


@pytest.fixture
def sources(tmp_path, script):
    """A folder with the files of each source."""
    return write_sources(tmp_path, script)


@pytest.fixture(scope="module")
def written(tmp_path_factory, script):
    """A folder with the files of each source, for which the script has been run."""
    folder = write_sources(tmp_path_factory.mktemp("names"), script)
    run_script(script, folder)
    return folder


def write_sources(folder, script):
    """Write the files of all languages, with content of their own for a few languages."""
    codes = {"en"}
    for language in script.LANGUAGES:
        codes.update(script.CLDR_CODES.get(language, [language]))
    for code in codes:
        for part, content in cldr_files(code).items():
            write(folder / "cldr" / part / f"{code}.xml", f"<ldml>{content}</ldml>".encode())
    for code in ("en", *script.LANGUAGES):
        cities = CITIES.get(code, {"2": f"in {code}"})
        write(folder / script.GEONAMES_FILE.format(code), catalogue(cities))
    for name, text in PEOPLE.items():
        write(folder / "people" / name, text.encode())
    return folder


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def run_script(script, sources, check=True):
    words = ("--cldr", sources / "cldr", "--geonames", sources, "--people", sources / "people")
    return main_here(script, *words, "--output", sources / "words", check=check)


def written_pairs(folder, source, language):
    """Return the sorted pairs of English and a language that the script has written."""
    prefix = folder / "words" / f"{source}.en-{language}"
    return sorted(read_parallel(f"{prefix}.en.txt.gz", f"{prefix}.{language}.txt.gz"))


def translations(pairs, word):
    return [translation for english, translation in pairs if english == word]


def test_names_of_cldr_are_paired_by_their_type_in_lower_case(written):
    """The keywords of a sign are one name."""
    assert written_pairs(written, "cldr", "nb") == [
        ("cat", "katt"),
        ("danish", "dansk"),
        ("meters", "meter"),
        ("norway", "norge"),
        ("pet in en", "pet in no"),
        ("viken", "viken fylke"),
    ]


def test_a_name_of_cldr_that_is_equal_in_both_languages_is_left_out(written):
    # Krone and krone.
    assert translations(written_pairs(written, "cldr", "nb"), "krone") == []


def test_names_of_cldr_in_serbian_are_in_both_scripts_and_none_is_inherited(written):
    serbian = written_pairs(written, "cldr", "sr")
    assert translations(serbian, "norway") == ["norveška", "норвешка"]
    assert translations(serbian, "meters") == ["metri"]


def write_region(sources, code, name):
    content = f'<ldml><subdivision type="htce">{name}</subdivision></ldml>'
    (sources / "cldr" / "subdivisions" / f"{code}.xml").write_text(content)


def test_names_of_regions_with_another_place_or_a_number_are_left_out(script, sources):
    write_region(sources, "en", "Centre")
    write_region(sources, "fr", "Le centre")
    # With another place, and with a number.
    write_region(sources, "it", "Centre (Haiti)")
    write_region(sources, "es", "Centro, Haiti")
    write_region(sources, "de", "Mitte²")

    run_script(script, sources)

    assert translations(written_pairs(sources, "cldr", "fr"), "centre") == ["le centre"]
    for code in ("it", "es", "de"):
        assert translations(written_pairs(sources, "cldr", code), "centre") == [], code


def test_names_of_geonames_are_paired_by_their_number_with_normal_blanks(written):
    """Equal names, and names with another place in brackets, are left out."""
    pairs = written_pairs(written, "geonames", "it")
    assert pairs == [("cologne", "colonia"), ("essen", "essen di sopra")]


def test_names_of_geonames_in_another_script_are_left_out(written):
    # The Korean name of Cologne is Köln there.
    assert written_pairs(written, "geonames", "ko") == [("oslo", "오슬로")]


def test_names_of_people_are_paired_in_lower_case(written):
    # From `Anna Smith` in the file wd_korean.
    assert written_pairs(written, "wikidata", "ko") == [("anna smith", "애나 스미스")]


def test_spaced_letters_of_a_name_are_joined(written):
    # From `ф и л` and `ж и д к`.
    assert written_pairs(written, "wikidata", "ru") == [("often", "фил"), ("rare", "жидк")]


def test_a_name_of_a_person_with_a_comma_is_left_out(written):
    """The comma of the Hebrew name of `Dov Levi` shows that its parts are in another order."""
    assert written_pairs(written, "wikidata", "he") == [("dov", "דב")]


def test_only_the_most_frequent_people_are_written(script, sources, monkeypatch):
    monkeypatch.setattr(script, "MOST_PEOPLE", 1)

    run_script(script, sources)

    # This name has the count 7, and the other one 1.
    assert written_pairs(sources, "wikidata", "ru") == [("often", "фил")]


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
        # Without names.
        ("cldr/subdivisions/zh.xml", b"<ldml/>", "zh.xml: "),
        # Without the file.
        ("cldr/main/en.xml", None, "en.xml: "),
    ],
    ids=["no-tab", "no-catalogue", "no-xml", "encoding", "no-names", "no-file"],
)
def test_a_missing_or_invalid_source_is_refused_before_writing(
    script, sources, file, content, message
):
    if content is None:
        (sources / file).unlink()
    else:
        (sources / file).write_bytes(content)

    done = run_script(script, sources, check=False)

    refused(done, message)
    assert not (sources / "words").exists()
