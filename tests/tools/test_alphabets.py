"""tools/alphabets.py: the alphabets of a small CLDR."""

import json
import re

import pytest
from conftest import ROOT, load_script


@pytest.fixture
def script():
    return load_script(ROOT / "tools" / "alphabets.py")


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("[a-c]", {"a", "b", "c"}),
        # A string of two letters.
        ("[{ch}]", {"c", "h"}),
        (r"[\-]", {"-"}),
        (r"[\u0301]", {"\u0301"}),
        ("[a é]", {"a", "é"}),
    ],
)
def test_a_set_of_characters_may_have_ranges_strings_and_escapes(script, text, characters):
    assert script.characters(text) == characters


@pytest.fixture
def record(script, tmp_path):
    """The alphabets that are written if CLDR has the same characters for all languages.

    They are Latin letters, a digit and a Chinese character.
    """
    characters = {"exemplarCharacters": "[a-c é {dž} 1 一]", "auxiliary": "[ü]"}
    for language in script.LANGUAGES.split():
        name_in_cldr = script.CLDR_NAMES.get(language, language)
        content = {"main": {name_in_cldr: {"characters": characters}}}
        (tmp_path / name_in_cldr).mkdir()
        (tmp_path / name_in_cldr / "characters.json").write_text(json.dumps(content))
    script.write_alphabets(tmp_path, "48", tmp_path / "alphabets.json")
    return json.loads((tmp_path / "alphabets.json").read_text(encoding="utf-8"))


def pattern(alphabet):
    """Return a pattern of characters in an alphabet, which has characters and ranges."""
    return re.compile(f"[{alphabet}]")


def test_the_file_of_alphabets_names_the_version_of_cldr(record):
    assert "48" in record["source"]


def test_an_alphabet_has_the_letters_in_both_cases_without_digits(record):
    german = record["alphabets"]["de"]

    assert sorted(german) == sorted("abcdéžü" + "ABCDÉŽÜ" + "一")


def test_the_alphabet_of_japanese_has_its_syllables_beside_the_letters_of_cldr(record):
    japanese = pattern(record["alphabets"]["ja"])

    for character in "aé一ア":
        assert japanese.fullmatch(character), character


def test_the_alphabet_of_chinese_has_no_digits_and_no_japanese_syllables(record):
    chinese = pattern(record["alphabets"]["zh"])

    for character in "1ア":
        assert not chinese.fullmatch(character), character


def test_the_package_has_the_alphabets_of_all_languages(script):
    record = json.loads(script.OUTPUT.read_text(encoding="utf-8"))

    assert list(record["alphabets"]) == script.LANGUAGES.split()
