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
def test_pairs_that_share_a_language_lose_few_sentences(tmp_path, seed):
    pairs = write_pairs(tmp_path / "in")
    config = PrepareConfig(
        pairs, str(tmp_path / "work"), valid_size=100, test_size=200, seed=seed, workers=1
    )
    clean(config)
    folders = [tmp_path / "work" / "corpus" / pair for pair in pairs]
    lost = []
    for folder in folders:
        report = json.loads((folder / "stage.json").read_text())["report"]
        assert (report["pairs"]["valid"], report["pairs"]["test"]) == (100, 200)
        lost.append(report["dropped"].get("held out in another language pair", 0))
    # 2,020 sentences would be lost if each pair drew independently.
    assert 0 < sum(lost) < 600
    # The smallest pair holds out what all others do.
    assert lost[-1] == 0
    valid = english_sentences(folders, "valid")
    test = english_sentences(folders, "test")
    assert not valid & test
    assert not english_sentences(folders, "train") & (valid | test)


def test_two_codes_of_a_language_hold_out_the_same_sentences(tmp_path):
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
    for name, count in (("train", 510), ("valid", 30), ("test", 60)):
        first, second, third = (lines(folder, f"{name}.en") for folder in folders)
        assert len(first) == count
        assert first == second == third


@pytest.mark.parametrize(
    ("pairs", "sides"),
    [
        (["en-fr"], [None]),
        (["en-fr", "de-nl"], [None, None]),
        (["en-fr", "en-de", "zh-ja"], ["source", "source", None]),
        (["fr-en", "en-de"], ["target", "source"]),
        (["en-fr", "en-de", "de-fr", "it-en"], ["source", "source", "target", "target"]),
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


def test_whether_a_sentence_is_held_out_depends_on_it_and_the_seed_only(tmp_path, monkeypatch):
    keys = write_keys(tmp_path, 2000)
    held_out = HeldOut(30, 60, shared_side="target")
    whole = assign_splits(tmp_path / "keys", "pair", held_out)
    assert np.bincount(whole).tolist() == [1910, 30, 60]
    monkeypatch.setattr(splits, "MAX_CANDIDATES", 300)
    assert assign_splits(tmp_path / "keys", "pair", held_out).tolist() == whole.tolist()
    subset = np.random.default_rng(1).permutation(2000)[:1000]
    (tmp_path / "keys").write_bytes(keys[subset].tobytes())
    part = assign_splits(tmp_path / "keys", "pair", held_out)
    for split in (VALID, TEST):
        assert (part[whole[subset] == split] == split).all()
    held_out = HeldOut(30, 60, seed=2, shared_side="target")
    reseeded = assign_splits(tmp_path / "keys", "pair", held_out)
    assert np.count_nonzero((reseeded != TRAIN) & (part != TRAIN)) < 30


@pytest.mark.parametrize("sizes", [(1, 1), (4, 1), (1, 4), (5, 0), (0, 5)])
def test_few_pairs_fill_both_splits(tmp_path, sizes):
    for seed in range(20):
        write_keys(tmp_path, 10)
        held_out = HeldOut(*sizes, seed=seed, shared_side="source")
        assigned = assign_splits(tmp_path / "keys", "pair", held_out)
        assert np.bincount(assigned, minlength=3).tolist() == [10 - sum(sizes), *sizes]


def test_pairs_without_a_shared_language_are_drawn_at_random(tmp_path):
    write_keys(tmp_path, 500)
    assigned = assign_splits(tmp_path / "keys", "pair", HeldOut(20, 30))
    order = np.random.default_rng(1).permutation(500)
    assert (assigned[order[:30]] == TEST).all()
    assert (assigned[order[30:50]] == VALID).all()
    assert np.bincount(assigned).tolist() == [450, 20, 30]
