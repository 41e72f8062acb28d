import gzip
from collections import Counter

import pytest
import toy

from fairseq_lxsr.errors import InputError
from preprocess.clean import comparable
from preprocess.corpus import make_corpus, split

PAIRS = toy.sentences(300)


def read(folder, name, language):
    return (folder / f"{name}.{language}").read_text(encoding="utf-8").splitlines()


def test_no_sentence_of_either_side_is_in_two_splits():
    # alternative translations and repeated sentences, as real corpora have them
    pairs = (
        PAIRS + [(en.upper(), f"{fr} bis") for en, fr in PAIRS[:100]] + [(f"{en} too", fr) for en, fr in PAIRS[50:150]]
    )
    dropped = Counter()
    splits = split(pairs, 40, 60, seed=1, dropped=dropped)
    assert [len(splits[name]) for name in ("valid", "test")] == [40, 60]
    for side in (0, 1):
        seen = [{comparable(pair[side]) for pair in splits[name]} for name in ("train", "valid", "test")]
        assert not seen[0] & seen[1]
        assert not seen[0] & seen[2]
        assert not seen[1] & seen[2]
    assert sum(map(len, splits.values())) + dropped.total() == len(pairs)
    assert dropped["held out in another pair"] > 0


def test_split_is_a_function_of_the_seed():
    first, again, other = (split(PAIRS, 20, 30, seed, Counter()) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("form", ["plain", "gz", "tsv", "tsv.gz"])
def test_own_files_in_every_form_give_the_same_corpus(tmp_path, form):
    toy.write(tmp_path / "text", PAIRS)
    data = tmp_path / "text"
    if form == "gz":
        for language in ("en", "fr"):
            path = tmp_path / f"text.{language}"
            (tmp_path / f"packed.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
        data = tmp_path / "packed"
    if form.startswith("tsv"):
        data, content = tmp_path / f"text.{form}", "".join(f"{en}\t{fr}\tnote\n" for en, fr in PAIRS).encode()
        data.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    report = make_corpus(tmp_path / "corpus", "en", "fr", str(data), valid_size=20, test_size=30)
    assert report["pairs"] == {"train": 250, "valid": 20, "test": 30}
    expected = split(PAIRS, 20, 30, 1, Counter())
    assert read(tmp_path / "corpus", "train", "en") == [pair[0] for pair in expected["train"]]
    assert read(tmp_path / "corpus", "test", "fr") == [pair[1] for pair in expected["test"]]


def test_pairs_with_an_empty_side_are_counted(tmp_path):
    toy.write(tmp_path / "text", [*PAIRS, ("", "vide"), ("empty", " ")])
    report = make_corpus(tmp_path / "corpus", "en", "fr", str(tmp_path / "text"), valid_size=20, test_size=30)
    assert report["dropped"] == {"empty side": 2}


def test_stage_is_skipped_while_nothing_changed_and_made_again_otherwise(tmp_path, capsys):
    toy.write(tmp_path / "text", PAIRS)

    def make(**options):
        make_corpus(
            tmp_path / "corpus", "en", "fr", str(tmp_path / "text"), **({"valid_size": 20, "test_size": 30} | options)
        )
        return "unchanged, kept" in capsys.readouterr().out

    assert not make()
    assert make()
    assert not make(seed=2)  # another option
    toy.write(tmp_path / "text", PAIRS[:-1])
    assert not make(seed=2)  # other input
    (tmp_path / "corpus" / "train.en").write_text("spoilt\n")
    assert not make(seed=2)  # an output that was touched
    assert make(seed=2)


def test_too_little_text_says_what_is_needed(tmp_path):
    toy.write(tmp_path / "text", PAIRS)
    with pytest.raises(InputError, match="300 usable sentence pairs; expected at least 420"):
        make_corpus(tmp_path / "corpus", "en", "fr", str(tmp_path / "text"), valid_size=10, test_size=200)
    assert not (tmp_path / "corpus").exists()
