import gzip
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


def read_lines(folder, name, language):
    return (folder / f"{name}.{language}").read_text(encoding="utf-8").splitlines()


def make(folder, pairs, tmp_path, cleaning=Cleaning(), workers=1, **options):  # noqa: B008
    """Make a corpus from a list of pairs; `options` are those of `HeldOut`."""
    (tmp_path / "in.txt").write_text(str(pairs))
    source = Source("toy", (tmp_path / "in.txt",), lambda dropped: iter(pairs))
    held_out = HeldOut(**({"valid_size": 20, "test_size": 30} | options))
    return make_corpus(folder, ("en", "fr"), source, cleaning, held_out, workers)


def read_splits(folder):
    """The pairs of each split, by its name."""
    splits = {}
    for name in ("train", "valid", "test"):
        english = read_lines(folder, name, "en")
        french = read_lines(folder, name, "fr")
        splits[name] = list(zip(english, french, strict=True))
    return splits


def test_no_sentence_of_either_side_is_in_two_splits(tmp_path):
    # Other translations of 100 sentences on either side, as real corpora have them.
    pairs = list(PAIRS)
    for english, french in PAIRS[:100]:
        pairs.append((english.upper(), f"{french} bis"))
    for english, french in PAIRS[50:150]:
        pairs.append((f"{english} too", french))

    report = make(tmp_path / "corpus", pairs, tmp_path, valid_size=40, test_size=60)

    splits = read_splits(tmp_path / "corpus")
    for side in (0, 1):
        train = {comparable(pair[side]) for pair in splits["train"]}
        valid = {comparable(pair[side]) for pair in splits["valid"]}
        test = {comparable(pair[side]) for pair in splits["test"]}
        assert train.isdisjoint(valid | test)
        assert valid.isdisjoint(test)
    # Training pairs that share a sentence with a held-out pair were dropped.
    assert report["dropped"]["held out in another pair"] > 0


def test_the_report_counts_the_pairs_of_each_split_and_all_dropped_pairs(tmp_path):
    pairs = [*PAIRS, *PAIRS[:100]]

    report = make(tmp_path / "corpus", pairs, tmp_path, valid_size=40, test_size=60)

    splits = read_splits(tmp_path / "corpus")
    assert report["pairs"] == {name: len(split) for name, split in splits.items()}
    assert report["pairs"]["valid"] == 40
    assert report["pairs"]["test"] == 60
    assert sum(report["pairs"].values()) + sum(report["dropped"].values()) == len(pairs)


def test_overlong_sides_are_dropped(tmp_path):
    """A word of 1 MiB would take 80 MiB when it is split into pieces."""
    # Each é has two bytes.
    over_1_mib = [("x" * 2_000_000, "mot"), ("word", "é" * 600_000)]
    over_10_000_words = [("word " * 20_000, "mot")]
    exactly_1_mib = [("a" * 2**20, "just one")]
    pairs = [*PAIRS, *over_1_mib, *over_10_000_words, *exactly_1_mib]

    report = make(tmp_path / "corpus", pairs, tmp_path)

    assert report["dropped"] == {"over 1 MiB": 2, "over 10,000 words": 1}
    assert sum(report["pairs"].values()) == len([*PAIRS, *exactly_1_mib])


def test_sides_without_pieces_are_dropped_as_empty(tmp_path):
    """Invisible characters, and characters that SentencePiece reserves or replaces."""
    no_pieces = [("\u200b\u200e", "mot"), ("word", "\ufffd \x01 \u2581")]

    report = make(tmp_path / "corpus", [*PAIRS, *no_pieces], tmp_path)

    assert report["dropped"] == {"empty side": 2}


def test_the_seed_decides_the_splits(tmp_path):
    make(tmp_path / "first", PAIRS, tmp_path, seed=1)
    make(tmp_path / "second", PAIRS, tmp_path, seed=1)
    make(tmp_path / "other_seed", PAIRS, tmp_path, seed=2)

    assert read_splits(tmp_path / "second") == read_splits(tmp_path / "first")
    assert read_splits(tmp_path / "other_seed") != read_splits(tmp_path / "first")


