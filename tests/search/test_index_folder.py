"""An index folder on disk: how it is written, and what is refused when it is opened."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file, sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.index_config import IndexSettings
from fairseq_lxsr.search.index_folder import IndexFolder, write_index_folder

VECTORS = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)


def encode(sentences):
    """Stands for a model: the vector of "número N …" is row N of VECTORS."""
    return np.stack([VECTORS[int(sentence.split()[1])] for sentence in sentences])


SENTENCES = [f"número {i} …" for i in range(400)]
# Another text, in which no sentence has the number that it has in SENTENCES.
OTHER_SENTENCES = SENTENCES[:60:-1]
FILES_OF_SEGMENT = ("index.faiss", "sentences.txt", "offsets.npy", "lines.npy")


@pytest.fixture
def folder(tmp_path):
    """The folder of an index of SENTENCES."""
    return CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True).folder


def first_hits(index, sentences):
    """The first hit of each sentence as a query."""
    return [hits[0].sentence for hits in index.search(sentences, encode, k=1)]


# SENTENCES and four lines without text.
LINES = ["", SENTENCES[0], " \u200b", *SENTENCES[1:], "", ""]
FIRST_LINE = 7
BLOCK_SIZES = {"line": 1, "some": 64, "all": len(LINES)}


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_an_index_written_in_blocks_has_all_sentences_and_their_lines(tmp_path, block_size):
    folder = tmp_path / "index"
    block_rows = BLOCK_SIZES[block_size]

    write_index_folder(folder, iter(LINES), encode, IndexSettings("model"), FIRST_LINE, block_rows)

    config = parse_json((folder / "index.json").read_text())
    assert config["sentences"] == len(SENTENCES)
    assert config["lines"] == FIRST_LINE + len(LINES)
    assert config["width"] == 16
    # One line without text comes before the first sentence, another before the second.
    assert IndexFolder.open(folder).sentences(np.array([0, 1, 399])) == {
        0: (FIRST_LINE + 1, SENTENCES[0]),
        1: (FIRST_LINE + 2 + 1, SENTENCES[1]),
        399: (FIRST_LINE + 2 + 399, SENTENCES[399]),
    }


@pytest.mark.parametrize("block_size", ["some", "all"])
def test_the_size_of_blocks_does_not_change_the_files_of_an_index(tmp_path, block_size):
    # Blocks end at lines without text and at sentences.
    for name in ("line", block_size):
        rows = BLOCK_SIZES[name]
        settings = IndexSettings("model")
        write_index_folder(tmp_path / name, iter(LINES), encode, settings, FIRST_LINE, rows)

    for file in FILES_OF_SEGMENT:
        written = (tmp_path / block_size / "segment-0" / file).read_bytes()
        assert written == (tmp_path / "line" / "segment-0" / file).read_bytes()


def test_an_index_that_a_kill_left_under_a_temporary_name_is_loaded(folder):
    """The old folder has such a name while a new one takes its place."""
    folder.rename(folder.with_name(".index.machine.7.x.old"))

    assert len(CorpusIndex.load(folder)) == len(SENTENCES)


def fail(sentences):
    """Stands for a model that is interrupted."""
    raise RuntimeError("power cut")


def encode_zeros(sentences):
    """Stands for a model that knows no word."""
    return np.zeros((len(sentences), 16))


@pytest.mark.parametrize(
    ("sentences", "encode", "error", "message"),
    [
        pytest.param(SENTENCES, fail, RuntimeError, "power cut", id="interrupted"),
        pytest.param(["", " \ufeff"], encode, InputError, "no text", id="no text"),
        pytest.param(
            SENTENCES, encode_zeros, InputError, "line 1: .*'número 0 …'", id="no known word"
        ),
    ],
)
def test_a_failed_build_leaves_no_files(tmp_path, sentences, encode, error, message):
    with pytest.raises(error, match=message):
        CorpusIndex.build(tmp_path / "index", sentences, encode, "model", plain=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [("index.json", r"not an index, .*index\.json"), ("", "index: not an index")],
    ids=["description", "folder"],
)
def test_a_folder_without_a_description_is_no_index(folder, path, message):
    (folder / path).rename(folder.parent / "moved")

    with pytest.raises(InputError, match=message):
        CorpusIndex.load(folder)


def test_the_error_for_a_changed_file_of_an_index_names_it(folder):
    (folder / "segment-0" / "sentences.txt").write_text("changed")

    with pytest.raises(InputError, match=r"sentences\.txt"):
        CorpusIndex.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"format_version": 9}, "format 9"), ({"segments": {}}, "not an index")],
    ids=["later format", "segments no list"],
)
def test_an_index_with_a_changed_description_is_refused(folder, changes, message):
    path = folder / "index.json"
    path.write_text(json.dumps(parse_json(path.read_text()) | changes))

    with pytest.raises(InputError, match=message):
        CorpusIndex.load(folder)


def test_an_index_with_an_empty_description_is_refused(folder):
    (folder / "index.json").write_text("{}")

    with pytest.raises(InputError, match="not an index"):
        CorpusIndex.load(folder)


@pytest.fixture
def hashed_files(monkeypatch):
    """The names of the files whose checksums are computed from now on."""
    names = []

    def recording_sha256(path):
        names.append(Path(path.name).name)
        return sha256(path)

    monkeypatch.setattr("fairseq_lxsr.search.segment_files.sha256", recording_sha256)
    return names


def test_files_that_are_unchanged_since_the_build_are_not_hashed(folder, hashed_files):
    CorpusIndex.load(folder)

    assert hashed_files == []


def test_all_files_of_a_copied_index_are_hashed(folder, tmp_path, hashed_files):
    copy = shutil.copytree(folder, tmp_path / "copy")

    CorpusIndex.load(copy)

    assert sorted(hashed_files) == sorted(FILES_OF_SEGMENT)


def test_a_changed_file_of_the_same_size_and_time_is_refused(folder):
    path = folder / "segment-0" / "index.faiss"
    status = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(InputError, match=r"index\.faiss: "):
        CorpusIndex.load(folder)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_open_index_is_not_changed_by_a_new_build_in_its_folder(tmp_path, kind):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind, plain=True)

    CorpusIndex.build(tmp_path / "index", OTHER_SENTENCES, encode, "model", kind, plain=True)

    assert first_hits(index, SENTENCES[7:9]) == SENTENCES[7:9]


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_open_index_is_searched_after_its_folder_is_removed(tmp_path, kind):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind, plain=True)

    shutil.rmtree(tmp_path / "index")

    assert first_hits(index, SENTENCES[7:9]) == SENTENCES[7:9]


@pytest.mark.parametrize(
    "replaced_file",
    # The description and the four files of the segment are opened in turn.
    range(5),
)
def test_an_index_that_is_replaced_while_it_is_loaded_has_files_of_one_build(
    folder, monkeypatch, replaced_file
):
    opened_files = []

    def set_open_file(function):
        for module in ("index_config", "segment_files"):
            monkeypatch.setattr(f"fairseq_lxsr.search.{module}.open_file", function)

    def replace_then_open(path):
        """Build another index in the folder before one of the files is opened."""
        opened_files.append(path.name)
        if len(opened_files) == replaced_file + 1:
            set_open_file(open_file)
            CorpusIndex.build(folder, OTHER_SENTENCES, encode, "model", plain=True)
        return open_file(path)

    set_open_file(replace_then_open)

    index = CorpusIndex.load(folder)

    assert len(opened_files) == replaced_file + 1
    # These sentences are in both texts, at different lines.
    assert first_hits(index, SENTENCES[70:80]) == SENTENCES[70:80]


@pytest.mark.parametrize("name", FILES_OF_SEGMENT)
def test_an_index_one_of_whose_files_is_overwritten_is_neither_searched_nor_loaded(
    folder, tmp_path, name
):
    other = CorpusIndex.build(
        tmp_path / "other", ["", *SENTENCES[::-1]], encode, "model", plain=True
    )
    index = CorpusIndex.load(folder)

    # The open file itself is overwritten, not replaced.
    shutil.copyfile(other.folder / "segment-0" / name, folder / "segment-0" / name)

    with pytest.raises(InputError, match=rf"{name} was overwritten"):
        index.search(SENTENCES[:1], encode, k=1)
    with pytest.raises(InputError, match=name):
        CorpusIndex.load(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("segment-0/index.faiss", "index.faiss is a pipe"),
        ("segment-0/lines.npy", "lines.npy is a pipe"),
        ("index.json", "not an index, .*index.json"),
    ],
    ids=["vectors", "lines", "description"],
)
def test_a_named_pipe_instead_of_a_file_is_refused_without_waiting(folder, name, message):
    """Opening a pipe would wait for a program that writes to it."""
    (folder / name).unlink()
    os.mkfifo(folder / name)

    with pytest.raises(InputError, match=message):
        CorpusIndex.load(folder)
