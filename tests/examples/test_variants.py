"""examples/pretrained: Serbian in both scripts, Korean with fewer blanks, forms of Italian words."""

import random

import pytest
from conftest import ROOT, load_script, main_here, refused

FOLDER = ROOT / "examples" / "pretrained"


@pytest.fixture
def variants():
    return load_script(FOLDER / "variants.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Njegov đak, Džep i LJUBAV.", "Његов ђак, Џеп и ЉУБАВ."),
        ("Његов ђак, Џеп и љубав.", "Njegov đak, Džep i ljubav."),
        # A letter and its combining mark.
        ("S\u030cta?", "Шта?"),
    ],
)
def test_serbian_is_written_in_the_other_script(variants, text, expected):
    assert variants.other_script(text, random.Random(0)) == expected


def test_text_with_foreign_letters_or_an_address_is_not_changed(variants):
    for text in (
        "Koristi Python",  # y is no Serbian letter
        "Živim u Münchenu.",
        "Vidi http://a.b/c",
        "день",  # Russian
    ):
        assert variants.other_script(text, random.Random(0)) == text


def test_a_third_of_the_blanks_between_korean_letters_is_removed(variants):
    text = "그는 학교에 갔다 in 2020 " * 100
    joined = variants.written_together(text, random.Random(0))
    assert joined.replace(" ", "") == text.replace(" ", "")
    # 200 blanks are between Korean letters.
    assert 40 < text.count(" ") - joined.count(" ") < 80
    assert "갔다 in 2020 그는" in joined


def test_collected_serbian_has_both_scripts_and_no_evaluation_text():
    text = load_script(FOLDER / "collect.py").Text([], [], {"ноћ", "yes"})
    rng = random.Random(0)
    assert text.spellings(("A day.", "Dan."), "en-sr", rng) == [
        ("A day.", "Dan."),
        ("A day.", "Дан."),
    ]
    # Croatian is written in Latin letters only.
    for pair, code in (
        (("A day.", "Un jour."), "fr"),
        (("Yes!", "Oui"), "fr"),
        (("-", "- 5"), "sr"),
        (("A day.", "Dan."), "hr"),
    ):
        assert text.spellings(pair, f"en-{code}", rng) == [pair]
    # These are evaluation text in one of the scripts.
    for pair in (("A night.", "Noć."), ("A night.", "Ноћ"), ("Yes!", "Da")):
        assert text.spellings(pair, "en-sr", rng) == []


VERBS = {
    "parlare": "parlo parli parla parliamo parlate parlano parlavo parlò parlarono parlerò parlasse parlato parlarmi",
    "mangiare": "mangio mangi mangiamo mangerò mangiavo mangiato",
    "studiare": "studio studi studierò",
    "cercare": "cerco cerchi cerchiamo cercherò cercava cercò",
    "vendere": "vendo vendete vendono vendeva vendette venderà venduto vendessi vendendo",
    "finire": "finisco finisce finiamo finite finivo finì finirà finito finendo finirlo",
    "lavarsi": "lavo lavarsi lavare",
}


def test_italian_verbs_are_conjugated():
    conjugated = load_script(FOLDER / "italian.py").conjugated
    for verb, expected in VERBS.items():
        assert set(expected.split()) <= set(conjugated(verb)), verb


def test_italian_nouns_and_adjectives_are_declined():
    declined = load_script(FOLDER / "italian.py").declined
    for word, kind, expected in (
        ("gatto", "n", "gatto gatti"),
        ("casa", "n", "casa case"),
        ("barca", "n", "barca barche"),
        ("artista", "n", "artista artisti artiste"),
        ("specchio", "n", "specchio specchi"),
        ("bianco", "a", "bianco bianca bianci bianchi bianche"),
        ("bar", "n", "bar"),
        ("spesso", "r", "spesso"),
    ):
        assert list(declined(word, kind)) == expected.split()


def test_words_with_many_meanings_come_first(tmp_path, monkeypatch):
    script = load_script(FOLDER / "italian.py")
    monkeypatch.setattr(script, "MOST", 3)
    (tmp_path / "wn.tab").write_text(
        "# name\n1-n\tita:lemma\tcasa\n2-n\tita:lemma\tcane da "
        "caccia\n3-n\tlemma\tGatto\n4-n\tita:lemma\tgatto\n"
    )
    done = main_here(script, tmp_path / "wn.tab", "--output", tmp_path)
    assert "3 words of 4" in done.stdout
    lines = (tmp_path / "forms" / "it.txt").read_text().split()
    assert set(lines) == {"gatto", "gatti", "casa"}
    (tmp_path / "wn.tab").write_text("nothing\n")
    refused(main_here(script, tmp_path / "wn.tab", "--output", tmp_path, check=False), "no lemmas")
