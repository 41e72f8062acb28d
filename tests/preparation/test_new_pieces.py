"""`lxsr prepare --from-model`: pieces of a model, and more for a language that it lacks."""

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

# no letter of it is in the old text
CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}
BAG = {"num_layers": 0, "gated": True}


def prepare(work, languages=("en", "xx"), *options, check=True):
    """A model of English and French without layers, and text of a new pair, prepared for it."""
    model = work / "old"
    if not model.exists():
        small_model.write_folder(model, **BAG)
        pairs = [
            (source, target.lower().translate(CYRILLIC)) for source, target in toy.sentences(600)
        ]
        toy.write(work / "text", pairs, languages)
    sizes = ("--valid-size", 50, "--test-size", 50, "--workers", 1, *options)
    words = (
        "--work",
        work / "new",
        "--data",
        work / "text",
        "--lang-pairs",
        "-".join(languages),
        *sizes,
    )
    return lxsr_here("prepare", "--from", model, *words, check=check)


def tokenizer(folder):
    symbols = read_dictionary(folder / DICTIONARY_FILE)
    return Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(lowercase=True), symbols)


def test_old_pieces_keep_their_numbers_and_old_text_its_pieces(tmp_path):
    output = prepare(tmp_path, ("en", "xx"), "--new-pieces", 60).stdout
    subwords = tmp_path / "new" / "subwords"
    for name in (SENTENCEPIECE_FILE, DICTIONARY_FILE):
        before, after = ((folder / name).read_bytes() for folder in (tmp_path / "old", subwords))
        assert after.startswith(before)
        assert len(after) > len(before)
    assert f"{subwords}: pieces of {tmp_path / 'old'}" in output
    assert json.loads((subwords / "stage.json").read_text())["report"] == {
        # The symbol <mask> is added later.
        "dictionary": len(read_dictionary(subwords / DICTIONARY_FILE)) + 1,
        "new pieces": 60,
        "split otherwise": 0.0,
    }
    assert f"--from {tmp_path / 'old'}" in output
    old, new = tokenizer(tmp_path / "old"), tokenizer(subwords)
    known, unknown = (
        list(read_lines(tmp_path / "new" / "corpus" / "en-xx" / f"train.{side}"))
        for side in ("en", "xx")
    )
    assert all(map(np.array_equal, old.encode(known), new.encode(known)))
    ids, lengths = new.encode_flat(unknown)
    assert old.unknown in old.encode_flat(unknown)[0]
    assert old.unknown not in ids
    assert lengths.sum() < 0.5 * sum(map(len, unknown))


def test_pieces_are_made_anew_for_another_model_only(tmp_path):
    prepare(tmp_path)
    assert f"{tmp_path / 'new' / 'subwords'}: unchanged, kept" in prepare(tmp_path).stdout
    pieces = (tmp_path / "new" / "subwords" / DICTIONARY_FILE).read_text()
    assert (
        "unchanged"
        not in prepare(tmp_path, ("en", "xx"), "--new-pieces", 20).stdout.partition("subwords")[2]
    )
    assert pieces.startswith((tmp_path / "new" / "subwords" / DICTIONARY_FILE).read_text())


def test_languages_that_the_model_has_keep_its_pieces(tmp_path, monkeypatch):
    assert read_config(small_model.write_folder(tmp_path / "old", **BAG))["training"] == {}
    monkeypatch.setattr(
        "fairseq_lxsr.encoder.starting_model.trained_pairs", lambda encoder: "en-fr,en-de"
    )
    toy.write(tmp_path / "text", toy.sentences(600), ("fr", "de"))
    prepare(tmp_path, ("fr", "de"))
    stage = json.loads((tmp_path / "new" / "subwords" / "stage.json").read_text())
    assert stage["report"]["new pieces"] == stage["options"]["new_pieces"] == 0
    files = (tmp_path / "old" / DICTIONARY_FILE, tmp_path / "new" / "subwords" / DICTIONARY_FILE)
    assert len({path.read_bytes() for path in files}) == 1
    toy.write(tmp_path / "text", toy.sentences(600), ("cs", "xx"))
    refused(
        prepare(tmp_path, ("cs", "xx"), check=False),
        "cs-xx: ",
        "en, fr, de",
    )


def test_pieces_are_those_of_the_merges_by_hand():
    """Of 9 times ▁ a b and 8 times c d; e is rarer than five, and so is ▁ before cd; known words
    make no pieces.
    """
    model = make_pieces(["x y"] * 10)
    words = {"abcd": 6, "ab": 3, "cde": 2, "name": 50}
    assert sorted(learn_pieces(model, words, {"name": 1}, 4)) == ["a", "b", "c", "d"]
    assert learn_pieces(model, words, {"name": 1}, 100)[4:] == ["ab", "▁ab", "cd", "▁abcd"]


