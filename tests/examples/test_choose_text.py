"""examples/quickstart/choose.py chooses the text of the demo."""

import gzip

import pytest
import toy
from conftest import ROOT, load_script


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "quickstart" / "choose.py")


@pytest.mark.parametrize(
    ("sentence", "is_everyday"),
    [
        ("Where is the station?", True),
        # Fewer than 3 words, and more than 12.
        ("Hello there.", False),
        ("one two three four five six seven eight nine ten eleven twelve thirteen", False),
        # A first name, and a word with a capital letter.
        ("Did Tom call you?", False),
        ("We met in Paris.", False),
        # Capital letters that are no names: I, a day, and the beginning of a sentence.
        ("I think I'll come on Monday.", True),
        ("It is late. Go to bed.", True),
    ],
)
def test_everyday_sentences_have_3_to_12_words_and_no_names(script, sentence, is_everyday):
    assert script.is_everyday(sentence) is is_everyday


@pytest.fixture
def choose(script, tmp_path):
    """A function that writes pairs, runs the script, and returns the lines that it has chosen."""

    def write_and_choose(*pairs):
        toy.write(tmp_path / "text", pairs)
        output = tmp_path / "demo.tsv.gz"
        script.main(str(tmp_path / "text.en"), str(tmp_path / "text.fr"), str(output))
        return gzip.decompress(output.read_bytes()).decode().splitlines()

    return write_and_choose


def test_pairs_of_everyday_sentences_are_chosen_and_counted(choose, capsys):
    dog = ("The dog is old.", "Le chien est vieux.")
    station = ("Where is the station?", "Où est la gare ?")
    with_name = ("We met in Paris.", "Nous nous sommes rencontrés ici.")

    lines = choose(dog, station, with_name)

    assert sorted(lines) == ["\t".join(dog), "\t".join(station)]
    assert "2 of 2" in capsys.readouterr().out


def test_a_sentence_that_differs_in_case_and_punctuation_is_chosen_once(choose):
    first = ("Where is the station?", "Où est la gare ?")
    second = ("where is the station", "La gare est où ?")

    [line] = choose(first, second)

    assert line in ("\t".join(first), "\t".join(second))