def test_blocks_of_a_size_have_so_many_items():
    assert list(in_blocks("abcde", size=2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_blocks_of_a_weight_end_when_they_have_so_many_characters():
    four_letters = ("aaa", "b")
    two_letters = ("a", "b")
    no_letters = ("", "")
    five_letters = ("a", "bbbb")

    blocks = list(in_blocks([four_letters, two_letters, no_letters, five_letters], weight=5))

    assert blocks == [[four_letters, two_letters], [no_letters, five_letters]]


def test_nothing_has_no_blocks():
    assert list(in_blocks([], weight=5)) == []


def test_the_corpus_is_the_same_for_any_number_of_processes(tmp_path, monkeypatch):
    pairs = []
    for seed, (english, french) in enumerate(PAIRS * 2):
        first_sentence = toy.sentences(1, seed=seed)[0][0]
        pairs.append((f"{english} {first_sentence}", french))
    cleaning = Cleaning({"length": {"longest": 12}, "language": {}}, keep_dropped=True)
    # Blocks of 100 pairs, so that each process gets several.
    monkeypatch.setattr(in_blocks, "__defaults__", (100, 10_000_000))

    for workers in (1, 2):
        make(tmp_path / str(workers), pairs, tmp_path, cleaning, workers=workers)

    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("form", ["plain", "gz", "xz", "zst", "tsv", "tsv.gz"])
def test_compressed_files_and_tables_have_the_same_pairs(tmp_path, form):
    zstd = pytest.importorskip("backports.zstd")
    compress = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress}
    toy.write(tmp_path / "text", PAIRS)
    data = tmp_path / "text"
    if form in compress:
        data = tmp_path / "packed"
        for language in ("en", "fr"):
            content = (tmp_path / f"text.{language}").read_bytes()
            (tmp_path / f"packed.{language}.{form}").write_bytes(compress[form](content))
    if form.startswith("tsv"):
        data = tmp_path / f"text.{form}"
        rows = [f"{english}\t{french}\tnote\n" for english, french in PAIRS]
        content = "".join(rows).encode()
        if form.endswith("gz"):
            content = gzip.compress(content)
        data.write_bytes(content)

    assert list(find_source(str(data), "en", "fr").read(Counter())) == PAIRS


def read_dropped(folder):
    return gzip.decompress((folder / "dropped.tsv.gz").read_bytes()).decode().splitlines()


def test_dropped_pairs_are_counted_and_saved_with_the_reason(tmp_path):
    in_other_spelling = (PAIRS[4][0].upper(), PAIRS[4][1] + "!")
    bad = [("", "vide"), ("empty", " "), PAIRS[3], in_other_spelling, ("same words", "Same words")]
    # With each reason and pair, the corpus keeps what it drops.
    cleaning = Cleaning({"identical": {}}, keep_dropped=True)

    report = make(tmp_path / "corpus", PAIRS + bad, tmp_path, cleaning)

    assert report["dropped"] == {"empty side": 2, "identical": 1, "repeated": 2}
    lines = read_dropped(tmp_path / "corpus")
    assert lines[:3] == [
        "empty side\t\tvide",
        "empty side\tempty\t",
        "identical\tsame words\tSame words",
    ]
    assert [line.split("\t")[0] for line in lines[3:]] == ["repeated", "repeated"]


def test_pairs_with_a_sentence_of_the_evaluation_text_are_excluded_whatever_its_case(tmp_path):
    """The evaluation text has an English and a French sentence of the corpus.

    A blank line does not exclude sentences without letters.
    """
    (tmp_path / "eval.txt").write_text(f"{PAIRS[5][0].upper()}!\n\n{PAIRS[9][1]}\n")
    cleaning = Cleaning(exclude=(str(tmp_path / "eval.txt"),))

    report = make(tmp_path / "corpus", [*PAIRS, ("...", "!!!")], tmp_path, cleaning)

    evaluation_text = {comparable(PAIRS[5][0]), comparable(PAIRS[9][1])}
    num_excluded = 0
    for english, french in PAIRS:
        if not evaluation_text.isdisjoint((comparable(english), comparable(french))):
            num_excluded += 1
    assert report["dropped"] == {"excluded": num_excluded}
    for split in read_splits(tmp_path / "corpus").values():
        for english, french in split:
            assert evaluation_text.isdisjoint((comparable(english), comparable(french)))


def test_both_sides_of_tables_and_lines_with_tabs_are_excluded(tmp_path):
    (tmp_path / "eval.txt").write_text(f"{PAIRS[5][0]}\t{PAIRS[6][0]}\nwith a\ttab\n")
    cleaning = Cleaning(exclude=(str(tmp_path / "eval.txt"),))

    report = make(tmp_path / "tabs", [*PAIRS, ("with a tab", "avec tab")], tmp_path, cleaning)

    # The two sides of the first line, and the second line as a whole.
    assert report["dropped"] == {"excluded": 3}


@pytest.mark.parametrize("keys_at_once", [10**6, 7])
def test_repeated_pairs_and_sides_are_those_that_an_earlier_pair_has(
    tmp_path, monkeypatch, keys_at_once
):
    """Sentences are compared by keys, 200 pairs of 30 keys, in memory or in parts of 7."""
    monkeypatch.setattr(deduplicate, "KEYS_AT_ONCE", keys_at_once)
    monkeypatch.setattr(deduplicate, "KEYS_READ", 10)
    rng = np.random.default_rng(0)
    values = rng.integers(2**64, size=30, dtype=np.uint64)
    keys = np.zeros(200, dtype=KEY)
    keys["source"], keys["target"] = values[rng.integers(30, size=(2, 200))]
    (tmp_path / "keys").write_bytes(keys.tobytes())

    pair_is_repeated = []
    side_is_repeated = []
    sources = set()
    targets = set()
    pairs = set()
    for source, target in keys.tolist():
        pair_is_repeated.append((source, target) in pairs)
        side_is_repeated.append(source in sources or target in targets)
        pairs.add((source, target))
        sources.add(source)
        targets.add(target)

    assert repeated(tmp_path / "keys", "pair").tolist() == pair_is_repeated
    assert repeated(tmp_path / "keys", "side").tolist() == side_is_repeated
    assert not repeated(tmp_path / "keys", "keep").any()
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


@pytest.fixture
def is_kept(tmp_path, capsys):
    """A function that makes a corpus again, and returns whether the old one was kept."""

    def make_again(pairs=PAIRS, **options):
        capsys.readouterr()
        make(tmp_path / "corpus", pairs, tmp_path, **options)
        return "unchanged, kept" in capsys.readouterr().out

    make_again()
    return make_again


def test_a_corpus_is_kept_if_options_input_and_output_are_unchanged(is_kept):
    assert is_kept()
    # The number of processes does not matter.
    assert is_kept(workers=2)


def test_a_corpus_is_made_again_if_an_option_changes(is_kept):
    assert not is_kept(seed=2)


def test_a_corpus_is_made_again_if_its_input_changes(is_kept):
    assert not is_kept(PAIRS[:-1])


def test_a_corpus_is_made_again_once_if_its_output_was_changed(is_kept, tmp_path):
    (tmp_path / "corpus" / "train.en").write_text("spoilt\n")

    assert not is_kept()
    assert is_kept()


@pytest.mark.parametrize("damage", ["", "[]", "{}"], ids=["empty", "list", "no fields"])
def test_a_corpus_is_made_again_if_its_manifest_is_damaged(is_kept, tmp_path, damage):
    (tmp_path / "corpus" / "stage.json").write_text(damage)

    assert not is_kept()


def test_the_manifest_of_a_corpus_has_its_options_inputs_report_and_files(tmp_path):
    make(tmp_path / "corpus", PAIRS, tmp_path)

    manifest = json.loads((tmp_path / "corpus" / "stage.json").read_text())

    assert set(manifest) == {"key", "version", "options", "inputs", "report", "files", "crc32"}


# At most half of the 300 pairs can be held out.
@pytest.mark.parametrize(
    ("valid", "test"),
    [
        pytest.param(10, 200, id="large test"),
        pytest.param(299, 1, id="all pairs"),
        pytest.param(150, 151, id="more than all pairs"),
        pytest.param(151, 0, id="more than half"),
    ],
)
def test_too_little_text_says_how_much_is_needed(tmp_path, valid, test):
    message = f"toy: 300 .*{2 * (valid + test)} .*{valid} .*{test} "

    with pytest.raises(InputError, match=message):
        make(tmp_path / "corpus", PAIRS, tmp_path, valid_size=valid, test_size=test)

    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        pytest.param({}, "toy: 0 ", id="held-out text"),
        # One pair for training, and none of valid and test.
        pytest.param(
            {"valid_size": 0, "test_size": 0}, r"toy: 0 .* 1 .* 0 .* 0 ", id="no held-out text"
        ),
    ],
)
def test_a_text_whose_pairs_are_all_filtered_is_refused(tmp_path, sizes, message):
    filter_everything = Cleaning({"length": {"longest": 0, "shortest": 0}})

    with pytest.raises(InputError, match=message):
        make(tmp_path / "corpus", PAIRS, tmp_path, filter_everything, **sizes)


