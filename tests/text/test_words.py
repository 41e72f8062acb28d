# ruff: noqa: RUF001 (letters of many scripts)
"""The pieces of a text are those of its words: never other ones than SentencePiece gives for the
whole text.
"""

import io
import pickle
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import toy

from fairseq_lxsr.text.tokenizer import UNK, TextOptions, Tokenizer, normalise, normalise_all
from fairseq_lxsr.text.words import SHORT_TEXT_BYTES

hypothesis = pytest.importorskip("hypothesis")
MODELS = {
    "bpe": {},
    "lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "as it is": {"normalization_rule_name": "identity"},
    "bytes": {"byte_fallback": True, "vocab_size": 340},
    "own symbols": {
        "user_defined_symbols": ["the", "▁dog", "#x#", "ab"],
        "control_symbols": ["<pad>", "<mask>"],
    },
    "digits": {"split_digits": True, "normalization_rule_name": "nfkc"},
    "few letters": {"character_coverage": 0.98},
    "unigram": {"model_type": "unigram", "vocab_size": 80},
    "unigram of bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 340},
}
OTHERS = {
    "across words": {"split_by_whitespace": False},
    "marks at ends": {"treat_whitespace_as_suffix": True},
    "first word without mark": {"add_dummy_prefix": False},
    "blanks kept": {"remove_extra_whitespaces": False},
    "own symbol of two words": {"user_defined_symbols": ["the dog"]},
    "own rules": {"normalization_rule_tsv": "rules.tsv"},
}
# scripts, marks, ligatures that become several words, blanks of all kinds, what looks like the mark
# of SentencePiece
LETTERS = (
    "ab theé\u0301\u0308ßİΣσς漢字かカ한ا\u064bﷺﷻﬁ½¨´\u037a▁ \t\n"
    "\u00a0\u200b\u200d\u3000\ufeff\x00\ud800.,#x1🙂👩\u200d👩"
)
ODD = [
    "▁",
    "a▁",
    "a▁ b",
    "▁ ▁a▁",
    " a  b ",
    "a\nb",
    "a\x00 b",
    "ΟΔΟΣ ΟΔΟΣ",
    "¨ a¨ ¨a",
    "ﷺﷺ x",
    "",
    " ",
]
ODD += ["a" * 3000, "the dog" * 9]


def build(folder, lowercase=False, split_han=False, **options) -> Tokenizer:
    (folder / "rules.tsv").write_text("61 20 62\t63\n", encoding="utf-8")  # "a b" becomes "c"
    if "normalization_rule_tsv" in options:
        options["normalization_rule_tsv"] = str(folder / "rules.tsv")
    model = io.BytesIO()
    text = [side for pair in toy.sentences(300, seed=2) for side in pair] + [
        "été 漢字 αβ Σ σ 12 345"
    ] * 5
    options = {
        "vocab_size": 120,
        "model_type": "bpe",
        "character_coverage": 1.0,
        "minloglevel": 2,
    } | options
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text), model_writer=model, **options
    )
    (folder / "sp.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    symbols = dict.fromkeys(
        ["<s>", "<pad>", "</s>", UNK, *map(pieces.IdToPiece, range(len(pieces)))]
    )
    return Tokenizer(folder / "sp.model", TextOptions(lowercase, split_han), list(symbols))


@pytest.fixture(scope="module", params=[*MODELS, "options"])
def tokenizer(request, tmp_path_factory):
    how = (
        {"lowercase": True, "split_han": True}
        if request.param == "options"
        else MODELS[request.param]
    )
    return build(tmp_path_factory.mktemp("words"), **how)


def check(tokenizer: Tokenizer, texts: list[str]) -> None:
    right = tokenizer._encode_texts(texts)
    # Short texts are looked up word by word, and with a limit of 0 all words at once
    for short_text_bytes in (SHORT_TEXT_BYTES, 0):
        with mock.patch.object(tokenizer._words, "short_text_bytes", short_text_bytes):
            for found, expected in zip(tokenizer.encode_flat(texts), right, strict=True):
                np.testing.assert_array_equal(found, expected)
                assert found.dtype == expected.dtype


