"""`lxsr prepare --from`: pieces of a model, and new ones for a language that it lacks."""

import copy
import io
import json
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
import sentencepiece
import small_model
import toy
from conftest import lxsr_here, refused

from fairseq_lxsr.encoder.model_folder import WEIGHTS_FILE, read_config
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.preparation.new_pieces import append_pieces, learn_pieces, merge_pieces
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    TextOptions,
    Tokenizer,
    read_dictionary,
)

# Maps Latin letters to Cyrillic ones, which the text of the model does not have.
CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}
CYRILLIC_A = "\u0430"
HEBREW_ALEF = "\u05d0"
THAI_KO_KAI = "\u0e01"
BAG = {"num_layers": 0, "gated": True}


def prepare(work, languages=("en", "xx"), *options, check=True):
    """A model of English and French without layers, and text of a new pair, prepared for it."""
    model = work / "old"
    if not model.exists():
        small_model.write_folder(model, **BAG)
        pairs = []
        for source, target in toy.sentences(600):
            pairs.append((source, target.lower().translate(CYRILLIC)))
        toy.write(work / "text", pairs, languages)
    command = ["prepare", "--from", model, "--work", work / "new", "--data", work / "text"]
    command += ["--lang-pairs", "-".join(languages), "--workers", 1]
    command += ["--valid-size", 50, "--test-size", 50, *options]
    return lxsr_here(*command, check=check)


def tokenizer(folder):
    symbols = read_dictionary(folder / DICTIONARY_FILE)
    return Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(lowercase=True), symbols)


def test_new_pieces_are_appended_and_split_only_the_new_language(tmp_path):
    output = prepare(tmp_path, ("en", "xx"), "--new-pieces", 60).stdout

    model = tmp_path / "old"
    subwords = tmp_path / "new" / "subwords"
    for name in (SENTENCEPIECE_FILE, DICTIONARY_FILE):
        before = (model / name).read_bytes()
        after = (subwords / name).read_bytes()
        assert after.startswith(before)
        assert len(after) > len(before)
    assert f"{subwords}: pieces of {model}" in output
    assert json.loads((subwords / "stage.json").read_text())["report"] == {
        # The symbol <mask> is added later.
        "dictionary": len(read_dictionary(subwords / DICTIONARY_FILE)) + 1,
        "new pieces": 60,
        "split otherwise": 0.0,
    }
    assert f"--from {model}" in output

    old = tokenizer(model)
    new = tokenizer(subwords)
    english = list(read_lines(tmp_path / "new" / "corpus" / "en-xx" / "train.en"))
    cyrillic = list(read_lines(tmp_path / "new" / "corpus" / "en-xx" / "train.xx"))
    for before, after in zip(old.encode(english), new.encode(english), strict=True):
        assert np.array_equal(before, after)
    ids, lengths = new.encode_flat(cyrillic)
    assert old.unknown in old.encode_flat(cyrillic)[0]
    assert old.unknown not in ids
    assert lengths.sum() < 0.5 * sum(len(line) for line in cyrillic)


def test_pieces_are_learnt_again_only_if_options_change(tmp_path):
    subwords = tmp_path / "new" / "subwords"
    prepare(tmp_path)
    assert f"{subwords}: unchanged, kept" in prepare(tmp_path).stdout
    pieces = (subwords / DICTIONARY_FILE).read_text()
    output = prepare(tmp_path, ("en", "xx"), "--new-pieces", 20).stdout
    assert "unchanged" not in output.partition("subwords")[2]
    assert pieces.startswith((subwords / DICTIONARY_FILE).read_text())


def test_languages_of_the_model_get_no_new_pieces(tmp_path, monkeypatch):
    model = small_model.write_folder(tmp_path / "old", **BAG)
    assert read_config(model)["training"] == {}
    monkeypatch.setattr("fairseq_lxsr.SentenceEncoder.languages", ["de", "en", "fr"])
    toy.write(tmp_path / "text", toy.sentences(600), ("fr", "de"))

    prepare(tmp_path, ("fr", "de"))

    subwords = tmp_path / "new" / "subwords"
    stage = json.loads((subwords / "stage.json").read_text())
    assert stage["options"]["new_pieces"] == 0
    assert stage["report"]["new pieces"] == 0
    dictionary = (tmp_path / "old" / DICTIONARY_FILE).read_bytes()
    assert (subwords / DICTIONARY_FILE).read_bytes() == dictionary

    toy.write(tmp_path / "text", toy.sentences(600), ("cs", "xx"))
    result = prepare(tmp_path, ("cs", "xx"), check=False)
    refused(result, "cs-xx: ", "de, en, fr")


def test_pieces_equal_merges_worked_out_by_hand():
    """`▁`, `a` and `b` occur 9 times, `c` and `d` 8 times. `e` and `▁cd` are rarer than five times,
    and words that the model knows make no pieces.
    """
    model = make_pieces(["x y"] * 10)
    words = {"abcd": 6, "ab": 3, "cde": 2, "name": 50}
    assert sorted(learn_pieces(model, words, {"name": 1}, 4)) == ["a", "b", "c", "d"]
    assert learn_pieces(model, words, {"name": 1}, 100)[4:] == ["ab", "▁ab", "cd", "▁abcd"]


