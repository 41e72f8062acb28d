# ruff: noqa: RUF001 (letters of many scripts)
"""The pieces of the words of a text are those that SentencePiece gives for the whole text."""

import io
import itertools
import pickle
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import toy

from fairseq_lxsr.text import words
from fairseq_lxsr.text.tokenizer import (
    PLAIN_VERSION,
    TEXT_VERSION,
    UNK,
    TextOptions,
    Tokenizer,
    normalise,
    normalise_all,
)
from fairseq_lxsr.text.words import MAX_KEY_BYTES, SHORT_TEXT_BYTES

hypothesis = pytest.importorskip("hypothesis")
# Training options of models whose words have the same pieces in any text.
MODELS = {
    "bpe": {},
    "lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "no normalization": {"normalization_rule_name": "identity"},
    "bytes": {"byte_fallback": True, "vocab_size": 340},
    "user symbols": {
        "user_defined_symbols": ["the", "▁dog", "#x#", "ab"],
        "control_symbols": ["<pad>", "<mask>"],
    },
    "digits": {"split_digits": True, "normalization_rule_name": "nfkc"},
    "few letters": {"character_coverage": 0.98},
    "unigram": {"model_type": "unigram", "vocab_size": 80},
    "unigram of bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 340},
}
# The pieces of a word depend on the words around it.
MODELS_OF_WHOLE_TEXTS = {
    "pieces of several words": {"split_by_whitespace": False},
    "marks at ends": {"treat_whitespace_as_suffix": True},
    "first word without mark": {"add_dummy_prefix": False},
    "blanks not removed": {"remove_extra_whitespaces": False},
    "user symbol of two words": {"user_defined_symbols": ["the dog"]},
    "rule of two words": {"normalization_rule_tsv": "rules.tsv"},
}
# Letters of several scripts, marks, ligatures that become several words, blanks of all kinds, and
# the mark of SentencePiece.
LETTERS = (
    "ab theé\u0301\u0308ßİΣσς漢字かカ한ا\u064bﷺﷻﬁ½¨´\u037a▁ \t\n"
    "\u00a0\u200b\u200d\u3000\ufeff\x00\ud800.,#x1🙂👩\u200d👩"
)
UNUSUAL_TEXTS = [
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
    "a" * 3000,
    "the dog" * 9,
]


