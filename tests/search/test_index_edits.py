"""An index that changes: ids, add, update, delete, compact and searches in a part of it."""

import errno
import itertools
import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import kill_index_at_random
import kills
import numpy as np
import pytest
from conftest import contents

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search import CorpusIndex, segment_vectors, segment_writer
from fairseq_lxsr.search.edits import SIZE_RATIO
from fairseq_lxsr.search.index_config import IndexSettings, config_text
from fairseq_lxsr.search.index_folder import IndexFolder, write_index_folder
from fairseq_lxsr.search.segment_files import SKETCH_FILE
from fairseq_lxsr.vectors import write_index
from fairseq_lxsr.vectors.index import build_sketch

VECTORS = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
SENTENCES = [f"número {i} …" for i in range(400)]
IDS = [f"note-{i}" for i in range(400)]


class Encoder:
    """An encoder that knows only sentences with a number."""

    fingerprint = "model"
    folder = None

    def embed(self, sentences):
        rows = []
        for sentence in sentences:
            digits = [word for word in sentence.split() if word.isdecimal()]
            rows.append(VECTORS[int(digits[0])] if digits else np.zeros(16, np.float32))
        return np.stack(rows)


ENCODER = Encoder()


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def index(tmp_path):
    return CorpusIndex.build(
        tmp_path / "index", SENTENCES[:100], ENCODER, ids=IDS[:100], plain=True
    )


def text_by_id(index):
    """The ids and texts of the first hits of all sentences, which must be all ids of the index."""
    texts = {}
    for hits in index.search(SENTENCES, ENCODER, k=1):
        for hit in hits:
            texts[hit.id] = hit.text
    assert set(texts) == set(index.ids)
    assert len(texts) == len(index)
    return texts


def open_twice(index):
    """An index as it was edited, and as it is loaded from its folder."""
    return index, CorpusIndex.load(index.folder)


def load_with_encoder(folder):
    index = CorpusIndex.load(folder)
    index._encode = ENCODER.embed
    return index


def expected(*numbers):
    return {IDS[number]: SENTENCES[number] for number in numbers}


def test_hits_have_the_given_ids(index):
    for opened in open_twice(index):
        assert opened.ids == IDS[:100]
        hit = opened.search(SENTENCES[7], ENCODER, k=1)[0]
        assert (hit.id, hit.line, hit.text) == ("note-7", 7, SENTENCES[7])


class CountingEncoder(Encoder):
    def __init__(self):
        self.texts = []

    def embed(self, sentences):
        self.texts += sentences
        return super().embed(sentences)


def test_synchronize_adds_replaces_and_removes_and_encodes_only_changed_texts(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], ENCODER, ids=IDS[:5], plain=True)
    encoder = CountingEncoder()
    ids = ["note-1", "note-2", "note-3", "new", "empty", "unknown"]
    texts = [SENTENCES[1], SENTENCES[12], "sin cifras", SENTENCES[20], "", "sin cifras"]
    changes = index.synchronize(ids, texts, encoder)
    assert vars(changes) == {"added": 1, "replaced": 1, "removed": 3, "unchanged": 1}
    assert SENTENCES[1] not in encoder.texts
    for opened in open_twice(index):
        assert text_by_id(opened) == {
            "note-1": SENTENCES[1],
            "note-2": SENTENCES[12],
            "new": SENTENCES[20],
        }
        assert opened.search(SENTENCES[12], ENCODER, k=1)[0].line == 2
        assert opened.search(SENTENCES[20], ENCODER, k=1)[0].line == 5


def test_synchronize_removes_only_ids_that_fulfil_the_condition(index):
    changes = index.synchronize(["note-1"], [SENTENCES[1]], ENCODER, lambda name: name < "note-2")
    assert vars(changes) == {"added": 0, "replaced": 0, "removed": 11, "unchanged": 1}
    assert set(IDS[2:10]) < set(index.ids)


