"""Codes of languages in every spelling that files, corpora, detectors and people use."""

import pytest

from fairseq_lxsr.cli.main import main
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import datasets
from fairseq_lxsr.preparation.clean import foreign_letter
from fairseq_lxsr.preparation.config import PrepareConfig
from fairseq_lxsr.preparation.language_id import language_check
from fairseq_lxsr.preparation.registry import find_corpus
from fairseq_lxsr.text.languages import (
    Tag,
    best_code,
    is_same_language,
    parse_tag,
    script_of,
    split_pair,
)


@pytest.mark.parametrize(
    ("codes", "tag"),
    [
        # Codes of two and three letters, two of which ISO 639 has for some languages.
        ("en eng EN", Tag("en")),
        ("de ger deu", Tag("de")),
        ("fr fra fre", Tag("fr")),
        ("zh zho chi cmn", Tag("zh")),
        # Regions as browsers, locales, Android and file names write them, by letters or a number.
        ("en-US en_US en_us eng-US en-rUS en_US.UTF-8", Tag("en", region="US")),
        ("es-419", Tag("es", region="419")),
        # Scripts, and other variants.
        ("zh-Hans-CN zh_Hans_CN zho_hans_cn b+zh+Hans+CN", Tag("zh", "Hans", "CN")),
        ("sr@latin sr_Latn sr-Latn sh", Tag("sr", "Latn")),
        ("ca@valencia ca-valencia", Tag("ca", variant="valencia")),
        # Codes that others have replaced, or that mean the most common of several languages.
        ("no nb nob nor", Tag("nb")),
        ("iw he heb", Tag("he")),
        ("pes fas per fa", Tag("fa")),
    ],
)
def test_all_spellings_of_a_code_have_the_same_tag(codes, tag):
    for code in codes.split():
        assert parse_tag(code) == tag, code


def test_a_code_of_unknown_form_is_the_language_of_its_tag():
    assert parse_tag("source_text") == Tag("source_text")


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("zh", "Hans"),
        ("zh-CN", "Hans"),
        ("zh_TW", "Hant"),
        ("zh-HK", "Hant"),
        ("pa", "Guru"),
        ("pa_PK", "Arab"),
        ("sr", "Cyrl"),
        ("ko", "Hang"),
        ("kor_Hang", "Hang"),
        # No such language.
        ("xx", ""),
    ],
)
def test_the_script_of_a_code_is_the_usual_one_of_its_language_and_region(code, script):
    assert script_of(parse_tag(code)) == script


@pytest.mark.parametrize(
    ("language", "codes", "best"),
    [
        pytest.param("en", "fr eng", "eng", id="same language"),
        pytest.param("nb", "no", "no", id="equivalent code"),
        pytest.param("ar", "arz arb", "arb", id="standard Arabic, not Egyptian"),
        pytest.param("en_GB", "en-US en-GB en", "en-GB", id="same region first"),
        pytest.param("eng", "en-GB en", "en", id="no region before any"),
        pytest.param("pt_BR", "pt-PT pt", "pt", id="no region before another"),
        pytest.param("en", "en-US en-GB", "en-US", id="first of equal regions"),
        pytest.param("pt", "pt-BR", "pt-BR", id="any region for none"),
        pytest.param("zh_TW", "zh-CN zho_Hant zh", "zho_Hant", id="script of the region"),
        pytest.param("zh_Hans_CN", "zh-CN", "zh-CN", id="script of the code's region"),
        pytest.param("zh", "zh-TW zh-Hans-CN", "zh-Hans-CN", id="usual script first"),
        pytest.param("zh", "zh-TW", "zh-TW", id="any script for none"),
        pytest.param("pt_BR", "pt-PT", None, id="another region"),
        pytest.param("zh_HK", "zh-TW", None, id="another region, same script"),
        pytest.param("zh_TW", "zh zh-CN", None, id="another script"),
        pytest.param("nn", "no nb", None, id="another language"),
        pytest.param("fr", "", None, id="no codes"),
    ],
)
def test_the_best_of_several_codes_for_a_language(language, codes, best):
    assert best_code(language, codes.split()) == best


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("zh", "zh_TW"),
        ("pt", "pt_BR"),
        ("eng", "en-US"),
        ("zho_Hant", "zh-TW"),
        ("eng_Latn", "en"),
    ],
)
def test_codes_that_agree_in_all_parts_that_both_have_are_of_the_same_language(first, second):
    assert is_same_language(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("en", "fr", id="language"),
        pytest.param("ar", "arz", id="standard and Egyptian Arabic"),
        pytest.param("pt_PT", "pt_BR", id="region"),
        pytest.param("sr_Latn", "sr_Cyrl", id="script"),
        pytest.param("zh_Hans", "zh_TW", id="script of the region"),
    ],
)
def test_codes_that_differ_in_language_script_or_region_are_of_different_languages(first, second):
    assert not is_same_language(first, second)


# Pairs of codes with dashes, and their two languages.
DASHED_PAIRS = [
    ("en-zh-Hans-CN", ("en", "zh_Hans_CN")),
    ("zh-TW-en", ("zh_TW", "en")),
    ("en-US-fr-CA", ("en_US", "fr_CA")),
    ("en-es-419", ("en", "es_419")),
    # The only way to read two languages, though US is a region.
    ("en-US", ("en", "US")),
]


