"""An index folder: what is found, and what is refused."""

import json
import os
import shutil

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file, sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex

VECTORS = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)


def encode(sentences):
    return np.stack([VECTORS[int(sentence.split()[1])] for sentence in sentences])


SENTENCES = [f"número {i} …" for i in range(400)]


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_finds_itself(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.search.corpus.ENCODE_ROWS", 64)
    # empty ones are left out
    sentences = iter(["", SENTENCES[0], " \u200b", "\u200e\u200c", *SENTENCES[1:]])
    CorpusIndex.build(tmp_path / "index", sentences, encode, "model", kind)
    index = CorpusIndex.load(tmp_path / "index")
    assert (len(index), index.fingerprint) == (400, "model")
    hits = index.search([SENTENCES[7], SENTENCES[123]], encode, k=3, probes=100)
    assert [row[0].sentence for row in hits] == [SENTENCES[7], SENTENCES[123]]
    assert hits[0][0].line == 10
    assert all(row[0].score >= row[1].score >= row[2].score for row in hits)


@pytest.fixture
def folder(tmp_path):
    return CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model").folder


def test_odd_text_and_odd_queries(tmp_path):
    """What UTF-8 cannot hold is written as ?; more neighbours than there are, and no query, are no
    error.
    """
    index = CorpusIndex.build(
        tmp_path / "index", [*SENTENCES[:2], "número 5 \ud800"], encode, "model"
    )
    assert index.search(SENTENCES[5:6], encode, k=1)[0][0].sentence == "número 5 ?"
    assert len(index.search(SENTENCES[:1], encode, k=10)[0]) == 3
    assert index.search([], encode) == []
    assert index.search("número 1", encode, k=1)[0].text == SENTENCES[1]


def test_an_index_of_an_earlier_version_that_a_kill_left_under_its_hidden_name_is_found(folder):
    with pytest.raises(InputError, match="the embedding of 'x' is a zero vector"):
        CorpusIndex.load(folder).search(["x"], nothing)
    config = parse_json((folder / "index.json").read_text())
    del config["stamps"]
    (folder / "index.json").write_text(json.dumps(config))
    folder.rename(folder.with_name(".index.machine.7.x.old"))
    assert len(CorpusIndex.load(folder)) == len(SENTENCES)


def broken(sentences):
    raise RuntimeError("power cut")


def nothing(sentences):
    return np.zeros((len(sentences), 16))


@pytest.mark.parametrize(
    ("sentences", "encode", "error", "message"),
    [
        ("número 5", encode, TypeError, "sentences is a str; expected a list"),
        (SENTENCES, broken, RuntimeError, "power cut"),
        (["", " \ufeff"], encode, InputError, "no text to index"),
        (SENTENCES, nothing, InputError, "line 1: the embedding of 'número 0 …' is a zero vector"),
    ],
)
def test_nothing_half_built_is_left(tmp_path, sentences, encode, error, message):
    with pytest.raises(error, match=message):
        CorpusIndex.build(tmp_path / "index", sentences, encode, "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("index.json", None, r"not an index, it has no index\.json; make one with `lxsr index`"),
        ("", None, "index: not an index, no such folder"),
        ("sentences.txt", "changed", r"sentences\.txt: missing or changed"),
        ("index.json", {"format_version": 9}, "index of format 9"),
        ("index.json", {"files": []}, "not an index"),
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
        "fairseq_lxsr.search.corpus.sha256", lambda path: hashed.append(path.name) or sha256(path)
    )
    CorpusIndex.load(built)
    assert hashed == []
    CorpusIndex.load(shutil.copytree(built, tmp_path / "copy"))
    assert len(hashed) == 4
    path = built / "index.faiss"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + b"\x00")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"index\.faiss: missing or changed"):
        CorpusIndex.load(built)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_index_that_is_built_again_while_it_is_open_stays_as_it_was(tmp_path, kind):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model", kind)
    CorpusIndex.build(tmp_path / "index", SENTENCES[:60:-1], encode, "model", kind)
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
    CorpusIndex.build(tmp_path / "index", SENTENCES, encode, "model")
    names = []

    def replace_then_open(path):
        names.append(path.name)
        if len(names) == opened + 1:
            monkeypatch.setattr("fairseq_lxsr.search.corpus.open_file", open_file)
            CorpusIndex.build(tmp_path / "index", SENTENCES[:60:-1], encode, "model")
        return open_file(path)

    monkeypatch.setattr("fairseq_lxsr.search.corpus.open_file", replace_then_open)
    index = CorpusIndex.load(tmp_path / "index")
    assert len(names) == opened + 1
    assert [
        index.search([text], encode, k=1)[0][0].sentence for text in SENTENCES[70:80]
    ] == SENTENCES[70:80]


@pytest.mark.parametrize("name", ["index.faiss", "sentences.txt", "offsets.npy", "lines.npy"])
def test_an_open_index_whose_files_are_overwritten_is_refused(folder, tmp_path, name):
    CorpusIndex.build(tmp_path / "new", ["", *SENTENCES[::-1]], encode, "model")
    index = CorpusIndex.load(folder)
    shutil.copyfile(tmp_path / "new" / name, folder / name)  # into the file that is open
    with pytest.raises(
        InputError, match=rf"{name}: was overwritten while the index was open; load it again"
    ):
        index.search(SENTENCES[:1], encode, k=1)
    with pytest.raises(InputError, match="missing or changed"):
        CorpusIndex.load(folder)


@pytest.mark.parametrize(
    "name", ["index.faiss", "sentences.txt", "offsets.npy", "lines.npy", "index.json"]
)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name}: is a pipe or device|it has no index"):
        CorpusIndex.load(folder)