def test_different_sentences_without_letters_are_not_repetitions(tmp_path):
    dots = [("." * number, "!" * number) for number in range(1, 40)]

    report = make(tmp_path / "corpus", PAIRS + dots, tmp_path)

    assert "repeated" not in report["dropped"]
    assert sum(report["pairs"].values()) == len(PAIRS + dots)


def test_sentences_held_out_in_one_language_pair_do_not_train_another(tmp_path):
    """Both pairs have the same French text, in another order."""
    french_german = [(french, f"das {english}") for english, french in reversed(PAIRS)]
    texts = {
        ("en", "fr"): PAIRS,
        ("fr", "de"): french_german[100:] + french_german[:100],
    }
    (tmp_path / "in.txt").write_text("x")
    cleaning = Cleaning(keep_dropped=True)
    folders = {}
    for languages, pairs in texts.items():
        source = Source("toy", (tmp_path / "in.txt",), lambda dropped, pairs=pairs: iter(pairs))
        folders[languages] = tmp_path / "-".join(languages)
        make_corpus(folders[languages], languages, source, cleaning, held_out=HeldOut(20, 30))
    reason = "held out in another language pair"
    num_training_pairs = len(PAIRS) - 20 - 30
    number_of_leaks = 0

    for languages, other_pair in ((("en", "fr"), ("fr", "de")), (("fr", "de"), ("en", "fr"))):
        folder = folders[languages]
        final = tmp_path / "final" / folder.name
        report = drop_leaks(final, languages, folder, {other_pair: folders[other_pair]})

        # The leaks are counted, kept with the other dropped pairs, and missing from the training.
        leaks = report["dropped"][reason]
        number_of_leaks += leaks
        dropped_lines = read_dropped(final)
        assert sum(line.startswith(f"{reason}\t") for line in dropped_lines) == leaks
        assert len(dropped_lines) == sum(report["dropped"].values())
        assert report["pairs"]["train"] == num_training_pairs - leaks
        assert len(read_lines(final, "train", languages[0])) == num_training_pairs - leaks
        # No held-out sentence of the other pair is trained, and the own held-out text is the same.
        training_text = read_lines(final, "train", "fr")
        for name in ("valid", "test"):
            assert set(read_lines(folders[other_pair], name, "fr")).isdisjoint(training_text)
            assert (final / f"{name}.fr").read_bytes() == (folder / f"{name}.fr").read_bytes()
    # Each pair loses about 50 x 250 / 300 pairs.
    assert number_of_leaks > 60


