"""Language pairs that share a language hold out the same sentences."""

import json

import numpy as np
import pytest
import toy

from fairseq_lxsr.preparation import splits
from fairseq_lxsr.preparation.config import PrepareConfig
from fairseq_lxsr.preparation.pipeline import clean, shared_side
from fairseq_lxsr.preparation.splits import KEY, TEST, TRAIN, VALID, HeldOut, assign_splits

ALL = toy.sentences(4000)
# The number of pairs with English; all have the first 1,000 English sentences.
SIZES = {"de": 4000, "es": 3000, "fr": 2000, "it": 1500}


def lines(folder, name):
    return set((folder / name).read_text(encoding="utf-8").splitlines())


def write_pairs(folder):
    """Write the text of four language pairs that share English; it is the target of one."""
    pairs = {}
    for language, size in SIZES.items():
        text = []
        for english, french in [*ALL[:1000], *ALL[-(size - 1000) :]]:
            translation = f"{language} {french}"
            text.append((translation, english) if language == "it" else (english, translation))
        names = ("it", "en") if language == "it" else ("en", language)
        toy.write(folder / language, text, names)
        pairs["-".join(names)] = str(folder / language)
    return pairs


def english_sentences(folders, split):
    return set.union(*(lines(folder, f"{split}.en") for folder in folders))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_pairs_that_share_a_language_lose_few_sentences_and_train_on_none_that_is_held_out(
    tmp_path, seed
):
    pairs = write_pairs(tmp_path / "in")
    config = PrepareConfig(
        pairs, str(tmp_path / "work"), valid_size=100, test_size=200, seed=seed, workers=1
    )
    clean(config)
    folders = [tmp_path / "work" / "corpus" / pair for pair in pairs]
    lost = []
    for folder in folders:
        report = json.loads((folder / "stage.json").read_text())["report"]
        assert report["pairs"]["valid"] == 100
        assert report["pairs"]["test"] == 200
        lost.append(report["dropped"].get("held out in another language pair", 0))
    # 2,020 sentences would be lost if each pair drew independently.
    assert 0 < sum(lost) < 600
    # The smallest pair holds out what all others do.
    assert lost[-1] == 0
    # No English sentence is in two splits, of whatever pair.
    valid = english_sentences(folders, "valid")
    test = english_sentences(folders, "test")
    assert not valid & test
    assert not english_sentences(folders, "train") & (valid | test)


def test_no_sentence_held_out_under_one_code_of_a_language_is_trained_under_another(tmp_path):
    """pt_BR and pt are Portuguese; both pairs have the same Portuguese text."""
    pairs = {}
    for pair in ("pt_BR-fr", "pt-de"):
        toy.write(tmp_path / pair, ALL[:1000], pair.split("-"))
        pairs[pair] = str(tmp_path / pair)
    clean(PrepareConfig(pairs, str(tmp_path / "work"), valid_size=50, test_size=50, workers=1))

    brazil, portugal = (tmp_path / "work" / "corpus" / pair for pair in pairs)
    for name in ("valid", "test"):
        assert not lines(brazil, f"{name}.pt_BR") & lines(portugal, "train.pt")
        assert not lines(portugal, f"{name}.pt") & lines(brazil, "train.pt_BR")


def test_pairs_with_the_same_english_text_lose_no_sentence(tmp_path):
    pairs = {}
    for language in ("de", "es", "fr"):
        text = [(en, f"{language} {fr}") for en, fr in ALL[:600]]
        if language == "es":
            text.reverse()
        toy.write(tmp_path / "in" / language, text, ("en", language))
        pairs[f"en-{language}"] = str(tmp_path / "in" / language)

    clean(PrepareConfig(pairs, str(tmp_path / "work"), valid_size=30, test_size=60, workers=1))

    folders = [tmp_path / "work" / "corpus" / pair for pair in pairs]
    for name, count in (("train", 600 - 30 - 60), ("valid", 30), ("test", 60)):
        first, second, third = (lines(folder, f"{name}.en") for folder in folders)
        assert len(first) == count
        assert first == second == third