def test_merges_are_those_of_counting_again_after_each():
    rng = np.random.default_rng(0)
    words = [
        (list("".join(rng.choice(list("abc"), rng.integers(2, 9)))), int(rng.integers(1, 9)))
        for _ in range(60)
    ]
    learnt = merge_pieces(
        [(list(pieces), count) for pieces, count in words], 25, lambda text: len(text) < 6
    )
    assert learnt == merged_slowly(words, 25)


def merged_slowly(words, most):
    found = []
    while len(found) < most:
        counts = {}
        for pieces, count in words:
            for one, two in pairwise(pieces):
                counts[one + two] = counts.get(one + two, 0) + count
        left = {
            text: count
            for text, count in counts.items()
            if count >= 5 and len(text) < 6 and text not in found
        }
        if not left:
            break
        best = min(left, key=lambda text: (-left[text], text))
        found.append(best)
        for pieces, _ in words:
            place = 0
            while place + 1 < len(pieces):
                if pieces[place] + pieces[place + 1] == best:
                    pieces[place : place + 2] = [best]
                place += 1
    return found


def make_pieces(lines, kind="bpe", size=6):
    model = io.BytesIO()
    options = {"model_type": kind, "vocab_size": size, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, **options
    )
    return model.getvalue()


def test_another_kind_of_pieces_is_refused():
    with pytest.raises(InputError, match="word or character model"):
        learn_pieces(make_pieces(["x y"] * 10, "char", 5), {}, {}, 5)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_is_split_where_it_was_but_where_new_pieces_join(kind):
    known, new = ([pair[side] for pair in toy.sentences(600)] for side in (0, 1))
    model = make_pieces(known, kind, 40)
    pieces = learn_pieces(model, Counter(" ".join(new).split()), {}, 60)
    letters = [piece for piece in pieces if len(piece) == 1]
    lines = [f"{one} {two}" for one, two in zip(known, new, strict=True)]
    before, after = (ends(append_pieces(model, some), lines) for some in (letters, pieces))
    assert all(map(set.issuperset, before, after))
    assert sum(map(len, after)) < 0.8 * sum(map(len, before))
    assert all(map(set.issuperset, ends(model, known), ends(append_pieces(model, pieces), known)))


def test_a_word_is_split_alike_everywhere_after_several_extensions():
    """Ties between ways to join pieces would be decided by how float32 rounds the sum of the line
    so far.
    """
    rng = np.random.default_rng(0)
    model = make_pieces([pair[0] for pair in toy.sentences(600)], "unigram", 40)
    # Cyrillic, Hebrew, Thai.
    for first in (0x430, 0x5D0, 0xE01):
        words = [
            "".join(chr(first + letter) for letter in rng.integers(0, 6, rng.integers(3, 9)))
            for _ in range(200)
        ]
        model = append_pieces(model, learn_pieces(model, dict.fromkeys(words, 9), {}, 150))
    split = sentencepiece.SentencePieceProcessor(model_proto=model).EncodeAsPieces
    assert split(" ".join(words)) == [piece for word in words for piece in split(word)]


def ends(model, lines):
    """The positions at which the pieces of each line end."""
    split = sentencepiece.SentencePieceProcessor(model_proto=model).EncodeAsPieces(lines)
    return [set(accumulate(map(len, pieces))) for pieces in split]


@pytest.mark.parametrize("what", ["layers", "nothing", "damaged"])
def test_what_training_cannot_go_on_from_is_refused(tmp_path, what):
    file_name = {"layers": "", "nothing": "config.json", "damaged": WEIGHTS_FILE}
    small_model.write_folder(tmp_path / "old", **({} if what == "layers" else BAG))
    if what == "nothing":
        (tmp_path / "old" / "config.json").unlink()
    if what == "damaged":
        (tmp_path / "old" / WEIGHTS_FILE).write_bytes(b"damaged")
    toy.write(tmp_path / "text", toy.sentences(300), ("en", "xx"))
    refused(prepare(tmp_path, check=False), tmp_path / "old", file_name[what])
    assert not (tmp_path / "new" / "subwords").exists()


def test_a_piece_that_becomes_frequent_again_is_found_once():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        words = [
            (list("".join(rng.choice(list("ab"), rng.integers(2, 9)))), int(rng.integers(1, 9)))
            for _ in range(20)
        ]
        learnt = merge_pieces(words, 30, lambda text: True)
        assert len(learnt) == len(set(learnt))
