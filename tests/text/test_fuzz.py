"""Any string can be tokenized and embedded: all scripts, NULs, lone surrogates, no characters."""

import numpy as np
import pytest

from fairseq_lxsr import SentenceEncoder

hypothesis = pytest.importorskip("hypothesis")
text = hypothesis.strategies.text(alphabet=hypothesis.strategies.characters(), max_size=300)
settings = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
# The architecture of the toy model, lxsr_tiny, has 32 dimensions.
TOY_DIMENSIONS = 32
ODD_TEXTS = [
    "\x00",
    # Lone surrogates.
    "\ud800",
    "a\udfffb",
    # Marks of direction and of joining, without letters.
    "\u202e\u200d",
    "ア אב 漢",
    # Line ends.
    "\n\r\u2028",
    # A byte order mark.
    "\ufeff",
]


@pytest.fixture(scope="module")
def encoder(toy_model):
    return SentenceEncoder.from_pretrained(toy_model, device="cpu")


@settings
@hypothesis.given(texts=hypothesis.strategies.lists(text, max_size=8))
@hypothesis.example(texts=ODD_TEXTS)
def test_any_strings_have_finite_embeddings_the_same_in_one_call_and_in_several(encoder, texts):
    embeddings = encoder.encode(texts)

    assert embeddings.shape == (len(texts), TOY_DIMENSIONS)
    assert np.isfinite(embeddings).all()
    for sentence, embedding in zip(texts, embeddings, strict=True):
        [embedding_of_own_call] = encoder.encode([sentence])
        np.testing.assert_allclose(embedding_of_own_call, embedding, atol=1e-5)


@settings
@hypothesis.given(sentence=text)
def test_no_piece_of_any_string_has_whitespace_at_which_fairseq_would_split_it(encoder, sentence):
    [pieces] = encoder.tokenizer.pieces([sentence])

    # fairseq-preprocess reads pieces with spaces between them.
    line = " ".join(pieces)
    assert line.split() == pieces


@settings
@hypothesis.given(sentence=text)
def test_the_ids_of_any_string_are_the_places_of_its_pieces_in_the_dictionary(encoder, sentence):
    tokenizer = encoder.tokenizer

    [pieces] = tokenizer.pieces([sentence])
    [ids] = tokenizer.encode([sentence])

    expected_ids = []
    for piece in pieces:
        if piece in tokenizer.symbols:
            expected_ids.append(tokenizer.symbols.index(piece))
        else:
            expected_ids.append(tokenizer.unknown)
    assert ids.tolist() == expected_ids
