import gzip
import itertools
import json
import lzma
from collections import Counter

import numpy as np
import pytest
import toy
from conftest import lxsr_here

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.preparation import splits as deduplicate
from fairseq_lxsr.preparation.clean import comparable
from fairseq_lxsr.preparation.config import Cleaning
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import Source, find_source
from fairseq_lxsr.preparation.leaks import drop_leaks
from fairseq_lxsr.preparation.splits import KEY, HeldOut, repeated
from fairseq_lxsr.preparation.stages import run_stage

PAIRS = toy.sentences(300)


def read(folder, name, language):
    return (folder / f"{name}.{language}").read_text(encoding="utf-8").splitlines()


def make(folder, pairs, tmp_path, cleaning=Cleaning(), workers=1, **options):  # noqa: B008
    """A corpus of pairs at hand."""
    (tmp_path / "in.txt").write_text(str(pairs))
    source = Source("toy", (tmp_path / "in.txt",), lambda dropped: iter(pairs))
    held_out = HeldOut(**({"valid_size": 20, "test_size": 30} | options))
    return make_corpus(folder, ("en", "fr"), source, cleaning, held_out, workers)


def splits(folder):
    names = ("train", "valid", "test")
    return {
        name: list(zip(read(folder, name, "en"), read(folder, name, "fr"), strict=True))
        for name in names
    }


def test_no_sentence_of_either_side_is_in_two_splits(tmp_path):
    # alternative translations and repeated sentences, as real corpora have them
    pairs = [*PAIRS, *((en.upper(), f"{fr} bis") for en, fr in PAIRS[:100])]
    pairs += [(f"{en} too", fr) for en, fr in PAIRS[50:150]]
    report = make(tmp_path / "corpus", pairs, tmp_path, valid_size=40, test_size=60)
    found = splits(tmp_path / "corpus")
    assert {name: len(kept) for name, kept in found.items()} == report["pairs"]
    assert (report["pairs"]["valid"], report["pairs"]["test"]) == (40, 60)
    for side in (0, 1):
        seen = [{comparable(pair[side]) for pair in kept} for kept in found.values()]
        assert len(set.union(*seen)) == sum(map(len, seen))
    assert sum(report["pairs"].values()) + sum(report["dropped"].values()) == len(pairs)
    assert report["dropped"]["held out in another pair"] > 0


def test_sides_that_are_no_sentences_are_dropped(tmp_path):
    """A word of a mebibyte would take eighty when it is split into pieces."""
    long = [
        ("x" * 2_000_000, "mot"),
        ("word", "é" * 600_000),
        ("word " * 20_000, "mot"),
        ("a" * 2**20, "just one"),
    ]
    no_pieces = [("\u200b\u200e", "mot"), ("word", "\ufffd \x01 \u2581")]
    report = make(tmp_path / "corpus", PAIRS + long + no_pieces, tmp_path)
    assert report["dropped"] == {"over 1 MiB": 2, "empty side": 2, "over 10,000 words": 1}
    assert sum(report["pairs"].values()) == len(PAIRS) + 1


