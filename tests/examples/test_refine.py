"""Scripts of examples/pretrained that change the vectors of a trained model without layers."""

import json

import numpy as np
import pytest
import torch
import toy
from conftest import ROOT, load_script
from random_model import write_model

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError

SCRIPTS = ROOT / "examples" / "pretrained"
# Each has four sentences, 20 times.
FRENCH = ["le café est fermé", "un café près du musée", "le musée fermé", "près du café"] * 20
ENGLISH = ["the coffee is closed", "a coffee near a museum", "the museum", "near the coffee"] * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose pieces are words with marks."""
    folder = tmp_path_factory.mktemp("model") / "model"
    lines = 6 * (FRENCH + ENGLISH)
    return write_model(folder, pieces="unigram", num_layers=0, gated=True, lines=lines)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text as collect.py writes it."""
    folder = tmp_path_factory.mktemp("text")
    toy.write(folder / "web.en-fr", list(zip(ENGLISH, FRENCH, strict=True)))
    pairs = {"en-fr": {"web": str(folder / "web.en-fr")}}
    (folder / "pairs.yaml").write_text(f"pairs: {json.dumps(pairs)}\n")
    return folder


@pytest.fixture(scope="module")
def unmarked(model, text, tmp_path_factory):
    """The encoder of the model with pieces for the four French words with marks, without them."""
    script = load_script(SCRIPTS / "unmarked.py")
    output = tmp_path_factory.mktemp("unmarked") / "model"
    texts = {"fr": {"web": [text / "web.en-fr.fr"]}}
    assert script.add_unmarked(model, texts, 4, output) == 4
    return SentenceEncoder.from_pretrained(output)


def test_a_word_without_marks_has_the_embedding_of_the_word_with_marks(model, unmarked):
    assert unmarked.tokenizer.pieces(["musee"]) == [["▁musee"]]
    with_marks = SentenceEncoder.from_pretrained(model).encode(["musée"])
    np.testing.assert_allclose(unmarked.encode(["musee"]), with_marks, rtol=1e-5)


def test_text_with_marks_keeps_its_embeddings_when_words_without_marks_are_added(model, unmarked):
    before = SentenceEncoder.from_pretrained(model).encode(FRENCH[:4])
    np.testing.assert_allclose(unmarked.encode(FRENCH[:4]), before, rtol=1e-5)


def test_two_words_that_are_typed_alike_share_a_piece():
    script = load_script(SCRIPTS / "unmarked.py")
    frequencies = {"dừng": 0.2, "đúng": 0.1, "run": 0.3}
    # A word without marks has its piece already.
    scores_of_pieces = {"▁run": -3.0}

    words = script.typed_words(frequencies, scores_of_pieces)

    assert words == {"▁dung": ["dừng", "đúng"]}


def test_a_german_umlaut_is_typed_in_two_ways():
    script = load_script(SCRIPTS / "unmarked.py")

    words = script.typed_words({"für": 1.0}, {})

    assert set(words) == {"▁fur", "▁fuer"}


def test_the_neighbour_of_a_word_is_another_word():
    script = load_script(SCRIPTS / "neighbours.py")
    # The first and the second word are near, and the second one is the nearest to the third.
    teacher = script.unit(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], dtype=np.float32))
    first, second, third = directions = np.eye(3, dtype=np.float32)
    script.NEIGHBOURS = 1
    script.DENSITY_WEIGHT = 0.0

    means = script.mean_of_neighbours(teacher, directions, np.arange(3))

    np.testing.assert_allclose(means, [second, first, second])
    assert not np.allclose(means[2], third)


def test_vectors_of_words_change_their_directions_and_keep_their_lengths(model, tmp_path):
    script = load_script(SCRIPTS / "neighbours.py")
    before = SentenceEncoder.from_pretrained(model)
    words = [piece for piece in script.piece_scores(before) if script.is_word(piece)]
    # Random embeddings of a teacher.
    texts = [word.removeprefix("▁") for word in words]
    vectors = np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float16)
    np.savez(tmp_path / "words.npz", texts=np.array(texts), vectors=vectors)

    count, _ = script.move(model, "", "", tmp_path / "words.npz", 0.5, tmp_path / "moved")

    assert count == len(words) > 3
    after = SentenceEncoder.from_pretrained(tmp_path / "moved")
    rows = [before.tokenizer.symbols.index(word) for word in words]
    lengths_before = np.linalg.norm(before.table[rows], axis=1)
    lengths_after = np.linalg.norm(after.table[rows], axis=1)
    np.testing.assert_allclose(lengths_after, lengths_before, rtol=1e-4)
    assert np.abs(after.table[rows] - before.table[rows]).max() > 0.01


def test_a_word_without_a_stored_embedding_is_refused_without_a_teacher(tmp_path):
    script = load_script(SCRIPTS / "neighbours.py")

    with pytest.raises(InputError, match="no embedding of 'tree'"):
        script.teacher_vectors(["tree"], "", "", tmp_path / "words.npz")


UPDATES = 100


