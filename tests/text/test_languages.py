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
def test_spellings_of_a_code(codes, tag):
    assert {parse_tag(code) for code in codes.split()} == {tag}


def test_scripts_of_regions_and_languages():
    scripts = {
        code: script_of(parse_tag(code))
        for code in ["zh", "zh_TW", "zh-HK", "zh-CN", "pa", "pa_PK", "sr", "ko", "kor_Hang", "xx"]
    }
    assert list(scripts.values()) == [
        "Hans",
        "Hant",
        "Hant",
        "Hans",
        "Guru",
        "Arab",
        "Cyrl",
        "Hang",
        "Hang",
        "",
    ]


@pytest.mark.parametrize(
    ("wanted", "codes", "best"),
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
def test_the_best_of_several_codes(wanted, codes, best):
    assert best_code(wanted, codes.split()) == best


def test_codes_that_contradict_each_other():
    for pair in ("zh zh_TW", "pt pt_BR", "eng en-US", "zho_Hant zh-TW", "eng_Latn en"):
        assert is_same_language(*pair.split()), pair
    for pair in ("zh_Hans zh_TW", "pt_PT pt_BR", "en fr", "sr_Latn sr_Cyrl", "ar arz"):
        assert not is_same_language(*pair.split()), pair


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
def test_pairs_of_codes_with_dashes(text, pair):
    assert split_pair(text) == pair
    assert list(PrepareConfig({text: "x"}).pairs) == ["-".join(pair)]


def test_a_pair_in_two_spellings_is_refused():
    with pytest.raises(InputError, match="en-zh_TW"):
        PrepareConfig({"en-zh-TW": "x", "en-zh_TW": "y"})


def test_filters_take_every_spelling():
    for language in ("pt", "pt_BR", "por", "pt-PT"):
        is_in = language_check("stopwords", language, "en")
        assert is_in("o gato que não é uma", language, "en")
        assert not is_in("the cat of the house is here", language, "en")
        assert foreign_letter(language)("ж")
        assert not foreign_letter(language)("não")
    with pytest.raises(InputError, match="sr_Latn"):
        foreign_letter("sr_Latn")


@pytest.mark.parametrize("language", ["pt_BR", "por", "pt"])
def test_labels_of_a_detector_agree_with_every_spelling(language):
    pytest.importorskip("py3langid")
    is_in = language_check("py3langid", "en", language)
    assert is_in(
        "O menino comprou um livro novo na livraria da cidade e não gostou dele.", language, "en"
    )
    assert not is_in(
        "The boy has bought a new book in the shop of the town and did not like it.", language, "en"
    )


def test_test_sets_take_every_spelling():
    codes = {
        "zh_TW": "zho_Hant",
        "zh-Hans-CN": "zho_Hans",
        "en_US": "eng_Latn",
        "pes": "pes_Arab",
        "fre": "fra_Latn",
    }
    assert {code: datasets()["flores200-devtest"].code(code) for code in codes} == codes
    codes = {
        "zh_TW": "zho-TW",
        "pt_BR": "por-BR",
        "pt": "por",
        "en_GB": "eng-GB",
        "zho_Hant": "zho-TW",
        "ger": "deu",
    }
    assert {code: datasets()["ntrex128"].code(code) for code in codes} == codes
    with pytest.raises(InputError, match="'lu'"):  # Luba-Katanga, where there is Luba-Kasai
        datasets()["flores200-devtest"].code("lu")


def test_corpora_take_every_spelling(capsys):
    assert find_corpus("Europarl-v8", "eng", "fra").pair("eng", "pt_BR") == ("en", "pt")
    assert not find_corpus("ParaCrawl-v9", "en", "zh").has("en", "zh_TW")
    main(["corpus", "list", "--lang-pair", "eng-fre"])
    names = capsys.readouterr().out
    main(["corpus", "list", "--lang-pair", "en-fr"])
    assert names == capsys.readouterr().out
    assert "Europarl-v8" in names


def test_a_pair_of_which_there_is_no_corpus_is_said_with_the_codes_that_there_are(capsys):
    main(["corpus", "list", "--lang-pair", "en-zh_TW"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("en-zh_TW: ")
    assert " en, af, ar, " in said[0]
    assert any(line.startswith("flores200") for line in said[1:])
    with pytest.raises(SystemExit, match="2"):
        main(["corpus", "list", "--lang-pair", "en-tlh"])
    assert " en, af, " in capsys.readouterr().err
