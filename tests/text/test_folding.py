"""Different ways to type the same text have the same word pieces, in every program."""

import io
import unicodedata

import numpy as np
import pytest
import sentencepiece
from spellings import SPELLINGS

from fairseq_lxsr.text.folding import (
    fold,
    folded_charsmap,
    letters,
    read_rules,
    sequences,
    write_folded_rules,
)
from fairseq_lxsr.text.sentencepiece_model import (
    read_sentencepiece,
)


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    """A model whose pieces are single letters, with the rules."""
    rules = write_folded_rules(tmp_path_factory.mktemp("rules"))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["ab"]),
        model_writer=model,
        model_type="char",
        vocab_size=6,
        normalization_rule_tsv=str(rules),
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.getvalue())
    return processor


def normal(processor, text):
    return processor.Normalize(text).replace("▁", " ").strip()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_both_spellings_become_one(processor, form):
    for pair in SPELLINGS:
        usual, odd = (unicodedata.normalize(form, text).lower() for text in pair)
        assert normal(processor, usual) == normal(processor, odd), pair


def test_sentencepiece_does_what_fold_does(processor):
    for pair in SPELLINGS:
        for text in pair:
            lower = text.lower()
            assert normal(processor, lower) == fold(unicodedata.normalize("NFKC", lower)), text


def test_what_is_folded_is_not_folded_again():
    for old, new in (letters() | sequences()).items():
        assert fold(old) == new
        assert fold(new) == new


@pytest.mark.slow
def test_rules_of_a_compiled_rule_are_those_of_sentencepiece():
    """Every rule of a small charsmap is found, and what it replaces is what SentencePiece does."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["ab"]),
        model_writer=model,
        model_type="char",
        vocab_size=6,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    charsmap = read_sentencepiece(model.getvalue()).charsmap
    rules = read_rules(charsmap)
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.getvalue())
    names = list(rules)
    drawn = [names[row] for row in np.random.default_rng(1).permutation(len(names))[:3000]]
    normalized = processor.Normalize([f"0{name}0" for name in drawn])
    for name, text in zip(drawn, normalized, strict=True):
        expected = f"0{rules[name]}0".replace(" ", "▁")
        assert text.removeprefix("▁") == expected
    assert rules["\uff21"] == "A"
    assert rules["e\u0301"] == "é"


def test_folded_rules_keep_the_other_rules(processor):
    for text in "\ufb01 \u00bd \uff21 e\u0301 \u1100\u1161 \u03ac \u0663 \u00df":
        expected = fold(unicodedata.normalize("NFKC", text))
        assert normal(processor, text) == expected.strip()


def test_an_acute_accent_and_odd_capitals_are_folded_as_letters_are(processor):
    assert normal(processor, "don\u00b4t") == "don't"
    # Greek upsilon with hook, whose normal form is a capital with an accent.
    assert normal(processor, "\u03d3") == "\u03a5"
    assert normal(processor, "5 \u33c0 3 \u339b") == "5 k\u03a9 3 \u03bcm"


@pytest.mark.slow
def test_the_rules_of_the_packaged_model_are_made_by_this_package(packaged):
    charsmap = read_sentencepiece(packaged.tokenizer.serialized_model()).charsmap
    assert read_rules(charsmap) == read_rules(folded_charsmap())
