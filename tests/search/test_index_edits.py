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
# The sentence with the number N, its vector (row N) and its id.
SENTENCES = [f"número {i} …" for i in range(400)]
IDS = [f"note-{i}" for i in range(400)]


class Encoder:
    """An encoder that knows only sentences with a number, of which it returns row N of VECTORS."""

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
    """Save the time of flushing files to the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def index(tmp_path):
    """An index of the sentences 0 to 99."""
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
    """Load an index so that it can be edited without naming the encoder."""
    index = CorpusIndex.load(folder)
    index._encode = ENCODER.embed
    return index


def first_hit(index, text):
    return index.search(text, ENCODER, k=1)[0]


def expected(*numbers):
    """The ids and texts of the sentences with these numbers."""
    return {IDS[number]: SENTENCES[number] for number in numbers}


def test_hits_have_the_given_ids(index):
    for opened in open_twice(index):
        assert opened.ids == IDS[:100]
        hit = first_hit(opened, SENTENCES[7])
        assert hit.id == "note-7"
        assert hit.line == 7
        assert hit.text == SENTENCES[7]


class RecordingEncoder(Encoder):
    """Remembers the texts that it encodes."""

    def __init__(self):
        self.texts = []

    def embed(self, sentences):
        self.texts += sentences
        return super().embed(sentences)


@pytest.fixture
def synchronized(tmp_path):
    """An index of the sentences 0 to 4 after synchronization, its changes, and encoded texts."""
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], ENCODER, ids=IDS[:5], plain=True)
    encoder = RecordingEncoder()
    # The encoder does not know a sentence without a number.
    texts = {
        "note-1": SENTENCES[1],  # unchanged
        "note-2": SENTENCES[12],  # replaced
        "note-3": "sin cifras",  # removed, as note-0 and note-4, which are missing here
        "new": SENTENCES[20],  # added
        "empty": "",
        "unknown": "sin cifras",
    }
    changes = index.synchronize(list(texts), list(texts.values()), encoder)
    return index, changes, encoder.texts


def test_synchronize_counts_what_it_adds_replaces_removes_and_leaves(synchronized):
    _, changes, _ = synchronized

    assert vars(changes) == {"added": 1, "replaced": 1, "removed": 3, "unchanged": 1}


def test_synchronize_makes_the_index_contain_the_given_texts_and_lines(synchronized):
    index, _, _ = synchronized

    for opened in open_twice(index):
        assert text_by_id(opened) == {
            "note-1": SENTENCES[1],
            "note-2": SENTENCES[12],
            "new": SENTENCES[20],
        }
        # A replaced text keeps its line; an added one has the next.
        assert first_hit(opened, SENTENCES[12]).line == 2
        assert first_hit(opened, SENTENCES[20]).line == 5


def test_synchronize_does_not_encode_an_unchanged_text(synchronized):
    _, _, encoded_texts = synchronized

    assert SENTENCES[1] not in encoded_texts


def test_synchronize_removes_only_ids_that_fulfil_the_condition(index):
    def may_be_removed(id_):
        return id_ < "note-2"

    changes = index.synchronize(["note-1"], [SENTENCES[1]], ENCODER, may_be_removed)

    # In the order of texts, note-0 and note-10 to note-19 come before note-2.
    assert vars(changes) == {"added": 0, "replaced": 0, "removed": 11, "unchanged": 1}
    assert set(index.ids) == {"note-1", *IDS[2:10], *IDS[20:100]}


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["a", "a"], "id 2: 'a' repeats id 1"), (["a"], "1 ids for more sentences")],
    ids=["repeated id", "too few ids"],
)
def test_a_synchronization_that_is_refused_changes_nothing(index, ids, message):
    before = (index.folder / "index.json").read_bytes()

    with pytest.raises(InputError, match=message):
        index.synchronize(ids, SENTENCES[:2], ENCODER)

    assert (index.folder / "index.json").read_bytes() == before
    assert text_by_id(CorpusIndex.load(index.folder)) == expected(*range(100))


def test_an_index_without_ids_is_not_synchronized(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:5], ENCODER, plain=True)
    with pytest.raises(InputError, match="without ids"):
        index.synchronize(["1"], SENTENCES[:1], ENCODER)


@pytest.fixture
def edited(index):
    """The index after additions, updates and deletions, and its texts by id."""
    index.add(["", *SENTENCES[100:110], "sin cifras"], ["empty", *IDS[100:110], "none"])
    index.update(["note-3", "note-105"], [SENTENCES[203], SENTENCES[205]])
    index.delete(IDS[10:20])
    texts = expected(*range(10), *range(20, 110))
    texts |= {"note-3": SENTENCES[203], "note-105": SENTENCES[205]}
    return index, texts


def test_edits_return_the_number_of_documents(index):
    # The first text is empty, and the encoder knows no word of the last.
    added = index.add(["", *SENTENCES[100:110], "sin cifras"], ["empty", *IDS[100:110], "none"])
    updated = index.update(["note-3", "note-105"], [SENTENCES[203], SENTENCES[205]])
    deleted = index.delete(IDS[10:20])

    assert added == 10
    assert updated == 2
    assert deleted == 10


def test_an_edited_index_has_the_new_texts_and_keeps_lines(edited):
    index, texts = edited
    for opened in open_twice(index):
        assert text_by_id(opened) == texts
        # An updated text keeps its line. The empty text before the additions has line 100.
        assert first_hit(opened, SENTENCES[203]).line == 3
        assert first_hit(opened, SENTENCES[109]).line == 110


def test_compaction_leaves_one_segment_with_all_texts(edited):
    index, texts = edited

    index.compact()

    for opened in open_twice(index):
        assert text_by_id(opened) == texts
    [segment] = index.config["segments"]
    names = {path.name for path in index.folder.iterdir()}
    assert names == {"index.json", segment["folder"]}


def test_lines_continue_after_compaction(edited):
    index, _ = edited
    index.compact()

    index.add([SENTENCES[110]], [IDS[110]])

    # 100 lines were built and 12 added, with two that are not in the index.
    assert first_hit(index, SENTENCES[110]).line == 112


def test_the_id_of_a_deleted_document_may_be_used_again(index):
    index.delete(["note-3"])

    index.add([SENTENCES[300]], ["note-3"])

    for opened in open_twice(index):
        assert text_by_id(opened)["note-3"] == SENTENCES[300]
        assert len(opened) == 100


def test_an_index_without_ids_has_line_numbers_from_one_as_ids(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", ["", *SENTENCES[:9]], ENCODER, plain=True)

    assert index.ids == ["2", "3", "4", "5", "6", "7", "8", "9", "10"]


def test_an_index_without_ids_is_edited_by_line_numbers(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", ["", *SENTENCES[:9]], ENCODER, plain=True)

    # Their lines are 11 and 12.
    index.add(SENTENCES[9:11])
    index.delete([2, "11"])
    index.update([12], [SENTENCES[30]])

    for opened in open_twice(index):
        assert opened.ids == ["3", "4", "5", "6", "7", "8", "9", "10", "12"]
        hit = first_hit(opened, SENTENCES[30])
        assert hit.id == "12"
        # Lines of hits are counted from 0.
        assert hit.line == 11


def test_an_index_whose_documents_are_all_deleted_has_no_hits_and_is_compacted(index):
    index.delete(index.ids)

    for opened in open_twice(index):
        assert len(opened) == 0
        assert opened.ids == []
        assert opened.search(SENTENCES[:2], ENCODER) == [[], []]
        opened.compact()


def test_documents_are_added_after_all_were_deleted(index):
    index.delete(index.ids)
    index.compact()

    index.add(SENTENCES[:2], IDS[:2])

    for opened in open_twice(index):
        assert text_by_id(opened) == expected(0, 1)


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_an_edited_index_of_any_kind_finds_each_document_before_and_after_compaction(
    tmp_path, kind
):
    index = CorpusIndex.build(
        tmp_path / "index", SENTENCES[:300], ENCODER, kind=kind, ids=IDS[:300], plain=True
    )
    index.add(SENTENCES[300:], IDS[300:])
    # The even numbers.
    index.delete(IDS[::2])
    index.update([IDS[1]], [SENTENCES[0]])
    texts = expected(*range(1, 400, 2)) | {IDS[1]: SENTENCES[0]}

    for opened in open_twice(index):
        assert text_by_id(opened) == texts

    index.compact()

    for opened in open_twice(index):
        assert text_by_id(opened) == texts
    assert index.config["segments"][0]["kind"] == kind


@pytest.fixture
def whole_and_parts(tmp_path):
    """An index of 90 sentences, and one of 50 to which the others are added three at a time."""
    whole = CorpusIndex.build(tmp_path / "whole", SENTENCES[:90], ENCODER, plain=True)
    parts = CorpusIndex.build(tmp_path / "parts", SENTENCES[:50], ENCODER, plain=True)
    for start in range(50, 90, 3):
        parts.add(SENTENCES[start : min(start + 3, 90)])
    return whole, parts


def test_a_flat_index_with_additions_has_the_hits_of_one_that_is_built_at_once(whole_and_parts):
    whole, parts = whole_and_parts

    assert len(parts.config["segments"]) > 1
    assert parts.search(SENTENCES, ENCODER, k=20) == whole.search(SENTENCES, ENCODER, k=20)


def test_a_flat_index_has_the_files_of_one_that_is_built_at_once_after_compaction(
    whole_and_parts,
):
    whole, parts = whole_and_parts

    parts.compact()

    assert parts.search(SENTENCES, ENCODER, k=20) == whole.search(SENTENCES, ENCODER, k=20)
    [segment] = parts.config["segments"]
    for name in ("index.faiss", "sentences.txt", "offsets.npy", "lines.npy"):
        compacted = (parts.folder / segment["folder"] / name).read_bytes()
        assert compacted == (whole.folder / "segment-0" / name).read_bytes()


def test_segments_are_merged_so_that_each_is_much_smaller_than_the_one_before(index):
    for number in range(100, 180):
        index.add([SENTENCES[number]], [IDS[number]])

        sizes = [segment["documents"] for segment in index.config["segments"]]
        for larger, smaller in itertools.pairwise(sizes):
            assert larger >= SIZE_RATIO * smaller

    assert text_by_id(index) == expected(*range(180))


def test_an_addition_encodes_only_new_sentences_and_writes_no_old_segment(index):
    encoder = RecordingEncoder()
    old_segment = index.folder / "segment-0" / "index.faiss"
    status_before = old_segment.stat()

    index.add([SENTENCES[100]], [IDS[100]], encoder)

    assert encoder.texts == [SENTENCES[100]]
    assert old_segment.stat() == status_before


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        pytest.param([], [], id="no ids"),
        pytest.param(IDS[5:7], [5, 6], id="list"),
        # Neither "unknown" nor "4" is an id.
        pytest.param({"note-120", "note-8", "unknown", 4}, [8, 120], id="set with unknown ids"),
        pytest.param(
            lambda id_: id_.endswith("7"),
            [7, 17, 27, 37, 47, 57, 67, 77, 87, 97, 107, 117],
            id="function",
        ),
        # All of the index but the deleted sentence 50.
        pytest.param(IDS, [*range(50), *range(51, 122)], id="all ids"),
    ],
)
def test_a_condition_leaves_out_hits_and_changes_no_other(index, condition, numbers):
    index.add(SENTENCES[100:122], IDS[100:122])
    index.delete(["note-50"])
    all_hits = index.search(SENTENCES[5], ENCODER, k=400)

    hits = index.search(SENTENCES[5], ENCODER, k=400, where=condition)

    assert sorted(int(hit.id.removeprefix("note-")) for hit in hits) == numbers
    hit_ids = {hit.id for hit in hits}
    assert [hit for hit in all_hits if hit.id in hit_ids] == hits


@pytest.mark.parametrize(
    "condition",
    ["note-1", 5, [None], [b"x"], [True]],
    ids=["string", "number", "none", "bytes", "true"],
)
def test_a_condition_that_is_neither_ids_nor_a_function_is_refused(index, condition):
    with pytest.raises(InputError, match="where"):
        index.search("1", ENCODER, where=condition)


# The name and the arguments of an edit, and a part of the message. The index has note-0 to note-99.
REFUSED_EDITS = {
    "add twice": ("add", (["5", "6"], ["a", "a"]), "id 2: 'a' repeats id 1"),
    "add known id": (
        "add",
        (["5", "6"], ["a", "note-7"]),
        "index: the index already contains the id 'note-7'",
    ),
    "add too few ids": ("add", (["5", "6"], ["a"]), "1 ids for more sentences"),
    "add too many ids": ("add", (["5"], ["a", "b"]), "more ids than the 1 "),
    "add without ids": ("add", (["5"],), "index: the index has ids"),
    "add id with tab": ("add", (["5"], ["a\tb"]), r"id 1: 'a\\tb'"),
    "add empty id": ("add", (["5"], [""]), "id 1: ''"),
    "add float id": ("add", (["5"], [1.5]), "id 1: 1.5"),
    "add ids no list": ("add", (["5"], "a"), "ids"),
    "delete unknown id": (
        "delete",
        (["note-1", "x"],),
        "index: the index does not contain the id 'x'",
    ),
    "delete twice": ("delete", (["note-1", "note-1"],), "id 2: 'note-1' repeats id 1"),
    "delete ids no list": ("delete", ("note-1",), "ids"),
    "update unknown id": (
        "update",
        (["note-1", "x"], ["5", "6"]),
        "index: the index does not contain the id 'x'",
    ),
    "update too few ids": ("update", (["note-1"], ["5", "6"]), "1 ids for 2 "),
    "update blank": ("update", (["note-1", "note-2"], ["5", " "]), "id 'note-2': .*empty"),
    # The encoder knows only numbers.
    "update unknown word": ("update", (["note-1", "note-2"], ["5", "x"]), "id 'note-2': .*'x'"),
}


@pytest.mark.parametrize("case", REFUSED_EDITS)
def test_a_refused_edit_changes_nothing(index, case):
    name, arguments, message = REFUSED_EDITS[case]
    files = contents(index.folder)

    with pytest.raises(InputError, match=message):
        getattr(index, name)(*arguments)

    assert contents(index.folder) == files
    assert text_by_id(index) == expected(*range(100))


@pytest.mark.parametrize(
    "value", [3, None, ["a"], float("nan")], ids=["number", "none", "list", "nan"]
)
def test_the_error_for_a_sentence_that_is_not_a_string_has_its_number(index, tmp_path, value):
    texts = [SENTENCES[200], value]
    message = r"sentences\[1\] is "

    with pytest.raises(InputError, match=message):
        index.add(texts, IDS[200:202])
    with pytest.raises(InputError, match=message):
        index.update(IDS[:2], texts)
    with pytest.raises(InputError, match=message):
        CorpusIndex.build(tmp_path / "new", texts, ENCODER, plain=True)

    assert text_by_id(index) == expected(*range(100))
    assert not (tmp_path / "new").exists()


def test_a_text_with_an_id_is_not_added_to_an_index_without_ids(tmp_path):
    index = CorpusIndex.build(tmp_path / "index", SENTENCES[:9], ENCODER, plain=True)

    with pytest.raises(InputError, match="index: the index was built without ids"):
        index.add(SENTENCES[9:10], ["x"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["a", "b", "a"], "id 3: 'a'"), (["a"], "1 ids for"), (IDS, "more ids")],
    ids=["repeated", "too few", "too many"],
)
def test_a_build_with_ids_that_do_not_fit_the_sentences_leaves_the_old_index(
    tmp_path, ids, message
):
    CorpusIndex.build(tmp_path / "index", SENTENCES[:9], ENCODER, plain=True)

    with pytest.raises(InputError, match=message):
        CorpusIndex.build(tmp_path / "index", SENTENCES[:3], ENCODER, ids=ids, plain=True)

    assert len(CorpusIndex.load(tmp_path / "index")) == 9


def test_an_index_that_was_rebuilt_with_another_model_is_not_edited(index):
    index.encoder = ENCODER
    CorpusIndex.build(index.folder, SENTENCES[:9], ENCODER.embed, "other", plain=True)
    message = "index: the index was rebuilt with model other"

    with pytest.raises(InputError, match=message):
        index.add(["5"], ["x"])
    with pytest.raises(InputError, match=message):
        index.update(["note-1"], ["5"])

    assert len(CorpusIndex.load(index.folder)) == 9


def test_an_open_index_is_not_changed_by_edits_of_another_handle_and_is_not_current(index):
    old = CorpusIndex.load(index.folder)
    assert old.is_current()

    index.add(SENTENCES[100:150], IDS[100:150])
    index.delete(IDS[:50])
    index.compact()

    assert text_by_id(old) == expected(*range(100))
    assert not old.is_current()
    assert index.is_current()


def test_an_open_index_is_searched_after_its_folder_is_removed(index):
    shutil.rmtree(index.folder)

    assert text_by_id(index) == expected(*range(100))
    with pytest.raises(InputError, match="index: not an index"):
        index.is_current()


def test_simultaneous_edits_are_not_lost(index):
    """Half of the threads share a handle; the others have one each, as processes would."""

    def add_and_delete_ten(worker):
        if worker % 2:
            handle = index
        else:
            handle = load_with_encoder(index.folder)
        for number in range(10 * worker, 10 * worker + 10):
            handle.add([SENTENCES[100 + number]], [IDS[100 + number]])
            handle.delete([IDS[number]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_and_delete_ten, range(4)))

    # The first 40 of 100 were deleted, and 40 added.
    assert text_by_id(CorpusIndex.load(index.folder)) == expected(*range(40, 140))


def edit_index(folder, edit):
    """Edit the index of a folder; see `texts_after`."""
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


def assert_no_unlisted_files(index):
    """Check that a folder has no segments and deletions that the index does not list."""
    listed = {segment["folder"] for segment in index.config["segments"]}
    if index.config["deleted"]:
        listed.add(index.config["deleted"]["file"])
    for path in index.folder.iterdir():
        if path.name.startswith(("segment", "deleted")):
            assert path.name in listed


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
    # The index has a second segment and deletions.
    index.add(SENTENCES[390:391], IDS[390:391])
    index.delete(IDS[99:100])
    old = text_by_id(index)
    new = texts_after(edit, old)
    backup = shutil.copytree(index.folder, index.folder.with_name("backup"))
    reader = CorpusIndex.load(index.folder)
    states = []
    for _ in kills.every_kill(lambda: edit_index(index.folder, edit)):
        state = text_by_id(CorpusIndex.load(index.folder))
        states.append(state)
        # A reader that opened the index before still has its files.
        assert text_by_id(reader) == old
        # The next edit works, and removes files that the killed one has left.
        handle = load_with_encoder(index.folder)
        handle.add([SENTENCES[200]], [IDS[200]])
        assert text_by_id(handle) == state | expected(200)
        assert_no_unlisted_files(handle)
        shutil.rmtree(index.folder)
        shutil.copytree(backup, index.folder)

    assert old in states
    assert new in states
    for state in states:
        assert state in (old, new)


@pytest.mark.parametrize(
    "failure", [OSError(errno.EIO, "no"), KeyboardInterrupt()], ids=["disk error", "interrupt"]
)
@pytest.mark.parametrize("edit", ["add", "update", "delete", "compact"])
def test_a_flush_that_fails_leaves_the_old_or_the_new_state(index, edit, failure, monkeypatch):
    index.delete(IDS[99:100])
    old = text_by_id(index)
    new = texts_after(edit, old)
    backup = shutil.copytree(index.folder, index.folder.with_name("backup"))
    # The first flush of a file to the disk fails, then the second, ..., until there are no more.
    for failing_call in itertools.count(1):
        calls = itertools.count(1)

        def fsync(descriptor, calls=calls, failing_call=failing_call):
            if next(calls) == failing_call:
                raise failure

        error = None
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
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
        has_called_fewer_times = next(calls) <= failing_call
        if has_called_fewer_times:
            break
        shutil.rmtree(index.folder)
        shutil.copytree(backup, index.folder)

    # The files of the edit, its folder, and the description are flushed.
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


@pytest.mark.parametrize(
    "field",
    [
        {"segments": 3},
        {"segments": [{}]},
        {"segments": [{**SEGMENT, "folder": "../x"}]},
        {"segments": [{**SEGMENT, "folder": ""}]},
        {"segments": [{**SEGMENT, "documents": True}]},
        {"deleted": {"file": "../deleted-1.npy", "sha256": ""}},
        {"deleted": 5},
        # There is no such file.
        {"deleted": {"file": "deleted-1.npy", "sha256": ""}},
        # The segment has 100.
        {"sentences": 99},
        {"lines": "5"},
        {"kind": "ivf"},
        {"next": None},
        {"plain": "unknown"},
        {"plain": False},
    ],
    ids=[
        "segments no list",
        "segment empty",
        "folder elsewhere",
        "folder empty",
        "documents true",
        "deletions elsewhere",
        "deletions number",
        "deletions missing",
        "sentences too few",
        "lines text",
        "kind unknown",
        "next null",
        "plain text",
        "plain false",
    ],
)
def test_an_index_json_with_an_invalid_field_is_refused(index, field):
    path = index.folder / "index.json"
    path.write_text(json.dumps(parse_json(path.read_text()) | field))

    with pytest.raises(InputError, match="index"):
        CorpusIndex.load(index.folder)


def test_an_index_that_was_copied_and_edited_is_loaded_without_hashing_its_files(
    index, tmp_path, monkeypatch
):
    """The files of a copy have other times, which the edit stores."""
    copy = CorpusIndex.load(shutil.copytree(index.folder, tmp_path / "copy"))
    copy.add(SENTENCES[100:101], IDS[100:101], ENCODER)

    def fail_if_called(file):
        raise AssertionError(file.name)

    monkeypatch.setattr("fairseq_lxsr.search.segment_files.sha256", fail_if_called)

    assert text_by_id(CorpusIndex.load(copy.folder)) == expected(*range(101))


def test_an_open_index_has_no_open_files(index):
    index.add(SENTENCES[100:110], IDS[100:110])
    num_files_before = len(os.listdir("/dev/fd"))

    opened = [CorpusIndex.load(index.folder) for _ in range(50)]

    assert len(os.listdir("/dev/fd")) == num_files_before
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
    """Give a document a row for its whole text and one for each word."""

    def split(text):
        spans = [(0, len(text))]
        start = 0
        for word in text.split(" "):
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return spans

    monkeypatch.setattr(segment_writer, "passage_rows", split)


def nearest_row(stored, number):
    """The id, the text, and the span of the nearest row to the vector of a number."""
    _, rows = stored.neighbours(VECTORS[[number]], 1)
    row = rows[0]
    document = stored.documents(row)
    [(start, stop)] = stored.spans(row).tolist()
    [(_, text)] = stored.sentences(document).values()
    [id_] = stored.ids(document).values()
    return id_, text, text.encode()[start:stop].decode()


@pytest.mark.usefixtures("_rows_are_words")
@pytest.mark.parametrize("is_compact", [False, True], ids=["edited", "compact"])
def test_edits_keep_the_rows_of_each_document_together(tmp_path, is_compact):
    # The encoder knows only the first number of a text. Words that are not numbers have no row.
    texts = [f"ñ {number} ñ {number + 200}" for number in range(50)]
    settings = IndexSettings("model")
    write_index_folder(tmp_path / "index", texts, ENCODER.embed, settings, ids=IDS[:50])
    index = load_with_encoder(tmp_path / "index")

    index.add(["7 ñ 300", "ñ"], ["new", "none"])
    index.delete(IDS[10:12])
    index.update(["note-3"], ["301 ñ"])
    if is_compact:
        index.compact()

    # 50 were built, one added (the other has no number) and two deleted.
    assert len(index) == 50 + 1 - 2
    stored = IndexFolder.open(tmp_path / "index")
    assert nearest_row(stored, 205) == ("note-5", texts[5], "205")
    assert nearest_row(stored, 300) == ("new", "7 ñ 300", "300")
    updated_id, updated_text, updated_row = nearest_row(stored, 301)
    assert updated_id == "note-3"
    assert updated_text == "301 ñ"
    # The whole text and the number have the same vector.
    assert updated_row in ("301", "301 ñ")
    # The numbers 10 and 211 were in deleted texts.
    id_of_deleted_number, _, _ = nearest_row(stored, 211)
    assert id_of_deleted_number not in ("note-10", "note-11")


@pytest.mark.slow
def test_kills_at_random_moments_damage_no_index_and_disturb_no_reader(tmp_path):
    """`kill_edits` checks both after each kill."""
    report = kill_index_at_random.kill_edits(tmp_path / "index", kills=15, readers=1)

    assert report["kills"] == 15
    assert report["reads"] > 0


# -- the sketch of rounded vectors

# More sentences than an index needs for a sketch.
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
    """An index of the first sentences, "number 0", "number 1", ..."""
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
    """The cosines and rows of the nearest vectors, without texts."""
    return IndexFolder.open(index.folder).neighbours(queries, k, allowed)


@pytest.fixture(scope="module", params=["float16", "int8"])
def sketched(request, tmp_path_factory):
    """An index with a sketch, and the same index without it."""
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


@pytest.mark.parametrize("k", [1, 10, 100, 1000])
@pytest.mark.parametrize(
    "share",
    # All rows, most, some, few, and fewer than most numbers of neighbours here.
    [1, 0.99, 0.6, 0.1, 0.002],
)
def test_a_sketch_finds_the_neighbours_of_a_comparison_with_all_rows(sketched, share, k):
    index, index_without_sketch = sketched
    allowed = random_rows(share)
    queries = MANY_VECTORS[::30] + 0.01

    cosines, rows = neighbours(index, queries, k, allowed=allowed)

    expected_cosines, _ = neighbours(index_without_sketch, queries, k, allowed=allowed)
    is_close = np.isclose(cosines, expected_cosines, atol=1e-6)
    assert is_close.mean() > 0.999
    is_found = rows >= 0
    if allowed is not None:
        assert allowed[rows[is_found]].all()
        assert (is_found.sum(axis=1) == min(k, allowed.sum())).all()
    for rows_of_query in rows:
        found_rows = rows_of_query[rows_of_query >= 0]
        assert len(set(found_rows)) == len(found_rows)


def test_the_ten_neighbours_of_a_sketch_have_the_largest_cosines(sketched):
    index, _ = sketched
    units = MANY_VECTORS.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    queries = units[::30]

    cosines, rows = neighbours(index, queries.astype(np.float32), 10)

    all_cosines = queries @ units.T
    largest_cosines = -np.sort(-all_cosines, axis=1)[:, :10]
    # The tolerance is the rounding of int8.
    np.testing.assert_allclose(cosines, largest_cosines, atol=0.015)
    cosines_of_rows = np.take_along_axis(all_cosines, rows, 1)
    np.testing.assert_allclose(cosines_of_rows, largest_cosines, atol=0.015)


@pytest.mark.parametrize("count", [1, 10])
def test_equal_rows_of_a_sketch_keep_their_order_for_one_or_more_queries(sketched, count):
    index, _ = sketched
    # Rows 2990 to 2999 are copies of rows 1000 to 1009.
    queries = MANY_VECTORS[2990 : 2990 + count]

    _, rows = neighbours(index, queries, 2)

    assert rows.tolist() == [[1000 + i, 2990 + i] for i in range(count)]


@pytest.mark.parametrize("share", [1, 0.9])
def test_the_number_of_queries_at_once_changes_no_neighbours(sketched, monkeypatch, share):
    index, _ = sketched
    allowed = random_rows(share)
    queries = MANY_VECTORS[::300]
    cosines, rows = neighbours(index, queries, 5, allowed=allowed)

    # The ten queries are searched in four blocks.
    monkeypatch.setattr(segment_vectors, "QUERIES_AT_ONCE", 3)
    block_cosines, block_rows = neighbours(index, queries, 5, allowed=allowed)

    np.testing.assert_array_equal(block_rows, rows)
    np.testing.assert_allclose(block_cosines, cosines, atol=1e-6)


@pytest.mark.parametrize("share", [1, 0.9])
def test_a_search_with_a_sketch_needs_at_least_one_query(sketched, share):
    index, _ = sketched

    with pytest.raises(InputError, match="at least one row"):
        neighbours(index, MANY_VECTORS[:0], 5, allowed=random_rows(share))


def test_a_sketch_finds_allowed_rows_behind_many_nearer_ones(sketched):
    index, index_without_sketch = sketched
    query = MANY_VECTORS[:1]
    # Nearly half of the 3000 rows, those nearest to the query, are not allowed.
    _, nearest_rows = neighbours(index_without_sketch, query, 1400)
    allowed = np.ones(MANY, dtype=bool)
    allowed[nearest_rows[0]] = False

    cosines, rows = neighbours(index, query, 5, allowed=allowed)

    expected_cosines, expected_rows = neighbours(index_without_sketch, query, 5, allowed=allowed)
    assert set(rows[0]) == set(expected_rows[0])
    np.testing.assert_array_equal(cosines, expected_cosines)


def test_an_index_with_a_sketch_has_the_edited_texts_before_and_after_compaction(tmp_path):
    pytest.importorskip("faiss")
    index = build_many(tmp_path / "index", "int8", 2900)
    index.add(["number 2950"], ["note-2950"], embed_many)
    index.update(["note-7"], ["number 2951"], embed_many)
    index.delete(["note-8", "note-9"])

    def check_edits():
        queries = ["number 2950", "number 2951", "number 8"]
        added, updated, deleted = index.search(queries, embed_many, k=1)
        assert added[0].id == "note-2950"
        assert updated[0].id == "note-7"
        assert deleted[0].id not in ("note-8", "note-9")
        assert len(index) == 2900 + 1 - 2

    check_edits()
    index.compact(embed_many)
    check_edits()
    assert sketches(index) == [SKETCH_FILE]


@pytest.mark.parametrize(
    ("kind", "count", "truncate_dim"),
    [
        pytest.param("flat", MANY, None, id="flat"),
        # A sketch needs 2048 rows.
        pytest.param("int8", 2000, None, id="small"),
        # The vectors have 32 dimensions.
        pytest.param("int8", MANY, 16, id="narrow"),
    ],
)
def test_flat_small_and_narrow_indexes_have_no_sketch(tmp_path, kind, count, truncate_dim):
    pytest.importorskip("faiss")
    texts = [f"number {i}" for i in range(count)]

    index = CorpusIndex.build(
        tmp_path / "index", texts, embed_many, "model", kind, truncate_dim=truncate_dim, plain=True
    )

    assert sketches(index) == []
    assert not list(index.folder.rglob(SKETCH_FILE))


@pytest.mark.parametrize("damage", ["truncated", "missing", "other size"])
def test_the_error_for_a_damaged_sketch_of_sentences_names_its_file(tmp_path, damage):
    pytest.importorskip("faiss")
    build_many(tmp_path / "index", "int8")
    sketch = tmp_path / "index" / "segment-0" / SKETCH_FILE
    if damage == "truncated":
        os.truncate(sketch, 100)
    elif damage == "missing":
        sketch.unlink()
    else:
        # A valid sketch of fewer rows, with its checksum.
        write_index(build_sketch(MANY_VECTORS, np.arange(2500)), sketch)
        config = parse_json((tmp_path / "index" / "index.json").read_text())
        config["segments"][0]["files"][SKETCH_FILE] = sha256(sketch)
        (tmp_path / "index" / "index.json").write_text(config_text(config))

    with pytest.raises(InputError, match=SKETCH_FILE):
        CorpusIndex.load(tmp_path / "index")
