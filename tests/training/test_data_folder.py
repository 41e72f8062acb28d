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

SYMBOLS = 300


@pytest.fixture
def prefix(tmp_path):
    """Five sentences of 2, 1, 4, 3 and 1 ids."""
    writer = MMapWriter(tmp_path / "train.en", SYMBOLS)
    writer.add(np.array([5, 2, 2, 6, 7, 8, 2, 299, 9, 2, 2]), np.array([2, 1, 4, 3, 1]))
    writer.close()
    return tmp_path / "train.en"


def index_and_data_files(prefix):
    return [prefix.with_name(f"{prefix.name}.idx"), prefix.with_name(f"{prefix.name}.bin")]


def test_samples_read_together_are_those_read_one_by_one(prefix):
    sentences = read_sentences(prefix, SYMBOLS)
    lists = [sentence.tolist() for sentence in sentences]
    assert lists == [[5, 2], [2], [6, 7, 8, 2], [299, 9, 2], [2]]
    pairs = [PairCorpus(name, sentences, sentences) for name in ("en-fr", "en-de")]
    data = SentencePairDataset(pairs, padding_idx=1, eos_idx=2, max_positions=2)
    # Index 16 is a repetition of 6.
    for indices in ([0, 1, 2, 3, 4], [4, 2], [7, 16], [1], [3, 8], []):
        samples = data.__getitems__(indices)
        assert [sample["id"] for sample in samples] == indices
        for index, sample in zip(indices, samples, strict=True):
            for side in ("source", "target"):
                np.testing.assert_array_equal(sample[side], data[index][side], strict=True)


def cut(size):
    return lambda content: content[:size]


def overwrite(position, value_format, *values):
    packed = struct.pack(value_format, *values)
    return lambda content: content[:position] + packed + content[position + len(packed) :]


STARTS = HEADER.size + 4 * 5
DAMAGES = [
    ("idx", lambda content: None, "no such file"),
    ("bin", lambda content: None, "no such file"),
    ("idx", cut(0), "cut off, 0 bytes"),
    ("idx", cut(5), "cut off, 5 bytes"),
    ("idx", cut(20), "cut off, 20 bytes"),
    ("idx", cut(40), "cut off or damaged"),
    ("idx", cut(-1), "cut off or damaged"),
    ("idx", lambda content: b"PK\3\4" + content, "50 4b 03 04"),
    ("idx", lambda content: b"a text, and no index", b"a text, ".hex(" ")),
    ("idx", overwrite(9, "<Q", 2), "version 2"),
    ("idx", overwrite(17, "<B", 6), "type 6"),
    ("idx", overwrite(18, "<Q", 2**60), f"{2**60:,} sentences"),
    ("idx", overwrite(HEADER.size, "<i", -2), "damaged"),
    ("idx", overwrite(STARTS + 8, "<q", 10**12), "damaged"),
    ("bin", cut(0), "0 bytes; expected 22 according to train.en.idx"),
    ("bin", cut(-1), "21 bytes; expected 22 according to train.en.idx"),
    ("bin", lambda content: content * 2, "44 bytes"),
    ("bin", overwrite(14, "<H", 300), "sentence 4 contains token id 300,"),
]


def test_the_error_of_a_damaged_file_names_the_file_and_the_damage(prefix):
    contents = {path: path.read_bytes() for path in index_and_data_files(prefix)}
    for suffix, damage, expected in DAMAGES:
        for path, content in contents.items():
            path.write_bytes(content)
        path = prefix.with_name(f"{prefix.name}.{suffix}")
        damaged = damage(contents[path])
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        # \A, . and \Z match only if the message is one line.
        message = rf"\A{re.escape(str(path))}: .*{re.escape(expected)}.*\Z"
        with pytest.raises(InputError, match=message):
            read_sentences(prefix, SYMBOLS)


