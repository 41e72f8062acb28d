"""Named test sets: the layouts of the archives, and the names of languages."""

import gzip
import json

import pytest
import toy
from conftest import case, lxsr_here, refused
from golden_vectors import GOLDEN

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import datasets
from fairseq_lxsr.evaluation.score import read_scores

MODEL = GOLDEN / "compatibility" / "best.model"
ALL_SETS = {**datasets(), **datasets("sts"), **datasets("passages")}


# -- the registry


@pytest.mark.parametrize("name", ALL_SETS)
def test_each_named_set_is_described_and_has_a_licence_and_an_address(name):
    dataset = ALL_SETS[name]

    assert dataset.about
    assert dataset.licence
    assert dataset.url.startswith("https://")


@pytest.mark.parametrize("name", ALL_SETS)
def test_the_files_of_each_named_set_are_inside_its_folder_and_named_by_code(name):
    dataset = ALL_SETS[name]

    for template in (dataset.file, dataset.error_types, dataset.augmented):
        # Only sets for xsim++ have error types and augmented sentences.
        if template:
            assert "{code}" in template
            assert ".." not in template
    # Exceptions are for codes that the set has.
    assert set(dataset.files) <= set(dataset.codes)


@pytest.mark.parametrize("name", ALL_SETS)
def test_each_named_set_has_distinct_codes_one_of_them_for_english(name):
    dataset = ALL_SETS[name]

    assert len(set(dataset.codes)) == len(dataset.codes)
    assert dataset.code("en") in ("en", "eng", "eng_Latn")


@pytest.mark.parametrize("name", ALL_SETS)
def test_the_mteb_task_of_a_named_set_is_complete(name):
    # Not every set is a task of mteb.
    mteb_task = ALL_SETS[name].mteb

    assert set(mteb_task) in (set(), {"task", "type", "path", "split"})


# -- names of languages


@pytest.mark.parametrize(
    ("name", "code_by_language"),
    [
        ("flores200-dev", {"fr": "fra_Latn"}),
        (
            "flores200-devtest",
            {
                "fra": "fra_Latn",
                # The code of the files.
                "zho_Hant": "zho_Hant",
                # Latvian and Arabic are macrolanguages; the files name their standard variety.
                "lv": "lvs_Latn",
                "ar": "arb_Arab",
                # Chinese is in two scripts, of which the simplified one is meant.
                "zho": "zho_Hans",
            },
        ),
        ("tatoeba-v1", {"de": "deu", "zh": "cmn", "fa": "pes", "lv": "lvs", "nb": "nob"}),
        ("xquad", {"zho": "zh", "eng": "en"}),
        (
            "ntrex128",
            {"en": "eng", "fra": "fra", "fra_CA": "fra-CA", "zh": "zho-CN", "sr": "srp-Cyrl"},
        ),
    ],
)
def test_a_language_is_named_by_two_or_three_letters_or_by_the_code_of_the_files(
    name, code_by_language
):
    for language, code in code_by_language.items():
        with case(language):
            assert ALL_SETS[name].code(language) == code


@pytest.mark.parametrize(
    ("name", "language"),
    [
        pytest.param("flores200-devtest", "xx", id="no language"),
        pytest.param("stsb-multi-mt", "tr", id="language that the set lacks"),
        # The Chinese of XQuAD is in simplified script.
        pytest.param("xquad", "zh_TW", id="script that the set lacks"),
    ],
)
def test_a_language_that_a_set_does_not_have_is_refused(name, language):
    with pytest.raises(InputError, match=f"'{language}'.*{name}"):
        ALL_SETS[name].code(language)


# -- layouts of the archives


