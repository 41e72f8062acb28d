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
        # Pairs of Latin letters that are one Cyrillic letter: nj, dž, lj.
        ("Njegov đak, Džep i LJUBAV.", "Његов ђак, Џеп и ЉУБАВ."),
        ("Његов ђак, Џеп и љубав.", "Njegov đak, Džep i ljubav."),
        # A letter and its combining mark.
        ("S\u030cta?", "Шта?"),
    ],
)
def test_serbian_is_written_in_the_other_script(variants, text, expected):
    assert variants.other_script(text, random.Random(0)) == expected


@pytest.mark.parametrize(
    "text",
    ["Koristi Python", "Živim u Münchenu.", "Vidi http://a.b/c", "день"],
    # The letter y is not Serbian.
    ids=["y", "umlaut", "address", "russian"],
)
def test_text_with_foreign_letters_or_an_address_is_not_changed(variants, text):
    assert variants.other_script(text, random.Random(0)) == text


def test_about_a_third_of_the_blanks_between_korean_letters_is_removed_and_no_others(variants):
    # Two of five blanks are between Korean letters: 200 of 500.
    text = "그는 학교에 갔다 in 2020 " * 100

    joined = variants.written_together(text, random.Random(0))

    removed = text.count(" ") - joined.count(" ")
    assert 40 < removed < 80
    assert joined.count(" in 2020 ") == 100
    assert joined.replace(" ", "") == text.replace(" ", "")


@pytest.fixture
def collected():
    """The text of collect.py, which leaves out two evaluation sentences."""
    return load_script(FOLDER / "collect.py").Text([], [], {"ноћ", "yes"})


def test_a_collected_serbian_pair_is_spelt_in_both_scripts(collected):
    spellings = collected.spellings(("A day.", "Dan."), "en-sr", random.Random(0))

    assert spellings == [("A day.", "Dan."), ("A day.", "Дан.")]


@pytest.mark.parametrize(
    ("pair", "languages"),
    [
        (("A day.", "Un jour."), "en-fr"),
        # The evaluation text is Serbian and English; this pair is of another language.
        (("Yes!", "Oui"), "en-fr"),
        # Without letters.
        (("-", "- 5"), "en-sr"),
        # Croatian is written in Latin letters only.
        (("A day.", "Dan."), "en-hr"),
    ],
)
def test_a_collected_pair_of_one_script_has_one_spelling(collected, pair, languages):
    assert collected.spellings(pair, languages, random.Random(0)) == [pair]


@pytest.mark.parametrize(
    "pair",
    [("A night.", "Noć."), ("A night.", "Ноћ"), ("Yes!", "Da")],
    ids=["latin", "cyrillic", "english"],
)
def test_a_collected_serbian_pair_with_evaluation_text_in_a_script_is_left_out(collected, pair):
    assert collected.spellings(pair, "en-sr", random.Random(0)) == []


# Some forms of a verb of each conjugation; the spelling of c and g depends on the next letter.
VERBS = {
    "parlare": "parlo parli parla parliamo parlate parlano parlavo parlò parlarono parlerò parlasse parlato parlarmi",
    "mangiare": "mangio mangi mangiamo mangerò mangiavo mangiato",
    "studiare": "studio studi studierò",
    "cercare": "cerco cerchi cerchiamo cercherò cercava cercò",
    "vendere": "vendo vendete vendono vendeva vendette venderà venduto vendessi vendendo",
    "finire": "finisco finisce finiamo finite finivo finì finirà finito finendo finirlo",
    "lavarsi": "lavo lavarsi lavare",
}


@pytest.fixture
def italian():
    """The script italian.py."""
    return load_script(FOLDER / "italian.py")


@pytest.mark.parametrize("verb", VERBS)
def test_an_italian_verb_is_conjugated(italian, verb):
    assert set(VERBS[verb].split()) <= set(italian.conjugated(verb))


@pytest.mark.parametrize(
    ("word", "kind", "forms"),
    # n: noun, a: adjective, r: adverb.
    [
        ("gatto", "n", "gatto gatti"),
        ("casa", "n", "casa case"),
        ("barca", "n", "barca barche"),
        # Masculine and feminine.
        ("artista", "n", "artista artisti artiste"),
        ("specchio", "n", "specchio specchi"),
        # Words in -co have -ci or -chi; both are made.
        ("bianco", "a", "bianco bianca bianci bianchi bianche"),
        # One form only.
        ("bar", "n", "bar"),
        ("spesso", "r", "spesso"),
    ],
)
def test_an_italian_noun_or_adjective_is_declined(italian, word, kind, forms):
    assert list(italian.declined(word, kind)) == forms.split()


def test_forms_of_words_with_many_meanings_come_first(italian, tmp_path, monkeypatch):
    monkeypatch.setattr(italian, "MOST", 3)
    # `gatto` has two meanings, the others one; an expression of several words is left out.
    lemmas = ["1-n\tita:lemma\tcasa", "2-n\tita:lemma\tcane da caccia"]
    lemmas += ["3-n\tlemma\tGatto", "4-n\tita:lemma\tgatto"]
    (tmp_path / "wn.tab").write_text("\n".join(["# name", *lemmas, ""]))

    done = main_here(italian, tmp_path / "wn.tab", "--output", tmp_path)

    # The forms are gatto, gatti, casa, case.
    assert "3 words of 4" in done.stdout
    words = (tmp_path / "forms" / "it.txt").read_text().split()
    assert set(words) == {"gatto", "gatti", "casa"}


def test_a_file_without_lemmas_is_refused(italian, tmp_path):
    (tmp_path / "wn.tab").write_text("nothing\n")

    done = main_here(italian, tmp_path / "wn.tab", "--output", tmp_path, check=False)

    refused(done, "no lemmas")
