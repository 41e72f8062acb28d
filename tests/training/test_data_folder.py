"""Data folders that are damaged: one line that names the file, whatever the damage is."""

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


def files(prefix):
    return [prefix.with_name(f"{prefix.name}.{ending}") for ending in ("idx", "bin")]


def test_samples_read_at_once_are_those_read_one_by_one(prefix):
    sentences = read_sentences(prefix, SYMBOLS)
    assert [sentence.tolist() for sentence in sentences] == [
        [5, 2],
        [2],
        [6, 7, 8, 2],
        [299, 9, 2],
        [2],
    ]
    pairs = [PairCorpus(name, sentences, sentences) for name in ("en-fr", "en-de")]
    data = SentencePairDataset(pairs, padding_idx=1, eos_idx=2, max_positions=2)
    for indices in ([0, 1, 2, 3, 4], [4, 2], [7, 16], [1], [3, 8], []):  # 10 and more occur again
        found, expected = data.__getitems__(indices), [data[index] for index in indices]
        assert [sample["id"] for sample in found] == indices
        for one, other in zip(found, expected, strict=True):
            for side in ("source", "target"):
                np.testing.assert_array_equal(one[side], other[side], strict=True)


def cut(size):
    return lambda content: content[:size]


def put(place, form, *values):
    packed = struct.pack(form, *values)
    return lambda content: content[:place] + packed + content[place + len(packed) :]


STARTS = HEADER.size + 4 * 5
DAMAGES = [
    ("idx", lambda content: None, "no such file"),
    ("bin", lambda content: None, "no such file"),
    ("idx", cut(0), "cut off, 0 bytes"),
    ("idx", cut(5), "cut off, 5 bytes"),
    ("idx", cut(20), "cut off, 20 bytes"),
    ("idx", cut(40), "cut off or damaged"),
    ("idx", cut(-1), "cut off or damaged"),
    (
        "idx",
        lambda content: b"PK\3\4" + content,
        "50 4b 03 04",
    ),
    ("idx", lambda content: b"a text, and no index", b"a text, ".hex(" ")),
    ("idx", put(9, "<Q", 2), "version 2"),
    ("idx", put(17, "<B", 6), "type 6"),
    ("idx", put(18, "<Q", 2**60), f"{2**60:,} sentences"),
    ("idx", put(HEADER.size, "<i", -2), "damaged"),
    ("idx", put(STARTS + 8, "<q", 10**12), "damaged"),
    ("bin", cut(0), "0 bytes; expected 22 according to train.en.idx"),
    ("bin", cut(-1), "21 bytes; expected 22 according to train.en.idx"),
    ("bin", lambda content: content * 2, "44 bytes"),
    ("bin", put(14, "<H", 300), "sentence 4 contains token id 300,"),
]


@pytest.mark.parametrize(
    ("ending", "damage", "expected"), DAMAGES, ids=[case[2] for case in DAMAGES]
)
def test_damage_is_named(prefix, ending, damage, expected):
    path = prefix.with_name(f"{prefix.name}.{ending}")
    content = damage(path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    # one line
    with pytest.raises(InputError, match=rf"\A{re.escape(str(path))}: .*{re.escape(expected)}.*\Z"):
        read_sentences(prefix, SYMBOLS)


def test_whatever_is_damaged_is_refused_or_read_whole(prefix, tmp_path):
    chance = random.Random(1)
    for number in range(300):
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in files(prefix):
            shutil.copy(path, folder)
        spoilt = chance.choice(files(folder / prefix.name))
        content = bytearray(spoilt.read_bytes())
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        spoilt.write_bytes(content[: chance.choice([None, None, chance.randrange(len(content))])])
        try:
            sentences = read_sentences(folder / prefix.name, SYMBOLS)
        except InputError:
            continue
        assert all((sentence < SYMBOLS).all() for sentence in sentences)
        assert sum(map(len, sentences)) == 11


def test_a_changed_file_is_looked_at_again(prefix):
    read_sentences(prefix, SYMBOLS)
    with pytest.raises(InputError, match="id 299"):
        read_sentences(prefix, SYMBOLS - 1)
    files(prefix)[1].write_bytes(b"")
    with pytest.raises(InputError, match="cut off"):
        read_sentences(prefix, SYMBOLS)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "dict.en.txt, line 1"),
        (b"", "dict.en.txt: empty file"),
        (b"dog 5\ncat\n", "dict.en.txt, line 2: 'cat'; expected `symbol count`"),
        (b"dog five\n", "dict.en.txt, line 1"),
        ("dog ²\n".encode(), "dict.en.txt, line 1"),
        (b"dog --5\n", "dict.en.txt, line 1"),
        (b"dog " + b"9" * 5000 + b"\n", "dict.en.txt, line 1"),
        (b"dog 5\ncat 4\ndog 3\n", "'dog' occurs twice"),
        (b"<pad> 5\n", "'<pad>' occurs twice"),
    ],
)
def test_bad_dictionaries_are_refused(tmp_path, content, expected):
    path = tmp_path / "dict.en.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(expected)) as error:
        load_dictionary(path)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (np.array([0, 2, 6]), "0 to 6 of 5"),
        (np.array([1, 2, 5]), "1 to 5 of 5"),
        (np.array([0, 4, 2, 5]), "0 to 5 of 5"),
        (np.array([0.0, 5.0]), "float64"),
        (np.array([], dtype=np.int64), "(0,)"),
        (np.array([[0, 5]]), "(1, 2)"),
        (b"PK\3\4, and no array", "NUMPY"),
        (b"", "array"),
        (None, "no such file"),
    ],
)
def test_bad_boundaries_of_documents_are_refused(prefix, starts, expected):
    path = prefix.with_name("train.en.documents.npy")
    if isinstance(starts, bytes):
        path.write_bytes(starts)
    elif starts is not None:
        np.save(path, starts)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{re.escape(expected)}"):
        read_documents([prefix.parent], "train", "en", SYMBOLS)


def test_a_format_that_training_does_not_read_is_named(tmp_path):
    builder = indexed_dataset.make_builder(str(tmp_path / "train.en.bin"), "cached")
    builder.add_item(torch.IntTensor([4, 5, 2]))
    builder.finalize(str(tmp_path / "train.en.idx"))
    with pytest.raises(InputError, match=r"train\.en\.idx: .*--dataset-impl"):
        read_sentences(tmp_path / "train.en", SYMBOLS)


def test_sides_of_unequal_length_name_the_carriage_return(tmp_path):
    for language, count in (("en", 2), ("fr", 3)):
        builder = indexed_dataset.make_builder(
            str(tmp_path / f"train.en-fr.{language}.bin"), "mmap", SYMBOLS
        )
        for _ in range(count):
            builder.add_item(torch.IntTensor([4, 5, 2]))
        builder.finalize(str(tmp_path / f"train.en-fr.{language}.idx"))
    with pytest.raises(InputError, match=r"train\.en-fr: 2 sentences .* 3 .*\\r"):
        read_corpus(tmp_path, "train", "en", "fr", SYMBOLS)
