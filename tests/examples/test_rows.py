"""examples/pretrained/rows.py takes the rows of weak languages from another training."""

import json

import numpy as np
from conftest import ROOT, load_script

SCRIPT = load_script(ROOT / "examples" / "pretrained" / "rows.py")


def test_the_share_of_weak_languages_in_a_piece_counts_english_five_times():
    # The frequency of four pieces in each language, of which Estonian is weak.
    frequencies = {
        "en": np.array([0.1, 0.0, 0.0, 0.2]),
        "et": np.array([0.5, 0.3, 0.0, 0.0]),
        "fr": np.array([0.0, 0.1, 0.0, 0.5]),
    }

    shares = SCRIPT.weak_share(frequencies, {"et"})

    # A piece that does not occur has a share of 0.
    expected = [0.5 / (5 * 0.1 + 0.5), 0.3 / (0.3 + 0.1), 0, 0]
    np.testing.assert_allclose(shares, expected)


def test_files_of_a_language_are_its_sides_of_all_pairs_except_lists_of_words(tmp_path):
    pairs = {
        "en-et": {"law": "a/law.en-et", "web": "a/web.en-et", "words": "a/words.en-et"},
        "en-fr": {"law": "a/law.en-fr"},
        "fi-et": {"words": "a/words.fi-et"},
    }
    (tmp_path / "pairs.yaml").write_text(json.dumps({"pairs": pairs}))

    files = SCRIPT.language_files(tmp_path / "pairs.yaml")

    names = {language: [file.name for file in paths] for language, paths in files.items()}
    assert names == {
        "en": ["law.en-et.en", "law.en-fr.en", "web.en-et.en"],
        "et": ["law.en-et.et", "web.en-et.et"],
        "fr": ["law.en-fr.fr"],
    }