def test_a_synchronization_that_fails_changes_nothing(index):
    before = (index.folder / "index.json").read_bytes()
    with pytest.raises(InputError, match="id 2: 'a' repeats id 1"):
        index.synchronize(["a", "a"], SENTENCES[:2], ENCODER)
    with pytest.raises(InputError, match="1 ids for more sentences"):
        index.synchronize(["a"], SENTENCES[:2], ENCODER)
    assert (index.folder / "index.json").read_bytes() == before
    assert text_by_id(CorpusIndex.load(index.folder)) == expected(*range(100))


def test_an_index_without_ids_is_not_synchronized(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], ENCODER, plain=True)
    with pytest.raises(InputError, match="without ids"):
        index.synchronize(["1"], SENTENCES[:1], ENCODER)


def test_documents_are_added_updated_and_deleted(index):
    texts = ["", *SENTENCES[100:110], "sin cifras"]
    assert index.add(texts, ["empty", *IDS[100:110], "none"]) == 10
    assert index.update(["note-3", "note-105"], [SENTENCES[203], SENTENCES[205]]) == 2
    assert index.delete(IDS[10:20]) == 10
    texts = expected(*range(10), *range(20, 110))
    texts |= {"note-3": SENTENCES[203], "note-105": SENTENCES[205]}
    for opened in open_twice(index):
        assert text_by_id(opened) == texts
        assert opened.search(SENTENCES[203], ENCODER, k=1)[0].line == 3
        assert opened.search(SENTENCES[109], ENCODER, k=1)[0].line == 110
    index.compact()
    for opened in open_twice(index):
        assert text_by_id(opened) == texts
    files = {path.name for path in index.folder.iterdir()}
    assert len(files) == 2
    assert "index.json" in files
    index.add([SENTENCES[110]], [IDS[110]])
    assert index.search(SENTENCES[110], ENCODER, k=1)[0].line == 112


def test_the_id_of_a_deleted_document_may_be_used_again(index):
    index.delete(["note-3"])
    index.add([SENTENCES[300]], ["note-3"])
    for opened in open_twice(index):
        assert text_by_id(opened)["note-3"] == SENTENCES[300]
        assert len(opened) == 100


