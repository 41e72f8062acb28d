"""`binarise` writes the same bytes as fairseq-preprocess, with any number of processes and shards."""

import json
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest
import toy
from conftest import contents, run
from fairseq.data import data_utils
from forks import FAIRSEQ

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.preparation.binarise import (
    _load_tokenizer,
    binarise,
    shard_folders,
    shard_numbers,
)
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.splits import HeldOut
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.preparation.workers import ordered_map
from fairseq_lxsr.text.tokenizer import TextOptions, Tokenizer
from fairseq_lxsr.training.corpora import read_corpus

SPLITS = ("train", "valid", "test")
# The prepared corpus has these training pairs, 20 of valid and 30 of test.
NUM_TRAINING_PAIRS = 350
VOCAB_SIZE = 200


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a text, a corpus of en-fr, and its subwords; no test changes it."""
    work = tmp_path_factory.mktemp("prepared")
    toy.write(work / "text", toy.sentences(NUM_TRAINING_PAIRS + 20 + 30))
    source = find_source(str(work / "text"), "en", "fr")
    make_corpus(
        work / "corpus", ("en", "fr"), source, held_out=HeldOut(valid_size=20, test_size=30)
    )
    train_subwords(work / "subwords", [work / "corpus"], SubwordOptions(VOCAB_SIZE))
    return work


def binarise_corpus(prepared, folder, **options):
    """Binarise the corpus; return the content of each .bin and .idx file by its name."""
    binarise(folder, {("en", "fr"): prepared / "corpus"}, prepared / "subwords", **options)
    files = {}
    for name, content in contents(folder).items():
        if name.endswith((".bin", ".idx")):
            files[name] = content
    return files


def binarised_splits(folder):
    return {path.name.split(".")[0] for path in folder.glob("*.bin")}


def test_an_empty_test_split_has_no_files(prepared, tmp_path):
    source = find_source(str(prepared / "text"), "en", "fr")
    without_test = HeldOut(valid_size=20, test_size=0)
    make_corpus(tmp_path / "corpus", ("en", "fr"), source, held_out=without_test)

    binarise(tmp_path / "data", {("en", "fr"): tmp_path / "corpus"}, prepared / "subwords")

    assert binarised_splits(tmp_path / "data") == {"train", "valid"}


def test_files_have_the_same_bytes_as_those_of_fairseq_preprocess(prepared, tmp_path):
    # Split the corpus into pieces, and let fairseq-preprocess read them.
    subwords = prepared / "subwords"
    text_options = TextOptions.load(subwords / "text.json")
    tokenizer = Tokenizer(subwords / "sentencepiece.model", text_options)
    for path in (prepared / "corpus").glob("*.??"):
        lines = path.read_text(encoding="utf-8").splitlines()
        with open(tmp_path / path.name, "w", encoding="utf-8") as stream:
            for pieces in tokenizer.pieces(lines):
                stream.write(" ".join(pieces) + "\n")
    options = ["--source-lang", "en", "--target-lang", "fr"]
    for split in SPLITS:
        options += [f"--{split}pref", tmp_path / split]
    options += ["--srcdict", subwords / "dict.txt", "--joined-dictionary"]
    options += ["--destdir", tmp_path / "fairseq"]
    run("fairseq_cli.preprocess", *options, preloaded=FAIRSEQ)

    files = binarise_corpus(prepared, tmp_path / "data")

    # A .bin and an .idx file for each side of the three splits.
    assert len(files) == 2 * 2 * len(SPLITS)
    for name in (*files, "dict.en.txt"):
        content = (tmp_path / "data" / name).read_bytes()
        assert content == (tmp_path / "fairseq" / name).read_bytes(), name


@pytest.mark.parametrize("shards", [1, 3])
def test_the_output_is_the_same_for_any_number_of_processes_and_size_of_blocks(
    prepared, tmp_path, monkeypatch, shards
):
    expected = binarise_corpus(prepared, tmp_path / "whole", workers=1, shards=shards)
    # Blocks of 50 lines, and several processes even for a small text.
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.in_blocks", partial(in_blocks, size=50))
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)

    files = binarise_corpus(prepared, tmp_path / "blocks", workers=2, shards=shards)

    assert files == expected


# The languages of copies of the French side of the corpus.
COPIED_LANGUAGES = ("de", "es", "it", "pt")


def copy_to_four_pairs(corpus, folder):
    """Copy the corpus of en-fr as corpora of en-de, en-es, en-it and en-pt."""
    corpora = {}
    for language in COPIED_LANGUAGES:
        shutil.copytree(corpus, folder / language)
        for path in (folder / language).glob("*.fr"):
            path.rename(path.with_suffix(f".{language}"))
        corpora["en", language] = folder / language
    return corpora


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_four_language_pairs_start_processes_and_load_the_tokenizer_as_often_as_one(
    prepared, tmp_path, monkeypatch, workers
):
    """Each call of `ordered_map` starts processes."""
    counts = Counter()

    def count_calls_of(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(f"fairseq_lxsr.preparation.binarise.{name}", call)

    count_calls_of("_load_tokenizer", _load_tokenizer)
    count_calls_of("ordered_map", ordered_map)
    # Start processes even for a small text.
    monkeypatch.setattr("fairseq_lxsr.preparation.binarise.SMALL_TEXT", 0)

    binarise_corpus(prepared, tmp_path / "one", workers=workers)
    counts_for_one_pair = dict(counts)
    counts.clear()
    corpora = copy_to_four_pairs(prepared / "corpus", tmp_path)
    binarise(tmp_path / "four", corpora, prepared / "subwords", workers=workers)

    assert counts == counts_for_one_pair


def test_each_of_four_language_pairs_has_the_bytes_of_its_text(prepared, tmp_path):
    binarise_corpus(prepared, tmp_path / "one")
    corpora = copy_to_four_pairs(prepared / "corpus", tmp_path)

    binarise(tmp_path / "four", corpora, prepared / "subwords")

    for split in SPLITS:
        french = (tmp_path / "one" / f"{split}.en-fr.fr.bin").read_bytes()
        for language in COPIED_LANGUAGES:
            path = tmp_path / "four" / f"{split}.en-{language}.{language}.bin"
            assert path.read_bytes() == french, path.name


def read_training_pairs(folder):
    english = data_utils.load_indexed_dataset(f"{folder}/train.en-fr.en", None)
    french = data_utils.load_indexed_dataset(f"{folder}/train.en-fr.fr", None)
    pairs = []
    for source, target in zip(english, french, strict=True):
        pairs.append((source.tolist(), target.tolist()))
    return pairs


def test_shards_are_numbered_folders_and_only_the_first_has_the_validation_text(prepared, tmp_path):
    binarise_corpus(prepared, tmp_path, shards=3)

    folders = list(shard_folders(tmp_path))

    assert [folder.name for folder in folders] == ["0", "1", "2"]
    have_validation_text = [(folder / "valid.en-fr.en.bin").exists() for folder in folders]
    assert have_validation_text == [True, False, False]


def test_each_training_pair_is_in_one_shard(prepared, tmp_path):
    binarise_corpus(prepared, tmp_path / "whole")

    binarise_corpus(prepared, tmp_path / "parts", shards=3)

    folders = list(shard_folders(tmp_path / "parts"))
    pairs = []
    for folder in folders:
        pairs += read_training_pairs(folder)
    assert sorted(pairs) == sorted(read_training_pairs(tmp_path / "whole"))


@pytest.mark.parametrize("shards", [1, 3])
def test_each_shard_has_the_numbers_of_its_pairs_by_source(copied, shards):
    """The pairs of the sources follow each other in the training text."""
    sources = {"first": 200, "none": 0, "last": NUM_TRAINING_PAIRS - 200}
    (copied / "corpus" / "sources.json").write_text(json.dumps(sources))

    binarise_corpus(copied, copied / "out", shards=shards)

    shard_of_pair = shard_numbers(0, NUM_TRAINING_PAIRS, shards)
    folders = list(shard_folders(copied / "out"))
    assert len(folders) == shards
    for shard, folder in enumerate(folders):
        expected = {
            "first": int((shard_of_pair[:200] == shard).sum()),
            "none": 0,
            "last": int((shard_of_pair[200:] == shard).sum()),
        }
        # In the file, and as the training reads it.
        assert json.loads((folder / "train.en-fr.sources.json").read_text()) == expected
        assert read_corpus(folder, "train", "fr", "en", 10_000).sources == expected


INVALID_SOURCES = pytest.mark.parametrize(
    ("content", "message"),
    [
        # The text has 350 pairs.
        pytest.param('{"law": 349}', r"[^\n]*349.*350", id="too few"),
        pytest.param('{"law": -1, "x": 351}', "'law'.* -1", id="negative"),
        pytest.param('{"law": "350"}', "'law'.* '350'", id="text"),
        pytest.param("[350]", "", id="list"),
        pytest.param("{", "", id="no JSON"),
    ],
)


@INVALID_SOURCES
def test_a_corpus_with_invalid_numbers_by_source_is_not_binarised(copied, content, message):
    (copied / "corpus" / "sources.json").write_text(content)

    with pytest.raises(InputError, match=rf"corpus/sources\.json: {message}"):
        binarise_corpus(copied, copied / "out")

    assert not (copied / "out").exists()


@INVALID_SOURCES
def test_a_training_refuses_data_with_invalid_numbers_by_source(copied, content, message):
    binarise_corpus(copied, copied / "data")
    (copied / "data" / "train.en-fr.sources.json").write_text(content)

    with pytest.raises(InputError, match=rf"train\.en-fr\.sources\.json: {message}"):
        read_corpus(copied / "data", "train", "en", "fr", 10_000)


def test_shards_have_about_the_same_size():
    num_pairs = 30_000
    num_shards = 4

    numbers = shard_numbers(0, num_pairs, num_shards)

    sizes = np.bincount(numbers)
    # The standard deviation of a random size is 75.
    assert np.abs(sizes - num_pairs / num_shards).max() < 100


def test_the_shard_of_a_pair_does_not_depend_on_the_block_in_which_it_is_read():
    numbers = shard_numbers(0, 30_000, 4)

    blocks = [shard_numbers(start, 10_000, 4) for start in (0, 10_000, 20_000)]

    assert np.concatenate(blocks).tolist() == numbers.tolist()


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the corpus and the subwords, which a test may damage."""
    for name in ("corpus", "subwords"):
        shutil.copytree(prepared / name, tmp_path / name)
    return tmp_path


