"""examples/pretrained/fold.py gives a model without layers the folding of letters."""

import numpy as np
import pytest
from conftest import ROOT, load_script

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.text.sentencepiece_model import NORMAL, Piece


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "examples" / "pretrained" / "fold.py")


def test_pieces_that_become_equal_are_one(script):
    texts = ["▁ещё", "▁еще", "▁дом", "▁", "▁ַ", "ַ"]
    pieces = [Piece(text, -1, NORMAL) for text in texts]
    assert script.folded_pieces(pieces) == {"▁еще": [0, 1], "▁дом": [2], "▁": [3]}


@pytest.mark.slow
def test_the_packaged_model_reads_other_spellings(script, tmp_path):
    merged = script.fold_model("lxsr-static", tmp_path / "folded")
    assert merged > 1000
    packaged = SentenceEncoder.from_pretrained("lxsr-static")
    folded = SentenceEncoder.from_pretrained(tmp_path / "folded")
    spellings = ["Die Straße ist groß, 12 m", "Die Strasse ist gross, ١٢ m"]
    first, second = folded.encode(spellings)
    np.testing.assert_allclose(first, second, atol=1e-6)
    # Where nothing is folded, the vectors stay.
    texts = ["A dog sleeps in the house.", "Собака спит дома."]
    np.testing.assert_allclose(folded.encode(texts), packaged.encode(texts), atol=1e-5)