# The pairs 100 to 149 are in `law` and `speech` with other English sentences. `again` repeats
# `speech`.
SOURCES = {
    "law": [(f"law {en}", fr) for en, fr in PAIRS[:150]],
    "speech": PAIRS[100:],
    "again": PAIRS[120:180],
}


def write_sources(folder):
    paths = {}
    for name, pairs in SOURCES.items():
        toy.write(folder / f"{name}.en-fr", pairs)
        paths[name] = str(folder / f"{name}.en-fr")
    return find_source(paths, "en", "fr")


def lines_by_source(folder, language="en"):
    """The training text, cut by the numbers of pairs of the sources."""
    numbers = json.loads((folder / "sources.json").read_text())
    lines = read_lines(folder, "train", language)
    assert sum(numbers.values()) == len(lines)
    texts = {}
    start = 0
    for name, number in numbers.items():
        texts[name] = lines[start : start + number]
        start += number
    return texts


SOURCES_OPTIONS = {"cleaning": Cleaning({"length": {"longest": 7}}), "held_out": HeldOut(20, 30)}


def test_the_name_of_several_sources_has_their_names_and_paths(tmp_path):
    source = write_sources(tmp_path)

    assert source.name == ", ".join(f"{name}={tmp_path / name}.en-fr" for name in SOURCES)