def test_split_is_a_function_of_the_seed(tmp_path):
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        make(tmp_path / name, PAIRS, tmp_path, seed=seed)
    first, again, other = (splits(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first != other


def test_blocks_and_processes_change_nothing(tmp_path, monkeypatch):
    assert list(in_blocks("abcde", size=2)) == [["a", "b"], ["c", "d"], ["e"]]
    pairs = [("aaa", "b"), ("a", "b"), ("", ""), ("a", "bbbb")]
    assert list(in_blocks(pairs, weight=5)) == [pairs[:2], pairs[2:]]
    assert list(in_blocks([], weight=5)) == []
    pairs = [(f"{en} {toy.sentences(1, seed=i)[0][0]}", fr) for i, (en, fr) in enumerate(PAIRS * 2)]
    cleaning = Cleaning({"length": {"longest": 12}, "language": {}}, keep_dropped=True)
    monkeypatch.setattr(in_blocks, "__defaults__", (100, 10_000_000))
    for workers in (1, 2):
        make(tmp_path / str(workers), pairs, tmp_path, cleaning, workers=workers)
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("form", ["plain", "gz", "xz", "zst", "tsv", "tsv.gz"])
def test_own_files_in_every_form_give_the_same_corpus(tmp_path, form):
    zstd = pytest.importorskip("backports.zstd")
    pack = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress}
    toy.write(tmp_path / "text", PAIRS)
    data = tmp_path / "text"
    if form in pack:
        for language in ("en", "fr"):
            path = tmp_path / f"text.{language}"
            (tmp_path / f"packed.{language}.{form}").write_bytes(pack[form](path.read_bytes()))
        data = tmp_path / "packed"
    if form.startswith("tsv"):
        data, content = (
            tmp_path / f"text.{form}",
            "".join(f"{en}\t{fr}\tnote\n" for en, fr in PAIRS).encode(),
        )
        data.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    assert list(find_source(str(data), "en", "fr").read(Counter())) == PAIRS


def test_what_is_dropped_is_counted_and_kept_with_the_reason(tmp_path):
    bad = [("", "vide"), ("empty", " "), PAIRS[3], (PAIRS[4][0].upper(), PAIRS[4][1] + "!")]
    bad += [("same words", "Same words")]
    cleaning = Cleaning({"identical": {}}, keep_dropped=True)
    report = make(tmp_path / "corpus", PAIRS + bad, tmp_path, cleaning)
    assert report["dropped"] == {"empty side": 2, "identical": 1, "repeated": 2}
    kept = (
        gzip.decompress((tmp_path / "corpus" / "dropped.tsv.gz").read_bytes()).decode().splitlines()
    )
    assert kept[:3] == [
        "empty side\t\tvide",
        "empty side\tempty\t",
        "identical\tsame words\tSame words",
    ]
    assert sorted(line.split("\t")[0] for line in kept[3:]) == ["repeated", "repeated"]


def test_evaluation_text_is_excluded(tmp_path):
    (tmp_path / "eval.txt").write_text(f"{PAIRS[5][0].upper()}!\n\n{PAIRS[9][1]}\n")
    cleaning = Cleaning(exclude=(str(tmp_path / "eval.txt"),))
    report = make(tmp_path / "corpus", [*PAIRS, ("...", "!!!")], tmp_path, cleaning)
    known = {comparable(PAIRS[5][0]), comparable(PAIRS[9][1])}
    expected = sum(not known.isdisjoint(map(comparable, pair)) for pair in PAIRS)
    assert report["dropped"] == {"excluded": expected}
    text = [
        comparable(side)
        for kept in splits(tmp_path / "corpus").values()
        for pair in kept
        for side in pair
    ]
    assert known.isdisjoint(text)
    (tmp_path / "eval.txt").write_text(f"{PAIRS[5][0]}\t{PAIRS[6][0]}\nwith a\ttab\n")
    report = make(tmp_path / "tabs", [*PAIRS, ("with a tab", "avec tab")], tmp_path, cleaning)
    assert report["dropped"] == {"excluded": 3}


@pytest.mark.parametrize("part", [10**6, 7])
def test_repetitions_are_those_of_a_plain_search(tmp_path, monkeypatch, part):
    monkeypatch.setattr(deduplicate, "KEYS_AT_ONCE", part)
    monkeypatch.setattr(deduplicate, "KEYS_READ", 10)
    keys = np.zeros(200, dtype=KEY)
    rng = np.random.default_rng(0)
    keys["source"], keys["target"] = rng.integers(2**64, size=30, dtype=np.uint64)[
        rng.integers(30, size=(2, 200))
    ]
    (tmp_path / "keys").write_bytes(keys.tobytes())
    rows = keys.tolist()
    expected = {
        "pair": [row in rows[:i] for i, row in enumerate(rows)],
        "side": [
            any(row[0] == a or row[1] == b for a, b in rows[:i]) for i, row in enumerate(rows)
        ],
        "keep": [False] * len(rows),
    }
    for what, marks in expected.items():
        assert repeated(tmp_path / "keys", what).tolist() == marks
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_stage_is_skipped_while_nothing_changed_and_made_again_otherwise(tmp_path, capsys):
    def again(pairs=PAIRS, **options):
        make(tmp_path / "corpus", pairs, tmp_path, **options)
        return "unchanged, kept" in capsys.readouterr().out

    assert not again()
    assert again()
    assert again(workers=2)
    # Another option.
    assert not again(seed=2)
    # Other input.
    assert not again(PAIRS[:-1], seed=2)
    (tmp_path / "corpus" / "train.en").write_text("spoilt\n")
    # An output that was touched.
    assert not again(PAIRS[:-1], seed=2)
    assert again(PAIRS[:-1], seed=2)
    manifest = json.loads((tmp_path / "corpus" / "stage.json").read_text())
    assert set(manifest) == {"key", "version", "options", "inputs", "report", "files", "crc32"}
    for damage in ("", "[]", "{}"):
        (tmp_path / "corpus" / "stage.json").write_text(damage)
        assert not again(PAIRS[:-1], seed=2)


@pytest.mark.parametrize("sizes", [(10, 200), (299, 1), (150, 151), (151, 0)])
def test_too_little_text_says_what_is_needed(tmp_path, sizes):
    valid, test = sizes
    with pytest.raises(
        InputError,
        match=f"toy: 300 .*{2 * (valid + test)} .*{valid} .*{test} ",
    ):
        make(tmp_path / "corpus", PAIRS, tmp_path, valid_size=valid, test_size=test)
    assert not (tmp_path / "corpus").exists()
    nothing = Cleaning({"length": {"longest": 0, "shortest": 0}})
    with pytest.raises(InputError, match="toy: 0 "):
        make(tmp_path / "corpus", PAIRS, tmp_path, nothing)
    with pytest.raises(InputError, match=r"toy: 0 .* 1 .* 0 .* 0 "):
        make(tmp_path / "corpus", PAIRS, tmp_path, nothing, valid_size=0, test_size=0)


def test_sentences_without_letters_are_not_all_the_same(tmp_path):
    odd = [("." * i, "!" * i) for i in range(1, 40)]
    report = make(tmp_path / "corpus", PAIRS + odd, tmp_path)
    assert "repeated" not in report["dropped"]
    assert sum(report["pairs"].values()) == len(PAIRS + odd)


def test_nothing_held_out_in_one_pair_trains_another(tmp_path):
    third = [(fr, f"das {en}") for en, fr in reversed(PAIRS)]
    shuffled = third[100:] + third[:100]
    (tmp_path / "in.txt").write_text("x")
    folders = {}
    for pair, pairs in ((("en", "fr"), PAIRS), (("fr", "de"), shuffled)):
        source = Source("toy", (tmp_path / "in.txt",), lambda dropped, pairs=pairs: iter(pairs))
        folders[pair] = tmp_path / "-".join(pair)
        make_corpus(
            folders[pair], pair, source, Cleaning(keep_dropped=True), held_out=HeldOut(20, 30)
        )
    leaks = 0
    for pair, folder in folders.items():
        others = {other: path for other, path in folders.items() if other != pair}
        final = tmp_path / "final" / folder.name
        report = drop_leaks(final, pair, folder, others)
        dropped = report["dropped"]["held out in another language pair"]
        leaks += dropped
        kept = gzip.decompress((final / "dropped.tsv.gz").read_bytes()).decode().splitlines()
        assert (
            sum(line.startswith("held out in another language pair\t") for line in kept) == dropped
        )
        assert len(kept) == sum(report["dropped"].values())
        assert len(read(final, "train", pair[0])) == report["pairs"]["train"] == 250 - dropped
        for path in others.values():
            held = {line for name in ("valid", "test") for line in read(path, name, "fr")}
            assert held.isdisjoint(read(final, "train", "fr"))
        for name in ("valid.fr", "test.fr"):
            assert (final / name).read_bytes() == (folder / name).read_bytes()
    assert leaks > 60


SOURCES = {
    "law": [(f"law {en}", fr) for en, fr in PAIRS[:150]],
    "speech": PAIRS[100:],
    "again": PAIRS[120:180],
}


def write_sources_of(folder):
    for name, pairs in SOURCES.items():
        toy.write(folder / f"{name}.en-fr", pairs)
    return find_source({name: str(folder / f"{name}.en-fr") for name in SOURCES}, "en", "fr")


def lines_by_source(folder, language="en"):
    """The training text, cut by the numbers of pairs of the sources."""
    numbers = json.loads((folder / "sources.json").read_text())
    lines = read(folder, "train", language)
    assert sum(numbers.values()) == len(lines)
    ends = np.cumsum(list(numbers.values()))
    return {
        name: lines[end - number : end]
        for (name, number), end in zip(numbers.items(), ends, strict=True)
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_the_sources_of_training_pairs_stay_known(tmp_path, workers):
    source = write_sources_of(tmp_path)
    assert source.name == ", ".join(f"{name}={tmp_path / name}.en-fr" for name in SOURCES)
    options = {"cleaning": Cleaning({"length": {"longest": 7}}), "held_out": HeldOut(20, 30)}
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, workers=workers, **options)
    found = lines_by_source(tmp_path / "corpus")
    assert report["sources"] == {name: len(lines) for name, lines in found.items()}
    assert list(found) == list(SOURCES)
    # All of it is in an earlier source.
    assert found["again"] == []
    assert {line.startswith("law") for line in found["law"]} == {True}
    assert {line.startswith("law") for line in found["speech"]} == {False}
    toy.write(tmp_path / "whole", [pair for pairs in SOURCES.values() for pair in pairs])
    whole = find_source(str(tmp_path / "whole"), "en", "fr")
    assert "sources" not in make_corpus(tmp_path / "plain", ("en", "fr"), whole, **options)
    assert splits(tmp_path / "plain") == splits(tmp_path / "corpus")
    assert not (tmp_path / "plain" / "sources.json").exists()


def test_several_texts_are_one_source(tmp_path):
    write_sources_of(tmp_path)
    law, speech, again = (str(tmp_path / f"{name}.en-fr") for name in SOURCES)
    source = find_source({"all": [law, speech], "again": (again,)}, "en", "fr")
    assert source.name == f"all={law}+{speech}, again={again}"
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 30))
    assert report["sources"] == {"all": report["pairs"]["train"], "again": 0}