def test_an_index_without_ids_has_line_numbers_as_ids(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", ["", *SENTENCES[:9]], ENCODER, plain=True)
    assert index.ids == ["2", "3", "4", "5", "6", "7", "8", "9", "10"]
    index.add(SENTENCES[9:11])
    index.delete([2, "11"])
    index.update([12], [SENTENCES[30]])
    for opened in open_twice(index):
        assert opened.ids == ["3", "4", "5", "6", "7", "8", "9", "10", "12"]
        hit = opened.search(SENTENCES[30], ENCODER, k=1)[0]
        assert (hit.id, hit.line) == ("12", 11)


def test_all_documents_may_be_deleted_and_others_added(index):
    index.delete(index.ids)
    for opened in open_twice(index):
        assert len(opened) == 0
        assert opened.ids == []
        assert opened.search(SENTENCES[:2], ENCODER) == [[], []]
        opened.compact()
    index.add(SENTENCES[:2], IDS[:2])
    for opened in open_twice(index):
        assert text_by_id(opened) == expected(0, 1)


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_an_edited_index_of_any_kind_finds_each_document(tmp_path, kind):
    index = CorpusIndex.build(
        tmp_path / "index", SENTENCES[:300], ENCODER, kind=kind, ids=IDS[:300], plain=True
    )
    index.add(SENTENCES[300:], IDS[300:])
    index.delete(IDS[::2])
    index.update([IDS[1]], [SENTENCES[0]])
    texts = expected(*range(1, 400, 2)) | {IDS[1]: SENTENCES[0]}
    for opened in open_twice(index):
        assert text_by_id(opened) == texts
    index.compact()
    for opened in open_twice(index):
        assert text_by_id(opened) == texts
    assert index.config["segments"][0]["kind"] == kind


def test_a_flat_index_with_additions_has_the_hits_of_one_that_is_built_at_once(tmp_path):
    whole = CorpusIndex.build(tmp_path / "whole", SENTENCES[:90], ENCODER, plain=True)
    parts = CorpusIndex.build(tmp_path / "parts", SENTENCES[:50], ENCODER, plain=True)
    for start in range(50, 90, 3):
        parts.add(SENTENCES[start : min(start + 3, 90)])
    assert len(parts.config["segments"]) > 1
    assert parts.search(SENTENCES, ENCODER, k=20) == whole.search(SENTENCES, ENCODER, k=20)
    parts.compact()
    assert parts.search(SENTENCES, ENCODER, k=20) == whole.search(SENTENCES, ENCODER, k=20)
    for name in ("index.faiss", "sentences.txt", "offsets.npy", "lines.npy"):
        (path,) = parts.folder.glob(f"segment-*/{name}")
        assert path.read_bytes() == (whole.folder / "segment-0" / name).read_bytes()


def test_segments_are_merged_so_that_each_is_much_smaller_than_the_one_before(index):
    for number in range(100, 180):
        index.add([SENTENCES[number]], [IDS[number]])
        sizes = [segment["documents"] for segment in index.config["segments"]]
        for larger, smaller in itertools.pairwise(sizes):
            assert larger >= SIZE_RATIO * smaller
    assert text_by_id(index) == expected(*range(180))


def test_an_addition_encodes_only_new_sentences_and_writes_no_old_segment(index):
    encoded = []

    def embed(sentences):
        encoded.extend(sentences)
        return ENCODER.embed(sentences)

    before = (index.folder / "segment-0" / "index.faiss").stat()
    index.add([SENTENCES[100]], [IDS[100]], embed)
    assert encoded == [SENTENCES[100]]
    assert (index.folder / "segment-0" / "index.faiss").stat() == before


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ([], []),
        (IDS[5:7], [5, 6]),
        ({"note-120", "note-8", "unknown", 4}, [8, 120]),
        (lambda name: name.endswith("7"), [*range(7, 100, 10), 107, 117]),
        (IDS, [*range(50), *range(51, 122)]),
    ],
)
def test_a_condition_leaves_out_hits_and_changes_no_other(index, condition, numbers):
    index.add(SENTENCES[100:122], IDS[100:122])
    index.delete(["note-50"])
    hits = index.search(SENTENCES[5], ENCODER, k=400, where=condition)
    assert sorted(int(hit.id.removeprefix("note-")) for hit in hits) == numbers
    all_hits = index.search(SENTENCES[5], ENCODER, k=400)
    texts = {hit.text for hit in hits}
    assert [hit for hit in all_hits if hit.text in texts] == hits


def test_a_condition_that_is_neither_ids_nor_a_function_is_refused(index):
    for condition in ("note-1", 5, [None], [b"x"], [True]):
        with pytest.raises(InputError, match="where"):
            index.search("1", ENCODER, where=condition)


def test_a_refused_edit_changes_nothing(index):
    edits = [
        (lambda: index.add(["5", "6"], ["a", "a"]), "id 2: 'a' repeats id 1"),
        (
            lambda: index.add(["5", "6"], ["a", "note-7"]),
            "index: the index already contains the id 'note-7'",
        ),
        (lambda: index.add(["5", "6"], ["a"]), "1 ids for more sentences"),
        (lambda: index.add(["5"], ["a", "b"]), "more ids than the 1 "),
        (lambda: index.add(["5"]), "index: the index has ids"),
        (lambda: index.add(["5"], ["a\tb"]), r"id 1: 'a\\tb'"),
        (lambda: index.add(["5"], [""]), "id 1: ''"),
        (lambda: index.add(["5"], [1.5]), "id 1: 1.5"),
        (lambda: index.add(["5"], "a"), "ids"),
        (lambda: index.delete(["note-1", "x"]), "index: the index does not contain the id 'x'"),
        (lambda: index.delete(["note-1", "note-1"]), "id 2: 'note-1' repeats id 1"),
        (lambda: index.delete("note-1"), "ids"),
        (
            lambda: index.update(["note-1", "x"], ["5", "6"]),
            "index: the index does not contain the id 'x'",
        ),
        (lambda: index.update(["note-1"], ["5", "6"]), "1 ids for 2 "),
        (lambda: index.update(["note-1", "note-2"], ["5", " "]), "id 'note-2': .*empty"),
        (lambda: index.update(["note-1", "note-2"], ["5", "x"]), "id 'note-2': .*'x'"),
    ]
    files = contents(index.folder)
    for edit, message in edits:
        with pytest.raises(InputError, match=message):
            edit()
        assert contents(index.folder) == files, message
    assert text_by_id(index) == expected(*range(100))