def train_tokenizer(folder, lowercase=False, split_han=False, **options) -> Tokenizer:
    """Train SentencePiece on a small corpus, and return a tokenizer with its pieces."""
    if "normalization_rule_tsv" in options:
        # "a b" becomes "c": character codes in hexadecimal.
        (folder / "rules.tsv").write_text("61 20 62\t63\n", encoding="utf-8")
        options["normalization_rule_tsv"] = str(folder / "rules.tsv")
    defaults = {
        "vocab_size": 120,
        "model_type": "bpe",
        "character_coverage": 1.0,
        "minloglevel": 2,
    }
    texts = toy.lines(300, seed=2) + ["été 漢字 αβ Σ σ 12 345"] * 5
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts), model_writer=model, **defaults | options
    )
    (folder / "sp.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    symbols = ["<s>", "<pad>", "</s>", UNK]
    for number in range(len(processor)):
        piece = processor.IdToPiece(number)
        if piece not in symbols:
            symbols.append(piece)
    return Tokenizer(folder / "sp.model", TextOptions(lowercase, split_han), symbols)


@pytest.fixture(scope="module", params=[*MODELS, "text options"])
def tokenizer(request, tmp_path_factory):
    """A tokenizer of each model, and one of the first model with all text options."""
    folder = tmp_path_factory.mktemp("words")
    if request.param == "text options":
        return train_tokenizer(folder, lowercase=True, split_han=True)
    return train_tokenizer(folder, **MODELS[request.param])


def assert_same_arrays(arrays, expected_arrays):
    for array, expected in zip(arrays, expected_arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype


def check_that_ids_by_word_equal_ids_by_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    """`_encode_texts` gives whole texts to SentencePiece, `encode_flat` looks up their words."""
    expected = tokenizer._encode_texts(texts)
    # Short texts are looked up word by word, and with a limit of 0 all words at once.
    for short_text_bytes in (SHORT_TEXT_BYTES, 0):
        with mock.patch.object(words, "SHORT_TEXT_BYTES", short_text_bytes):
            assert_same_arrays(tokenizer.encode_flat(texts), expected)


text = hypothesis.strategies.text(hypothesis.strategies.sampled_from(LETTERS), max_size=40)
any_text = hypothesis.strategies.text(hypothesis.strategies.characters(), max_size=40)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True, database=None)
@hypothesis.given(texts=hypothesis.strategies.lists(text | any_text, max_size=6))
@hypothesis.example(texts=UNUSUAL_TEXTS)
@hypothesis.example(texts=UNUSUAL_TEXTS[::-1])
def test_ids_by_word_are_those_of_whole_texts(tokenizer, texts):
    # The tokenizer does look up words.
    assert tokenizer._words is not None
    check_that_ids_by_word_equal_ids_by_text(tokenizer, texts)


def test_ids_by_word_are_those_of_whole_texts_around_every_character_that_may_join_words(
    tokenizer,
):
    """These are characters that normalization may change, marks, control characters and blanks."""
    letters = [chr(code) for code in range(sys.maxunicode) if unicodedata.decomposition(chr(code))]
    # Later codes are those of rare scripts.
    for code in range(0x3000):
        if unicodedata.category(chr(code)) in ("Mn", "Cf", "Cc", "Zs"):
            letters.append(chr(code))
    # Each one within a word, alone, at the end of a word, and before a word that is a mark.
    mark = "\u0301"
    texts = [f"b {letter}a{letter} {letter} e{letter} {mark}" for letter in letters]

    check_that_ids_by_word_equal_ids_by_text(tokenizer, texts)


@pytest.mark.parametrize("name", MODELS_OF_WHOLE_TEXTS)
def test_models_whose_words_depend_on_each_other_encode_whole_texts(name, tmp_path):
    tokenizer = train_tokenizer(tmp_path, **MODELS_OF_WHOLE_TEXTS[name])

    ids = tokenizer.encode(["the dog", "a b"])

    # No words are looked up.
    assert tokenizer._words is None
    assert len(ids) == 2


def test_limits_of_memory_change_no_ids(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(tmp_path)
    texts = toy.lines(200, seed=5)
    expected = tokenizer._encode_texts(texts)
    # The texts have about 60 distinct words, so each of these limits is reached.
    limits = {
        # No text is short.
        "SHORT_TEXT_BYTES": 0,
        "LOOKUP_TEXTS": 7,
        "CACHED_WORDS": 20,
        "DICT_WORDS": 10,
        "DICT_BYTES": 90,
    }

    # One limit after the other comes into force.
    for name, value in limits.items():
        monkeypatch.setattr(words, name, value)

        assert_same_arrays(tokenizer.encode_flat(texts), expected)
    assert len(tokenizer._words._indices) <= limits["DICT_WORDS"]


def test_only_words_too_long_for_the_table_are_in_a_dict(tmp_path):
    """A dict takes three times the memory of the table."""
    tokenizer = train_tokenizer(tmp_path)
    long_word = "dog" * 20
    assert len(long_word) > MAX_KEY_BYTES
    texts = [*toy.lines(400, seed=5), long_word]
    expected = tokenizer._encode_texts(texts)

    # The first call adds the words, the second one finds them.
    for _ in range(2):
        assert_same_arrays(tokenizer.encode_flat(texts), expected)

    words_in_dict = list(tokenizer._words._indices)
    assert words_in_dict == [long_word.encode()]


@pytest.mark.parametrize("version", [PLAIN_VERSION, TEXT_VERSION])
@pytest.mark.parametrize("num_texts", [1, 2, 64])
def test_batches_of_texts_are_normalised_as_single_texts(version, num_texts):
    options = TextOptions(lowercase=True, version=version, read_as="體体")
    odd_texts = [
        # The lower case of a sigma depends on its neighbours, which may be those of another text.
        "ΟΔΟΣ",
        " Σ",
        "Α ",
        # Blanks of several kinds.
        " ",
        "",
        "a  b",
        "a\nb",
        "a\tb",
        # Characters that the options replace, and Arabic lengthening and a vowel mark.
        "İ",
        "體 Ａ",
        "\u0640\u064e",
    ]
    batch = list(itertools.islice(itertools.cycle(odd_texts), num_texts))
    batch.append("b")

    assert normalise_all(batch, options) == [normalise(text, options) for text in batch]


def test_threads_that_share_a_tokenizer_get_the_ids_of_whole_texts(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(tmp_path)
    texts = toy.lines(500, seed=6)
    expected = tokenizer._encode_texts(texts)
    # Many small lookups, so that those of several threads alternate.
    monkeypatch.setattr(words, "LOOKUP_TEXTS", 16)

    with ThreadPoolExecutor(max_workers=4) as pool:
        results = list(pool.map(tokenizer.encode_flat, [texts] * 8))

    for arrays in results:
        assert_same_arrays(arrays, expected)


def test_a_pickled_tokenizer_gives_the_same_ids(tmp_path):
    tokenizer = train_tokenizer(tmp_path)
    texts = toy.lines(500, seed=6)
    # This call caches words.
    expected = tokenizer.encode_flat(texts)

    copy = pickle.loads(pickle.dumps(tokenizer))

    assert_same_arrays(copy.encode_flat(texts), expected)


def test_a_call_after_an_interrupted_one_gives_the_same_ids(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(tmp_path)
    texts = toy.lines(500, seed=6)
    expected = tokenizer._encode_texts(texts)

    def interrupt(texts):
        raise KeyboardInterrupt

    # The interrupt comes while new words are encoded.
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer._words, "_encode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tokenizer.encode_flat(texts)

    assert_same_arrays(tokenizer.encode_flat(texts), expected)