def random_words(rng, number, letters):
    """Words as lists of letters, each with a count."""
    words = []
    for _ in range(number):
        word = rng.choice(list(letters), rng.integers(2, 9)).tolist()
        words.append((word, int(rng.integers(1, 9))))
    return words


def test_merges_equal_those_of_counting_all_pairs_after_each_merge():
    words = random_words(np.random.default_rng(0), 60, "abc")
    pieces = merge_pieces(copy.deepcopy(words), 25, lambda text: len(text) < 6)
    assert pieces == merge_slowly(words, 25)


def merge_slowly(words, number):
    merges = []
    while len(merges) < number:
        counts = Counter()
        for pieces, count in words:
            for left, right in pairwise(pieces):
                counts[left + right] += count
        candidates = []
        for text, count in counts.items():
            if count >= 5 and len(text) < 6 and text not in merges:
                candidates.append((-count, text))
        if not candidates:
            break
        _, merge = min(candidates)
        merges.append(merge)
        for pieces, _ in words:
            position = 0
            while position + 1 < len(pieces):
                if pieces[position] + pieces[position + 1] == merge:
                    pieces[position : position + 2] = [merge]
                position += 1
    return merges


def make_pieces(lines, kind="bpe", size=6):
    model = io.BytesIO()
    options = {"model_type": kind, "vocab_size": size, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, **options
    )
    return model.getvalue()


def test_models_of_characters_are_refused():
    with pytest.raises(InputError, match="word or character model"):
        learn_pieces(make_pieces(["x y"] * 10, "char", 5), {}, {}, 5)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_new_pieces_only_join_pieces(kind):
    pairs = toy.sentences(600)
    english = [source for source, _ in pairs]
    french = [target for _, target in pairs]
    mixed = [f"{source} {target}" for source, target in pairs]
    model = make_pieces(english, kind, 40)
    pieces = learn_pieces(model, Counter(" ".join(french).split()), {}, 60)
    letters = [piece for piece in pieces if len(piece) == 1]
    with_letters = append_pieces(model, letters)
    with_pieces = append_pieces(model, pieces)

    before = ends(with_letters, mixed)
    after = ends(with_pieces, mixed)
    for ends_before, ends_after in zip(before, after, strict=True):
        assert ends_after <= ends_before
    assert sum(map(len, after)) < 0.8 * sum(map(len, before))
    english_ends = zip(ends(model, english), ends(with_pieces, english), strict=True)
    for ends_before, ends_after in english_ends:
        assert ends_after <= ends_before


def test_a_word_is_split_alike_everywhere_after_several_extensions():
    """Otherwise, the rounding of float32 sums would decide ties between ways to join pieces."""
    rng = np.random.default_rng(0)
    english = [source for source, _ in toy.sentences(600)]
    model = make_pieces(english, "unigram", 40)
    for first_letter in (CYRILLIC_A, HEBREW_ALEF, THAI_KO_KAI):
        words = []
        for _ in range(200):
            letters = rng.integers(0, 6, rng.integers(3, 9))
            words.append("".join(chr(ord(first_letter) + letter) for letter in letters))
        model = append_pieces(model, learn_pieces(model, dict.fromkeys(words, 9), {}, 150))
    split = sentencepiece.SentencePieceProcessor(model_proto=model).EncodeAsPieces
    pieces = []
    for word in words:
        pieces += split(word)
    assert split(" ".join(words)) == pieces


def ends(model, lines):
    """The positions at which the pieces of each line end."""
    split = sentencepiece.SentencePieceProcessor(model_proto=model).EncodeAsPieces(lines)
    return [set(accumulate(map(len, pieces))) for pieces in split]


@pytest.mark.parametrize("problem", ["layers", "no config", "damaged weights"])
def test_a_model_from_which_training_cannot_start_is_refused(tmp_path, problem):
    model = tmp_path / "old"
    small_model.write_folder(model, **({} if problem == "layers" else BAG))
    file_name = ""
    if problem == "no config":
        file_name = "config.json"
        (model / file_name).unlink()
    if problem == "damaged weights":
        file_name = WEIGHTS_FILE
        (model / file_name).write_bytes(b"damaged")
    toy.write(tmp_path / "text", toy.sentences(300), ("en", "xx"))
    refused(prepare(tmp_path, check=False), model, file_name)
    assert not (tmp_path / "new" / "subwords").exists()


def test_a_piece_that_becomes_frequent_again_is_learnt_once():
    for seed in range(300):
        words = random_words(np.random.default_rng(seed), 20, "ab")
        pieces = merge_pieces(words, 30, lambda text: True)
        assert len(pieces) == len(set(pieces))
