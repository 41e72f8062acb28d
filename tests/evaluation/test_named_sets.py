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


EVERY = {**datasets(), **datasets("sts"), **datasets("passages")}


def test_the_rows_of_the_registry_are_valid():
    for name, dataset in EVERY.items():
        with case(name):
            check_row(dataset)


def check_row(dataset):
    assert len(set(dataset.codes)) == len(dataset.codes)
    assert set(dataset.files) <= set(dataset.codes)
    assert all((dataset.about, dataset.licence, dataset.url.startswith("https://")))
    for template in filter(None, (dataset.file, dataset.error_types, dataset.augmented)):
        assert "{code}" in template
        assert ".." not in template
    assert dataset.code("en") in ("en", "eng", "eng_Latn")
    assert not dataset.mteb or set(dataset.mteb) == {"task", "type", "path", "split"}


CODES = {
    "flores200-dev": {"fr": "fra_Latn"},
    "flores200-devtest": {
        "fra": "fra_Latn",
        "zho_Hant": "zho_Hant",
        "lv": "lvs_Latn",
        "zho": "zho_Hans",
        "ar": "arb_Arab",
    },
    "tatoeba-v1": {"de": "deu", "zh": "cmn", "fa": "pes", "lv": "lvs", "nb": "nob"},
    "xquad": {"zho": "zh", "eng": "en"},
    "ntrex128": {"en": "eng", "fra": "fra", "fra_CA": "fra-CA", "zh": "zho-CN", "sr": "srp-Cyrl"},
}


def test_a_language_is_named_by_two_or_three_letters_or_by_the_code_of_the_files():
    for name, codes in CODES.items():
        assert {language: EVERY[name].code(language) for language in codes} == codes


def test_unknown_and_ambiguous_languages_are_refused():
    for name, language, message in (
        ("flores200-devtest", "xx", "'xx'.*flores200-devtest"),
        ("xquad", "zh_TW", "'zh_TW'.*xquad"),
        ("stsb-multi-mt", "tr", "'tr'.*stsb-multi-mt"),
    ):
        with pytest.raises(InputError, match=message):
            EVERY[name].code(language)


def test_a_named_test_set_is_in_the_signature(tmp_path):
    toy.write_dataset(tmp_path, datasets()["flores200-dev"])
    data = ("--dataset", "flores200-dev", "--data", tmp_path, "--lang-pairs", "en-fr")
    for protocol in ("xsr", "mteb-bitext"):
        lxsr_here("eval", protocol, "--model", MODEL, *data, "--output", tmp_path / "scores.jsonl")
    first, *_, last = read_scores(tmp_path / "scores.jsonl")
    assert first.signature.startswith("xsr|dataset:flores200-dev|metric:nn-cosine|")
    assert last.signature.startswith("mteb-bitext|dataset:flores200-dev|metric:nn-cosine|")
    assert (last.task, last.settings["pairs"]) == ("en->fr", 997)


def test_the_english_of_ntrex_is_the_source(tmp_path):
    dataset = datasets()["ntrex128"]
    toy.write_dataset(tmp_path, dataset, ("en", "de"))
    names = [dataset.path(str(tmp_path), language).name for language in ("en", "de")]
    assert names == ["newstest2019-src.eng.txt", "newstest2019-ref.deu.txt"]
    with pytest.raises(InputError, match="ntrex128"):
        dataset.augmented_files(str(tmp_path), "en")


def test_missing_data_is_refused_in_one_line(tmp_path):
    data = ("eval", "xsim", "--model", MODEL, "--dataset", "flores200-devtest")
    refused(
        lxsr_here(*data, "--data", tmp_path, "--lang-pairs", "en-fr", check=False),
        tmp_path / "devtest" / "eng_Latn.devtest",
        "--data",
        "flores200-devtest",
    )
    for options in (("--lang-pairs", "en-fr"), ("--source", "a", "--target", "b")):
        refused(lxsr_here(*data, *options, check=False), "--dataset flores200-devtest")
    (tmp_path / "devtest").mkdir()
    (tmp_path / "devtest" / "eng_Latn.devtest").write_text("one line\n")
    done = lxsr_here(*data, "--data", tmp_path, "--lang-pairs", "en-fr", check=False)
    refused(done, tmp_path / "devtest" / "eng_Latn.devtest", "1 line", "1,012")


def test_the_changed_sentences_of_flores_are_read_from_its_folder(tmp_path):
    toy.write_dataset(tmp_path, datasets()["flores200-devtest"])
    data = ("eval", "xsim++", "--model", MODEL, "--data", tmp_path, "--lang-pairs", "fr-en")
    folder = tmp_path / "devtest_augmented"
    dataset = ("--dataset", "flores200-devtest")
    refused(lxsr_here(*data, *dataset, check=False), "eng_Latn_errtype.devtest.json")
    refused(lxsr_here(*data[:4], "--source", "a", "--target", "b", check=False), "--error-types")
    folder.mkdir()
    errors = {"two dogs": {"errtype": "Number", "src": toy.sentences(1012)[0][0]}}
    (folder / "eng_Latn_errtype.devtest.json").write_text(json.dumps(errors))
    (folder / "eng_Latn_augmented.devtest").write_text("two dogs\ntwo dogs\n")
    done = lxsr_here(*data, *dataset, "--output", tmp_path / "scores.jsonl")
    (score,) = read_scores(tmp_path / "scores.jsonl")
    assert (score.task, score.settings["augmented"]) == ("fr->en", 2)
    assert "xsim++|dataset:flores200-devtest|metric:margin-ratio-k4-of-4|" in done.stdout
    # Compressed files are read as well.
    for path in list(tmp_path.glob("devtest*/*")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert lxsr_here(*data, *dataset).stdout == done.stdout


@pytest.mark.parametrize(("pair", "task"), [("fr-en", "fr->en"), ("eng-fra", "eng->fra")])
def test_each_language_of_tatoeba_has_its_own_english(tmp_path, pair, task):
    for language, count in (("fr", 20), ("de", 30)):
        toy.write_dataset(tmp_path, datasets()["tatoeba-v1"], ("en", language), count)
    data = ("--dataset", "tatoeba-v1", "--data", tmp_path)
    words = ("eval", "mteb-bitext", "--model", MODEL, *data)
    lxsr_here(*words, "--lang-pairs", pair, "--output", tmp_path / "scores.jsonl")
    [score] = read_scores(tmp_path / "scores.jsonl")
    assert score.task == task
    assert score.settings["dataset"] == "tatoeba-v1"
    assert score.settings["pairs"] == 20
    done = lxsr_here(*words, "--lang-pairs", "fr-de", check=False)
    refused(done, "--lang-pairs fr-de", "tatoeba-v1", "English")


def test_rated_pairs_of_a_named_set(tmp_path):
    (tmp_path / "data").mkdir()
    lines = [
        f'"{english}",{french},{number % 6}\n'
        for number, (english, french) in enumerate(toy.sentences(30))
    ]
    (tmp_path / "data" / "stsb-fr-test.csv").write_text("".join(lines))
    words = ("eval", "sts", "--model", MODEL, "--dataset", "stsb-multi-mt", "--data", tmp_path)
    done = lxsr_here(*words, "--lang-pairs", "fr-fr")
    assert "sts|dataset:stsb-multi-mt|metric:cosine|" in done.stdout
    done = lxsr_here(*words, "--lang-pairs", "en-fr", check=False)
    refused(done, "--lang-pairs en-fr", "stsb-multi-mt", "en-en")