def test_sources_that_are_renamed_are_counted_again_and_others_kept(tmp_path, capsys):
    sizes = {"held_out": HeldOut(20, 30)}
    for _ in range(2):
        make_corpus(tmp_path / "corpus", ("en", "fr"), write_sources_of(tmp_path), **sizes)
    assert "unchanged, kept" in capsys.readouterr().out
    renamed = find_source(
        {"laws": str(tmp_path / "law.en-fr"), "x": str(tmp_path / "speech.en-fr")}, "en", "fr"
    )
    make_corpus(tmp_path / "corpus", ("en", "fr"), renamed, **sizes)
    out = capsys.readouterr().out
    assert "unchanged" not in out
    found = lines_by_source(tmp_path / "corpus")
    assert f"laws {len(found['laws'])}, x {len(found['x'])}" in out


def test_sources_stay_known_without_what_another_pair_holds_out(tmp_path):
    source = write_sources_of(tmp_path)
    make_corpus(tmp_path / "en-fr", ("en", "fr"), source, held_out=HeldOut(20, 30))
    toy.write(tmp_path / "other", [(fr, en) for en, fr in PAIRS], ("fr", "de"))
    other = find_source(str(tmp_path / "other"), "fr", "de")
    make_corpus(tmp_path / "fr-de", ("fr", "de"), other, held_out=HeldOut(20, 30))
    report = drop_leaks(
        tmp_path / "final", ("en", "fr"), tmp_path / "en-fr", {("fr", "de"): tmp_path / "fr-de"}
    )
    before, after = lines_by_source(tmp_path / "en-fr"), lines_by_source(tmp_path / "final")
    assert report["sources"] == {name: len(lines) for name, lines in after.items()}
    assert all(0 < len(after[name]) < len(before[name]) for name in ("law", "speech"))
    assert all(set(after[name]) <= set(before[name]) for name in SOURCES)