@pytest.mark.parametrize("protocol", ["xsr", "mteb-bitext"])
def test_a_named_test_set_is_in_the_signature(tmp_path, protocol):
    toy.write_dataset(tmp_path, datasets()["flores200-dev"])
    output = tmp_path / "scores.jsonl"

    data = ("--dataset", "flores200-dev", "--data", tmp_path, "--lang-pairs", "en-fr")
    lxsr_here("eval", protocol, "--model", MODEL, *data, "--output", output)

    signature = read_scores(output)[0].signature
    assert signature.startswith(f"{protocol}|dataset:flores200-dev|metric:nn-cosine|")


def test_all_sentences_of_a_named_test_set_are_read(tmp_path):
    flores_dev = datasets()["flores200-dev"]
    toy.write_dataset(tmp_path, flores_dev)
    output = tmp_path / "scores.jsonl"

    data = ("--dataset", "flores200-dev", "--data", tmp_path, "--lang-pairs", "en-fr")
    lxsr_here("eval", "mteb-bitext", "--model", MODEL, *data, "--output", output)

    [score] = read_scores(output)
    assert score.task == "en->fr"
    assert score.settings["pairs"] == flores_dev.sentences == 997


def test_the_english_of_ntrex_is_the_source_and_other_languages_are_references(tmp_path):
    ntrex = datasets()["ntrex128"]
    toy.write_dataset(tmp_path, ntrex, ("en", "de"))

    english = ntrex.path(str(tmp_path), "en")
    german = ntrex.path(str(tmp_path), "de")

    assert english.name == "newstest2019-src.eng.txt"
    assert german.name == "newstest2019-ref.deu.txt"


def test_a_set_without_changed_sentences_is_refused_for_xsim_plus_plus(tmp_path):
    with pytest.raises(InputError, match="ntrex128"):
        datasets()["ntrex128"].augmented_files(str(tmp_path), "en")


XSIM_OF_FLORES = ("eval", "xsim", "--model", MODEL, "--dataset", "flores200-devtest")


def test_a_missing_file_of_a_named_set_is_refused_with_its_path(tmp_path):
    command = (*XSIM_OF_FLORES, "--data", tmp_path, "--lang-pairs", "en-fr")

    done = lxsr_here(*command, check=False)

    missing_file = tmp_path / "devtest" / "eng_Latn.devtest"
    refused(done, missing_file, "--data", "flores200-devtest")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--lang-pairs", "en-fr"), id="no folder"),
        pytest.param(("--source", "a", "--target", "b"), id="files instead of a folder"),
    ],
)
def test_a_named_set_without_its_folder_is_refused(options):
    done = lxsr_here(*XSIM_OF_FLORES, *options, check=False)

    refused(done, "--dataset flores200-devtest")


def test_a_file_with_too_few_sentences_is_refused(tmp_path):
    file = tmp_path / "devtest" / "eng_Latn.devtest"
    file.parent.mkdir()
    file.write_text("one line\n")

    command = (*XSIM_OF_FLORES, "--data", tmp_path, "--lang-pairs", "en-fr")
    done = lxsr_here(*command, check=False)

    # FLORES devtest has 1,012 sentences.
    refused(done, file, "1 line", "1,012")


# -- the changed sentences of xsim++

XSIM_PLUS_PLUS = ("eval", "xsim++", "--model", MODEL)
FLORES_DEVTEST = ("--dataset", "flores200-devtest")


def write_changed_sentences(folder) -> None:
    """Write FLORES devtest with two changed forms of its first English sentence."""
    flores = datasets()["flores200-devtest"]
    toy.write_dataset(folder, flores)
    first_english, _ = toy.sentences(flores.sentences)[0]
    error_types = {"two dogs": {"errtype": "Number", "src": first_english}}
    changed = folder / "devtest_augmented"
    changed.mkdir()
    (changed / "eng_Latn_errtype.devtest.json").write_text(json.dumps(error_types))
    (changed / "eng_Latn_augmented.devtest").write_text("two dogs\ntwo dogs\n")