text = hypothesis.strategies.text(hypothesis.strategies.sampled_from(LETTERS), max_size=40)
any_text = hypothesis.strategies.text(hypothesis.strategies.characters(), max_size=40)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True, database=None)
@hypothesis.given(texts=hypothesis.strategies.lists(text | any_text, max_size=6))
@hypothesis.example(texts=ODD)
@hypothesis.example(texts=ODD[::-1])
def test_ids_are_those_of_whole_texts(tokenizer, texts):
    assert tokenizer._words is not None
    check(tokenizer, texts)


def test_every_character_beside_blanks(tokenizer):
    """No rule of normalization reads across a blank."""
    letters = [chr(code) for code in range(sys.maxunicode) if unicodedata.decomposition(chr(code))]
    letters += [
        chr(code)
        for code in range(0x3000)
        if unicodedata.category(chr(code)) in ("Mn", "Cf", "Cc", "Zs")
    ]
    check(tokenizer, [f"b {letter}a{letter} {letter} e{letter} \u0301" for letter in letters])


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS.keys())
def test_models_whose_words_depend_on_each_other_are_given_whole_texts(options, tmp_path):
    tokenizer = build(tmp_path, **options)
    assert tokenizer._words is None
    assert len(tokenizer.encode(["the dog", "a b"])) == 2


def test_memory_is_bounded_and_answers_do_not_depend_on_it(tmp_path):
    tokenizer = build(tmp_path)
    texts = [side for pair in toy.sentences(200, seed=5) for side in pair]
    expected = tokenizer._encode_texts(texts)
    for name, value in {
        "short_text_bytes": 0,
        "lookup_texts": 7,
        "cached_words": 20,
        "dict_words": 10,
        "dict_bytes": 90,
    }.items():
        setattr(tokenizer._words, name, value)
        for found, right in zip(tokenizer.encode_flat(texts), expected, strict=True):
            np.testing.assert_array_equal(found, right)
    assert len(tokenizer._words._indices) <= 10


def test_words_of_long_texts_need_no_dict(tmp_path):
    """A dict takes three times the memory of the table; only words too long for that are in it."""
    tokenizer = build(tmp_path)
    texts = [side for pair in toy.sentences(400, seed=5) for side in pair]
    texts.append("dog" * 20)
    expected = tokenizer._encode_texts(texts)
    for _ in range(2):
        for ids, right in zip(tokenizer.encode_flat(texts), expected, strict=True):
            np.testing.assert_array_equal(ids, right)
    assert list(tokenizer._words._indices) == [b"dog" * 20]


@pytest.mark.parametrize("version", [1, 3, 4])
def test_texts_are_normalised_together_as_each_alone(version):
    options = TextOptions(lowercase=True, version=version, read_as="\u9ad4\u4f53")
    texts = ["ΟΔΟΣ", " Σ", "Α ", " ", "", "İ", "\u9ad4 Ａ", "a  b", "a\nb", "a\tb", "\u0640\u064e"]
    for count in (1, 2, 64):
        batch = [*(texts * 20)[:count], "b"]
        assert normalise_all(batch, options) == [normalise(text, options) for text in batch]


def test_threads_copies_and_interruptions(tmp_path, monkeypatch):
    tokenizer, texts = (
        build(tmp_path),
        [side for pair in toy.sentences(500, seed=6) for side in pair],
    )
    expected = tokenizer._encode_texts(texts)[0]
    tokenizer._words.lookup_texts = 16
    with ThreadPoolExecutor(4) as pool:
        for ids, _ in pool.map(tokenizer.encode_flat, [texts] * 8):
            np.testing.assert_array_equal(ids, expected)
    copy = pickle.loads(pickle.dumps(tokenizer))
    monkeypatch.setattr(copy._words, "_encode", lambda texts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copy.encode_flat(texts)
    monkeypatch.undo()
    np.testing.assert_array_equal(copy.encode_flat(texts)[0], expected)
