"""examples/pretrained/fold.py makes a model without layers read folded letters."""

import numpy as np
import pytest
from conftest import ROOT, load_script
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.text.sentencepiece_model import NORMAL, Piece
from fairseq_lxsr.text.tokenizer import TEXT_VERSION, TextOptions


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "examples" / "pretrained" / "fold.py")


def test_pieces_that_become_equal_are_merged(script):
    texts = ["▁ещё", "▁еще", "▁дом", "▁", "▁ַ", "ַ"]
    pieces = [Piece(text, -1, NORMAL) for text in texts]
    options = TextOptions(lowercase=True, version=TEXT_VERSION)
    expected = {"▁еще": [0, 1], "▁дом": [2], "▁": [3]}
    assert script.folded_pieces(pieces, options) == expected


def test_pieces_of_mark_up_that_reading_removes_are_left_out(script):
    removed = ["▁_", "|", "▁**"]
    # Signs that reading keeps in some place, such as the asterisk of 2*3.
    kept = ["*", "#", "▁c", "[", "\u200d"]
    pieces = [Piece(text, -1, NORMAL) for text in removed + kept]
    options = TextOptions(lowercase=True, version=TEXT_VERSION)
    assert list(script.folded_pieces(pieces, options)) == kept


@pytest.mark.slow
def test_a_folded_model_reads_spellings_alike(script, tmp_path):
    lines = ["straße groß 12", "strasse gross 12", "ещё дом"] * 20
    model = write_model(tmp_path / "model", pieces="unigram", lines=lines, num_layers=0, gated=True)
    script.fold_model(model, tmp_path / "folded")
    unfolded = SentenceEncoder.from_pretrained(model)
    folded = SentenceEncoder.from_pretrained(tmp_path / "folded")
    spellings = ["straße groß 12", "strasse gross ١٢"]
    first, second = folded.encode(spellings)
    np.testing.assert_allclose(first, second, atol=1e-6)
    first, second = unfolded.encode(spellings)
    assert np.abs(first - second).max() > 1e-3


def test_the_packaged_model_reads_spellings_alike():
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    first, second = encoder.encode(["Die Straße ist groß, 12 m", "Die Strasse ist gross, ١٢ m"])
    np.testing.assert_allclose(first, second, atol=1e-6)
