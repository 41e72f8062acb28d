"""examples/pretrained/rows.py takes the rows of weak languages from another training."""

import json

import numpy as np
from conftest import ROOT, load_script

SCRIPT = load_script(ROOT / "examples" / "pretrained" / "rows.py")


def test_the_share_of_weak_languages_in_a_piece():
    shares = {
        "en": np.array([0.1, 0.0, 0.0, 0.2]),
        "et": np.array([0.5, 0.3, 0.0, 0.0]),
        "fr": np.array([0.0, 0.1, 0.0, 0.5]),
    }
    # English counts five times: 0.5 beside 0.5.
    np.testing.assert_allclose(SCRIPT.weak_share(shares, {"et"}), [0.5, 0.75, 0, 0])


def test_the_files_of_each_language_without_lists_of_words(tmp_path):
    listed = {
        "en-et": {"law": "a/law.en-et", "web": "a/web.en-et", "words": "a/words.en-et"},
        "en-fr": {"law": "a/law.en-fr"},
        "fi-et": {"words": "a/words.fi-et"},
    }
    (tmp_path / "pairs.yaml").write_text(json.dumps({"pairs": listed}))
    files = SCRIPT.language_files(tmp_path / "pairs.yaml")
    assert {language: [file.name for file in names] for language, names in files.items()} == {
        "en": ["law.en-et.en", "law.en-fr.en", "web.en-et.en"],
        "et": ["law.en-et.et", "web.en-et.et"],
        "fr": ["law.en-fr.fr"],
    }
