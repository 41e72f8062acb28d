"""Endpoints of `lxsr serve` in the formats of other servers, and their description."""

import json

import numpy as np
import pytest
from conftest import COMPATIBILITY
from serve.test_serve import NAME, TEXTS, ask, check_error, needs_server, serving

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.passages import find_passage_ranker
from fairseq_lxsr.search.retrieval import Ranking, Retrieval

pytestmark = needs_server
KEY = {"Authorization": "Bearer k"}
PASSAGE = "Four green fish hear the mouse. Six black horses find a bird."
LONG = " ".join(["Four green fish hear the mouse in the big house."] * 40)


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture(scope="module")
def address(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "index"
    texts = [*TEXTS, PASSAGE, f"{LONG} Six black horses find a bird. {LONG}"]
    index = CorpusIndex.build(folder, texts, encoder, ids=list("abcde"))
    with serving(encoder, index, api_key="k", allow_edits=True) as address:
        yield address


def post(address, path, **fields):
    status, content = ask(f"{address}{path}", fields, **KEY)
    assert status == 200, content
    return content


# -- rerank


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_for_a_query(address, path):
    content = post(address, path, query="Six black horses", documents=[*TEXTS, PASSAGE], model=NAME)
    assert content["model"] == NAME
    assert sorted(result["index"] for result in content["results"]) == [0, 1, 2, 3]
    assert content["results"][0]["index"] == 3
    scores = [result["relevance_score"] for result in content["results"]]
    assert scores == sorted(scores, reverse=True)
    assert "document" not in content["results"][0]
    assert content["usage"]["total_tokens"] > 0


def test_a_rerank_returns_the_number_of_documents_and_the_texts_that_are_asked_for(address):
    documents = [{"text": TEXTS[0]}, {"text": PASSAGE}]
    fields = {"query": "Six black horses", "documents": documents}
    content = post(address, "/v1/rerank", **fields, top_n=1, return_documents=True)
    [result] = content["results"]
    assert (result["index"], result["document"]) == (1, {"text": PASSAGE})
    assert len(post(address, "/v1/rerank", **fields, top_n=9)["results"]) == 2


def scores_by_index(content):
    return {result["index"]: result["relevance_score"] for result in content["results"]}


def test_the_scores_of_a_rerank_are_those_of_a_search(encoder, tmp_path):
    texts = [*TEXTS, PASSAGE, LONG]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder)
    # A rerank does not tell the languages of documents.
    index._stored.languages = np.zeros(len(texts), dtype=np.int64)
    query = "Six black horses"
    with serving(encoder, index) as address:
        content = ask(f"{address}/v1/rerank", {"query": query, "documents": texts})[1]
    ranking = Ranking(find_passage_ranker(encoder))
    matches = Retrieval(index._stored, ranking).search([query], encoder.encode([query]), k=5)
    expected = dict(zip(matches.documents[0].tolist(), matches.scores[0], strict=True))
    assert scores_by_index(content) == pytest.approx(expected, abs=1e-5)


