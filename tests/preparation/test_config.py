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


def read_config(folder, content):
    (folder / "c.yaml").write_text(content)
    return read_yaml_config(folder / "c.yaml", PrepareConfig)


def test_options_are_read_from_yaml_and_absent_ones_have_their_defaults(tmp_path):
    config = read_config(tmp_path, GOOD)

    assert config.pairs == {"en-fr": "text/en-fr", "en-de": None}
    filters = {"characters": None, "length": {"shortest": 1, "longest": 200}}
    assert config.cleaning == Cleaning(
        filters, repeats="side", exclude=("eval.en", "eval.fr"), keep_dropped=True
    )
    assert config.subwords.vocab_size == 50_000
    assert config.subwords.model_type == "unigram"
    assert config.work == "somewhere"
    assert config.valid_size == 10
    assert config.shards == 3
    # These are absent.
    assert config.subwords.lowercase is True
    assert config.test_size is None


def test_a_pair_may_have_several_sources(tmp_path):
    text = "pairs: {en-fr: {law-2.1: [text/law, text/acts], messages: null}, en-de: text/en-de}"

    config = read_config(tmp_path, text)

    assert config.pairs == {
        "en-fr": {"law-2.1": ["text/law", "text/acts"], "messages": None},
        "en-de": "text/en-de",
    }


def check_is_refused(folder, content, message):
    """Check that the error of a configuration names the file, and has a message."""
    with pytest.raises(InputError, match=message) as caught:
        read_config(folder, content)
    assert str(folder / "c.yaml") in str(caught.value)


# Python's YAML would run the code of an object.
@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            "pairs: {en-fr: x}\nvocab_size: 5", "the file .*'vocab_size'", id="unknown key"
        ),
        pytest.param("work: x", "the file .*'pairs'", id="no pairs"),
        pytest.param("pairs: {en-fr: x", "not a YAML file", id="brace not closed"),
        pytest.param("work: 2026-02-30", "not a YAML file", id="no such date"),
        pytest.param("- a", r"the file is \['a'\]", id="list"),
        pytest.param(
            "pairs: !!python/object/apply:os.getcwd []", "not a YAML file", id="Python object"
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    check_is_refused(tmp_path, content, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("pairs: [en-fr]", r"pairs \['en-fr'\]", id="list"),
        pytest.param("pairs: {}", "pairs is empty", id="none"),
        pytest.param("pairs: {english: x}", "'english'", id="one language"),
        pytest.param("pairs: {en-fr: 5}", "pairs {'en-fr': 5}", id="number as text"),
        pytest.param("pairs: {1: t}", "pairs {1: 't'}", id="number as pair"),
        pytest.param("pairs: {en-fr: ''}", "pairs: en-fr is ''", id="empty path"),
        pytest.param(
            "pairs: {en-fr: {law: ''}}", "pairs: en-fr law is ''", id="empty path of a source"
        ),
        pytest.param(
            "pairs: {en-fr: {law: [x, '']}}", "pairs: en-fr law is ''", id="second path empty"
        ),
        pytest.param(
            "pairs: {en-fr: {law: []}}", r"pairs: en-fr law is \[\]", id="source without paths"
        ),
        pytest.param(
            "pairs: {en-fr: {law: [1]}}", r"pairs {'en-fr': {'law': \[...\]}}", id="number as path"
        ),
        pytest.param(
            "pairs: {en-fr: [a, b]}", r"pairs {'en-fr': \['a', 'b'\]}", id="paths without source"
        ),
        pytest.param("pairs: {en-fr: {}}", "pairs: en-fr has no source", id="no source"),
        pytest.param(
            "pairs: {en-fr: {a/b: x}}",
            "pairs: en-fr has an invalid source name 'a/b'",
            id="slash in source",
        ),
        pytest.param("pairs: {en-fr: {1: x}}", "pairs {'en-fr': {1: 'x'}}", id="number as source"),
        pytest.param('pairs: {en-fr: "a\\0b"}', "pairs: en-fr is 'a.x00b'", id="NUL in path"),
        pytest.param("pairs: {../x-fr: t}", "'../x-fr'", id="path as language"),
        pytest.param(
            "pairs: {no-en: t, no: u}",
            "pairs {'no-en': 't', False: 'u'}",
            id="Norwegian, false in YAML",
        ),
        pytest.param(
            "pairs: &a {en-fr: *a}", "pairs {'en-fr': {'en-fr': {...}}}", id="reference to itself"
        ),
    ],
)
def test_wrong_pairs_of_languages_and_their_texts_are_named(tmp_path, content, message):
    check_is_refused(tmp_path, content, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("pairs: {en-fr: x}\nworkers: two", "workers 'two'", id="workers: two"),
        pytest.param("pairs: {en-fr: x}\nworkers: true", "workers True", id="workers: true"),
        pytest.param("pairs: {en-fr: x}\nshards: 0", "shards 0", id="shards: 0"),
        pytest.param("pairs: {en-fr: x}\nseed: -1", "seed -1", id="seed: -1"),
        pytest.param("pairs: {en-fr: x}\nwork: ''", "work ''", id="work: ''"),
        pytest.param(
            "pairs: {en-fr: x}\nworkers: 0x" + "f" * 5000,
            "workers <int>",
            id="workers: huge number",
        ),
    ],
)
def test_wrong_values_of_general_options_are_named(tmp_path, content, message):
    check_is_refused(tmp_path, content, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("pairs: {en-fr: x}\nsubwords: {size: 5}", "subwords .*'size'", id="size: 5"),
        pytest.param(
            "pairs: {en-fr: x}\nsubwords: {model_type: bbpe}",
            "model_type 'bbpe'",
            id="model_type: bbpe",
        ),
        pytest.param(
            "pairs: {en-fr: x}\nsubwords: {normalisation: nfc}",
            "normalisation 'nfc'",
            id="normalisation: nfc",
        ),
        pytest.param(
            "pairs: {en-fr: x}\nsubwords: {vocab_size: 0}", "vocab_size 0", id="vocab_size: 0"
        ),
        pytest.param(
            "pairs: {en-fr: x}\nsubwords: {character_coverage: 7}",
            "character_coverage 7",
            id="character_coverage: 7",
        ),
        pytest.param(
            "pairs: {en-fr: x}\nsubwords: {vocab_size: .nan}",
            "vocab_size nan",
            id="vocab_size: .nan",
        ),
    ],
)
def test_wrong_options_of_subwords_are_named(tmp_path, content, message):
    check_is_refused(tmp_path, content, message)