def test_a_sentence_that_is_not_a_string_is_named(index, tmp_path):
    for value in (3, None, ["a"], float("nan")):
        texts = [SENTENCES[200], value]
        with pytest.raises(InputError, match=r"sentences\[1\] is "):
            index.add(texts, IDS[200:202])
        with pytest.raises(InputError, match=r"sentences\[1\] is "):
            index.update(IDS[:2], texts)
        with pytest.raises(InputError, match=r"sentences\[1\] is "):
            CorpusIndex.build(tmp_path / "new", texts, ENCODER, plain=True)
    assert text_by_id(index) == expected(*range(100))
    assert not (tmp_path / "new").exists()


def test_ids_that_do_not_fit_the_index_or_its_sentences_are_refused(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:9], ENCODER, plain=True)
    with pytest.raises(InputError, match="index: the index was built without ids"):
        index.add(SENTENCES[9:10], ["x"])
    for ids, message in ((["a", "b", "a"], "id 3: 'a'"), (["a"], "1 ids for"), (IDS, "more ids")):
        with pytest.raises(InputError, match=message):
            CorpusIndex.build(tmp_path / "index", SENTENCES[:3], ENCODER, ids=ids, plain=True)
    assert len(CorpusIndex.load(tmp_path / "index")) == 9


def test_an_index_that_was_rebuilt_with_another_model_is_not_edited(index):
    index.encoder = ENCODER
    CorpusIndex.build(index.folder, SENTENCES[:9], ENCODER.embed, "other", plain=True)
    for edit in (lambda: index.add(["5"], ["x"]), lambda: index.update(["note-1"], ["5"])):
        with pytest.raises(InputError, match="index: the index was rebuilt with model other"):
            edit()
    assert len(CorpusIndex.load(index.folder)) == 9


def test_an_open_index_is_not_changed_by_edits_of_another_handle(index):
    old = CorpusIndex.load(index.folder)
    assert old.is_current()
    index.add(SENTENCES[100:150], IDS[100:150])
    index.delete(IDS[:50])
    index.compact()
    assert text_by_id(old) == expected(*range(100))
    assert not old.is_current()
    assert index.is_current()
    shutil.rmtree(index.folder)
    assert text_by_id(index) == expected(*range(50, 150))
    with pytest.raises(InputError, match="index: not an index"):
        index.is_current()