@pytest.mark.parametrize("workers", [1, 2])
def test_training_text_is_in_the_order_of_its_sources_and_counted_by_source(tmp_path, workers):
    source = write_sources(tmp_path)

    report = make_corpus(
        tmp_path / "corpus", ("en", "fr"), source, workers=workers, **SOURCES_OPTIONS
    )

    texts = lines_by_source(tmp_path / "corpus")
    assert report["sources"] == {name: len(lines) for name, lines in texts.items()}
    assert list(texts) == ["law", "speech", "again"]
    # All English sentences of `law` begin with this word, and no others.
    assert all(line.startswith("law") for line in texts["law"])
    assert texts["speech"]
    assert not any(line.startswith("law") for line in texts["speech"])
    # An earlier source has all pairs of `again`.
    assert texts["again"] == []


@pytest.fixture
def one_text(tmp_path):
    """A single text with the pairs of all SOURCES in their order."""
    toy.write(tmp_path / "whole", [*SOURCES["law"], *SOURCES["speech"], *SOURCES["again"]])
    return find_source(str(tmp_path / "whole"), "en", "fr")


def test_several_sources_have_the_same_splits_as_their_pairs_in_one_text(tmp_path, one_text):
    sources = write_sources(tmp_path)

    make_corpus(tmp_path / "several", ("en", "fr"), sources, **SOURCES_OPTIONS)
    make_corpus(tmp_path / "one", ("en", "fr"), one_text, **SOURCES_OPTIONS)

    assert read_splits(tmp_path / "several") == read_splits(tmp_path / "one")


def test_the_pairs_of_a_single_text_are_not_counted_by_source(tmp_path, one_text):
    report = make_corpus(tmp_path / "one", ("en", "fr"), one_text, **SOURCES_OPTIONS)

    assert "sources" not in report
    assert not (tmp_path / "one" / "sources.json").exists()


def test_a_source_may_have_several_texts(tmp_path):
    write_sources(tmp_path)
    law = str(tmp_path / "law.en-fr")
    speech = str(tmp_path / "speech.en-fr")
    repetitions = str(tmp_path / "again.en-fr")

    source = find_source({"all": [law, speech], "again": (repetitions,)}, "en", "fr")
    report = make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 30))

    assert source.name == f"all={law}+{speech}, again={repetitions}"
    assert report["sources"] == {"all": report["pairs"]["train"], "again": 0}


def test_a_corpus_of_several_sources_is_kept_if_they_are_unchanged(tmp_path, capsys):
    for _ in range(2):
        source = write_sources(tmp_path)
        make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=HeldOut(20, 30))

    assert "unchanged, kept" in capsys.readouterr().out


def test_a_corpus_is_made_again_if_its_sources_are_renamed(tmp_path, capsys):
    held_out = HeldOut(20, 30)
    source = write_sources(tmp_path)
    make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=held_out)
    paths = {"laws": str(tmp_path / "law.en-fr"), "x": str(tmp_path / "speech.en-fr")}
    renamed = find_source(paths, "en", "fr")

    make_corpus(tmp_path / "corpus", ("en", "fr"), renamed, held_out=held_out)

    out = capsys.readouterr().out
    assert "unchanged" not in out
    texts = lines_by_source(tmp_path / "corpus")
    assert f"laws {len(texts['laws'])}, x {len(texts['x'])}" in out


def test_pairs_held_out_elsewhere_are_subtracted_from_their_source(tmp_path):
    source = write_sources(tmp_path)
    make_corpus(tmp_path / "en-fr", ("en", "fr"), source, held_out=HeldOut(20, 30))
    toy.write(tmp_path / "german", [(french, english) for english, french in PAIRS], ("fr", "de"))
    source = find_source(str(tmp_path / "german"), "fr", "de")
    make_corpus(tmp_path / "fr-de", ("fr", "de"), source, held_out=HeldOut(20, 30))

    german_folder = {("fr", "de"): tmp_path / "fr-de"}
    report = drop_leaks(tmp_path / "final", ("en", "fr"), tmp_path / "en-fr", german_folder)

    before = lines_by_source(tmp_path / "en-fr")
    after = lines_by_source(tmp_path / "final")
    assert report["sources"] == {name: len(lines) for name, lines in after.items()}
    for name in ("law", "speech"):
        assert 0 < len(after[name]) < len(before[name])
    for name in SOURCES:
        assert set(after[name]) <= set(before[name])