@pytest.mark.parametrize(("text", "languages"), DASHED_PAIRS)
def test_a_pair_of_codes_with_dashes_is_split_between_the_languages(text, languages):
    assert split_pair(text) == languages


@pytest.mark.parametrize(("text", "languages"), DASHED_PAIRS)
def test_a_pair_of_a_configuration_may_have_dashes(text, languages):
    config = PrepareConfig({text: "corpus"})

    assert list(config.pairs) == ["-".join(languages)]


def test_a_configuration_with_two_spellings_of_a_pair_is_refused():
    with pytest.raises(InputError, match="en-zh_TW"):
        PrepareConfig({"en-zh-TW": "corpus", "en-zh_TW": "another corpus"})


PORTUGUESE_CODES = ("pt", "pt_BR", "por", "pt-PT")


@pytest.mark.parametrize("portuguese", PORTUGUESE_CODES)
def test_the_filter_by_stop_words_accepts_all_spellings_of_a_code(portuguese):
    is_in_language = language_check("stopwords", portuguese, "en")

    assert is_in_language("o gato que não é uma", portuguese, "en")
    assert not is_in_language("the cat of the house is here", portuguese, "en")


@pytest.mark.parametrize("portuguese", PORTUGUESE_CODES)
def test_the_filter_by_letters_accepts_all_spellings_of_a_code(portuguese):
    find_foreign_letter = foreign_letter(portuguese)

    assert find_foreign_letter("ж")
    assert not find_foreign_letter("não")


def test_the_filter_by_letters_refuses_a_script_whose_alphabet_is_unknown():
    with pytest.raises(InputError, match="sr_Latn"):
        foreign_letter("sr_Latn")


@pytest.mark.parametrize("portuguese", PORTUGUESE_CODES)
def test_a_language_detector_accepts_all_spellings_of_a_code(portuguese):
    pytest.importorskip("py3langid")
    is_in_language = language_check("py3langid", "en", portuguese)

    assert is_in_language(
        "O menino comprou um livro novo na livraria da cidade e não gostou dele.", portuguese, "en"
    )
    assert not is_in_language(
        "The boy has bought a new book in the shop of the town and did not like it.",
        portuguese,
        "en",
    )


@pytest.mark.parametrize(
    ("test_set", "code", "code_in_test_set"),
    [
        ("flores200-devtest", "zh_TW", "zho_Hant"),
        ("flores200-devtest", "zh-Hans-CN", "zho_Hans"),
        ("flores200-devtest", "en_US", "eng_Latn"),
        ("flores200-devtest", "pes", "pes_Arab"),
        ("flores200-devtest", "fre", "fra_Latn"),
        ("ntrex128", "zh_TW", "zho-TW"),
        ("ntrex128", "zho_Hant", "zho-TW"),
        ("ntrex128", "pt_BR", "por-BR"),
        ("ntrex128", "pt", "por"),
        ("ntrex128", "en_GB", "eng-GB"),
        ("ntrex128", "ger", "deu"),
    ],
)
def test_test_sets_accept_all_spellings_of_a_code(test_set, code, code_in_test_set):
    assert datasets()[test_set].code(code) == code_in_test_set


def test_a_test_set_refuses_a_language_that_it_has_only_a_relative_of():
    """FLORES has Luba-Kasai (lua), but not Luba-Katanga (lu)."""
    with pytest.raises(InputError, match="'lu'"):
        datasets()["flores200-devtest"].code("lu")


def test_a_corpus_accepts_all_spellings_of_a_code():
    europarl = find_corpus("Europarl-v8", "eng", "fra")

    assert europarl.pair("eng", "pt_BR") == ("en", "pt")


def test_a_corpus_of_simplified_chinese_has_no_traditional_chinese():
    paracrawl = find_corpus("ParaCrawl-v9", "en", "zh")

    assert not paracrawl.has("en", "zh_TW")


def test_corpus_list_accepts_all_spellings_of_a_code(capsys):
    main(["corpus", "list", "--lang-pair", "en-fr"])
    expected = capsys.readouterr().out

    main(["corpus", "list", "--lang-pair", "eng-fre"])
    listed = capsys.readouterr().out

    assert listed == expected
    assert "Europarl-v8" in listed


def test_corpus_list_for_a_pair_with_test_sets_only_lists_them_and_the_languages_of_the_corpora(
    capsys,
):
    main(["corpus", "list", "--lang-pair", "en-zh_TW"])

    first_line, *other_lines = capsys.readouterr().out.splitlines()
    assert first_line.startswith("en-zh_TW: ")
    # English first, then the others in alphabetical order.
    assert " en, af, ar, " in first_line
    assert any(line.startswith("flores200") for line in other_lines)


def test_corpus_list_refuses_a_pair_without_corpora_and_lists_the_languages_of_the_corpora(capsys):
    klingon = "tlh"

    with pytest.raises(SystemExit, match="2"):
        main(["corpus", "list", "--lang-pair", f"en-{klingon}"])

    assert " en, af, " in capsys.readouterr().err