def test_simultaneous_edits_are_not_lost(index):
    """Half of the threads share a handle; the others have one each, as processes would."""

    def edit(worker):
        if worker % 2:
            handle = index
        else:
            handle = load_with_encoder(index.folder)
        for number in range(100 + 10 * worker, 110 + 10 * worker):
            handle.add([SENTENCES[number]], [IDS[number]])
            handle.delete([IDS[number - 100]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(edit, range(4)))
    assert text_by_id(CorpusIndex.load(index.folder)) == expected(*range(40, 140))


def edit_index(folder, edit):
    index = load_with_encoder(folder)
    if edit == "add":
        index.add(SENTENCES[110:113], IDS[110:113])
    elif edit == "update":
        index.update(["note-10"], [SENTENCES[310]])
    elif edit == "delete":
        index.delete(["note-10", "note-11"])
    else:
        index.compact()


def texts_after(edit, texts):
    """The texts by id that `edit_index` makes of `texts`."""
    if edit == "add":
        return texts | expected(110, 111, 112)
    if edit == "update":
        return texts | {"note-10": SENTENCES[310]}
    if edit == "delete":
        remaining = texts.copy()
        del remaining["note-10"]
        del remaining["note-11"]
        return remaining
    return texts


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param("add", marks=pytest.mark.slow),
        pytest.param("update", marks=pytest.mark.slow),
        "delete",
        "compact",
    ],
)
def test_a_kill_before_any_change_of_a_file_leaves_the_old_or_the_new_state(index, edit):
    index.add(SENTENCES[390:391], IDS[390:391])
    index.delete(IDS[99:100])
    old = text_by_id(index)
    new = texts_after(edit, old)
    pristine = shutil.copytree(index.folder, index.folder.with_name("pristine"))
    reader = CorpusIndex.load(index.folder)
    states = []
    for _ in kills.every_kill(lambda: edit_index(index.folder, edit)):
        state = text_by_id(CorpusIndex.load(index.folder))
        states.append(state)
        # A reader that opened the index before still has its files.
        assert text_by_id(reader) == old
        # The next edit works, and removes files that the index does not list.
        handle = load_with_encoder(index.folder)
        handle.add([SENTENCES[200]], [IDS[200]])
        assert text_by_id(handle) == state | expected(200)
        listed = {segment["folder"] for segment in handle.config["segments"]}
        if handle.config["deleted"]:
            listed.add(handle.config["deleted"]["file"])
        for path in index.folder.iterdir():
            if path.name.startswith(("segment", "deleted")):
                assert path.name in listed
        shutil.rmtree(index.folder)
        shutil.copytree(pristine, index.folder)
    assert old in states
    assert new in states
    for state in states:
        assert state in (old, new)


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("edit", ["add", "update", "delete", "compact"])
def test_a_flush_that_fails_leaves_the_old_or_the_new_state(index, edit, failure, monkeypatch):
    index.delete(IDS[99:100])
    old = text_by_id(index)
    new = texts_after(edit, old)
    pristine = shutil.copytree(index.folder, index.folder.with_name("pristine"))
    for failing_call in itertools.count(1):
        calls = itertools.count(1)

        def fsync(descriptor, calls=calls, failing_call=failing_call):
            if next(calls) == failing_call:
                raise failure

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            error = None
            try:
                edit_index(index.folder, edit)
            except (OSError, KeyboardInterrupt) as raised:
                error = raised
        state = text_by_id(CorpusIndex.load(index.folder))
        if error is None:
            assert state == new
        elif isinstance(error, OSError):
            assert state == old
            assert error.filename, "the message of the command names a path"
        else:
            assert state in (old, new)
        if next(calls) <= failing_call:
            break
        shutil.rmtree(index.folder)
        shutil.copytree(pristine, index.folder)
    assert failing_call > 3


# Entry of a segment in index.json.
SEGMENT = {
    "folder": "segment-0",
    "kind": "flat",
    "documents": 100,
    "rows": 100,
    "pieces": False,
    "sketch": False,
    "files": {},
    "stamps": {},
}


def test_an_index_json_with_an_invalid_field_is_refused(index):
    path = index.folder / "index.json"
    config = parse_json(path.read_text())
    for field in (
        {"segments": 3},
        {"segments": [{}]},
        {"segments": [{**SEGMENT, "folder": "../x"}]},
        {"segments": [{**SEGMENT, "folder": ""}]},
        {"segments": [{**SEGMENT, "documents": True}]},
        {"deleted": {"file": "../deleted-1.npy", "sha256": ""}},
        {"deleted": 5},
        {"deleted": {"file": "deleted-1.npy", "sha256": ""}},
        {"sentences": 99},
        {"lines": "5"},
        {"kind": "ivf"},
        {"next": None},
        {"plain": "unknown"},
        {"plain": False},
    ):
        path.write_text(json.dumps(config | field))
        with pytest.raises(InputError, match="index"):
            CorpusIndex.load(index.folder)


