import time

import pytest
from conftest import ROOT

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import read_yaml_config
from fairseq_lxsr.preparation.clean import make_filters
from fairseq_lxsr.preparation.config import Cleaning, PrepareConfig
from fairseq_lxsr.preparation.registry import find_corpus
from fairseq_lxsr.text.languages import split_pair, split_pairs

pytest.importorskip("yaml")

GOOD = """
pairs: {en-fr: text/en-fr, en-de: null}
work: somewhere
cleaning:
  filters:
    characters:
    length: {shortest: 1, longest: 200}
  repeats: side
  exclude: [eval.en, eval.fr]
  keep_dropped: true
subwords: {vocab_size: 50000, character_coverage: 1, model_type: unigram}
valid_size: 10
shards: 3
"""


def test_options_are_read_from_yaml(tmp_path):
    (tmp_path / "c.yaml").write_text(GOOD)

    config = read_yaml_config(tmp_path / "c.yaml", PrepareConfig)

    assert config.pairs == {"en-fr": "text/en-fr", "en-de": None}
    filters = {"characters": None, "length": {"shortest": 1, "longest": 200}}
    assert config.cleaning == Cleaning(filters, "side", ("eval.en", "eval.fr"), True)
    assert config.subwords.vocab_size == 50_000
    assert config.subwords.model_type == "unigram"
    assert config.subwords.lowercase is True
    assert config.work == "somewhere"
    assert config.valid_size == 10
    assert config.test_size is None
    assert config.shards == 3


def test_a_pair_may_have_several_sources(tmp_path):
    text = "pairs: {en-fr: {law-2.1: [text/law, text/acts], messages: null}, en-de: text/en-de}"
    (tmp_path / "c.yaml").write_text(text)
    assert read_yaml_config(tmp_path / "c.yaml", PrepareConfig).pairs == {
        "en-fr": {"law-2.1": ["text/law", "text/acts"], "messages": None},
        "en-de": "text/en-de",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "pairs: {en-fr: x}\nvocab_size: 5",
            "the file .*'vocab_size'",
        ),
        ("work: x", "the file .*'pairs'"),
        ("pairs: [en-fr]", r"pairs \['en-fr'\]"),
        ("pairs: {}", "pairs is empty"),
        ("pairs: {english: x}", "'english'"),
        ("pairs: {en-fr: x}\nworkers: two", "workers 'two'"),
        ("pairs: {en-fr: x}\nworkers: true", "workers True"),
        (
            "pairs: {en-fr: x}\nshards: 0",
            "shards 0",
        ),
        (
            "pairs: {en-fr: x}\nsubwords: {size: 5}",
            "subwords .*'size'",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {repeats: all}",
            "repeats 'all'",
        ),
        ("pairs: {en-fr: x}\ncleaning: {exclude: x}", "exclude 'x'"),
        ("pairs: {en-fr: 5}", "pairs {'en-fr': 5}"),
        ("pairs: {1: t}", "pairs {1: 't'}"),
        ("pairs: {en-fr: x}\nseed: -1", "seed -1"),
        (
            "pairs: {en-fr: x}\nsubwords: {model_type: bbpe}",
            "model_type 'bbpe'",
        ),
        (
            "pairs: {en-fr: x}\nsubwords: {normalisation: nfc}",
            "normalisation 'nfc'",
        ),
        ("pairs: {en-fr: x}\nsubwords: {vocab_size: 0}", "vocab_size 0"),
        (
            "pairs: {en-fr: x}\nsubwords: {character_coverage: 7}",
            "character_coverage 7",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {length: 5}}",
            "filters {'length': 5}",
        ),
        ("pairs: {en-fr: x}\ncleaning: {exclude: [1]}", r"exclude \(1,\)"),
        ("pairs: {en-fr: x", "not a YAML file"),
        ("work: 2026-02-30", "not a YAML file"),
        ("- a", r"the file is \['a'\]"),
        ("pairs: {en-fr: x}\nwork: ''", "work ''"),
        ("pairs: {en-fr: ''}", "pairs: en-fr is ''"),
        ("pairs: {en-fr: {law: ''}}", "pairs: en-fr law is ''"),
        ("pairs: {en-fr: {law: [x, '']}}", "pairs: en-fr law is ''"),
        ("pairs: {en-fr: {law: []}}", r"pairs: en-fr law is \[\]"),
        ("pairs: {en-fr: {law: [1]}}", r"pairs {'en-fr': {'law': \[...\]}}"),
        ("pairs: {en-fr: [a, b]}", r"pairs {'en-fr': \['a', 'b'\]}"),
        ("pairs: {en-fr: {}}", "pairs: en-fr has no source"),
        (
            "pairs: {en-fr: {a/b: x}}",
            "pairs: en-fr has an invalid source name 'a/b'",
        ),
        ("pairs: {en-fr: {1: x}}", "pairs {'en-fr': {1: 'x'}}"),
        ('pairs: {en-fr: "a\\0b"}', "pairs: en-fr is 'a.x00b'"),
        ("pairs: {../x-fr: t}", "'../x-fr'"),
        (
            "pairs: {no-en: t, no: u}",
            "pairs {'no-en': 't', False: 'u'}",
        ),
        (
            "pairs: {en-fr: x}\nsubwords: {vocab_size: .nan}",
            "vocab_size nan",
        ),
        ("pairs: {en-fr: x}\nworkers: 0x" + "f" * 5000, "workers <int>"),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {ratio: {ratio: .nan}}}",
            "filter 'ratio': ratio nan",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {length: {shortest: -1}}}",
            "shortest -1",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {length: {longest: 2}}}",
            "shortest 3 .*longest 2",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {letters: {share: 2}}}",
            "share 2",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {lenght: }}",
            "filter 'lenght'.*length",
        ),
        (
            "pairs: {en-fr: x}\ncleaning: {filters: {identical: {x: 1}}}",
            "filter 'identical': .*'x'",
        ),
        (
            "pairs: &a {en-fr: *a}",
            "pairs {'en-fr': {'en-fr': {...}}}",
        ),
        ("pairs: !!python/object/apply:os.getcwd []", "not a YAML file"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, content, message):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_yaml_config(tmp_path / "c.yaml", PrepareConfig)
    assert str(tmp_path / "c.yaml") in str(caught.value)


