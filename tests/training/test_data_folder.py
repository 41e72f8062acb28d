"""Damaged data folders are refused in one line that names the file."""

import random
import re
import shutil
import struct

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.binarise import MMapWriter
from fairseq_lxsr.training.context.task import read_documents
from fairseq_lxsr.training.corpora import HEADER, load_dictionary, read_corpus, read_sentences
from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.pairs import PairCorpus

# The number of entries of the dictionary: ids are 0 to 299.
SYMBOLS = 300
EOS = 2
SENTENCES = [[5, EOS], [EOS], [6, 7, 8, EOS], [299, 9, EOS], [EOS]]
LENGTHS = [len(sentence) for sentence in SENTENCES]
# Ids below 65,536 are stored in two bytes each.
ID_BYTES = 2
DATA_BYTES = ID_BYTES * sum(LENGTHS)


@pytest.fixture
def prefix(tmp_path):
    """The prefix of the files train.en.idx and train.en.bin, which have the five sentences."""
    writer = MMapWriter(tmp_path / "train.en", SYMBOLS)
    writer.add(np.concatenate(SENTENCES), np.array(LENGTHS))
    writer.close()
    return tmp_path / "train.en"


def index_and_data_files(prefix):
    return [prefix.with_name(f"{prefix.name}.idx"), prefix.with_name(f"{prefix.name}.bin")]


def test_sentences_that_were_written_are_read(prefix):
    sentences = read_sentences(prefix, SYMBOLS)
    assert [sentence.tolist() for sentence in sentences] == SENTENCES


@pytest.mark.parametrize(
    "indices",
    [
        [0, 1, 2, 3, 4],
        [4, 2],
        # Both are of the second language pair. Index 16 is a repetition of 6, as there are 10 pairs.
        [7, 16],
        [1],
        # One of each language pair.
        [3, 8],
        [],
    ],
    ids=str,
)
def test_samples_read_together_are_those_read_one_by_one(prefix, indices):
    sentences = read_sentences(prefix, SYMBOLS)
    pairs = [PairCorpus(name, sentences, sentences) for name in ("en-fr", "en-de")]
    data = SentencePairDataset(pairs, padding_idx=1, eos_idx=EOS, max_positions=2)

    samples = data.__getitems__(indices)

    assert [sample["id"] for sample in samples] == indices
    for index, sample in zip(indices, samples, strict=True):
        for side in ("source", "target"):
            np.testing.assert_array_equal(sample[side], data[index][side], strict=True)


def cut_after(size):
    """A damage: only the first bytes are left; a negative size counts from the end."""
    return lambda content: content[:size]


def overwrite(position, value_format, value):
    """A damage: another value, in a format of `struct`, from the position on."""
    packed = struct.pack(value_format, value)
    return lambda content: content[:position] + packed + content[position + len(packed) :]


def replace_by(other_content):
    """A damage: another file."""
    return lambda content: other_content


# The index has a header (9 bytes of a magic name, 8 of a version, 1 of the type of ids, 8 of the
# number of sentences), the length of each sentence (4 bytes), and where it starts (8 bytes).
VERSION = 9
TYPE = VERSION + 8
COUNT = TYPE + 1
LENGTH_OF_FIRST = HEADER.size
START_OF_FIRST = LENGTH_OF_FIRST + 4 * len(SENTENCES)
# The third id of the fourth sentence is the last but two of all.
FIRST_ID_OF_FOURTH = ID_BYTES * sum(LENGTHS[:3])

DAMAGES = {
    "empty index": ("idx", cut_after(0), "cut off, 0 bytes"),
    "cut in magic": ("idx", cut_after(5), "cut off, 5 bytes"),
    "cut in header": ("idx", cut_after(20), "cut off, 20 bytes"),
    "cut in lengths": ("idx", cut_after(LENGTH_OF_FIRST + 14), "cut off or damaged"),
    "cut at end": ("idx", cut_after(-1), "cut off or damaged"),
    # The message has the first bytes of the file, in hexadecimal.
    "zip": ("idx", replace_by(b"PK\3\4 and more"), "50 4b 03 04"),
    "text": ("idx", replace_by(b"a text, and no index"), b"a text, ".hex(" ")),
    "version": ("idx", overwrite(VERSION, "<Q", 2), "version 2"),
    # Type 6 is float32.
    "type": ("idx", overwrite(TYPE, "<B", 6), "type 6"),
    "count": ("idx", overwrite(COUNT, "<Q", 2**60), f"{2**60:,} sentences"),
    "negative length": ("idx", overwrite(LENGTH_OF_FIRST, "<i", -2), "damaged"),
    "start beyond the end": ("idx", overwrite(START_OF_FIRST + 8, "<q", 10**12), "damaged"),
    "empty data": (
        "bin",
        cut_after(0),
        f"0 bytes; expected {DATA_BYTES} according to train.en.idx",
    ),
    "cut data": (
        "bin",
        cut_after(-1),
        f"{DATA_BYTES - 1} bytes; expected {DATA_BYTES} according to train.en.idx",
    ),
    "doubled data": ("bin", lambda content: content * 2, f"{2 * DATA_BYTES} bytes"),
    "large id": (
        "bin",
        overwrite(FIRST_ID_OF_FOURTH, "<H", SYMBOLS),
        f"sentence 4 contains token id {SYMBOLS},",
    ),
}


