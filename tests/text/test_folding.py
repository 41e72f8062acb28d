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


def serialized_model_with_rules(**options):
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
    return processor_of(serialized_model_with_rules(normalization_rule_tsv=str(rules)))


def normalized(processor, text):
    """What SentencePiece reads of a text, with spaces in place of its marks for them."""
    return processor.Normalize(text).replace("▁", " ").strip()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_usual_and_rare_spellings_of_a_text_are_normalized_to_the_same_text(processor, form):
    for usual, rare in SPELLINGS:
        usual_text = unicodedata.normalize(form, usual).lower()
        rare_text = unicodedata.normalize(form, rare).lower()
        assert normalized(processor, usual_text) == normalized(processor, rare_text), usual


def test_sentencepiece_with_the_rules_gives_what_nfkc_and_fold_give(processor):
    for pair in SPELLINGS:
        for text in pair:
            lower = text.lower()
            expected = fold(unicodedata.normalize("NFKC", lower))
            assert normalized(processor, lower) == expected, text


def test_every_folding_rule_gives_its_replacement_which_folding_leaves_alone():
    rules = letters() | sequences()

    for text, replacement in rules.items():
        assert fold(text) == replacement
        assert fold(replacement) == replacement


@pytest.fixture(scope="module")
def unfolded_model():
    """A model with rules that SentencePiece brings: NFKC and a few more."""
    return serialized_model_with_rules(normalization_rule_name="nmt_nfkc")


@pytest.mark.slow
def test_the_rules_read_from_a_model_have_the_replacements_of_nfkc(unfolded_model):
    rules = read_rules(read_sentencepiece(unfolded_model).charsmap)

    full_width_a = "\uff21"
    combining_acute = "\u0301"
    assert rules[full_width_a] == "A"
    assert rules["e" + combining_acute] == "é"


@pytest.mark.slow
def test_sentencepiece_replaces_texts_as_the_rules_read_from_its_model_say(unfolded_model):
    rules = read_rules(read_sentencepiece(unfolded_model).charsmap)
    # A sample, as all rules would take long. Digits around a text show its spaces at both ends.
    texts = np.random.default_rng(1).permutation(list(rules))[:3000].tolist()

    normalized_texts = processor_of(unfolded_model).Normalize([f"0{text}0" for text in texts])

    for text, normalized_text in zip(texts, normalized_texts, strict=True):
        expected = f"0{rules[text]}0".replace(" ", "▁")
        assert normalized_text.removeprefix("▁") == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\N{LATIN SMALL LIGATURE FI}", id="ligature"),
        pytest.param("½", id="fraction"),
        pytest.param("\N{FULLWIDTH LATIN CAPITAL LETTER A}", id="full width"),
        pytest.param("e\N{COMBINING ACUTE ACCENT}", id="combining accent"),
        pytest.param("\u1100\u1161", id="Hangul in two letters"),
        pytest.param("\N{GREEK SMALL LETTER ALPHA WITH TONOS}", id="Greek accent, folded"),
        pytest.param("\N{ARABIC-INDIC DIGIT THREE}", id="Arabic digit, folded"),
        pytest.param("ß", id="sharp s, folded"),
    ],
)
def test_a_model_with_folded_rules_applies_nfkc_too(processor, text):
    assert normalized(processor, text) == fold(unicodedata.normalize("NFKC", text))


def test_an_acute_accent_between_letters_is_read_as_an_apostrophe(processor):
    """NFKC alone would read a space and a combining accent."""
    assert normalized(processor, "don\u00b4t") == "don't"


def test_a_capital_that_nfkc_gives_an_accent_loses_it(processor):
    upsilon_with_acute_and_hook = "\u03d3"
    upsilon = "\u03a5"

    assert normalized(processor, upsilon_with_acute_and_hook) == upsilon


def test_signs_of_units_are_read_as_letters(processor):
    kilo_ohm_sign = "\u33c0"
    micrometre_sign = "\u339b"
    omega = "\u03a9"
    mu = "\u03bc"

    text = normalized(processor, f"5 {kilo_ohm_sign} 3 {micrometre_sign}")

    assert text == f"5 k{omega} 3 {mu}m"


@pytest.mark.slow
def test_the_packaged_model_has_the_rules_that_this_package_writes(packaged):
    charsmap = read_sentencepiece(packaged.tokenizer.serialized_model()).charsmap

    assert read_rules(charsmap) == read_rules(folded_charsmap())