def test_the_changed_sentences_of_flores_are_read_from_its_folder(tmp_path):
    write_changed_sentences(tmp_path)
    output = tmp_path / "scores.jsonl"

    data = ("--data", tmp_path, "--lang-pairs", "fr-en", "--output", output)
    done = lxsr_here(*XSIM_PLUS_PLUS, *FLORES_DEVTEST, *data)

    [score] = read_scores(output)
    assert score.task == "fr->en"
    assert score.settings["augmented"] == 2
    assert "xsim++|dataset:flores200-devtest|metric:margin-ratio-k4-of-4|" in done.stdout


def test_compressed_files_of_a_named_set_give_the_same_scores(tmp_path):
    write_changed_sentences(tmp_path)
    command = (*XSIM_PLUS_PLUS, *FLORES_DEVTEST, "--data", tmp_path, "--lang-pairs", "fr-en")
    uncompressed = lxsr_here(*command).stdout

    for path in list(tmp_path.glob("devtest*/*")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    compressed = lxsr_here(*command).stdout

    assert compressed == uncompressed


def test_a_folder_of_flores_without_changed_sentences_is_refused_for_xsim_plus_plus(tmp_path):
    toy.write_dataset(tmp_path, datasets()["flores200-devtest"])

    data = ("--data", tmp_path, "--lang-pairs", "fr-en")
    done = lxsr_here(*XSIM_PLUS_PLUS, *FLORES_DEVTEST, *data, check=False)

    refused(done, "eng_Latn_errtype.devtest.json")


def test_xsim_plus_plus_of_other_text_needs_the_option_for_its_changed_sentences():
    done = lxsr_here(*XSIM_PLUS_PLUS, "--source", "a", "--target", "b", check=False)

    refused(done, "--error-types")


# -- Tatoeba: a file of English for each language

MTEB_OF_TATOEBA = ("eval", "mteb-bitext", "--model", MODEL, "--dataset", "tatoeba-v1")


@pytest.mark.parametrize(("pair", "task"), [("fr-en", "fr->en"), ("eng-fra", "eng->fra")])
def test_each_language_of_tatoeba_has_its_own_english(tmp_path, pair, task):
    tatoeba = datasets()["tatoeba-v1"]
    toy.write_dataset(tmp_path, tatoeba, ("en", "fr"), count=20)
    toy.write_dataset(tmp_path, tatoeba, ("en", "de"), count=30)
    output = tmp_path / "scores.jsonl"

    lxsr_here(*MTEB_OF_TATOEBA, "--data", tmp_path, "--lang-pairs", pair, "--output", output)

    [score] = read_scores(output)
    assert score.task == task
    assert score.settings["dataset"] == "tatoeba-v1"
    # Not the 30 of German.
    assert score.settings["pairs"] == 20


def test_a_pair_of_tatoeba_without_english_is_refused(tmp_path):
    options = ("--data", tmp_path, "--lang-pairs", "fr-de")

    done = lxsr_here(*MTEB_OF_TATOEBA, *options, check=False)

    refused(done, "--lang-pairs fr-de", "tatoeba-v1", "English")


# -- rated pairs

STS_OF_STSB = ("eval", "sts", "--model", MODEL, "--dataset", "stsb-multi-mt")


def test_rated_pairs_of_a_named_set_are_scored_within_a_language(tmp_path):
    (tmp_path / "data").mkdir()
    rows = []
    for number, (first, second) in enumerate(toy.sentences(30)):
        rating = number % 6
        rows.append(f'"{first}",{second},{rating}\n')
    (tmp_path / "data" / "stsb-fr-test.csv").write_text("".join(rows))

    done = lxsr_here(*STS_OF_STSB, "--data", tmp_path, "--lang-pairs", "fr-fr")

    assert "sts|dataset:stsb-multi-mt|metric:cosine|" in done.stdout


def test_rated_pairs_across_languages_are_refused_where_a_set_has_none(tmp_path):
    done = lxsr_here(*STS_OF_STSB, "--data", tmp_path, "--lang-pairs", "en-fr", check=False)

    refused(done, "--lang-pairs en-fr", "stsb-multi-mt", "en-en")
