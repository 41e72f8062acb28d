"""SentencePiece learns from all text, whatever the length of its lines."""

import random

import pytest
import sentencepiece

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.subwords import (
    LINE_BYTES,
    default_vocab_size,
    sample,
    short_lines,
    train_model,
    train_subwords,
)
from fairseq_lxsr.text.tokenizer import TextOptions

WORDS = {
    # Consonants, which are written without spaces.
    "thai": [chr(code) for code in range(0xE01, 0xE0B)],
    "greek": ["αβγ ", "δεζ ", "ηθι ", "κλμ "],
    "chinese": list("天地玄黄宇宙洪荒"),
    # Four bytes each.
    "emoji": ["\U0001f600", "\U0001f609 ", "\U0001f60d"],
}


def random_text(words, size, seed=0):
    """Random words: one for every three bytes of the size, as many as a Chinese character has."""
    return "".join(random.Random(seed).choices(words, k=size // 3)).strip()


def train_pieces(tmp_path, lines, **changes):
    """Train SentencePiece on lines; return its pieces, 26 unless `changes` says otherwise."""
    (tmp_path / "train.xx").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = SubwordOptions(**({"vocab_size": 26} | changes))
    model = train_model([tmp_path / "train.xx"], options, TextOptions(options.lowercase))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.IdToPiece(number) for number in range(len(processor))]


# Bytes of lines of Chinese, from a few more than SentencePiece reads to many times as many.
LONG_SIZES = (LINE_BYTES + 8, LINE_BYTES + 300, LINE_BYTES + 1800, 70_000)


def long_lines(script):
    return [random_text(WORDS[script], size, seed=size) for size in LONG_SIZES]


def letters_of(script):
    return set("".join(WORDS[script])) - {" "}


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("script", WORDS)
def test_characters_of_long_lines_among_short_ones_have_pieces(tmp_path, script, model_type):
    short = ["one word", "no other"] * 50

    # There is a piece for each character of both, and the special pieces.
    pieces = train_pieces(
        tmp_path, [*short, *long_lines(script)], vocab_size=30, model_type=model_type
    )

    assert letters_of(script) <= set("".join(pieces))


@pytest.mark.parametrize("script", WORDS)
def test_characters_of_a_text_of_only_long_lines_have_pieces(tmp_path, script):
    pieces = train_pieces(tmp_path, long_lines(script))

    assert letters_of(script) <= set("".join(pieces))


def test_a_long_line_gives_the_same_pieces_as_its_words_in_short_lines(tmp_path):
    words = [random_text(list("abcdef"), 12, seed) for seed in range(2000)]
    (tmp_path / "long").mkdir()
    assert train_pieces(tmp_path / "long", [" ".join(words)]) == train_pieces(tmp_path, words)


@pytest.mark.parametrize("text", ["progress \u2585\u2585 of the work", "\u2585"])
def test_lines_with_the_reserved_character_of_sentencepiece_are_used(tmp_path, text):
    # These letters are only in the line with the reserved character, U+2585.
    letters = "zxq"

    pieces = train_pieces(tmp_path, ["some words", f"{text} {letters}"], vocab_size=30)

    assert set(letters) <= set("".join(pieces))


def test_short_lines_have_all_words_of_a_long_line_in_order():
    for text in (
        "",
        "one",
        "a " * 2096,
        "a " * 2095 + "é",
        "é" * 5000,
        "word " * 3000 + "x" * 9000 + " end",
    ):
        parts = list(short_lines(text.strip()))
        assert "".join(parts).replace(" ", "") == text.replace(" ", "")
        assert all(0 < len(part.encode()) <= LINE_BYTES for part in parts)
        assert len(parts) <= 1 or len(text.encode()) > LINE_BYTES
    assert [len(part) for part in short_lines("a " * 5000)][:2] == [1047, 1047]


def test_long_lines_count_by_their_bytes(tmp_path):
    """Otherwise, documents of one line each would fill the memory."""
    (tmp_path / "train.en").write_text(f"{'word ' * 10_000}\n" * 40)
    (tmp_path / "train.fr").write_text("mot\n" * 40)
    drawn = list(sample([tmp_path / "train.en", tmp_path / "train.fr"], 80))
    assert drawn.count("mot") == 40
    assert 0 < len(drawn) - 40 < 10


@pytest.mark.parametrize("line", ["\ufffd", "\u2581 \u2581", "\u2585", "\u00ad", " \u3000"])
def test_a_text_without_a_letter_is_refused(tmp_path, line):
    with pytest.raises(InputError, match=r"train\.xx: no text"):
        train_pieces(tmp_path, [line] * 3)


@pytest.mark.parametrize(
    ("pairs", "size"), [(0, 8000), (19_999, 8000), (20_000, 16_000), (600_000, 32_000)]
)
def test_the_default_size_follows_the_number_of_pairs(pairs, size):
    assert default_vocab_size(pairs) == size


def test_the_default_number_of_pieces_is_reduced_for_a_small_text(tmp_path, capsys):
    """A number that the user asks for is an error if it is too large."""
    for language in ("en", "xx"):
        (tmp_path / f"train.{language}").write_text("one word\nno other\n" * 20)
    report = train_subwords(tmp_path / "subwords", [tmp_path], SubwordOptions())
    assert 20 < report["dictionary"] < 100
    assert "40 pairs" in capsys.readouterr().out
    with pytest.raises(InputError, match="--vocab-size 8,000"):
        train_subwords(tmp_path / "more", [tmp_path], SubwordOptions(vocab_size=8000))
