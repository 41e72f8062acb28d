"""The charts of the documentation show the files of results, and are legible."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT

from benchmarks import pictures
from benchmarks.svg import LETTER, WIDTH, Axis, Picture, label

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Mean width of a letter, as a share of its height.
LETTER_WIDTH = 0.53
# A text may end so far beyond the right edge, as its width is only estimated.
TOLERANCE = 8
# Share of the width of a text that is left of its place, by its `text-anchor`.
SHARE_ON_THE_LEFT = {"start": 0, "middle": 0.5, "end": 1}


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
    picture = (pictures.ASSETS / f"{name}.svg").read_text(encoding="utf-8")

    for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        width = len(element.text) * LETTER * LETTER_WIDTH
        place = float(element.get("x"))
        left = place - SHARE_ON_THE_LEFT[element.get("text-anchor")] * width
        assert left >= 0, element.text
        assert left + width <= WIDTH + TOLERANCE, element.text


# An image of Markdown, ![DESCRIPTION](FILE).
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")


def images_of_pages() -> list[tuple[str, Path]]:
    """Return the description and the file of every image of the documentation."""
    images = []
    for page in PAGES:
        for description, target in IMAGE.findall(page.read_text(encoding="utf-8")):
            images.append((description, page.parent / target))
    return images


def test_every_image_of_a_page_exists():
    for _, file in images_of_pages():
        assert file.is_file(), file


def test_every_picture_is_on_a_page():
    names_on_pages = {file.name for _, file in images_of_pages()}

    assert {f"{name}.svg" for name in pictures.PICTURES} <= names_on_pages


def test_every_picture_is_described_by_a_sentence_of_more_than_twelve_words():
    """A shorter description cannot say what a chart shows."""
    for description, file in images_of_pages():
        if file.parent.name == "assets":
            assert description.endswith("."), file
            assert len(description.split()) > 12, file


def test_the_page_has_the_present_table_of_languages():
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")

    assert pictures.language_table() in page


def test_the_table_of_languages_has_all_languages_of_the_packaged_model_except_english():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [languages_of_model] = re.findall(r"(\d+) languages with `lxsr-static`", readme)

    assert len(pictures.language_scores()) == int(languages_of_model) - 1


def test_the_map_has_a_place_for_each_sentence():
    sentences_by_language = pictures.read_sentences()
    number = sum(map(len, sentences_by_language.values()))

    result = pictures.read_json(pictures.MAP)

    assert result["sentences"] == number
    assert len(result["places"]) == number


def test_translations_of_the_map_are_much_more_similar_than_other_pairs():
    result = pictures.read_json(pictures.MAP)

    assert result["translations, mean cosine"] > result["other pairs, mean cosine"] + 0.5


def test_the_middle_of_a_linear_axis_is_the_mean_of_its_ends():
    axis = Axis(0, 10, 100, 200, ())

    assert axis.place(5) == 150


def test_the_middle_of_a_logarithmic_axis_is_the_geometric_mean_of_its_ends():
    # From 1 at the place 300 to 100 at the place 100.
    axis = Axis(1, 100, 300, 100, (), is_log=True)

    assert axis.place(10) == pytest.approx(200)


@pytest.mark.parametrize(
    ("value", "text"), [(0.3, "0.3"), (95, "95"), (168_925, "168,925")], ids=str
)
def test_labels_of_an_axis_have_no_exponent(value, text):
    assert label(value) == text


def test_title_and_text_of_a_picture_are_escaped(tmp_path):
    words = "a < b & c"
    picture = Picture(50, words)
    picture.text(0, 20, words)

    picture.save(tmp_path / "x.svg")

    # The parser refuses a file with such characters as they are.
    texts = [element.text for element in ElementTree.parse(tmp_path / "x.svg").iter()]
    # The title and the text.
    assert texts.count(words) == 2