# The filter of lengths wants 3 to 60 words by default.
@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {repeats: all}", "repeats 'all'", id="repeats: all"
        ),
        pytest.param("pairs: {en-fr: x}\ncleaning: {exclude: x}", "exclude 'x'", id="exclude: x"),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {length: 5}}",
            "filters {'length': 5}",
            id="filters: length: 5",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {exclude: [1]}", r"exclude \(1,\)", id="exclude: [1]"
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {ratio: {ratio: .nan}}}",
            "filter 'ratio': ratio nan",
            id="filters: ratio: ratio: .nan",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {length: {shortest: -1}}}",
            "shortest -1",
            id="filters: length: shortest: -1",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {length: {longest: 2}}}",
            "shortest 3 .*longest 2",
            id="filters: length: longest: 2",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {letters: {share: 2}}}",
            "share 2",
            id="filters: letters: share: 2",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {lenght: }}",
            "filter 'lenght'.*length",
            id="filters: lenght: ",
        ),
        pytest.param(
            "pairs: {en-fr: x}\ncleaning: {filters: {identical: {x: 1}}}",
            "filter 'identical': .*'x'",
            id="filters: identical: x: 1",
        ),
    ],
)
def test_wrong_options_of_cleaning_are_named(tmp_path, content, message):
    check_is_refused(tmp_path, content, message)


def test_a_pair_of_languages_is_split_without_blanks_around_it():
    assert split_pair(" en-fr ") == ("en", "fr")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("en", id="one language"),
        pytest.param("en-", id="no second language"),
        pytest.param("-fr", id="no first language"),
        pytest.param("en-en", id="the same twice"),
        pytest.param("en-fr-de", id="three languages"),
    ],
)
def test_an_invalid_pair_of_languages_is_named(text):
    with pytest.raises(InputError, match=f"{text!r}"):
        split_pair(text)


def test_a_list_of_pairs_is_split_at_commas():
    assert split_pairs("en-fr, zh_TW-sr@latin") == [("en", "fr"), ("zh_TW", "sr@latin")]


def test_both_languages_of_a_pair_may_be_the_same_if_that_is_allowed():
    assert split_pairs("en-en", distinct=False) == [("en", "en")]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="none"),
        pytest.param("en-fr,en-fr", id="a pair twice"),
        pytest.param("en-fr,", id="comma at the end"),
        pytest.param("en-fr;de-en", id="semicolon"),
        # A language becomes a part of a file name.
        pytest.param("a/b-c", id="slash"),
        pytest.param("..-en", id="parent folder"),
        pytest.param("e" * 40 + "-fr", id="long name"),
    ],
)
def test_an_invalid_list_of_pairs_is_refused(text):
    with pytest.raises(InputError):
        split_pairs(text)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "preprocess").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_configurations_of_preprocess_have_valid_filters_and_known_corpora(path):
    config = read_yaml_config(path, PrepareConfig)

    filters = config.cleaning.filters or {}
    for pair, text in config.pairs.items():
        assert make_filters(filters, split_pair(pair)).keys() == filters.keys()
        # Texts are named as `lxsr corpus download` names them: text/CORPUS.PAIR.
        name, _, languages = text.removeprefix("text/").rpartition(".")
        assert languages == pair
        assert find_corpus(name, *split_pair(pair))


def test_yaml_lists_that_expand_to_10_to_the_30_items_are_refused_quickly(tmp_path):
    """Each of 30 lists refers ten times to the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 30):
        references = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{references}]")
    content = "\n".join([*lines, "pairs: *a29"])

    with pytest.raises(InputError, match=r"the file .*'a0'"):
        read_config(tmp_path, content)


def test_a_yaml_list_of_99_levels_that_double_its_size_is_refused_quickly(tmp_path):
    """The message shows the value, but not all of it."""
    lines = ["- &a0 [x, x]"]
    for level in range(1, 99):
        lines.append(f"- &a{level} [*a{level - 1}, *a{level - 1}]")

    with pytest.raises(InputError, match=r"the file is \[\['x', 'x'\], "):
        read_config(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pairs: {en-fr: a, en-fr: b}", id="pair twice"),
        pytest.param("pairs:\n  en-fr: {law: a, law: b}", id="source twice"),
        pytest.param("seed: !!bool abc", id="no boolean"),
        pytest.param("seed: !!int ''", id="no integer"),
        pytest.param("a: !!timestamp x", id="no date"),
    ],
)
def test_repeated_keys_and_values_that_do_not_have_their_type_are_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"c\.yaml: "):
        read_config(tmp_path, f"work: here\n{text}\n")


@pytest.mark.slow
def test_many_keys_are_read_in_linear_time(tmp_path):
    """Comparing each key with all others took 20 s for these."""
    content = "".join(f"key{number}: 1\n" for number in range(40_000))

    start = time.process_time()
    with pytest.raises(InputError, match="unknown key 'key0'"):
        read_config(tmp_path, content)
    seconds = time.process_time() - start

    assert seconds < 10