@pytest.mark.parametrize(
    ("pairs", "sides"),
    [
        pytest.param(["en-fr"], [None], id="one pair"),
        pytest.param(["en-fr", "de-nl"], [None, None], id="nothing shared"),
        pytest.param(["en-fr", "en-de", "zh-ja"], ["source", "source", None], id="en, and a pair"),
        pytest.param(["fr-en", "en-de"], ["target", "source"], id="en on both sides"),
        # English is in three pairs. German and French are in two, but de-fr shares French.
        pytest.param(
            ["en-fr", "en-de", "de-fr", "it-en"],
            ["source", "source", "target", "target"],
            id="en before de and fr",
        ),
    ],
)
def test_the_shared_side_is_the_language_of_most_pairs(pairs, sides):
    config = PrepareConfig(dict.fromkeys(pairs, "text"))
    assert [shared_side(config, tuple(pair.split("-"))) for pair in pairs] == sides


def write_keys(tmp_path, count):
    keys = np.zeros(count, dtype=KEY)
    rng = np.random.default_rng(0)
    keys["source"], keys["target"] = rng.integers(2**64, size=(2, count), dtype=np.uint64)
    (tmp_path / "keys").write_bytes(keys.tobytes())
    return keys


HELD_OUT = HeldOut(30, 60, shared_side="target")


def test_as_many_sentences_are_held_out_as_asked_for(tmp_path):
    write_keys(tmp_path, 2000)

    assigned = assign_splits(tmp_path / "keys", "pair", HELD_OUT)

    assert np.count_nonzero(assigned == TRAIN) == 2000 - 30 - 60
    assert np.count_nonzero(assigned == VALID) == 30
    assert np.count_nonzero(assigned == TEST) == 60


def test_splits_do_not_depend_on_how_many_sentences_are_compared_at_once(tmp_path, monkeypatch):
    write_keys(tmp_path, 2000)
    expected = assign_splits(tmp_path / "keys", "pair", HELD_OUT)
    monkeypatch.setattr(splits, "MAX_CANDIDATES", 300)

    assigned = assign_splits(tmp_path / "keys", "pair", HELD_OUT)

    assert assigned.tolist() == expected.tolist()


def test_a_sentence_held_out_of_a_text_is_held_out_of_a_part_of_the_text_too(tmp_path):
    keys = write_keys(tmp_path, 2000)
    whole = assign_splits(tmp_path / "keys", "pair", HELD_OUT)
    half = np.random.default_rng(1).permutation(2000)[:1000]
    (tmp_path / "keys").write_bytes(keys[half].tobytes())

    assigned = assign_splits(tmp_path / "keys", "pair", HELD_OUT)

    for split in (VALID, TEST):
        was_in_split = whole[half] == split
        assert (assigned[was_in_split] == split).all()


def test_another_seed_holds_out_other_sentences(tmp_path):
    write_keys(tmp_path, 1000)
    with_seed_2 = HeldOut(30, 60, seed=2, shared_side="target")

    first = assign_splits(tmp_path / "keys", "pair", HELD_OUT)
    second = assign_splits(tmp_path / "keys", "pair", with_seed_2)

    # By chance, 90 x 90 / 1000 sentences would be held out by both.
    assert np.count_nonzero((first != TRAIN) & (second != TRAIN)) < 30


@pytest.mark.parametrize(("valid", "test"), [(1, 1), (4, 1), (1, 4), (5, 0), (0, 5)])
def test_validation_and_test_of_ten_pairs_have_the_asked_sizes_with_any_seed(tmp_path, valid, test):
    write_keys(tmp_path, 10)
    for seed in range(20):
        held_out = HeldOut(valid, test, seed=seed, shared_side="source")

        assigned = assign_splits(tmp_path / "keys", "pair", held_out)

        assert np.count_nonzero(assigned == VALID) == valid
        assert np.count_nonzero(assigned == TEST) == test


def test_pairs_without_a_shared_language_are_drawn_at_random(tmp_path):
    """In the order of a permutation: first the test text, then the validation text."""
    write_keys(tmp_path, 500)

    assigned = assign_splits(tmp_path / "keys", "pair", HeldOut(valid_size=20, test_size=30))

    order = np.random.default_rng(1).permutation(500)
    assert (assigned[order[:30]] == TEST).all()
    assert (assigned[order[30:50]] == VALID).all()
    assert (assigned[order[50:]] == TRAIN).all()
