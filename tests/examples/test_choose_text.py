"""examples/quickstart/choose.py chooses the text of the demo."""

import gzip

import pytest
from conftest import ROOT, load_script


@pytest.fixture
def script():
    return load_script(ROOT / "examples" / "quickstart" / "choose.py")


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Where is the station?", True),
        ("Hello there.", False),
        ("one two three four five six seven eight nine ten eleven twelve thirteen", False),
        ("Did Tom call you?", False),
        ("We met in Paris.", False),
        ("I think I'll come on Monday.", True),
        ("It is late. Go to bed.", True),
    ],
)
def test_everyday_sentences_are_short_and_without_names(script, sentence, expected):
    assert script.is_everyday(sentence) is expected


def test_each_sentence_is_chosen_once(script, tmp_path, capsys):
    # The first two have the same English sentence, except case and punctuation; the third has a
    # name.
    pairs = [
        ("Where is the station?", "Où est la gare ?"),
        ("where is the station", "La gare est où ?"),
        ("We met in Paris.", "Nous nous sommes rencontrés ici."),
        ("The dog is old.", "Le chien est vieux."),
    ]
    for side, language in enumerate(("en", "fr")):
        (tmp_path / language).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    output = tmp_path / "demo.tsv.gz"
    script.main(str(tmp_path / "en"), str(tmp_path / "fr"), str(output))
    chosen = gzip.decompress(output.read_bytes()).decode().splitlines()
    stations = {"\t".join(pair) for pair in pairs[:2]}
    assert len(chosen) == 2
    assert len(stations.intersection(chosen)) == 1
    assert "\t".join(pairs[3]) in chosen
    assert "2 of 2" in capsys.readouterr().out
