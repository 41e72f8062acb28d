"""examples/pretrained/grow.py and prune.py change the word pieces of a model without layers."""

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, load_script
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.text.sentencepiece_model import NORMAL, UNIGRAM, Piece, model_of_pieces

# Scores of pieces; that of a segmentation is the sum.
SCORES = {"▁": -3.0, "a": -2.0, "b": -2.0, "ab": -3.0, "▁ab": -4.0, "▁a": -3.5}
# Text with frequent words that the toy corpus lacks.
LINES = ["the tree", "the stone nose", "one tree here", "lost in the tree"] * 20


@pytest.fixture(scope="module")
def grow():
    return load_script(ROOT / "examples" / "pretrained" / "grow.py")


@pytest.fixture(scope="module")
def prune():
    return load_script(ROOT / "examples" / "pretrained" / "prune.py")


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        # The score is -5.5; that of ▁ and ab is -6.
        ("▁ab", ["▁a", "b"]),
        # The score is -6.5; that of ▁a, a and b is -7.5.
        ("▁aab", ["▁a", "ab"]),
        ("aa", ["a", "a"]),
        ("ab", ["a", "b"]),
        # A letter has no parts, and c is no piece.
        ("a", []),
        ("ac", []),
    ],
)
def test_parts_of_a_piece_are_its_best_segmentation_into_other_pieces(grow, piece, expected):
    assert grow.parts(piece, SCORES) == expected


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with pieces of the toy corpus."""
    folder = tmp_path_factory.mktemp("model") / "model"
    return write_model(folder, pieces="unigram", num_layers=0, gated=True)


@pytest.fixture(scope="module")
def grown_model(grow, model, tmp_path_factory):
    """The model folder with five pieces more, the best for LINES."""
    folder = tmp_path_factory.mktemp("grown")
    (folder / "text").write_text("\n".join(LINES))
    count = grow.grow(model, {"en": [folder / "text"], "zh": []}, 5, folder / "model")
    assert count == 5
    return folder / "model"


def assert_same_directions(first, second):
    """Check that two encoders give LINES the same embeddings, except for their lengths."""
    vectors = first.encode(LINES, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, second.encode(LINES, normalize_embeddings=True), atol=1e-6)


def test_a_grown_model_has_so_many_new_pieces_after_the_old_ones_and_uses_them(model, grown_model):
    before = SentenceEncoder.from_pretrained(model).tokenizer
    after = SentenceEncoder.from_pretrained(grown_model).tokenizer

    old_pieces = after.symbols[: len(before.symbols)]
    new_pieces = after.symbols[len(before.symbols) :]

    assert old_pieces == before.symbols
    assert len(new_pieces) == 5
    assert "▁the" in new_pieces
    [pieces_of_line] = after.pieces(["the tree"])
    assert "▁the" in pieces_of_line


def test_new_pieces_do_not_change_the_directions_of_embeddings(model, grown_model):
    before = SentenceEncoder.from_pretrained(model)
    after = SentenceEncoder.from_pretrained(grown_model)

    assert_same_directions(before, after)


def test_a_hebrew_word_after_a_prefix_has_the_vector_of_the_word(grow, tmp_path):
    word = "ספר"
    prefixed_word = "בספר"
    sentences = ["הבית של הילד", "בית ספר", "ילד קטן", "ספר"] * 200
    folder = write_model(
        tmp_path / "model", pieces="unigram", num_layers=0, gated=True, lines=sentences
    )
    (tmp_path / "text").write_text("\n".join(sentences))

    grow.grow(folder, {"he": [tmp_path / "text"]}, 5, tmp_path / "grown")

    model = SentenceEncoder.from_pretrained(tmp_path / "grown")
    rows = {symbol: row for row, symbol in enumerate(model.tokenizer.symbols)}
    np.testing.assert_array_equal(model.table[rows[word]], model.table[rows[f"▁{word}"]])
    assert model.tokenizer.pieces([prefixed_word]) == [["▁", "ב", word]]


def test_words_that_may_follow_a_prefix_are_hebrew_with_several_letters_and_without_a_piece(grow):
    scores = {
        "▁בית": -8.0,
        # The piece without ▁ exists.
        "▁ספר": -7.5,
        "ספר": -9.0,
        # Two letters.
        "▁של": -5.0,
        # No Hebrew.
        "▁the": -3.0,
        # No word.
        "ים": -4.0,
    }
    pieces = [Piece(text, score, NORMAL) for text, score in scores.items()]

    words = grow.words_after_prefixes(model_of_pieces(pieces, UNIGRAM, b""))

    assert words == [Piece("בית", -8.0, NORMAL)]


def test_pieces_are_counted_in_the_text_and_in_further_sentences_of_its_languages(prune, tmp_path):
    """Not in lists of words, nor in folders that do not exist."""
    (tmp_path / "pairs.yaml").write_text("pairs: {en-lv: {web: x, words: y}}")
    everyday = tmp_path / "everyday"
    everyday.mkdir()
    (everyday / "lv.txt").touch()
    # The text has no Slovak.
    (everyday / "sk.txt").touch()

    texts = prune.counted_texts(tmp_path / "pairs.yaml", [tmp_path / "none", everyday])

    assert texts == {
        "en": {"web": [Path("x.en")]},
        "lv": {"web": [Path("x.lv")], "sentences": [everyday / "lv.txt"]},
    }


@pytest.fixture
def frequencies(prune, model, tmp_path):
    """The frequencies of pieces if the text of some languages and kinds is `tree` or `nose`."""
    encoder = SentenceEncoder.from_pretrained(model)
    (tmp_path / "tree").write_text("tree tree")
    (tmp_path / "nose").write_text("nose nose")

    def frequencies_in(texts: dict[str, dict[str, str]]) -> np.ndarray:
        paths = {}
        for language, kinds in texts.items():
            paths[language] = {kind: [tmp_path / word] for kind, word in kinds.items()}
        return prune.frequencies(encoder, paths)

    return frequencies_in


def test_everyday_sentences_count_three_times_as_much_as_web_pages(frequencies):
    of_tree = frequencies({"da": {"web": "tree"}})
    of_nose = frequencies({"da": {"web": "nose"}})

    of_both = frequencies({"da": {"web": "tree", "everyday": "nose"}})

    np.testing.assert_allclose(of_both, (of_tree + 3 * of_nose) / 4, atol=1e-12)


def test_hebrew_counts_four_times_as_much_as_danish(frequencies):
    of_tree = frequencies({"da": {"web": "tree"}})
    of_nose = frequencies({"da": {"web": "nose"}})

    of_both = frequencies({"da": {"web": "tree"}, "he": {"web": "nose"}})

    np.testing.assert_allclose(of_both, (of_tree + 4 * of_nose) / 5, atol=1e-12)


def test_the_pieces_that_are_dropped_first_are_the_sums_of_their_parts(
    prune, model, grown_model, tmp_path
):
    """Those that were grown. The directions of embeddings stay."""
    (tmp_path / "train.en").write_text("\n".join(LINES))
    texts = {"en": {"web": [tmp_path / "train.en"]}}
    grown_encoder = SentenceEncoder.from_pretrained(grown_model)
    size = len(prune.piece_scores(grown_encoder)) - 5

    dropped = prune.prune(grown_model, model, texts, size, tmp_path / "pruned", "float32")

    pruned_encoder = SentenceEncoder.from_pretrained(tmp_path / "pruned")
    assert dropped == 5
    assert "▁the" not in pruned_encoder.tokenizer.symbols
    assert_same_directions(grown_encoder, pruned_encoder)


def test_pieces_of_the_older_model_get_the_mean_of_both_vectors(prune, model, grown_model):
    before = SentenceEncoder.from_pretrained(model)
    after = SentenceEncoder.from_pretrained(grown_model)
    after.table[:] += 1
    old_rows = slice(0, len(before.tokenizer.symbols))
    new_rows = slice(len(before.tokenizer.symbols), None)

    table = prune.averaged(after, before)

    np.testing.assert_allclose(table[old_rows], before.table[old_rows] + 0.5, atol=1e-6)
    np.testing.assert_array_equal(table[new_rows], after.table[new_rows])


# Scores, vectors and frequencies of five pieces, by their places.
A, B, AB, AA, AAB = range(5)
PIECE_SCORES = {"a": -1.0, "b": -1.0, "ab": -3.0, "aa": -3.0, "aab": -4.0}
# `ab` is a + b; the distance of `aab` to ab + a is 0.5, and that of `aa` to a + a is 1.
PIECE_VECTORS = np.array([[1, 0], [0, 1], [1, 1], [3, 0], [2, 1.5]], dtype=np.float32)
FREQUENCIES = np.array([0.2, 0.2, 0.2, 0.1, 0.3])


def test_the_piece_that_is_nearest_to_the_sum_of_its_parts_is_dropped_first(prune):
    four = prune.important_pieces(PIECE_SCORES, PIECE_VECTORS, FREQUENCIES, 4)
    three = prune.important_pieces(PIECE_SCORES, PIECE_VECTORS, FREQUENCIES, 3)

    assert four == [A, B, AA, AAB]
    assert three == [A, B, AA]


def test_fewer_pieces_than_there_are_letters_are_refused(prune):
    with pytest.raises(InputError, match="expected at least 2"):
        prune.important_pieces(PIECE_SCORES, PIECE_VECTORS, FREQUENCIES, 1)


@pytest.mark.parametrize("name", ["grow", "prune"])
def test_pieces_of_a_bpe_model_are_refused(name, request, tmp_path):
    script = request.getfixturevalue(name)
    model = write_model(tmp_path / "model", pieces="bpe", num_layers=0, gated=True)
    encoder = SentenceEncoder.from_pretrained(model)

    with pytest.raises(InputError, match="expected those of a unigram model"):
        script.piece_scores(encoder)