def test_language_pairs_are_split_and_checked():
    assert split_pair(" en-fr ") == ("en", "fr")
    for text in ("en", "en-", "-fr", "en-en", "en-fr-de"):
        with pytest.raises(InputError, match=f"{text!r}"):
            split_pair(text)
    assert split_pairs("en-fr, zh_TW-sr@latin") == [("en", "fr"), ("zh_TW", "sr@latin")]
    assert split_pairs("en-en", distinct=False) == [("en", "en")]
    for text in ("en-fr,en-fr", "en-fr,", "", "en-fr;de-en", "a/b-c", "..-en", "e" * 40 + "-fr"):
        with pytest.raises(InputError):
            split_pairs(text)


def test_the_configurations_of_preprocess_are_valid():
    paths = sorted((ROOT / "preprocess").glob("*.yaml"))
    assert paths
    for path in paths:
        config = read_yaml_config(path, PrepareConfig)
        filters = config.cleaning.filters or {}
        for pair, text in config.pairs.items():
            assert make_filters(filters, split_pair(pair)).keys() == filters.keys(), path
            name, _, languages = text.removeprefix("text/").rpartition(".")
            assert languages == pair, path
            assert find_corpus(name, *split_pair(pair)), path


def test_yaml_whose_references_expand_without_limit_is_refused(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 30):
        references = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{references}]")
    (tmp_path / "c.yaml").write_text("\n".join([*lines, "pairs: *a29"]))
    with pytest.raises(InputError, match=r"the file .*'a0'"):
        read_yaml_config(tmp_path / "c.yaml", PrepareConfig)
    lines = ["- &a0 [x, x]"]
    for level in range(1, 99):
        lines.append(f"- &a{level} [*a{level - 1}, *a{level - 1}]")
    (tmp_path / "c.yaml").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"the file is \[\['x', 'x'\], "):
        read_yaml_config(tmp_path / "c.yaml", PrepareConfig)


@pytest.mark.parametrize(
    "text",
    [
        "pairs: {en-fr: a, en-fr: b}",
        "pairs:\n  en-fr: {law: a, law: b}",
        "seed: !!bool abc",
        "seed: !!int ''",
        "a: !!timestamp x",
    ],
)
def test_repeated_keys_and_invalid_tagged_values_are_refused(tmp_path, text):
    (tmp_path / "c.yaml").write_text(f"work: here\n{text}\n")
    with pytest.raises(InputError, match=r"c\.yaml: "):
        read_yaml_config(tmp_path / "c.yaml", PrepareConfig)


@pytest.mark.slow
def test_many_keys_are_read_in_linear_time(tmp_path):
    """Comparing each key with all others took 20 s for these."""
    (tmp_path / "c.yaml").write_text("".join(f"key{number}: 1\n" for number in range(40_000)))
    start = time.process_time()
    with pytest.raises(InputError, match="unknown key 'key0'"):
        read_yaml_config(tmp_path / "c.yaml", PrepareConfig)
    assert time.process_time() - start < 10