@pytest.mark.parametrize("languages", ["en-fr", "en-fr,en-de"])
def test_a_source_of_which_nothing_is_left_is_named(tmp_path, languages):
    """Filtered, repeated, excluded, or empty in one side; once, at the end."""
    texts = {
        "law": PAIRS[:200],
        "short": [("one", "un")] * 30,
        "again": PAIRS[:40],
        "eval": PAIRS[200:250],
    }
    texts |= {"blank": [(" ", "rien de rien ici")] * 20}
    words = [
        "prepare",
        "--lang-pairs",
        languages,
        "--work",
        tmp_path / "work",
        "--filters",
        "length",
        "--until",
        "clean",
    ]
    words += [
        "--exclude",
        tmp_path / "eval.en-fr.en",
        "--valid-size",
        5,
        "--test-size",
        5,
        "--workers",
        1,
    ]
    for pair, (name, pairs) in itertools.product(languages.split(","), texts.items()):
        toy.write(tmp_path / f"{name}.{pair}", pairs, pair.split("-"))
    for name in texts:
        words += ["--data", f"{name}={tmp_path / name}.{{pair}}"]
    numbers = {name: len(pairs) for name, pairs in texts.items() if name != "law"}
    # The warning comes even if the text is unchanged.
    for _ in range(2):
        warnings = lxsr_here(*words).stderr.splitlines()
        assert [line.partition(" pairs ")[0] for line in warnings] == [
            f"lxsr prepare: warning: {pair}: source {name} has 0 of {number} training"
            for pair, (name, number) in itertools.product(languages.split(","), numbers.items())
        ]


