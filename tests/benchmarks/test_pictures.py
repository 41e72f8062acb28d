"""The charts of the documentation show the files of results, and are legible."""

import re
from xml.etree import ElementTree

import pytest
from conftest import ROOT

from benchmarks import pictures
from benchmarks.svg import LETTER, WIDTH, Axis, Picture, label

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Mean width of a letter, as a share of its height.
LETTER_WIDTH = 0.53
# Of the right edge of a text, whose width is only estimated.
TOLERANCE = 8


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_stored_picture_shows_the_present_results(name, tmp_path):
    pictures.PICTURES[name]().save(tmp_path / "new.svg")
    drawn = (tmp_path / "new.svg").read_text(encoding="utf-8")
    stored = (pictures.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == stored, "run python -m benchmarks.pictures"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_has_colours_for_dark_pages(name):
    text = (pictures.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in text


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_all_text_is_inside_the_picture(name):
    text = (pictures.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    shares = {"start": 0, "middle": 0.5, "end": 1}
    for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text"):
        width = len(element.text) * LETTER * LETTER_WIDTH
        left = float(element.get("x")) - shares[element.get("text-anchor")] * width
        assert left >= 0, element.text
        assert left + width <= WIDTH + TOLERANCE, element.text


def test_every_picture_is_on_a_page_and_described_by_a_sentence():
    embedded = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
            embedded.add(target.rpartition("/")[2])
            assert (page.parent / target).is_file(), target
            if "assets/" in target:
                assert alt.endswith("."), target
                assert len(alt.split()) > 12, target
    assert {f"{name}.svg" for name in pictures.PICTURES} <= embedded


def test_the_list_of_languages_has_the_present_results():
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    assert pictures.language_list() in page
    assert len(pictures.language_scores()) == 38


def test_the_map_has_a_place_for_each_sentence():
    sentences = pictures.read_sentences()
    result = pictures.read_json(pictures.MAP)
    assert len(result["places"]) == result["sentences"] == sum(map(len, sentences.values()))
    assert result["translations, mean cosine"] > result["other pairs, mean cosine"] + 0.5


def test_axes_are_linear_or_logarithmic_and_labelled_without_exponents():
    assert Axis(0, 10, 100, 200, ()).place(5) == 150
    assert Axis(1, 100, 300, 100, (), is_log=True).place(10) == pytest.approx(200)
    assert [label(value) for value in (0.3, 95, 168_925)] == ["0.3", "95", "168,925"]


def test_text_in_a_picture_is_escaped(tmp_path):
    picture = Picture(50, "a < b & c")
    picture.text(0, 20, "a < b & c")
    picture.save(tmp_path / "x.svg")
    words = [element.text for element in ElementTree.parse(tmp_path / "x.svg").iter()]
    assert words.count("a < b & c") == 2