def test_an_edit_of_a_copied_index_hashes_its_files_for_the_last_time(index, tmp_path, monkeypatch):
    copy = CorpusIndex.load(shutil.copytree(index.folder, tmp_path / "copy"))
    copy.add(SENTENCES[100:101], IDS[100:101], ENCODER)

    def hash_file(file):
        raise AssertionError(file.name)

    monkeypatch.setattr("fairseq_lxsr.search.segment_files.sha256", hash_file)
    assert text_by_id(CorpusIndex.load(copy.folder)) == expected(*range(101))


def test_an_open_index_has_no_open_files(index):
    index.add(SENTENCES[100:110], IDS[100:110])
    before = len(os.listdir("/dev/fd"))
    opened = [CorpusIndex.load(index.folder) for _ in range(50)]
    assert len(os.listdir("/dev/fd")) == before
    assert text_by_id(opened[-1]) == expected(*range(110))


def test_random_edits_give_the_documents_of_a_dict_with_the_same_edits(tmp_path):
    rng = random.Random(3)
    texts = expected(*range(20))
    index = CorpusIndex.build(
        tmp_path / "index", list(texts.values()), ENCODER, ids=list(texts), plain=True
    )
    for _ in range(60):
        free = [name for name in IDS if name not in texts]
        count = rng.randint(1, 6)
        match rng.choice(["add", "update", "delete", "compact"]):
            case "add":
                new = {name: SENTENCES[IDS.index(name)] for name in rng.sample(free, count)}
                index.add(list(new.values()), list(new))
                texts |= new
            case "update" if len(texts) >= count:
                # A text is found by its number, which no other document may have.
                names = rng.sample(sorted(texts), count)
                new = {name: texts[name].replace("…", "!") for name in names}
                index.update(list(new), list(new.values()))
                texts |= new
            case "delete" if len(texts) >= count:
                names = rng.sample(sorted(texts), count)
                index.delete(names)
                for name in names:
                    del texts[name]
            case "compact":
                index.compact()
        assert len(index) == len(texts)
    for opened in open_twice(index):
        assert text_by_id(opened) == texts


@pytest.fixture
def _rows_are_words(monkeypatch):
    """A document has a row for its whole text and one for each word."""

    def split(text):
        spans = [(0, len(text))]
        start = 0
        for word in text.split(" "):
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return spans

    monkeypatch.setattr(segment_writer, "passage_rows", split)


@pytest.mark.usefixtures("_rows_are_words")
def test_edits_keep_the_rows_of_each_document_together(tmp_path):
    """The encoder knows only numbers; rows without one are left out."""
    texts = [f"ñ {number} ñ {number + 200}" for number in range(50)]
    settings = IndexSettings("model")
    write_index_folder(tmp_path / "index", texts, ENCODER.embed, settings, ids=IDS[:50])
    index = CorpusIndex.load(tmp_path / "index")
    index._encode = ENCODER.embed
    index.add(["7 ñ 300", "ñ"], ["new", "none"])
    index.delete(IDS[10:12])
    index.update(["note-3"], ["301 ñ"])
    for is_compact in (False, True):
        if is_compact:
            index.compact()
        assert len(index) == 49
        stored = IndexFolder.open(tmp_path / "index")
        # Numbers of an unchanged, an added, an updated and a deleted document.
        rows = stored.neighbours(VECTORS[[205, 300, 301, 211]], 2)[1]
        documents = stored.documents(rows)
        sentences = stored.sentences(np.unique(documents))
        ids = stored.ids(np.unique(documents))
        assert [ids[number] for number in documents[:3, 0].tolist()] == ["note-5", "new", "note-3"]
        assert sentences[int(documents[0, 0])][1] == texts[5]
        texts_of_rows = []
        for row, document in zip(rows[:3, 0].tolist(), documents[:3, 0].tolist(), strict=True):
            [(start, stop)] = stored.spans(np.array([row])).tolist()
            texts_of_rows.append(sentences[document][1].encode()[start:stop].decode())
        assert texts_of_rows[:2] == ["205", "300"]
        assert texts_of_rows[2] in ("301", "301 ñ")
        assert ids[int(documents[3, 0])] not in ("note-10", "note-11")


