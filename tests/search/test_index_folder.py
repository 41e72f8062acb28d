"""An index folder on disk: how it is written, and what is refused when it is opened."""

import json
import os
import shutil

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
    return np.stack([VECTORS[int(sentence.split()[1])] for sentence in sentences])


SENTENCES = [f"número {i} …" for i in range(400)]


@pytest.fixture
def folder(tmp_path):
    return CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True).folder


def test_blocks_of_any_size_write_the_same_index(tmp_path):
    # The blocks end at empty lines and at sentences.
    lines = ["", SENTENCES[0], " \u200b", *SENTENCES[1:], "", ""]
    for block_rows in (1, 64, len(lines)):
        folder = tmp_path / str(block_rows)
        write_index_folder(folder, iter(lines), encode, IndexSettings("model"), 7, block_rows)
        config = parse_json((folder / "index.json").read_text())
        assert (config["sentences"], config["lines"], config["width"]) == (400, 7 + len(lines), 16)
        opened = IndexFolder.open(folder)
        assert opened.sentences(np.array([0, 1, 399])) == {
            0: (8, SENTENCES[0]),
            1: (10, SENTENCES[1]),
            399: (408, SENTENCES[399]),
        }
        first = tmp_path / "1" / "segment-0"
        for name in ("index.faiss", "sentences.txt", "offsets.npy", "lines.npy"):
            assert (folder / "segment-0" / name).read_bytes() == (first / name).read_bytes()


def test_an_index_that_a_kill_left_under_a_temporary_name_is_loaded(folder):
    folder.rename(folder.with_name(".index.machine.7.x.old"))
    assert len(CorpusIndex.load(folder)) == len(SENTENCES)


def fail(sentences):
    raise RuntimeError("power cut")


def zeros(sentences):
    return np.zeros((len(sentences), 16))


@pytest.mark.parametrize(
    ("sentences", "encode", "error", "message"),
    [
        (SENTENCES, fail, RuntimeError, "power cut"),
        (["", " \ufeff"], encode, InputError, "no text"),
        (SENTENCES, zeros, InputError, "line 1: .*'número 0 …'"),
    ],
)
def test_a_failed_build_leaves_no_files(tmp_path, sentences, encode, error, message):
    with pytest.raises(error, match=message):
        CorpusIndex.build(tmp_path / "index", sentences, encode, "model", plain=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("index.json", None, r"not an index, .*index\.json"),
        ("", None, "index: not an index"),
        ("segment-0/sentences.txt", "changed", r"sentences\.txt"),
        ("index.json", {"format_version": 9}, "format 9"),
        ("index.json", {"segments": {}}, "not an index"),
        ("index.json", "{}", "not an index"),
    ],
)
def test_a_changed_folder_is_refused(folder, file, content, message):
    path = folder / file
    if content is None:
        path.rename(folder.parent / "moved")
    elif isinstance(content, dict):
        path.write_text(json.dumps(parse_json(path.read_text()) | content))
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        CorpusIndex.load(folder)


def test_only_unchanged_files_are_not_hashed_again(folder, tmp_path, monkeypatch):
    hashed_files = []

    def counting_sha256(path):
        hashed_files.append(path.name)
        return sha256(path)

    monkeypatch.setattr("fairseq_lxsr.search.segment_files.sha256", counting_sha256)
    CorpusIndex.load(folder)
    assert hashed_files == []

    CorpusIndex.load(shutil.copytree(folder, tmp_path / "copy"))
    assert len(hashed_files) == 4

    # A file is also hashed if its size and time of modification are unchanged.
    path = folder / "segment-0" / "index.faiss"
    status = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match=r"index\.faiss: "):
        CorpusIndex.load(folder)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_open_index_is_not_changed_by_a_new_build_or_a_deletion(tmp_path, kind):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind, plain=True)
    CorpusIndex.build(tmp_path / "index", SENTENCES[:60:-1], encode, "model", kind, plain=True)
    hits = index.search(SENTENCES[7:9], encode, k=1)
    assert [row[0].sentence for row in hits] == SENTENCES[7:9]
    shutil.rmtree(tmp_path / "index")
    assert index.search(SENTENCES[3:4], encode, k=1)[0][0].sentence == SENTENCES[3]


def test_an_index_that_is_replaced_while_it_is_loaded_has_files_of_one_build(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    opened_files = []
    replaced_file = 0

    def replace_then_open(path):
        opened_files.append(path.name)
        if len(opened_files) == replaced_file + 1:
            for module in ("index_config", "segment_files"):
                monkeypatch.setattr(f"fairseq_lxsr.search.{module}.open_file", open_file)
            CorpusIndex.build(folder, SENTENCES[:60:-1], encode, "model", plain=True)
        return open_file(path)

    for replaced_file in range(5):
        CorpusIndex.build(folder, SENTENCES, encode, "model", plain=True)
        opened_files = []
        for module in ("index_config", "segment_files"):
            monkeypatch.setattr(f"fairseq_lxsr.search.{module}.open_file", replace_then_open)
        index = CorpusIndex.load(folder)
        assert len(opened_files) == replaced_file + 1
        hits = index.search(SENTENCES[70:80], encode, k=1)
        assert [row[0].sentence for row in hits] == SENTENCES[70:80]


def test_an_open_index_whose_files_are_overwritten_is_refused(tmp_path):
    new = CorpusIndex.build(tmp_path / "new", ["", *SENTENCES[::-1]], encode, "model", plain=True)
    for name in ("index.faiss", "sentences.txt", "offsets.npy", "lines.npy"):
        folder = tmp_path / f"index-{name}"
        CorpusIndex.build(folder, SENTENCES, encode, "model", plain=True)
        index = CorpusIndex.load(folder)
        # The open file itself is overwritten, not replaced.
        shutil.copyfile(new.folder / "segment-0" / name, folder / "segment-0" / name)
        with pytest.raises(InputError, match=rf"{name} was overwritten"):
            index.search(SENTENCES[:1], encode, k=1)
        with pytest.raises(InputError, match=name):
            CorpusIndex.load(folder)


@pytest.mark.parametrize("name", ["segment-0/index.faiss", "segment-0/lines.npy", "index.json"])
def test_a_named_pipe_instead_of_a_file_is_refused_without_waiting(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is a pipe|not an index, .*index.json"):
        CorpusIndex.load(folder)
