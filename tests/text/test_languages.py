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
        ("en eng EN", Tag("en")),
        ("en-US en_US en_us eng-US en-rUS en_US.UTF-8", Tag("en", "", "US")),
        ("de ger deu", Tag("de")),
        ("fr fra fre", Tag("fr")),
        ("zh zho chi cmn", Tag("zh")),
        ("zh-Hans-CN zh_Hans_CN zho_hans_cn b+zh+Hans+CN", Tag("zh", "Hans", "CN")),
        ("sr@latin sr_Latn sr-Latn sh", Tag("sr", "Latn")),
        ("ca@valencia ca-valencia", Tag("ca", "", "", "valencia")),
        ("es-419", Tag("es", "", "419")),
        ("no nb nob nor", Tag("nb")),
        ("iw he heb", Tag("he")),
        ("pes fas per fa", Tag("fa")),
        ("source_text", Tag("source_text")),
    ],
)
def test_all_spellings_of_a_code_are_one_tag(codes, tag):
    for code in codes.split():
        assert parse_tag(code) == tag


def test_the_script_of_a_language_depends_on_the_region():
    scripts = {
        "zh": "Hans",
        "zh_TW": "Hant",
        "zh-HK": "Hant",
        "zh-CN": "Hans",
        "pa": "Guru",
        "pa_PK": "Arab",
        "sr": "Cyrl",
        "ko": "Hang",
        "kor_Hang": "Hang",
        "xx": "",
    }
    for code, script in scripts.items():
        assert script_of(parse_tag(code)) == script, code


@pytest.mark.parametrize(
    ("language", "codes", "best"),
    [
        ("en", "fr eng", "eng"),
        ("eng", "en-GB en", "en"),
        ("en", "en-US en-GB", "en-US"),
        ("en_GB", "en-US en-GB en", "en-GB"),
        ("pt_BR", "pt-PT pt", "pt"),
        ("pt_BR", "pt-PT", None),
        ("pt", "pt-BR", "pt-BR"),
        ("zh_TW", "zh-CN zho_Hant zh", "zho_Hant"),
        ("zh_TW", "zh zh-CN", None),
        ("zh_HK", "zh-TW", None),
        ("zh", "zh-TW zh-Hans-CN", "zh-Hans-CN"),
        ("zh", "zh-TW", "zh-TW"),
        ("zh_Hans_CN", "zh-CN", "zh-CN"),
        ("nb", "no", "no"),
        ("nn", "no nb", None),
        ("ar", "arz arb", "arb"),
        ("fr", "", None),
    ],
)
def test_the_best_of_several_codes_for_a_language(language, codes, best):
    assert best_code(language, codes.split()) == best


def test_codes_are_of_one_language_unless_they_contradict_each_other():
    for first, second in (
        ("zh", "zh_TW"),
        ("pt", "pt_BR"),
        ("eng", "en-US"),
        ("zho_Hant", "zh-TW"),
        ("eng_Latn", "en"),
    ):
        assert is_same_language(first, second), (first, second)
    for first, second in (
        ("zh_Hans", "zh_TW"),
        ("pt_PT", "pt_BR"),
        ("en", "fr"),
        ("sr_Latn", "sr_Cyrl"),
        ("ar", "arz"),
    ):
        assert not is_same_language(first, second), (first, second)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("en-zh-Hans-CN", ("en", "zh_Hans_CN")),
        ("zh-TW-en", ("zh_TW", "en")),
        ("en-US-fr-CA", ("en_US", "fr_CA")),
        ("en-es-419", ("en", "es_419")),
        ("en-US", ("en", "US")),
    ],
)
def test_a_pair_of_codes_with_dashes_is_split_between_the_languages(text, pair):
    assert split_pair(text) == pair
    assert list(PrepareConfig({text: "x"}).pairs) == ["-".join(pair)]


def test_two_spellings_of_one_pair_are_refused():
    with pytest.raises(InputError, match="en-zh_TW"):
        PrepareConfig({"en-zh-TW": "x", "en-zh_TW": "y"})


def test_filters_accept_all_spellings_of_a_code():
    for language in ("pt", "pt_BR", "por", "pt-PT"):
        is_in = language_check("stopwords", language, "en")
        assert is_in("o gato que não é uma", language, "en")
        assert not is_in("the cat of the house is here", language, "en")
        is_foreign = foreign_letter(language)
        assert is_foreign("ж")
        assert not is_foreign("não")
    with pytest.raises(InputError, match="sr_Latn"):
        foreign_letter("sr_Latn")


def test_a_detector_accepts_all_spellings_of_a_code():
    pytest.importorskip("py3langid")
    portuguese = "O menino comprou um livro novo na livraria da cidade e não gostou dele."
    english = "The boy has bought a new book in the shop of the town and did not like it."
    for language in ("pt_BR", "por", "pt"):
        is_in = language_check("py3langid", "en", language)
        assert is_in(portuguese, language, "en")
        assert not is_in(english, language, "en")


def test_test_sets_accept_all_spellings_of_a_code():
    flores = datasets()["flores200-devtest"]
    assert flores.code("zh_TW") == "zho_Hant"
    assert flores.code("zh-Hans-CN") == "zho_Hans"
    assert flores.code("en_US") == "eng_Latn"
    assert flores.code("pes") == "pes_Arab"
    assert flores.code("fre") == "fra_Latn"
    ntrex = datasets()["ntrex128"]
    assert ntrex.code("zh_TW") == "zho-TW"
    assert ntrex.code("pt_BR") == "por-BR"
    assert ntrex.code("pt") == "por"
    assert ntrex.code("en_GB") == "eng-GB"
    assert ntrex.code("zho_Hant") == "zho-TW"
    assert ntrex.code("ger") == "deu"
    # FLORES has Luba-Kasai, but not Luba-Katanga.
    with pytest.raises(InputError, match="'lu'"):
        flores.code("lu")


def test_corpora_accept_all_spellings_of_a_code(capsys):
    assert find_corpus("Europarl-v8", "eng", "fra").pair("eng", "pt_BR") == ("en", "pt")
    assert not find_corpus("ParaCrawl-v9", "en", "zh").has("en", "zh_TW")
    main(["corpus", "list", "--lang-pair", "eng-fre"])
    names = capsys.readouterr().out
    main(["corpus", "list", "--lang-pair", "en-fr"])
    assert names == capsys.readouterr().out
    assert "Europarl-v8" in names


def test_for_a_pair_without_a_corpus_the_languages_of_the_corpora_are_listed(capsys):
    main(["corpus", "list", "--lang-pair", "en-zh_TW"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("en-zh_TW: ")
    assert " en, af, ar, " in lines[0]
    assert any(line.startswith("flores200") for line in lines[1:])
    with pytest.raises(SystemExit, match="2"):
        main(["corpus", "list", "--lang-pair", "en-tlh"])
    assert " en, af, " in capsys.readouterr().err
