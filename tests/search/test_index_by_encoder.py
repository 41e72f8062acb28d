"""An index that records its model: built with an encoder, searched and edited without one."""

import json

import numpy as np
import pytest
import toy
from conftest import COMPATIBILITY, lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.embeddings import load
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.search import CorpusIndex

# 40 different sentences.
FRENCH = [target for _, target in toy.sentences(40)]
# The model knows no word of this text.
UNKNOWN = "\ua66e"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture
def index(encoder, tmp_path):
    """An index of FRENCH, which records its model."""
    return CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)


@pytest.mark.parametrize("is_loaded", [False, True], ids=["built", "loaded"])
def test_an_index_built_with_an_encoder_is_searched_without_one(index, is_loaded):
    if is_loaded:
        index = CorpusIndex.load(index.folder)

    hits = index.search(FRENCH[7], 3)

    assert hits[0].text == FRENCH[7]
    assert hits[0].line == 7
    assert len(hits) == 3


def test_a_search_without_an_encoder_has_the_hits_of_one_with_the_encoder(index, encoder):
    hits = index.search(FRENCH[7], 3)

    assert index.search(FRENCH[7], encoder, k=3) == hits
    assert index.search([FRENCH[7]], encoder.encode, 3) == [hits]


def test_a_search_of_several_queries_without_an_encoder_has_hits_for_each(index):
    hits_of_queries = index.search(FRENCH[:2], k=1)

    assert [hits[0].text for hits in hits_of_queries] == FRENCH[:2]


def test_an_index_may_be_built_with_a_loaded_model_folder(encoder, tmp_path):
    model_folder = load(COMPATIBILITY / "best.model")

    index = CorpusIndex.build(tmp_path / "index", FRENCH, model_folder, plain=True)

    assert index.fingerprint == encoder.fingerprint
    assert index.search(FRENCH[3], 1)[0].text == FRENCH[3]


def test_a_query_without_a_known_word_has_no_hits(index):
    assert index.search(UNKNOWN) == []
    assert index.search([UNKNOWN]) == [[]]


def test_several_queries_without_a_known_word_have_no_hits(index):
    assert index.search(["", UNKNOWN], k=1) == [[], []]


def test_a_query_with_known_words_has_hits_beside_one_without(index):
    hits_of_unknown, hits_of_known = index.search([UNKNOWN, FRENCH[0]], k=2)

    assert hits_of_unknown == []
    assert len(hits_of_known) == 2


@pytest.mark.parametrize("is_loaded", [False, True], ids=["edited", "loaded"])
@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_an_index_with_added_sentences_has_the_hits_of_one_built_with_all(
    encoder, tmp_path, kind, is_loaded
):
    # Lines without text, and a last line without a known word, still count as lines.
    corpus = ["", FRENCH[0], " ", *FRENCH[1:20], "", UNKNOWN]
    addition = ["", *FRENCH[20:]]
    CorpusIndex.build(tmp_path / "index", corpus, encoder, kind=kind, plain=True)
    whole = CorpusIndex.build(
        tmp_path / "whole", [*corpus, *addition], encoder, kind=kind, plain=True
    )

    index = CorpusIndex.load(tmp_path / "index")
    index.add(addition)
    if kind == "int8":
        # New sentences are not rounded until then.
        index.compact()

    if is_loaded:
        index = CorpusIndex.load(tmp_path / "index")
    assert len(index) == len(FRENCH)
    assert index.search(FRENCH, k=3) == whole.search(FRENCH, k=3)


def test_adding_no_sentences_changes_no_hits(index):
    hits = index.search(FRENCH, k=3)

    index.add(iter([]))

    assert len(index) == len(FRENCH)
    assert index.search(FRENCH, k=3) == hits


def test_two_open_copies_of_an_index_keep_the_sentences_that_each_other_adds(index):
    other = CorpusIndex.load(index.folder)

    index.add(["La neige tombe."])
    other.add(["Il pleut."])

    # The first does not see what was added later.
    assert len(index) == len(FRENCH) + 1
    assert len(other) == len(FRENCH) + 2


def test_an_index_built_with_a_function_needs_a_fingerprint(encoder, tmp_path):
    with pytest.raises(InputError, match="fingerprint"):
        CorpusIndex.build(tmp_path / "index", FRENCH, encoder.encode, plain=True)


@pytest.fixture
def index_without_model(encoder, tmp_path):
    """An index built with a function, which does not record its model."""
    return CorpusIndex.build(
        tmp_path / "index", FRENCH, encoder.encode, encoder.fingerprint, plain=True
    )


def test_the_function_that_built_an_index_encodes_the_queries(index_without_model):
    [hit] = index_without_model.search(FRENCH[0], 1)

    assert hit.text == FRENCH[0]


def test_a_loaded_index_without_a_recorded_model_is_neither_searched_nor_edited(
    index_without_model,
):
    loaded = CorpusIndex.load(index_without_model.folder)
    message = "index: the index does not record its model"

    with pytest.raises(InputError, match=message):
        loaded.search("a")
    with pytest.raises(InputError, match=message):
        loaded.add(["a"])


def test_an_index_is_not_searched_with_another_model_than_that_of_its_fingerprint(
    index_without_model,
):
    loaded = CorpusIndex.load(index_without_model.folder)
    another_model = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)

    with pytest.raises(InputError, match=another_model.fingerprint):
        loaded.search("a", another_model)