def test_a_model_without_pieces_ranks_by_cosine(encoder):
    class WithoutPieces:
        def __getattr__(self, name):
            return getattr(encoder, name)

    with serving(WithoutPieces()) as address:
        content = ask(f"{address}/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})[1]
    units = encoder.encode(TEXTS, normalize=True)
    expected = dict(enumerate(units @ units[0]))
    assert scores_by_index(content) == pytest.approx(expected, abs=1e-5)


INVALID_RERANKS = [
    ({"documents": ["a"]}, "query is None"),
    ({"query": ["a"], "documents": ["a"]}, "query is ['a']"),
    ({"query": " ", "documents": ["a"]}, "query[0]"),
    ({"query": "a"}, "documents is None"),
    ({"query": "a", "documents": []}, "documents is []"),
    ({"query": "a", "documents": ["a", ""]}, "documents[1]"),
    ({"query": "a", "documents": ["a", 1]}, "documents[1] is 1"),
    ({"query": "a", "documents": [{"title": "a"}]}, "documents[0]"),
    ({"query": "a", "documents": ["a"] * 2049}, "2,049"),
    ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n is 0"),
    ({"query": "a", "documents": ["a"], "top_n": True}, "top_n is True"),
    ({"query": "a", "documents": ["a"], "return_documents": 1}, "return_documents is 1"),
    ({"query": "a", "documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
]


def test_the_error_of_an_invalid_rerank_names_the_field(address):
    for fields, fragment in INVALID_RERANKS:
        check_error(ask(f"{address}/v1/rerank", fields, **KEY), 400, fragment)


def test_a_rerank_of_too_many_comparisons_is_refused(address, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.rerank.MOST_COMPARISONS", 1000)
    fields = {"query": PASSAGE, "documents": [LONG] * 10}
    status, content = ask(f"{address}/v1/rerank", fields, **KEY)
    assert (status, content["error"]["param"]) == (400, "documents")
    assert ask(f"{address}/v1/rerank", fields | {"documents": ["a"]}, **KEY)[0] == 200


def test_the_block_size_of_a_rerank_changes_no_score(address, monkeypatch):
    fields = {"query": "Six black horses", "documents": [*TEXTS, PASSAGE, LONG]}
    expected = post(address, "/v1/rerank", **fields)
    monkeypatch.setattr("fairseq_lxsr.serve.rerank.ROWS_AT_ONCE", 2)
    assert post(address, "/v1/rerank", **fields) == expected


# -- Ollama


def test_embeddings_in_the_format_of_ollama(address, encoder):
    content = post(address, "/api/embed", model=f"{NAME}:latest", input=TEXTS)
    expected = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(content["embeddings"], expected, atol=1e-6)
    assert content["model"] == NAME
    assert content["prompt_eval_count"] > 0
    content = post(address, "/api/embed", input=TEXTS[0], dimensions=4, keep_alive="5m", options={})
    assert np.shape(content["embeddings"]) == (1, 4)


def test_errors_in_the_format_of_ollama(address):
    for fields, headers, expected_status in (
        ({"model": "llama3", "input": "a"}, KEY, 404),
        ({"input": ["a", ""]}, KEY, 400),
        ({"input": "a"}, {}, 401),
    ):
        status, content = ask(f"{address}/api/embed", fields, **headers)
        assert status == expected_status
        assert isinstance(content["error"], str)
    assert "/api/embed" in ask(f"{address}/api/chat", {}, **KEY)[1]["error"]


# -- fields of hits


def test_hits_have_a_snippet_and_no_text(address):
    [hit] = post(address, "/search", query="Six black horses find", k=1)["results"][0]["hits"]
    assert list(hit) == ["score", "id", "line", "snippet"]
    hits = post(address, "/search", query="Six black horses find", k=5)["results"][0]["hits"]
    [long] = [hit for hit in hits if hit["id"] == "e"]
    assert long["snippet"].startswith("\u2026Six black horses find a bird.")
    assert long["snippet"].endswith("\u2026")
    assert len(long["snippet"]) <= 302


def test_hits_have_the_fields_of_the_request(address):
    query = {"query": "Six black horses", "k": 1}
    names = ["text", "match", "id", "id"]
    [hit] = post(address, "/search", **query, fields=names)["results"][0]["hits"]
    assert list(hit) == ["text", "match", "id"]
    assert hit["match"] in hit["text"]
    for invalid_names in ([], "text", ["title"], [["text"]], [None], 3):
        status, content = ask(f"{address}/search", query | {"fields": invalid_names}, **KEY)
        assert (status, content["error"]["param"]) == (400, "fields"), invalid_names


def test_a_snippet_is_a_part_of_a_long_text_and_a_short_text_itself():
    from fairseq_lxsr.serve.hits import snippet

    for text, match in (
        ("word " * 200, "word"),
        ("\u5b57" * 1000, "\u5b57"),
        ("x" * 1000, ""),
        ("a " + "b" * 500, "c"),
    ):
        part = snippet(text, match)
        assert part.endswith("\u2026")
        assert part.strip("\u2026") in text
        assert 200 < len(part) <= 302
        assert snippet(text[:300], match) == text[:300]


# -- description


def test_the_description_lists_the_endpoints_of_the_server(address, encoder):
    from fairseq_lxsr.serve.openapi import OPENAPI_FILE

    status, content = ask(f"{address}/openapi.json")
    assert status == 200
    stored = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
    assert content["paths"] == stored["paths"]
    operations = set()
    for path, methods in content["paths"].items():
        for method in methods:
            operations.add(f"{method.upper()} {path}")
    # The error of an unknown path lists the same.
    _, error = ask(f"{address}/x", {}, **KEY)
    operations_in_error = error["error"]["message"].split("expected ")[1].split(", ")
    assert operations == set(operations_in_error)
    with serving(encoder) as address_without_index:
        paths = ask(f"{address_without_index}/openapi.json")[1]["paths"]
        assert "/search" not in paths
        assert "/v1/rerank" in paths


def test_requests_and_responses_have_the_described_schemas(address):
    jsonschema = pytest.importorskip("jsonschema")
    content = ask(f"{address}/openapi.json")[1]

    def validate(value, media_types):
        schema = media_types["content"]["application/json"]["schema"]
        jsonschema.validate(value, schema | {"components": content["components"]})

    requests = {
        "/v1/embeddings": {"input": ["A dog.", "\U0001f44d"], "encoding_format": "base64"},
        "/v1/rerank": {"query": "a", "documents": TEXTS, "return_documents": True, "top_n": 2},
        "/api/embed": {"input": "A dog."},
        "/search": {"query": ["a", "b"], "k": 2, "fields": ["id", "text"], "only_ids": ["a", 7]},
        "/index/add": {"ids": ["new"], "texts": ["One red bird."]},
        "/index/update": {"ids": ["new"], "texts": ["Two red birds."]},
        "/index/delete": {"ids": ["new"]},
        "/index/compact": {},
        "/health": None,
        "/v1/models": None,
    }
    for path, fields in requests.items():
        [operation] = content["paths"][path].values()
        if fields is not None:
            validate(fields, operation["requestBody"])
            status, error = ask(f"{address}{path}", {"input": [], "x": 1}, **KEY)
            assert status == 400
            validate(error, operation["responses"]["default"])
        status, response = ask(f"{address}{path}", fields, **KEY)
        assert status == 200, response
        validate(response, operation["responses"]["200"])
