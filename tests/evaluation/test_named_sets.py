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


def test_the_rows_of_the_registry_are_valid():
    for name, dataset in datasets().items():
        with case(name):
            assert len(set(dataset.codes)) == len(dataset.codes)
            assert set(dataset.short.values()) | set(dataset.files) <= set(dataset.codes)
            assert all(len(short) == 2 for short in dataset.short)
            assert dataset.about
            assert dataset.licence
            assert dataset.url.startswith("https://")
            for template in filter(None, (dataset.file, dataset.error_types, dataset.augmented)):
                assert "{code}" in template
                assert ".." not in template
            assert dataset.code("en").startswith("eng")


def test_a_language_is_named_by_two_or_three_letters_or_by_the_code_of_the_files():
    for name, language, code in (
        ("flores200-dev", "fr", "fra_Latn"),
        ("flores200-devtest", "fra", "fra_Latn"),
        ("flores200-devtest", "zho_Hant", "zho_Hant"),
        ("flores200-devtest", "ar", "arb_Arab"),
        ("flores200-devtest", "lv", "lvs_Latn"),
        ("ntrex128", "en", "eng"),
        ("ntrex128", "fra", "fra"),
        ("ntrex128", "fra_CA", "fra-CA"),
        ("ntrex128", "zh", "zho-CN"),
        ("ntrex128", "sr", "srp-Cyrl"),
    ):
        assert datasets()[name].code(language) == code


def test_unknown_and_ambiguous_languages_are_refused():
    for name, language, message in (
        ("flores200-devtest", "xx", "'xx'.*flores200-devtest"),
        ("flores200-devtest", "zho", "'zho'.*zho_Hans or zho_Hant"),
        ("ntrex128", "zho", "'zho'.*zho_CN or zho_TW"),
    ):
        with pytest.raises(InputError, match=message):
            datasets()[name].code(language)


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