def test_the_error_for_a_recorded_model_that_was_moved_names_its_old_folder(encoder, tmp_path):
    encoder.save(tmp_path / "model")
    model = SentenceEncoder.from_pretrained(tmp_path / "model")
    CorpusIndex.build(tmp_path / "index", FRENCH, model, plain=True)

    (tmp_path / "model").rename(tmp_path / "elsewhere")

    with pytest.raises(InputError, match=str(tmp_path / "model")):
        CorpusIndex.load(tmp_path / "index").search("a")


def write_student(teacher, folder, removed_positions):
    """Write a model whose config names a teacher; fewer positions change its fingerprint."""
    teacher.save(folder)
    config = parse_json((folder / "config.json").read_text())
    config["training"]["teacher"] = teacher.fingerprint
    config["encoder"]["max_positions"] -= removed_positions
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def teacher_and_students(encoder, tmp_path):
    """A teacher and two students of it, which have three different fingerprints."""
    models = [encoder]
    for removed_positions in (1, 2):
        folder = tmp_path / f"student-{removed_positions}"
        write_student(encoder, folder, removed_positions)
        models.append(SentenceEncoder.from_pretrained(folder))
    assert len({model.fingerprint for model in models}) == 3
    return models


@pytest.mark.parametrize("builder", [0, 1, 2], ids=["teacher", "student 1", "student 2"])
def test_a_teacher_and_its_students_search_the_indexes_of_each_other(
    teacher_and_students, tmp_path, builder
):
    """Their embeddings are in the same space."""
    CorpusIndex.build(tmp_path / "index", FRENCH, teacher_and_students[builder], plain=True)
    index = CorpusIndex.load(tmp_path / "index")

    for model in teacher_and_students:
        assert index.search(FRENCH[3], model, 1)[0].text == FRENCH[3]


@pytest.mark.parametrize("builder", [0, 1, 2], ids=["teacher", "student 1", "student 2"])
def test_a_model_without_a_common_teacher_does_not_search_their_indexes(
    teacher_and_students, tmp_path, builder
):
    unrelated = SentenceEncoder.from_pretrained(tmp_path / "student-1", untrained=True)
    model = teacher_and_students[builder]
    CorpusIndex.build(tmp_path / "index", FRENCH, model, plain=True)
    index = CorpusIndex.load(tmp_path / "index")

    with pytest.raises(InputError, match=model.fingerprint):
        index.search("a", unrelated)


@pytest.mark.parametrize("is_student", [False, True], ids=["teacher", "student"])
def test_embeddings_of_a_student_name_the_space_of_its_teacher(encoder, tmp_path, is_student):
    model = encoder.folder
    expected_space = None
    if is_student:
        model = tmp_path / "student"
        write_student(encoder, model, removed_positions=1)
        expected_space = encoder.fingerprint
    (tmp_path / "text").write_text("\n".join(FRENCH))

    files = ("--input", tmp_path / "text", "--output", tmp_path / "out.npy")
    lxsr_here("embed", "--model", model, *files)

    description = json.loads((tmp_path / "out.npy.json").read_text())
    assert description["model"] == SentenceEncoder.from_pretrained(model).fingerprint
    assert description.get("space") == expected_space


@pytest.fixture
def queries(tmp_path):
    """A file of two queries, with an empty line between them."""
    path = tmp_path / "queries"
    path.write_text(f"{FRENCH[2]}\n\n{FRENCH[5]}\n")
    return path


def test_hits_as_json_are_those_of_the_index(index, queries):
    words = ("search", "--index", index.folder, "--k", 2, "--json", "--input", queries)

    output = lxsr_here(*words).stdout

    results = [json.loads(line) for line in output.splitlines()]
    # Lines are counted from 1, and the empty one is no query.
    numbered_queries = [(result["number"], result["query"]) for result in results]
    assert numbered_queries == [(1, FRENCH[2]), (3, FRENCH[5])]
    for result in results:
        expected_hits = index.search(result["query"], 2)
        for hit, expected in zip(result["hits"], expected_hits, strict=True):
            assert hit["score"] == expected.score
            assert hit["line"] == expected.line + 1
            assert hit["text"] == expected.text


def test_hits_as_json_are_written_to_a_file_as_they_are_printed(index, queries, tmp_path):
    words = ("search", "--index", index.folder, "--k", 2, "--json", "--input", queries)

    printed = lxsr_here(*words).stdout
    lxsr_here(*words, "--output", tmp_path / "hits.jsonl")

    assert (tmp_path / "hits.jsonl").read_text() == printed


def test_the_hits_of_a_query_on_the_command_line_are_printed_as_json(index):
    done = lxsr_here("search", "--index", index.folder, "--json", FRENCH[0])

    assert json.loads(done.stdout)["hits"][0]["text"] == FRENCH[0]


def test_numbered_rows_and_json_together_are_refused(index):
    words = ("search", "--index", index.folder, "--json", "--numbered", "--output", "-")

    done = lxsr_here(*words, FRENCH[0], check=False)

    refused(done, "--numbered", "--json")


@pytest.mark.parametrize("is_given_again", [True, False], ids=["given", "recorded"])
def test_an_encoder_that_is_callable_is_used_by_its_encode_method(
    encoder, tmp_path, is_given_again
):
    """A SentenceTransformer is a module, whose `forward` takes no text."""

    class Module:
        def __call__(self, text):
            raise TypeError("no text")

        def encode(self, text):
            assert type(text) is list
            return encoder.encode(text)

    index = CorpusIndex.build(tmp_path / "index", FRENCH, Module(), "abc", plain=True)

    if is_given_again:
        hits_of_queries = index.search(iter(FRENCH[:2]), Module(), k=np.int64(1))
    else:
        hits_of_queries = index.search(FRENCH[:2], np.int64(1))

    assert [hits[0].text for hits in hits_of_queries] == FRENCH[:2]