def keep_lines(path, count):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))


@pytest.mark.parametrize("split", SPLITS)
def test_sides_of_different_lengths_are_refused(copied, split):
    keep_lines(copied / "corpus" / f"{split}.fr", 10)

    with pytest.raises(InputError, match=rf"{split}\.en: [\d]+ lines.*{split}\.fr.*\b10\b"):
        binarise_corpus(copied, copied / "out")

    assert not (copied / "out").exists()


def empty_split(corpus, split):
    for language in ("en", "fr"):
        keep_lines(corpus / f"{split}.{language}", 0)


def test_an_empty_training_text_is_refused(copied):
    empty_split(copied / "corpus", "train")

    with pytest.raises(InputError, match=r"train\.en: "):
        binarise_corpus(copied, copied / "out")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_empty_validation_and_test_texts_have_no_files(copied, split):
    empty_split(copied / "corpus", split)

    binarise_corpus(copied, copied / "out")

    assert binarised_splits(copied / "out") == set(SPLITS) - {split}


# Each pair goes to a random shard, so that some of 300 shards would have none of the 350 pairs.
@pytest.mark.parametrize("shards", [512, 300])
def test_so_many_shards_that_one_would_be_empty_are_refused(prepared, tmp_path, shards):
    with pytest.raises(InputError, match=rf"shards {shards}: .*en-fr.*\b{NUM_TRAINING_PAIRS}\b"):
        binarise_corpus(prepared, tmp_path / "out", shards=shards)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["subwords/dict.txt", "subwords/sentencepiece.model", "subwords/text.json", "corpus/train.en"],
)
def test_a_missing_file_is_named(copied, name):
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: "):
        binarise_corpus(copied, copied / "out")
    assert not (copied / "out").exists()


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def unchecked(copied):
    """The copy, without the manifest that would show that its dictionary was changed.

    Folders that `lxsr prepare` did not write have no manifest.
    """
    (copied / "subwords" / "stage.json").unlink()
    return copied