def test_randomly_damaged_files_are_refused_or_have_valid_ids(prefix, tmp_path):
    rng = random.Random(1)
    for number in range(300):
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in index_and_data_files(prefix):
            shutil.copy(path, folder)
        damaged_file = rng.choice(index_and_data_files(folder / prefix.name))
        content = bytearray(damaged_file.read_bytes())
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        # One file of three is also cut.
        if rng.randrange(3) == 0:
            content = content[: rng.randrange(len(content))]
        damaged_file.write_bytes(content)
        try:
            sentences = read_sentences(folder / prefix.name, SYMBOLS)
        except InputError:
            continue
        for sentence in sentences:
            assert (sentence < SYMBOLS).all()
        assert sum(len(sentence) for sentence in sentences) == 11


def test_a_changed_file_is_checked_again(prefix):
    read_sentences(prefix, SYMBOLS)
    with pytest.raises(InputError, match="id 299"):
        read_sentences(prefix, SYMBOLS - 1)
    _, data_file = index_and_data_files(prefix)
    data_file.write_bytes(b"")
    with pytest.raises(InputError, match="cut off"):
        read_sentences(prefix, SYMBOLS)


def test_the_error_of_an_invalid_dictionary_is_short_and_names_the_line(tmp_path):
    path = tmp_path / "dict.en.txt"
    for content, expected in (
        (b"\x89PNG\r\n\x1a\n\0\0", "dict.en.txt, line 1"),
        (b"", "dict.en.txt: empty file"),
        (b"dog 5\ncat\n", "dict.en.txt, line 2: 'cat'; expected `symbol count`"),
        (b"dog five\n", "dict.en.txt, line 1"),
        ("dog ²\n".encode(), "dict.en.txt, line 1"),
        (b"dog --5\n", "dict.en.txt, line 1"),
        (b"dog " + b"9" * 5000 + b"\n", "dict.en.txt, line 1"),
        (b"dog 5\ncat 4\ndog 3\n", "'dog' occurs twice"),
        (b"<pad> 5\n", "'<pad>' occurs twice"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(expected)) as error:
            load_dictionary(path)
        assert len(str(error.value)) < 400


def test_the_error_of_invalid_boundaries_of_documents_names_the_file(prefix):
    path = prefix.with_name("train.en.documents.npy")
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*no such file"):
        read_documents([prefix.parent], "train", "en", SYMBOLS)
    for starts, expected in (
        (np.array([0, 2, 6]), "0 to 6 of 5"),
        (np.array([1, 2, 5]), "1 to 5 of 5"),
        (np.array([0, 4, 2, 5]), "0 to 5 of 5"),
        (np.array([0.0, 5.0]), "float64"),
        (np.array([], dtype=np.int64), "(0,)"),
        (np.array([[0, 5]]), "(1, 2)"),
        (b"PK\3\4, and no array", "NUMPY"),
        (b"", "array"),
    ):
        if isinstance(starts, bytes):
            path.write_bytes(starts)
        else:
            np.save(path, starts)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{re.escape(expected)}"):
            read_documents([prefix.parent], "train", "en", SYMBOLS)


def test_files_in_another_format_of_fairseq_are_refused(tmp_path):
    builder = indexed_dataset.make_builder(str(tmp_path / "train.en.bin"), "cached")
    builder.add_item(torch.IntTensor([4, 5, 2]))
    builder.finalize(str(tmp_path / "train.en.idx"))
    with pytest.raises(InputError, match=r"train\.en\.idx: .*--dataset-impl"):
        read_sentences(tmp_path / "train.en", SYMBOLS)


def test_the_error_of_sides_of_two_lengths_names_the_carriage_return_as_a_cause(tmp_path):
    for language, count in (("en", 2), ("fr", 3)):
        prefix = tmp_path / f"train.en-fr.{language}"
        builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", SYMBOLS)
        for _ in range(count):
            builder.add_item(torch.IntTensor([4, 5, 2]))
        builder.finalize(f"{prefix}.idx")
    with pytest.raises(InputError, match=r"train\.en-fr: 2 sentences .* 3 .*\\r"):
        read_corpus(tmp_path, "train", "en", "fr", SYMBOLS)
