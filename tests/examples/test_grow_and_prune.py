"""examples/pretrained/grow.py and prune.py change the word pieces of a model without layers."""

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, load_script
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.text.sentencepiece_model import NORMAL, UNIGRAM, Piece, model_of_pieces

SCORES = {"▁": -3.0, "a": -2.0, "b": -2.0, "ab": -3.0, "▁ab": -4.0, "▁a": -3.5}
LINES = ["the tree", "the stone nose", "one tree here", "lost in the tree"] * 20


@pytest.fixture(scope="module")
def grow():
    return load_script(ROOT / "examples" / "pretrained" / "grow.py")


@pytest.fixture(scope="module")
def prune():
    return load_script(ROOT / "examples" / "pretrained" / "prune.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The score is -5.5; that of ▁ and ab is -6.
        ("▁ab", ["▁a", "b"]),
        ("▁aab", ["▁a", "ab"]),
        ("aa", ["a", "a"]),
        ("ab", ["a", "b"]),
        ("a", []),
        ("ac", []),
    ],
)
def test_parts_are_the_best_segmentation_into_other_pieces(grow, text, expected):
    assert grow.parts(text, SCORES) == expected


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    return write_model(folder, pieces="unigram", num_layers=0, gated=True)


@pytest.fixture(scope="module")
def grown(grow, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    (folder / "text").write_text("\n".join(LINES))
    count = grow.grow(model, {"en": [folder / "text"], "zh": []}, 5, folder / "model")
    assert count == 5
    return folder / "model"


def assert_same_directions(first, second):
    vectors = first.encode(LINES, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, second.encode(LINES, normalize_embeddings=True), atol=1e-6)


def test_new_pieces_do_not_change_embeddings(model, grown):
    before = SentenceEncoder.from_pretrained(model)
    after = SentenceEncoder.from_pretrained(grown)
    new = after.tokenizer.symbols[len(before.tokenizer.symbols) :]
    assert len(new) == 5
    assert "▁the" in new
    assert any("▁the" in pieces for pieces in after.tokenizer.pieces(LINES))
    assert_same_directions(before, after)


def test_hebrew_words_follow_a_prefix_with_the_same_vector(grow, tmp_path):
    sentences = ["הבית של הילד", "בית ספר", "ילד קטן", "ספר"] * 200
    folder = write_model(
        tmp_path / "model", pieces="unigram", num_layers=0, gated=True, lines=sentences
    )
    (tmp_path / "text").write_text("\n".join(sentences))
    grow.grow(folder, {"he": [tmp_path / "text"]}, 5, tmp_path / "grown")
    model = SentenceEncoder.from_pretrained(tmp_path / "grown")
    rows = {symbol: row for row, symbol in enumerate(model.tokenizer.symbols)}
    np.testing.assert_array_equal(model.table[rows["ספר"]], model.table[rows["▁ספר"]])
    assert model.tokenizer.pieces(["בספר"]) == [["▁", "ב", "ספר"]]


def test_words_of_several_letters_without_a_piece_are_added_after_prefixes(grow):
    scores = {"▁בית": -8.0, "▁ספר": -7.5, "ספר": -9.0, "▁של": -5.0, "▁the": -3.0, "ים": -4.0}
    pieces = [Piece(text, score, NORMAL) for text, score in scores.items()]
    words = grow.words_after_prefixes(model_of_pieces(pieces, UNIGRAM, b""))
    assert words == [Piece("בית", -8.0, NORMAL)]


def test_pieces_are_counted_in_further_sentences(prune, tmp_path):
    (tmp_path / "pairs.yaml").write_text("pairs: {en-lv: {web: x, words: y}}")
    sentences = tmp_path / "everyday"
    sentences.mkdir()
    for language in ("lv", "sk"):
        (sentences / f"{language}.txt").touch()
    assert prune.counted_texts(tmp_path / "pairs.yaml", [tmp_path / "none", sentences]) == {
        "en": {"web": [Path("x.en")]},
        "lv": {"web": [Path("x.lv")], "sentences": [sentences / "lv.txt"]},
    }


def test_kinds_of_text_and_languages_have_weights(prune, model, tmp_path):
    """Everyday sentences count three times as much as web pages, Hebrew four times as Danish."""
    encoder = SentenceEncoder.from_pretrained(model)
    (tmp_path / "tree").write_text("tree tree")
    (tmp_path / "nose").write_text("nose nose")
    tree = [tmp_path / "tree"]
    nose = [tmp_path / "nose"]

    def shares(texts):
        """Return the shares of the two files in the frequencies of all texts."""
        tree_frequencies = prune.frequencies(encoder, {"da": {"web": tree}})
        nose_frequencies = prune.frequencies(encoder, {"da": {"web": nose}})
        columns = np.stack([tree_frequencies, nose_frequencies], axis=1)
        return np.linalg.lstsq(columns, prune.frequencies(encoder, texts))[0]

    np.testing.assert_allclose(shares({"da": {"web": tree, "everyday": nose}}), [1 / 4, 3 / 4])
    np.testing.assert_allclose(shares({"da": {"web": tree}, "he": {"web": nose}}), [1 / 5, 4 / 5])


def test_pieces_that_are_the_sum_of_their_parts_are_dropped(prune, model, grown, tmp_path):
    (tmp_path / "train.en").write_text("\n".join(LINES))
    encoder = SentenceEncoder.from_pretrained(grown)
    pieces = len(prune.piece_scores(encoder))
    output = tmp_path / "pruned"
    texts = {"en": {"web": [tmp_path / "train.en"]}}
    assert prune.prune(grown, model, texts, pieces - 5, output, "float32") == 5
    pruned = SentenceEncoder.from_pretrained(output)
    assert "▁the" not in pruned.tokenizer.symbols
    assert_same_directions(encoder, pruned)


def test_pieces_of_the_older_model_get_the_mean_of_two_vectors(prune, model, grown):
    encoder = SentenceEncoder.from_pretrained(grown)
    before = SentenceEncoder.from_pretrained(model)
    size = len(before.tokenizer.symbols)
    encoder.table[:] += 1
    table = prune.averaged(encoder, before)
    np.testing.assert_allclose(table[:size], before.table[:size] + 0.5, atol=1e-6)
    np.testing.assert_array_equal(table[size:], encoder.table[size:])


def test_frequent_pieces_that_are_no_sum_of_their_parts_are_kept(prune):
    vectors = np.array([[1, 0], [0, 1], [1, 1], [3, 0], [2, 1.5]], dtype=np.float32)
    scores = {"a": -1.0, "b": -1.0, "ab": -3.0, "aa": -3.0, "aab": -4.0}
    frequency = np.array([0.2, 0.2, 0.2, 0.1, 0.3])
    # The distance of aab to ab + a is 0.5, that of aa to a + a is 1.
    assert prune.important_pieces(scores, vectors, frequency, 4) == [0, 1, 3, 4]
    assert prune.important_pieces(scores, vectors, frequency, 3) == [0, 1, 3]
    with pytest.raises(InputError, match="expected at least 2"):
        prune.important_pieces(scores, vectors, frequency, 1)


def test_pieces_of_a_bpe_model_are_refused(grow, prune, tmp_path):
    model = write_model(tmp_path / "model", pieces="bpe", num_layers=0, gated=True)
    encoder = SentenceEncoder.from_pretrained(model)
    for script in (grow, prune):
        with pytest.raises(InputError, match="expected those of a unigram model"):
            script.piece_scores(encoder)
