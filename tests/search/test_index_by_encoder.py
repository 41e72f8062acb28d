"""An index that knows its encoder: built with it, searched without it, added to; and its hits as
JSON.
"""

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


def test_built_by_an_encoder_and_searched_by_text(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)
    for one in (index, CorpusIndex.load(tmp_path / "index")):
        hits = one.search(FRENCH[7], 3)
        assert [hits[0].text, hits[0].line, len(hits)] == [FRENCH[7], 7, 3]
        assert (
            hits
            == one.search([FRENCH[7]], encoder.encode, 3)[0]
            == one.search(FRENCH[7], encoder, k=3)
        )
        assert [row[0].text for row in one.search(FRENCH[:2], k=1)] == FRENCH[:2]
    named = CorpusIndex.build(
        tmp_path / "named", FRENCH, load(COMPATIBILITY / "best.model"), plain=True
    )
    assert named.fingerprint == index.fingerprint
    assert named.search(FRENCH[3], 1)[0].text == FRENCH[3]


def test_queries_without_a_known_word_find_nothing(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", FRENCH, encoder, plain=True)
    assert index.search("\ua66e") == []
    assert index.search(["\ua66e"]) == [[]]
    assert index.search(["", "\ua66e"], k=1) == [[], []]
    assert [len(hits) for hits in index.search(["\ua66e", FRENCH[0]], k=2)] == [0, 2]


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_sentences_are_added_after_the_others(encoder, tmp_path, kind):
    corpus = ["", FRENCH[0], " ", *FRENCH[1:20], "", "\ua66e"]  # the last one has no known word
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
    for one in (index, CorpusIndex.load(tmp_path / "index")):
        assert len(one) == 40
        assert one.search(FRENCH, k=3) == whole.search(FRENCH, k=3)
    with pytest.raises(InputError, match="str"):
        index.add("one")
    other = CorpusIndex.load(tmp_path / "index")
    index.add(["La neige tombe."])
    other.add(["Il pleut."])
    assert len(other) == 42
    assert len(index) == 41


def test_a_model_that_is_not_named_gone_or_another(encoder, tmp_path):
    index = CorpusIndex.build(
        tmp_path / "index", FRENCH, encoder.encode, encoder.fingerprint, plain=True
    )
    assert index.search(FRENCH[0], 1)[0].text == FRENCH[0]  # it was built with it
    loaded = CorpusIndex.load(tmp_path / "index")
    for use in (lambda: loaded.search("a"), lambda: loaded.add(["a"])):
        with pytest.raises(InputError, match="index: the index does not record its model"):
            use()
    with pytest.raises(InputError, match="fingerprint"):
        CorpusIndex.build(tmp_path / "none", FRENCH, encoder.encode, plain=True)
    encoder.save(tmp_path / "model")
    CorpusIndex.build(
        tmp_path / "moved", FRENCH, SentenceEncoder.from_pretrained(tmp_path / "model"), plain=True
    )
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=str(tmp_path / "model")):
        CorpusIndex.load(tmp_path / "moved").search("a")
    other = SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model", untrained=True)
    with pytest.raises(InputError, match=other.fingerprint):
        loaded.search("a", other)


def test_a_model_and_its_teacher_share_an_index(encoder, tmp_path):
    """Whichever of them built it; another student of the same teacher may search it, another model
    may not.
    """
    students = []
    for number, name in enumerate("ab", 1):
        encoder.save(tmp_path / name)
        config = parse_json((tmp_path / name / "config.json").read_text())
        config["training"]["teacher"] = encoder.fingerprint
        config["encoder"]["max_positions"] -= number  # another fingerprint
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        students.append(SentenceEncoder.from_pretrained(tmp_path / name))
    assert len({one.fingerprint for one in (encoder, *students)}) == 3
    for number, builder in enumerate((encoder, *students)):
        CorpusIndex.build(tmp_path / f"index.{number}", FRENCH, builder, plain=True)
        index = CorpusIndex.load(tmp_path / f"index.{number}")
        for one in (encoder, *students):
            assert index.search(FRENCH[3], one, 1)[0].text == FRENCH[3]
        with pytest.raises(InputError, match=builder.fingerprint):
            index.search("a", SentenceEncoder.from_pretrained(tmp_path / "a", untrained=True))


def test_a_student_of_a_student_is_in_the_space_of_the_first_teacher(encoder, tmp_path):
    """Its config names the teacher whose space `lxsr embed` writes beside the embeddings that it
    learns from.
    """
    encoder.save(tmp_path / "student")
    config = parse_json((tmp_path / "student" / "config.json").read_text())
    config["training"]["teacher"] = encoder.fingerprint
    config["encoder"]["max_positions"] -= 1
    (tmp_path / "student" / "config.json").write_text(json.dumps(config))
    (tmp_path / "text").write_text("\n".join(FRENCH))
    for model, space in ((encoder.folder, None), (tmp_path / "student", encoder.fingerprint)):
        lxsr_here(
            "embed", "--model", model, "--input", tmp_path / "text", "--output", tmp_path / "o.npy"
        )
        about = json.loads((tmp_path / "o.npy.json").read_text())
        assert (about["model"], about.get("space")) == (
            SentenceEncoder.from_pretrained(model).fingerprint,
            space,
        )


def test_hits_as_json(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", ["", *FRENCH], encoder, plain=True)
    (tmp_path / "queries").write_text(f"{FRENCH[2]}\n\n{FRENCH[5]}\n")
    words = ("search", "--index", tmp_path / "index", "--k", 2, "--json")
    shown = lxsr_here(*words, "--input", tmp_path / "queries").stdout
    found = [json.loads(line) for line in shown.splitlines()]
    assert [(one["query"], one["number"]) for one in found] == [(FRENCH[2], 1), (FRENCH[5], 3)]
    for one in found:
        hits = [(hit.score, hit.line + 1, hit.text) for hit in index.search(one["query"], 2)]
        assert [(hit["score"], hit["line"], hit["text"]) for hit in one["hits"]] == hits
        assert hits[0][1] == FRENCH.index(one["query"]) + 2
    lxsr_here(*words, "--input", tmp_path / "queries", "--output", tmp_path / "hits.jsonl")
    assert (tmp_path / "hits.jsonl").read_text() == shown
    assert json.loads(lxsr_here(*words, FRENCH[0]).stdout)["hits"][0]["text"] == FRENCH[0]
    done = lxsr_here(*words, "--numbered", "--output", "-", FRENCH[0], check=False)
    refused(done, "--numbered", "--json")


def test_an_encoder_that_is_callable(encoder, tmp_path):
    """A SentenceTransformer is a module, whose `forward` takes no text."""

    class Module:
        def __call__(self, text):
            raise TypeError("no text")

        def encode(self, text):
            assert type(text) is list
            return encoder.encode(text)

    index = CorpusIndex.build(tmp_path / "index", FRENCH, Module(), "abc", plain=True)
    for queries, arguments in (
        (iter(FRENCH[:2]), (Module(), np.int64(1))),
        (FRENCH[:2], (np.int64(1),)),
    ):
        assert [hits[0].text for hits in index.search(queries, *arguments)] == FRENCH[:2]
