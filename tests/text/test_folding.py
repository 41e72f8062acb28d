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


def model_with_rules(**options):
    """A SentencePiece model whose pieces are single letters, with rules of normalization."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["ab"]),
        model_writer=model,
        model_type="char",
        vocab_size=6,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def processor_of(model):
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    rules = write_folded_rules(tmp_path_factory.mktemp("rules"))
    return processor_of(model_with_rules(normalization_rule_tsv=str(rules)))


def normalized(processor, text):
    return processor.Normalize(text).replace("▁", " ").strip()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_two_spellings_of_a_text_are_normalized_to_one(processor, form):
    for usual, rare in SPELLINGS:
        usual_text = unicodedata.normalize(form, usual).lower()
        rare_text = unicodedata.normalize(form, rare).lower()
        assert normalized(processor, usual_text) == normalized(processor, rare_text), usual


def test_sentencepiece_with_the_rules_and_fold_give_the_same(processor):
    for pair in SPELLINGS:
        for text in pair:
            lower = text.lower()
            assert normalized(processor, lower) == fold(unicodedata.normalize("NFKC", lower)), text


def test_folding_twice_is_folding_once():
    for old, new in (letters() | sequences()).items():
        assert fold(old) == new
        assert fold(new) == new


@pytest.mark.slow
def test_the_rules_read_from_a_model_are_those_of_sentencepiece():
    model = model_with_rules(normalization_rule_name="nmt_nfkc")
    rules = read_rules(read_sentencepiece(model).charsmap)
    assert rules["\uff21"] == "A"
    assert rules["e\u0301"] == "é"
    texts = list(rules)
    order = np.random.default_rng(1).permutation(len(texts))
    sample = [texts[number] for number in order[:3000]]
    normalized_texts = processor_of(model).Normalize([f"0{text}0" for text in sample])
    for text, normalized_text in zip(sample, normalized_texts, strict=True):
        expected = f"0{rules[text]}0".replace(" ", "▁")
        assert normalized_text.removeprefix("▁") == expected


def test_folded_rules_keep_the_other_rules(processor):
    for text in "\ufb01 \u00bd \uff21 e\u0301 \u1100\u1161 \u03ac \u0663 \u00df":
        expected = fold(unicodedata.normalize("NFKC", text))
        assert normalized(processor, text) == expected.strip()


def test_an_acute_accent_and_odd_capitals_are_folded_as_letters_are(processor):
    assert normalized(processor, "don\u00b4t") == "don't"
    # Greek upsilon with hook, whose normal form is a capital with an accent.
    assert normalized(processor, "\u03d3") == "\u03a5"
    assert normalized(processor, "5 \u33c0 3 \u339b") == "5 k\u03a9 3 \u03bcm"


@pytest.mark.slow
def test_the_rules_of_the_packaged_model_are_made_by_this_package(packaged):
    charsmap = read_sentencepiece(packaged.tokenizer.serialized_model()).charsmap
    assert read_rules(charsmap) == read_rules(folded_charsmap())