def dictionary_lines(folder):
    return (folder / "subwords" / "dict.txt").read_text(encoding="utf-8").splitlines()


def test_a_dictionary_may_lack_pieces_and_have_fillers(unchecked):
    """fairseq-preprocess leaves out pieces that its text does not have."""
    lines_without_some_pieces = dictionary_lines(unchecked)[20:]
    filler = "madeupword0000 0"
    write_lines(unchecked / "subwords" / "dict.txt", [*lines_without_some_pieces, filler])

    files = binarise_corpus(unchecked, unchecked / "out")

    assert files


def test_a_dictionary_with_words_that_are_no_pieces_of_the_model_is_refused(unchecked):
    lines = [*dictionary_lines(unchecked), "stranger 1", "other 1"]
    write_lines(unchecked / "subwords" / "dict.txt", lines)

    with pytest.raises(InputError, match=r"dict\.txt: .*\b2\b.*'stranger'.*\.model"):
        binarise_corpus(unchecked, unchecked / "out")


def test_a_dictionary_with_few_pieces_of_the_model_is_refused(unchecked):
    keep_lines(unchecked / "subwords" / "dict.txt", 5)

    with pytest.raises(InputError, match=rf"\b{VOCAB_SIZE}\b.*dict"):
        binarise_corpus(unchecked, unchecked / "out")
