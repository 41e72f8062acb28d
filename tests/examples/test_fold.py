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


@pytest.fixture
def fold_pieces(script):
    """A function from the texts of pieces to those that a folded model has.

    Each has the places of the pieces that become it.
    """

    def fold(texts):
        pieces = [Piece(text, -1, NORMAL) for text in texts]
        options = TextOptions(lowercase=True, version=TEXT_VERSION)
        return script.folded_pieces(pieces, options)

    return fold


def test_pieces_that_become_equal_are_merged(fold_pieces):
    assert fold_pieces(["▁ещё", "▁еще", "▁дом"]) == {"▁еще": [0, 1], "▁дом": [2]}


def test_pieces_of_nothing_but_a_mark_are_left_out(fold_pieces):
    """A Hebrew vowel mark. The piece of a blank stays."""
    assert fold_pieces(["▁ַ", "ַ", "▁"]) == {"▁": [2]}


@pytest.mark.parametrize("piece", ["▁_", "|", "▁**"])
def test_a_piece_of_mark_up_that_reading_removes_is_left_out(fold_pieces, piece):
    assert fold_pieces([piece]) == {}


@pytest.mark.parametrize("piece", ["*", "#", "▁c", "[", "\u200d"])
def test_a_piece_that_reading_keeps_in_some_place_stays(fold_pieces, piece):
    """Such as the asterisk of 2*3."""
    assert fold_pieces([piece]) == {piece: [0]}


# Words with letters, and a number with digits, that folding makes equal.
GERMAN = "straße groß 12"
FOLDED_GERMAN = "strasse gross ١٢"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has not been folded."""
    lines = ["straße groß 12", "strasse gross 12", "ещё дом"] * 20
    folder = tmp_path_factory.mktemp("fold") / "model"
    return write_model(folder, pieces="unigram", lines=lines, num_layers=0, gated=True)


@pytest.mark.slow
def test_a_model_reads_spellings_differently_before_it_is_folded(model):
    first, second = SentenceEncoder.from_pretrained(model).encode([GERMAN, FOLDED_GERMAN])

    assert np.abs(first - second).max() > 1e-3


@pytest.mark.slow
def test_a_folded_model_reads_spellings_alike(script, model, tmp_path):
    script.fold_model(model, tmp_path / "folded")

    folded = SentenceEncoder.from_pretrained(tmp_path / "folded")
    first, second = folded.encode([GERMAN, FOLDED_GERMAN])

    np.testing.assert_allclose(first, second, atol=1e-6)


def test_the_packaged_model_reads_spellings_alike(packaged):
    sentences = ["Die Straße ist groß, 12 m", "Die Strasse ist gross, ١٢ m"]

    first, second = packaged.encode(sentences)

    np.testing.assert_allclose(first, second, atol=1e-6)
