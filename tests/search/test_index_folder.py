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
    """The last sentence of a block, empty lines across blocks, and the number of lines."""
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


def test_an_index_that_a_kill_left_under_its_hidden_name_is_found(folder):
    folder.rename(folder.with_name(".index.machine.7.x.old"))
    assert len(CorpusIndex.load(folder)) == len(SENTENCES)


def broken(sentences):
    raise RuntimeError("power cut")


def nothing(sentences):
    return np.zeros((len(sentences), 16))


@pytest.mark.parametrize(
    ("sentences", "encode", "error", "message"),
    [
        (SENTENCES, broken, RuntimeError, "power cut"),
        (["", " \ufeff"], encode, InputError, "no text"),
        (SENTENCES, nothing, InputError, "line 1: .*'número 0 …'"),
    ],
)
def test_nothing_half_built_is_left(tmp_path, sentences, encode, error, message):
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


def test_untouched_files_are_not_hashed_again(folder, tmp_path, monkeypatch):
    """A copy is hashed; so is a file of the same size and the same time of change of its
    content.
    """
    built, hashed = folder, []
    monkeypatch.setattr(
        "fairseq_lxsr.search.segment_files.sha256",
        lambda path: hashed.append(path.name) or sha256(path),
    )
    CorpusIndex.load(built)
    assert hashed == []
    CorpusIndex.load(shutil.copytree(built, tmp_path / "copy"))
    assert len(hashed) == 4
    path = built / "segment-0" / "index.faiss"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + b"\x00")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"index\.faiss: "):
        CorpusIndex.load(built)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_index_that_is_built_again_while_it_is_open_stays_as_it_was(tmp_path, kind):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind, plain=True)
    CorpusIndex.build(tmp_path / "index", SENTENCES[:60:-1], encode, "model", kind, plain=True)
    assert [
        hit.sentence for row in index.search(SENTENCES[7:9], encode, k=1) for hit in row
    ] == SENTENCES[7:9]
    shutil.rmtree(tmp_path / "index")
    assert index.search(SENTENCES[3:4], encode, k=1)[0][0].sentence == SENTENCES[3]


@pytest.mark.parametrize("opened", range(5))
def test_an_index_that_is_built_again_while_it_is_loaded_is_one_of_both(
    tmp_path, monkeypatch, opened
):
    """It is replaced before the file of this number is opened."""
    CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", plain=True)
    names = []

    def replace_then_open(path):
        names.append(path.name)
        if len(names) == opened + 1:
            for module in ("index_config", "segment_files"):
                monkeypatch.setattr(f"fairseq_lxsr.search.{module}.open_file", open_file)
            CorpusIndex.build(tmp_path / "index", SENTENCES[:60:-1], encode, "model", plain=True)
        return open_file(path)

    for module in ("index_config", "segment_files"):
        monkeypatch.setattr(f"fairseq_lxsr.search.{module}.open_file", replace_then_open)
    index = CorpusIndex.load(tmp_path / "index")
    assert len(names) == opened + 1
    assert [
        index.search([text], encode, k=1)[0][0].sentence for text in SENTENCES[70:80]
    ] == SENTENCES[70:80]


@pytest.mark.parametrize("name", ["index.faiss", "sentences.txt", "offsets.npy", "lines.npy"])
def test_an_open_index_whose_files_are_overwritten_is_refused(folder, tmp_path, name):
    CorpusIndex.build(tmp_path / "new", ["", *SENTENCES[::-1]], encode, "model", plain=True)
    index = CorpusIndex.load(folder)
    # The file that is open is written, not replaced.
    shutil.copyfile(tmp_path / "new" / "segment-0" / name, folder / "segment-0" / name)
    with pytest.raises(InputError, match=rf"{name} was overwritten"):
        index.search(SENTENCES[:1], encode, k=1)
    with pytest.raises(InputError, match=name):
        CorpusIndex.load(folder)


@pytest.mark.parametrize("name", ["segment-0/index.faiss", "segment-0/lines.npy", "index.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is a pipe|not an index, .*index.json"):
        CorpusIndex.load(folder)
