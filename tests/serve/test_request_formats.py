"""Endpoints of `lxsr serve` in the formats of other servers, and their description."""

import json

import numpy as np
import pytest
from conftest import COMPATIBILITY
from serve.test_serve import NAME, TEXTS, ask, needs_server, serving

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


def test_the_best_documents_with_their_text(address):
    documents = [{"text": TEXTS[0]}, {"text": PASSAGE}]
    fields = {"query": "Six black horses", "documents": documents}
    content = post(address, "/v1/rerank", **fields, top_n=1, return_documents=True)
    [result] = content["results"]
    assert (result["index"], result["document"]) == (1, {"text": PASSAGE})
    assert len(post(address, "/v1/rerank", **fields, top_n=9)["results"]) == 2


def test_the_scores_of_a_rerank_are_those_of_passages(encoder, tmp_path):
    texts = [*TEXTS, PASSAGE, LONG]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder)
    index._stored.languages = np.zeros(len(texts), dtype=np.int64)
    with serving(encoder, index) as address:
        query = "Six black horses"
        content = ask(f"{address}/v1/rerank", {"query": query, "documents": texts})[1]
        scores = {item["index"]: item["relevance_score"] for item in content["results"]}
        ranking = Ranking(find_passage_ranker(encoder))
        matches = Retrieval(index._stored, ranking).search([query], encoder.encode([query]), k=5)
        expected = dict(zip(matches.documents[0].tolist(), matches.scores[0], strict=True))
        assert scores == pytest.approx(expected, abs=1e-5)


def test_a_model_without_pieces_ranks_by_cosine(encoder):
    class WithoutPieces:
        def __getattr__(self, name):
            return getattr(encoder, name)

    with serving(WithoutPieces()) as address:
        content = ask(f"{address}/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})[1]
        units = encoder.encode(TEXTS, normalize=True)
        scores = {item["index"]: item["relevance_score"] for item in content["results"]}
        np.testing.assert_allclose([scores[row] for row in range(3)], units @ units[0], atol=1e-5)


WRONG_RERANK = [
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


@pytest.mark.parametrize(("fields", "said"), WRONG_RERANK)
def test_a_wrong_rerank_is_refused(address, fields, said):
    status, content = ask(f"{address}/v1/rerank", fields, **KEY)
    assert (status, said in content["error"]["message"]) == (400, True), content


def test_the_work_of_a_rerank_is_limited(address, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.rerank.MOST_COMPARISONS", 1000)
    fields = {"query": PASSAGE, "documents": [LONG] * 10}
    status, content = ask(f"{address}/v1/rerank", fields, **KEY)
    assert (status, content["error"]["param"]) == (400, "documents")
    assert ask(f"{address}/v1/rerank", fields | {"documents": ["a"]}, **KEY)[0] == 200


def test_rerank_in_blocks(address, monkeypatch):
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
    for fields, headers, status in (
        ({"model": "llama3", "input": "a"}, KEY, 404),
        ({"input": ["a", ""]}, KEY, 400),
        ({"input": "a"}, {}, 401),
    ):
        found, content = ask(f"{address}/api/embed", fields, **headers)
        assert (found, type(content["error"])) == (status, str)
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
    for wrong in ([], "text", ["title"], [["text"]], [None], 3):
        status, content = ask(f"{address}/search", query | {"fields": wrong}, **KEY)
        assert (status, content["error"]["param"]) == (400, "fields"), wrong


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("word " * 200, "word"),
        ("\u5b57" * 1000, "\u5b57"),
        ("x" * 1000, ""),
        ("a " + "b" * 500, "c"),
    ],
)
def test_a_snippet_is_a_part_of_the_text(text, match):
    from fairseq_lxsr.serve.hits import snippet

    cut = snippet(text, match)
    assert cut.endswith("\u2026")
    assert cut.strip("\u2026") in text
    assert 200 < len(cut) <= 302
    assert snippet(text[:300], match) == text[:300]


# -- description


def test_the_description_lists_the_endpoints_of_the_server(address, encoder):
    from fairseq_lxsr.serve.openapi import OPENAPI_FILE

    status, content = ask(f"{address}/openapi.json")
    assert status == 200
    described = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
    assert content["paths"] == described["paths"]
    advice = ask(f"{address}/x", {}, **KEY)[1]["error"]["message"].split("expected ")[1]
    operations = {
        f"{method.upper()} {path}"
        for path, methods in content["paths"].items()
        for method in methods
    }
    assert operations == set(advice.split(", "))
    with serving(encoder) as plain:
        paths = ask(f"{plain}/openapi.json")[1]["paths"]
        assert "/search" not in paths
        assert "/v1/rerank" in paths


def test_responses_are_as_described(address):
    jsonschema = pytest.importorskip("jsonschema")
    content = ask(f"{address}/openapi.json")[1]
    components = content["components"]
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
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(fields, schema | {"components": components})
            wrong = ask(f"{address}{path}", {"input": [], "x": 1}, **KEY)
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert wrong[0] == 400
            jsonschema.validate(wrong[1], schema | {"components": components})
        status, response = ask(f"{address}{path}", fields, **KEY)
        assert status == 200, response
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(response, schema | {"components": components})