@pytest.mark.parametrize("languages", ["en-fr", "en-fr,en-de"])
def test_a_source_without_a_training_pair_is_named_once_in_each_run(tmp_path, languages):
    texts = {
        # This source has training pairs.
        "law": PAIRS[:200],
        # These are filtered, repeated, excluded, or empty on one side.
        "short": [("one", "un")] * 30,
        "again": PAIRS[:40],
        "eval": PAIRS[200:250],
        "blank": [(" ", "rien de rien ici")] * 20,
    }
    command = ["prepare", "--lang-pairs", languages, "--work", tmp_path / "work"]
    command += ["--filters", "length", "--until", "clean", "--workers", 1]
    command += ["--exclude", tmp_path / "eval.en-fr.en", "--valid-size", 5, "--test-size", 5]
    for name in texts:
        command += ["--data", f"{name}={tmp_path / name}.{{pair}}"]
    expected = []
    for pair in languages.split(","):
        for name, pairs in texts.items():
            toy.write(tmp_path / f"{name}.{pair}", pairs, pair.split("-"))
            if name != "law":
                start = f"lxsr prepare: warning: {pair}: source {name}"
                expected.append(f"{start} has 0 of {len(pairs)} training")

    # The warnings come again if the text is unchanged.
    for _ in range(2):
        warnings = lxsr_here(*command).stderr.splitlines()
        assert [line.partition(" pairs ")[0] for line in warnings] == expected


def test_dropped_pairs_are_saved_or_removed_when_the_option_changes(tmp_path):
    german = {("fr", "de"): tmp_path / "fr-de"}
    make(tmp_path / "fr-de", [(french, english) for english, french in PAIRS], tmp_path)
    for keep_dropped in (False, True, False):
        # The folder has the files of the last time.
        make(tmp_path / "en-fr", PAIRS, tmp_path, Cleaning(keep_dropped=keep_dropped))
        drop_leaks(tmp_path / "final", ("en", "fr"), tmp_path / "en-fr", german)

        assert (tmp_path / "final" / "dropped.tsv.gz").exists() == keep_dropped


def build_text(work):
    (work / "text").write_text("text")
    return {"lines": 1}


def test_a_stage_that_a_kill_left_under_a_hidden_name_is_restored(tmp_path, capsys):
    run_stage(tmp_path / "corpus", {}, [], build_text)
    # A stage that is built again moves the old folder to such a name, and then the new one to its
    # place.
    (tmp_path / "corpus").rename(tmp_path / ".corpus.machine.7.x.old")

    report = run_stage(tmp_path / "corpus", {}, [], build_text)

    assert report == {"lines": 1}
    assert capsys.readouterr().out == f"{tmp_path / 'corpus'}: unchanged, kept\n"


@pytest.mark.parametrize("change", ["other text", None], ids=["changed", "deleted"])
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
    ("pairs", "options", "valid_size", "test_size"),
    [
        pytest.param(100, {}, 5, 10, id="5 and 10 % of 100"),
        pytest.param(5_000, {}, 250, 500, id="5 and 10 % of 5,000"),
        # 1,000 and 2,000 are the most.
        pytest.param(20_000, {}, 1000, 2000, id="5 and 10 % of 20,000"),
        pytest.param(1_000_000, {}, 1000, 2000, id="large text"),
        pytest.param(5_000, {"test_size": 0}, 250, 0, id="given test size"),
        pytest.param(5_000, {"valid_size": 7}, 7, 500, id="given validation size"),
    ],
)
def test_5_and_10_percent_of_a_small_text_are_held_out_by_default(
    pairs, options, valid_size, test_size
):
    assert HeldOut(**options).sizes(pairs) == (valid_size, test_size)


def test_a_corpus_of_400_pairs_is_split_by_default_sizes(tmp_path):
    # 400 words of two letters, since sentences that differ only in digits count as equal.
    pairs = []
    for first in "abcdefghijklmnopqrst":
        for second in "abcdefghijklmnopqrst":
            pairs.append((f"a sentence {first}{second}", f"une phrase {first}{second}"))

    report = make(tmp_path / "corpus", pairs, tmp_path, valid_size=None, test_size=None)

    # 5 % and 10 % of 400.
    assert report["pairs"] == {"train": 340, "valid": 20, "test": 40}