def test_training_brings_words_without_marks_near_those_with_marks(unmarked, text):
    script = load_script(SCRIPTS / "refine.py")
    texts = {"fr": script.read_text(unmarked, {"web": str(text / "web.en-fr")}, "fr", set())}
    table = unmarked.table.astype(np.float32)
    # A piece that other languages have, too: its vector says nothing about the French word.
    table[unmarked.tokenizer.encode(["cafe"])[0]] = np.random.default_rng(1).normal(size=32)
    typed = script.Sentences(unmarked, ["pres du cafe", "un cafe"]).take(np.arange(2))
    marked = script.Sentences(unmarked, ["près du café", "un café"]).take(np.arange(2))

    def distance(vectors):
        table = torch.from_numpy(vectors)
        return float(script.distance(script.embed(table, typed), script.embed(table, marked)))

    before = distance(table)
    training = script.Refinement(table, rate=0.05, updates=UPDATES)
    rng = np.random.default_rng(0)
    for number in range(1, UPDATES + 1):
        training.update(number, script.draw(texts, np.ones(1), rng))

    assert distance(training.table) < before / 4


def test_a_batch_has_the_pieces_of_the_sentences_that_were_drawn_and_where_each_begins(unmarked):
    script = load_script(SCRIPTS / "refine.py")
    sentences = script.Sentences(unmarked, ["café", "le musée", "près"])

    pieces, starts = sentences.take(np.array([2, 0]))

    third, first = unmarked.tokenizer.encode(["près", "café"])
    np.testing.assert_array_equal(pieces, [*third, *first])
    assert starts.tolist() == [0, len(third)]


def test_an_embedding_in_training_is_that_of_the_encoder(unmarked):
    script = load_script(SCRIPTS / "refine.py")
    sentences = script.Sentences(unmarked, FRENCH[:4])
    table = torch.from_numpy(unmarked.table.astype(np.float32))
    vectors = script.embed(table, sentences.take(np.arange(4))).numpy()
    expected = unmarked.encode(FRENCH[:4], normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_vector_keeps_all_of_its_change_if_its_piece_is_only_in_text_without_marks(
    unmarked, text
):
    script = load_script(SCRIPTS / "refine.py")
    texts = {"fr": script.read_text(unmarked, {"web": str(text / "web.en-fr")}, "fr", set())}
    [without_marks] = unmarked.tokenizer.encode(["cafe"])[0]

    share = script.unmarked_share(texts, len(unmarked.table))
    part = script.remaining_part(share)

    assert share[without_marks] == 1
    assert part[without_marks] == 1


def test_a_vector_keeps_the_least_part_of_its_change_if_its_piece_is_hardly_in_text_without_marks(
    unmarked, text
):
    script = load_script(SCRIPTS / "refine.py")
    texts = {"fr": script.read_text(unmarked, {"web": str(text / "web.en-fr")}, "fr", set())}
    english = unmarked.tokenizer.encode(["coffee"])[0]

    share = script.unmarked_share(texts, len(unmarked.table))
    part = script.remaining_part(share)

    assert share[english].max() < script.LEAST_SHARE
    assert (part[english] == script.LEAST_PART).all()


def test_evaluation_sentences_are_left_out_of_the_text(unmarked, text):
    script = load_script(SCRIPTS / "refine.py")
    prefixes = {"web": str(text / "web.en-fr")}
    # One of the four French sentences, with other punctuation.
    excluded = {script.comparable("Le musée fermé!")}

    remaining = script.read_text(unmarked, prefixes, "fr", excluded)

    assert len(remaining.sentences.lengths) == 3 * 20


def test_a_word_is_weighted_by_its_score_at_a_rate_within_limits():
    script = load_script(SCRIPTS / "reweigh.py")
    # The score -10 has the weight 1; a frequent word has a high score.
    scores = {"▁the": -4.0, "▁rare": -14.0, ".": -10.0}

    factors = script.scales(scores, rate=0.1)

    assert factors["▁the"] == pytest.approx(np.exp(0.1 * (-10 + 4)))
    # The difference from -10 counts as at least -3, here instead of -4.
    assert factors["▁rare"] == pytest.approx(np.exp(0.1 * 3))
    assert factors["."] == pytest.approx(1)


def test_a_sign_of_markup_has_a_weight_of_its_own():
    script = load_script(SCRIPTS / "reweigh.py")

    factors = script.scales({"▁#": -10.0}, rate=0.1)

    assert factors["▁#"] == pytest.approx(script.SIGN_SCALE)


def test_pages_of_lessons_are_aligned_by_line_and_sentence_without_code():
    """The translation has its metadata in the beginning, and a notice at the end."""
    script = load_script(SCRIPTS / "lessons.py")
    english = "# Soil\n\nWater the soil. Wait.\n\n```\nprint(1)\n```\n- a [plant](x.md)\n"
    translation = (
        "<!--\nmetadata\n-->\n# Sol\n\nArrosez le sol. Attendez.\n\n"
        "```\nprint(1)\n```\n- une [plante](x.md)\n\nAvertissement\n"
    )
    assert script.page_pairs(english, translation) == [
        ("Soil", "Sol"),
        ("Water the soil.", "Arrosez le sol."),
        ("Wait.", "Attendez."),
        ("a plant", "une plante"),
    ]


def test_a_page_with_other_lines_than_the_english_page_is_left_out():
    script = load_script(SCRIPTS / "lessons.py")
    assert script.page_pairs("# Soil\n\nWater it.\n", "Sol\n\nArrosez-le.\n") is None