def test_pairs_that_were_dropped_are_kept_when_asked_for_later(tmp_path):
    other = tmp_path / "fr-de"
    make(other, [(fr, en) for en, fr in PAIRS], tmp_path)
    for keep in (False, True, False):
        make(tmp_path / "en-fr", PAIRS, tmp_path, Cleaning(keep_dropped=keep))
        drop_leaks(tmp_path / "final", ("en", "fr"), tmp_path / "en-fr", {("fr", "de"): other})
        assert (tmp_path / "final" / "dropped.tsv.gz").exists() == keep


def build_text(work):
    (work / "text").write_text("text")
    return {"lines": 1}


def test_a_stage_that_a_kill_left_under_its_hidden_name_is_kept(tmp_path, capsys):
    run_stage(tmp_path / "corpus", {}, [], build_text)
    (tmp_path / "corpus").rename(tmp_path / ".corpus.machine.7.x.old")
    assert run_stage(tmp_path / "corpus", {}, [], build_text) == {"lines": 1}
    assert capsys.readouterr().out == f"{tmp_path / 'corpus'}: unchanged, kept\n"


@pytest.mark.parametrize("change", ["other text", None])
def test_a_stage_whose_input_changes_while_it_is_built_is_refused(tmp_path, change):
    text = tmp_path / "text"
    text.write_text("text")

    def build(work):
        text.unlink()
        if change:
            text.write_text(change)
        return build_text(work)

    with pytest.raises(InputError, match=f"{text}: "):
        run_stage(tmp_path / "corpus", {}, [text], build)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("pairs", "own", "sizes"),
    [
        (100, {}, (5, 10)),
        (5_000, {}, (250, 500)),
        (20_000, {}, (1000, 2000)),
        (10**6, {}, (1000, 2000)),
        (5_000, {"test_size": 0}, (250, 0)),
        (5_000, {"valid_size": 7}, (7, 500)),
    ],
)
def test_small_text_holds_out_what_fits(pairs, own, sizes):
    assert HeldOut(**own).sizes(pairs) == sizes


def test_a_small_text_is_prepared_without_sizes(tmp_path):
    # digits are all alike
    words = [chr(97 + first) + chr(97 + second) for first in range(20) for second in range(20)]
    pairs = [(f"a sentence {word}", f"une phrase {word}") for word in words]
    report = make(tmp_path / "corpus", pairs, tmp_path, valid_size=None, test_size=None)
    assert report["pairs"] == {"train": 340, "valid": 20, "test": 40}
