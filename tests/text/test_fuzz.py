"""Any string can be tokenized and embedded: all scripts, NULs, lone surrogates, no characters."""

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
def test_any_strings_have_the_same_embeddings_in_one_call_and_in_several(encoder, texts):
    embeddings = encoder.encode(texts)
    assert embeddings.shape == (len(texts), 32)
    assert np.isfinite(embeddings).all()
    for sentence, expected in zip(texts, embeddings, strict=True):
        np.testing.assert_allclose(encoder.encode([sentence])[0], expected, atol=1e-5)


@settings
@hypothesis.given(sentence=text)
def test_fairseq_reads_the_pieces_and_ids_of_any_string(encoder, sentence):
    tokenizer = encoder.tokenizer
    [pieces] = tokenizer.pieces([sentence])
    # fairseq-preprocess splits at whitespace, which no piece may have.
    assert " ".join(pieces).split() == pieces
    expected_ids = []
    for piece in pieces:
        if piece in tokenizer.symbols:
            expected_ids.append(tokenizer.symbols.index(piece))
        else:
            expected_ids.append(tokenizer.unknown)
    assert tokenizer.encode([sentence])[0].tolist() == expected_ids
