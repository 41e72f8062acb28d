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

FRENCH = [target for _, target in toy.sentences(40)]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


def test_an_index_built_with_an_encoder_is_searched_without_one(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)
    for opened in (index, CorpusIndex.load(tmp_path / "index")):
        hits = opened.search(FRENCH[7], 3)
        assert [hits[0].text, hits[0].line, len(hits)] == [FRENCH[7], 7, 3]
        assert opened.search([FRENCH[7]], encoder.encode, 3)[0] == hits
        assert opened.search(FRENCH[7], encoder, k=3) == hits
        assert [row[0].text for row in opened.search(FRENCH[:2], k=1)] == FRENCH[:2]


def test_an_index_may_be_built_with_a_loaded_model_folder(encoder, tmp_path):
    model_folder = load(COMPATIBILITY / "best.model")
    index = CorpusIndex.build(tmp_path / "index", FRENCH, model_folder, plain=True)
    assert index.fingerprint == encoder.fingerprint
    assert index.search(FRENCH[3], 1)[0].text == FRENCH[3]


def test_queries_without_a_known_word_have_no_hits(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)
    assert index.search("\ua66e") == []
    assert index.search(["\ua66e"]) == [[]]
    assert index.search(["", "\ua66e"], k=1) == [[], []]
    assert [len(hits) for hits in index.search(["\ua66e", FRENCH[0]], k=2)] == [0, 2]


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_added_sentences_follow_those_of_the_index(encoder, tmp_path, kind):
    # The last line has no known word.
    corpus = ["", FRENCH[0], " ", *FRENCH[1:20], "", "\ua66e"]
    CorpusIndex.build(tmp_path / "index", corpus, encoder, kind=kind, plain=True)
    index = CorpusIndex.load(tmp_path / "index")
    index.add(["", *FRENCH[20:]])
    index.add(iter([]))
    whole = CorpusIndex.build(
        tmp_path / "whole", [*corpus, "", *FRENCH[20:]], encoder, kind=kind, plain=True
    )
    if kind == "int8":
        # New sentences are not rounded until then.
        index.compact()
    for opened in (index, CorpusIndex.load(tmp_path / "index")):
        assert len(opened) == 40
        assert opened.search(FRENCH, k=3) == whole.search(FRENCH, k=3)
    with pytest.raises(InputError, match="str"):
        index.add("one")


def test_an_addition_by_another_handle_is_not_lost(encoder, tmp_path):
    first = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)
    second = CorpusIndex.load(tmp_path / "index")
    first.add(["La neige tombe."])
    second.add(["Il pleut."])
    assert len(first) == 41
    assert len(second) == 42


def test_an_index_without_a_recorded_model_needs_an_encoder(encoder, tmp_path):
    with pytest.raises(InputError, match="fingerprint"):
        CorpusIndex.build(tmp_path / "none", FRENCH, encoder.encode, plain=True)
    built = CorpusIndex.build(
        tmp_path / "index", FRENCH, encoder.encode, encoder.fingerprint, plain=True
    )
    # The function that built the index encodes the queries.
    assert built.search(FRENCH[0], 1)[0].text == FRENCH[0]
    loaded = CorpusIndex.load(tmp_path / "index")
    with pytest.raises(InputError, match="index: the index does not record its model"):
        loaded.search("a")
    with pytest.raises(InputError, match="index: the index does not record its model"):
        loaded.add(["a"])
    another_model = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)
    with pytest.raises(InputError, match=another_model.fingerprint):
        loaded.search("a", another_model)


def test_a_recorded_model_that_was_moved_is_named(encoder, tmp_path):
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


def test_a_teacher_and_its_students_search_the_indexes_of_each_other(encoder, tmp_path):
    models = [encoder]
    for removed_positions in (1, 2):
        folder = tmp_path / f"student-{removed_positions}"
        write_student(encoder, folder, removed_positions)
        models.append(SentenceEncoder.from_pretrained(folder))
    assert len({model.fingerprint for model in models}) == 3
    unrelated = SentenceEncoder.from_pretrained(tmp_path / "student-1", untrained=True)
    for number, builder in enumerate(models):
        CorpusIndex.build(tmp_path / f"index-{number}", FRENCH, builder, plain=True)
        index = CorpusIndex.load(tmp_path / f"index-{number}")
        for model in models:
            assert index.search(FRENCH[3], model, 1)[0].text == FRENCH[3]
        with pytest.raises(InputError, match=builder.fingerprint):
            index.search("a", unrelated)


def test_embeddings_of_a_student_name_the_space_of_its_teacher(encoder, tmp_path):
    student = tmp_path / "student"
    write_student(encoder, student, removed_positions=1)
    text = tmp_path / "text"
    text.write_text("\n".join(FRENCH))
    for model, space in ((encoder.folder, None), (student, encoder.fingerprint)):
        lxsr_here("embed", "--model", model, "--input", text, "--output", tmp_path / "out.npy")
        description = json.loads((tmp_path / "out.npy.json").read_text())
        assert description["model"] == SentenceEncoder.from_pretrained(model).fingerprint
        assert description.get("space") == space


def test_hits_as_json(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", ["", *FRENCH], encoder, plain=True)
    queries = tmp_path / "queries"
    queries.write_text(f"{FRENCH[2]}\n\n{FRENCH[5]}\n")
    words = ("search", "--index", tmp_path / "index", "--k", 2, "--json")

    output = lxsr_here(*words, "--input", queries).stdout

    results = [json.loads(line) for line in output.splitlines()]
    assert [(result["query"], result["number"]) for result in results] == [
        (FRENCH[2], 1),
        (FRENCH[5], 3),
    ]
    for result in results:
        expected_hits = index.search(result["query"], 2)
        assert expected_hits[0].text == result["query"]
        for hit, expected in zip(result["hits"], expected_hits, strict=True):
            assert hit["score"] == expected.score
            assert hit["line"] == expected.line + 1
            assert hit["text"] == expected.text
    lxsr_here(*words, "--input", queries, "--output", tmp_path / "hits.jsonl")
    assert (tmp_path / "hits.jsonl").read_text() == output
    assert json.loads(lxsr_here(*words, FRENCH[0]).stdout)["hits"][0]["text"] == FRENCH[0]
    done = lxsr_here(*words, "--numbered", "--output", "-", FRENCH[0], check=False)
    refused(done, "--numbered", "--json")


def test_an_encoder_that_is_callable_is_used_by_its_encode_method(encoder, tmp_path):
    """A SentenceTransformer is a module, whose `forward` takes no text."""

    class Module:
        def __call__(self, text):
            raise TypeError("no text")

        def encode(self, text):
            assert type(text) is list
            return encoder.encode(text)

    index = CorpusIndex.build(tmp_path / "index", FRENCH, Module(), "abc", plain=True)
    for hits in (
        index.search(iter(FRENCH[:2]), Module(), np.int64(1)),
        index.search(FRENCH[:2], np.int64(1)),
    ):
        assert [row[0].text for row in hits] == FRENCH[:2]