def assert_refused_in_one_line(prefix, path, problem):
    # \A, . and \Z match only if the message is one line.
    message = rf"\A{re.escape(str(path))}: .*{re.escape(problem)}.*\Z"
    with pytest.raises(InputError, match=message):
        read_sentences(prefix, SYMBOLS)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_error_of_a_damaged_file_names_the_file_and_the_damage(prefix, damage):
    suffix, damaged_content, problem = DAMAGES[damage]
    path = prefix.with_name(f"{prefix.name}.{suffix}")
    path.write_bytes(damaged_content(path.read_bytes()))
    assert_refused_in_one_line(prefix, path, problem)


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_the_error_of_a_missing_file_names_the_file(prefix, suffix):
    path = prefix.with_name(f"{prefix.name}.{suffix}")
    path.unlink()
    assert_refused_in_one_line(prefix, path, "no such file")


def damage_at_random(path, rng):
    """Overwrite up to three bytes of a file, and cut one file of three."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if rng.randrange(3) == 0:
        content = content[: rng.randrange(len(content))]
    path.write_bytes(content)


def test_randomly_damaged_files_are_refused_or_have_valid_ids(prefix, tmp_path):
    rng = random.Random(1)
    for number in range(300):
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in index_and_data_files(prefix):
            shutil.copy(path, folder)
        damage_at_random(rng.choice(index_and_data_files(folder / prefix.name)), rng)

        try:
            sentences = read_sentences(folder / prefix.name, SYMBOLS)
        except InputError:
            continue

        for sentence in sentences:
            assert (sentence < SYMBOLS).all()
        assert sum(len(sentence) for sentence in sentences) == sum(LENGTHS)


def test_ids_are_checked_again_with_a_smaller_dictionary(prefix):
    read_sentences(prefix, SYMBOLS)
    with pytest.raises(InputError, match="id 299"):
        read_sentences(prefix, SYMBOLS - 1)


def test_a_changed_file_is_checked_again(prefix):
    read_sentences(prefix, SYMBOLS)
    _, data_file = index_and_data_files(prefix)
    data_file.write_bytes(b"")
    with pytest.raises(InputError, match="cut off"):
        read_sentences(prefix, SYMBOLS)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ": empty file"),
        (b"\x89PNG\r\n\x1a\n\0\0", ", line 1"),
        (b"dog 5\ncat\n", ", line 2: 'cat'; expected `symbol count`"),
        (b"dog five\n", ", line 1"),
        # Python takes the superscript for a digit, but not for a number.
        ("dog ²\n".encode(), ", line 1"),
        (b"dog --5\n", ", line 1"),
        # Python refuses to convert so many digits.
        (b"dog " + b"9" * 5000 + b"\n", ", line 1"),
        (b"dog 5\ncat 4\ndog 3\n", "'dog' occurs twice"),
        # Every dictionary of fairseq begins with it.
        (b"<pad> 5\n", "'<pad>' occurs twice"),
    ],
    ids=[
        "empty",
        "image",
        "no count",
        "word",
        "superscript",
        "signs",
        "digits",
        "twice",
        "special",
    ],
)
def test_the_error_of_an_invalid_dictionary_is_short_and_names_the_place(
    tmp_path, content, problem
):
    path = tmp_path / "dict.en.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"dict\.en\.txt.*{re.escape(problem)}") as error:
        load_dictionary(path)
    assert len(str(error.value)) < 400


def test_the_error_of_missing_boundaries_of_documents_names_the_file(prefix):
    path = prefix.with_name("train.en.documents.npy")
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*no such file"):
        read_documents([prefix.parent], "train", "en", SYMBOLS)


@pytest.mark.parametrize(
    ("starts", "problem"),
    [
        # The first sentence of each document, and the end of the five sentences, would be right.
        (np.array([0, 2, 6]), "0 to 6 of 5"),
        (np.array([1, 2, 5]), "1 to 5 of 5"),
        (np.array([0, 4, 2, 5]), "0 to 5 of 5"),
        # Another type, no numbers, and two dimensions.
        (np.array([0.0, 5.0]), "float64"),
        (np.array([], dtype=np.int64), "(0,)"),
        (np.array([[0, 5]]), "(1, 2)"),
    ],
    ids=["beyond end", "no start", "descending", "type", "empty", "matrix"],
)
def test_the_error_of_invalid_boundaries_of_documents_names_the_file(prefix, starts, problem):
    path = prefix.with_name("train.en.documents.npy")
    np.save(path, starts)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{re.escape(problem)}"):
        read_documents([prefix.parent], "train", "en", SYMBOLS)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"PK\3\4, and no array", "NUMPY"), (b"", "array")],
    ids=["zip", "empty"],
)
def test_the_error_of_boundaries_that_are_no_array_names_the_file(prefix, content, problem):
    path = prefix.with_name("train.en.documents.npy")
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{problem}"):
        read_documents([prefix.parent], "train", "en", SYMBOLS)


def test_files_in_the_old_format_of_fairseq_are_refused(tmp_path):
    builder = indexed_dataset.make_builder(str(tmp_path / "train.en.bin"), "cached")
    builder.add_item(torch.IntTensor([4, 5, 2]))
    builder.finalize(str(tmp_path / "train.en.idx"))
    with pytest.raises(InputError, match=r"train\.en\.idx: .*--dataset-impl"):
        read_sentences(tmp_path / "train.en", SYMBOLS)


def test_the_error_of_sides_of_two_lengths_names_the_carriage_return_as_a_cause(tmp_path):
    # fairseq-preprocess ends a line at a carriage return, so that it writes more sentences.
    for language, count in (("en", 2), ("fr", 3)):
        prefix = tmp_path / f"train.en-fr.{language}"
        builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", SYMBOLS)
        for _ in range(count):
            builder.add_item(torch.IntTensor([4, 5, 2]))
        builder.finalize(f"{prefix}.idx")
    with pytest.raises(InputError, match=r"train\.en-fr: 2 sentences .* 3 .*\\r"):
        read_corpus(tmp_path, "train", "en", "fr", SYMBOLS)
