"""Any string can be tokenised and embedded: all scripts, NULs, lone surrogates, nothing at all."""

import numpy as np
import pytest

from fairseq_lxsr import SentenceEncoder

hypothesis = pytest.importorskip("hypothesis")
text = hypothesis.strategies.text(alphabet=hypothesis.strategies.characters(), max_size=300)
settings = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def encoder(toy_model):
    return SentenceEncoder.from_pretrained(toy_model, device="cpu")


@settings
@hypothesis.given(texts=hypothesis.strategies.lists(text, max_size=8))
@hypothesis.example(
    texts=["\x00", "\ud800", "a\udfffb", "\u202e\u200d", "ア אב 漢", "\n\r\u2028", "\ufeff"]
)
def test_any_strings_are_embedded_one_by_one_and_together(encoder, texts):
    together = encoder.encode(texts)
    assert together.shape == (len(texts), 32)
    assert np.isfinite(together).all()
    for sentence, expected in zip(texts, together, strict=True):
        np.testing.assert_allclose(encoder.encode([sentence])[0], expected, atol=1e-5)


@settings
@hypothesis.given(sentence=text)
def test_pieces_are_what_fairseq_reads_back(encoder, sentence):
    """No piece holds anything at which fairseq-preprocess would split, and their ids are those of
    encoding.
    """
    pieces = encoder.tokenizer.pieces([sentence])[0]
    assert " ".join(pieces).split() == pieces
    symbols = encoder.tokenizer.symbols
    known = [
        symbols.index(piece) if piece in symbols else encoder.tokenizer.unknown for piece in pieces
    ]
    assert encoder.tokenizer.encode([sentence])[0].tolist() == known