@pytest.mark.slow
def test_kills_at_random_moments_damage_no_index_and_disturb_no_reader(tmp_path):
    report = kill_index_at_random.kill_edits(tmp_path / "index", kills=15, readers=1)
    assert report["kills"] == 15
    assert report["reads"] > 0


# -- the sketch of rounded vectors

MANY = 3000
# A third of the vectors are drawn on their own, and the others lie close together in 20 groups, in
# which some are equal.
MANY_VECTORS = np.random.default_rng(1).standard_normal((MANY, 32)).astype(np.float32)
MANY_VECTORS[1000:] = np.repeat(MANY_VECTORS[:20], 100, axis=0) + 0.1 * MANY_VECTORS[1000:]
MANY_VECTORS[2990:] = MANY_VECTORS[1000:1010]
MANY_IDS = [f"note-{i}" for i in range(MANY)]


def embed_many(sentences):
    return MANY_VECTORS[[int(sentence.split()[1]) for sentence in sentences]]


def build_many(path, kind, count=MANY):
    texts = [f"number {i}" for i in range(count)]
    return CorpusIndex.build(
        path, texts, embed_many, "model", kind, ids=MANY_IDS[:count], plain=True
    )


def without_sketch(index, path):
    """The same index, without its sketch."""
    shutil.copytree(index.folder, path)
    config = parse_json((path / "index.json").read_text())
    config["segments"][0]["sketch"] = False
    (path / "index.json").write_text(config_text(config))
    return CorpusIndex.load(path)


def sketches(index):
    """Names of the sketches of an index."""
    return [path.name for path in index.files if path.name == SKETCH_FILE]


def neighbours(index, queries, k, allowed=None):
    return IndexFolder.open(index.folder).neighbours(queries, k, allowed)


@pytest.fixture(scope="module", params=["float16", "int8"])
def sketched(request, tmp_path_factory):
    pytest.importorskip("faiss")
    path = tmp_path_factory.mktemp("sketched")
    index = build_many(path / "new", request.param)
    assert sketches(index) == [SKETCH_FILE]
    return index, without_sketch(index, path / "old")


def random_rows(share):
    """A mask of rows that a search may return; None for all rows."""
    if share == 1:
        return None
    return np.random.default_rng(2).random(MANY) < share


@pytest.mark.parametrize("share", [1, 0.99, 0.6, 0.1, 0.002])
def test_a_sketch_finds_the_neighbours_of_a_comparison_with_all_rows(sketched, share):
    index, index_without_sketch = sketched
    allowed = random_rows(share)
    queries = MANY_VECTORS[::30] + 0.01
    for k in (1, 10, 100, 1000):
        cosines, rows = neighbours(index, queries, k, allowed=allowed)
        expected_cosines, _ = neighbours(index_without_sketch, queries, k, allowed=allowed)
        assert np.isclose(cosines, expected_cosines, atol=1e-6).mean() > 0.999
        if allowed is not None:
            assert allowed[rows[rows >= 0]].all()
            assert ((rows >= 0).sum(axis=1) == min(k, allowed.sum())).all()
        for rows_of_query in rows:
            valid_rows = rows_of_query[rows_of_query >= 0]
            assert len(set(valid_rows)) == len(valid_rows)


def test_the_ten_neighbours_of_a_sketch_have_the_largest_cosines(sketched):
    """Cosines in float64; the tolerance is the rounding of int8."""
    units = MANY_VECTORS.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    queries = units[::30]
    exact = np.sort(queries @ units.T, axis=1)[:, ::-1][:, :10]
    cosines, rows = neighbours(sketched[0], queries.astype(np.float32), 10)
    np.testing.assert_allclose(cosines, exact, atol=0.015)
    np.testing.assert_allclose(np.einsum("qkd,qd->qk", units[rows], queries), exact, atol=0.015)


