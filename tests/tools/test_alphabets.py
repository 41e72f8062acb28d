"""tools/alphabets.py: the alphabets of a small CLDR."""

import json
import re

import pytest
from conftest import ROOT, load_script


@pytest.fixture
def script():
    return load_script(ROOT / "tools" / "alphabets.py")


def test_a_set_of_characters_may_have_ranges_strings_and_escapes(script):
    assert script.characters(r"[a-c {ch} \- é \u0301]") == set("abcch-é\u0301")


def test_alphabets_have_both_cases_and_the_blocks_of_their_scripts(script, tmp_path):
    sets = {"exemplarCharacters": "[a-c é {dž} 1 一]", "auxiliary": "[ü]"}
    for language in script.LANGUAGES.split():
        code = script.CLDR_NAMES.get(language, language)
        content = {"main": {code: {"characters": sets}}}
        (tmp_path / code).mkdir()
        (tmp_path / code / "characters.json").write_text(json.dumps(content))
    script.write_alphabets(tmp_path, "48", tmp_path / "alphabets.json")
    record = json.loads((tmp_path / "alphabets.json").read_text(encoding="utf-8"))
    assert "48" in record["source"]
    assert record["alphabets"]["de"] == "".join(sorted("ABCDabcdÉéÜüŽž一"))
    assert re.fullmatch(f"[{record['alphabets']['ja']}]+", "aé一ア")
    assert not re.search(f"[{record['alphabets']['zh']}]", "1ア")


def test_the_package_has_the_alphabets_of_all_languages(script):
    record = json.loads(script.OUTPUT.read_text(encoding="utf-8"))
    assert list(record["alphabets"]) == script.LANGUAGES.split()