def test_equal_rows_of_a_sketch_keep_their_order(sketched):
    queries = MANY_VECTORS[2990:]
    for count in (1, 10):
        _, rows = neighbours(sketched[0], queries[:count], 2)
        assert rows.tolist() == [[1000 + i, 2990 + i] for i in range(count)]


@pytest.mark.parametrize("share", [1, 0.9])
def test_the_number_of_queries_at_once_changes_no_neighbours(sketched, monkeypatch, share):
    index, _ = sketched
    allowed = random_rows(share)
    queries = MANY_VECTORS[::300]
    cosines, rows = neighbours(index, queries, 5, allowed=allowed)
    monkeypatch.setattr(segment_vectors, "QUERIES_AT_ONCE", 3)
    block_cosines, block_rows = neighbours(index, queries, 5, allowed=allowed)
    np.testing.assert_array_equal(block_rows, rows)
    np.testing.assert_allclose(block_cosines, cosines, atol=1e-6)
    with pytest.raises(InputError, match="at least one row"):
        neighbours(index, queries[:0], 5, allowed=allowed)


def test_a_sketch_finds_allowed_rows_behind_many_nearer_ones(sketched):
    index, index_without_sketch = sketched
    query = MANY_VECTORS[:1]
    _, nearest_half = neighbours(index_without_sketch, query, 1400)
    allowed = np.ones(MANY, dtype=bool)
    allowed[nearest_half[0]] = False
    cosines, rows = neighbours(index, query, 5, allowed=allowed)
    expected_cosines, expected_rows = neighbours(index_without_sketch, query, 5, allowed=allowed)
    assert set(rows[0]) == set(expected_rows[0])
    np.testing.assert_array_equal(cosines, expected_cosines)


def test_an_index_with_a_sketch_is_edited(tmp_path):
    pytest.importorskip("faiss")
    index = build_many(tmp_path / "index", "int8", 2900)
    index.add(["number 2950"], ["note-2950"], embed_many)
    index.update(["note-7"], ["number 2951"], embed_many)
    index.delete(["note-8", "note-9"])

    def check_edits():
        added, updated, deleted = index.search(
            ["number 2950", "number 2951", "number 8"], embed_many, k=1
        )
        assert added[0].id == "note-2950"
        assert updated[0].id == "note-7"
        assert deleted[0].id not in ("note-8", "note-9")
        assert len(index) == 2900 + 1 - 2

    check_edits()
    index.compact(embed_many)
    check_edits()
    assert sketches(index) == [SKETCH_FILE]


def test_flat_small_and_narrow_indexes_have_no_sketch(tmp_path):
    pytest.importorskip("faiss")
    for kind, count in (("flat", MANY), ("int8", 2000)):
        index = build_many(tmp_path / kind, kind, count)
        assert not sketches(index)
        assert not list(index.folder.rglob(SKETCH_FILE))
    narrow = CorpusIndex.build(
        tmp_path / "narrow",
        [f"number {i}" for i in range(MANY)],
        embed_many,
        "model",
        "int8",
        truncate_dim=16,
        plain=True,
    )
    assert not sketches(narrow)


@pytest.mark.parametrize("damage", ["truncated", "missing", "other size"])
def test_a_damaged_sketch_of_sentences_is_refused(tmp_path, damage):
    pytest.importorskip("faiss")
    build_many(tmp_path / "index", "int8")
    sketch = tmp_path / "index" / "segment-0" / SKETCH_FILE
    if damage == "truncated":
        os.truncate(sketch, 100)
    elif damage == "missing":
        sketch.unlink()
    else:
        write_index(build_sketch(MANY_VECTORS, np.arange(2500)), sketch)
        config = parse_json((tmp_path / "index" / "index.json").read_text())
        config["segments"][0]["files"][SKETCH_FILE] = sha256(sketch)
        (tmp_path / "index" / "index.json").write_text(config_text(config))
    with pytest.raises(InputError, match=SKETCH_FILE):
        CorpusIndex.load(tmp_path / "index")
