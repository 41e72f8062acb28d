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
QUERY = "Six black horses"
# The only text with the words of the query, next to the passage in the middle of LONG_PASSAGE.
PASSAGE = "Four green fish hear the mouse. Six black horses find a bird."
LONG = " ".join(["Four green fish hear the mouse in the big house."] * 40)
LONG_PASSAGE = f"{LONG} Six black horses find a bird. {LONG}"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture(scope="module")
def address(encoder, tmp_path_factory):
    """A server of five texts with the ids a to e, PASSAGE being d and LONG_PASSAGE e."""
    folder = tmp_path_factory.mktemp("index") / "index"
    index = CorpusIndex.build(
        folder, [*TEXTS, PASSAGE, LONG_PASSAGE], encoder, ids=["a", "b", "c", "d", "e"]
    )
    with serving(encoder, index, api_key="k", allow_edits=True) as address:
        yield address


def post(address, path, **fields):
    """The content of the answer to a request with these fields, whose status must be 200."""
    status, content = ask(f"{address}{path}", fields, **KEY)
    assert status == 200, content
    return content


def search_hits(address, **fields):
    """The hits of a search with one query."""
    return post(address, "/search", **fields)["results"][0]["hits"]


# -- rerank


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_rerank_lists_all_documents_best_first(address, path):
    documents = [*TEXTS, PASSAGE]

    content = post(address, path, query=QUERY, documents=documents, model=NAME)

    results = content["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2, 3]
    # The index of PASSAGE.
    assert results[0]["index"] == 3
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_rerank_tells_the_model_and_the_tokens_and_no_documents(address, path):
    content = post(address, path, query=QUERY, documents=TEXTS, model=NAME)

    assert content["model"] == NAME
    assert content["usage"]["total_tokens"] > 0
    assert "document" not in content["results"][0]


def test_a_rerank_returns_the_best_documents_and_their_texts_if_asked_for(address):
    documents = [{"text": TEXTS[0]}, {"text": PASSAGE}]

    content = post(
        address, "/v1/rerank", query=QUERY, documents=documents, top_n=1, return_documents=True
    )

    [result] = content["results"]
    assert result["index"] == 1
    assert result["document"] == {"text": PASSAGE}


def test_a_rerank_of_fewer_documents_than_asked_for_returns_all(address):
    content = post(address, "/v1/rerank", query=QUERY, documents=[TEXTS[0], PASSAGE], top_n=9)

    assert len(content["results"]) == 2


def scores_by_index(content):
    """The score of each document of a rerank, by its index in the request."""
    return {result["index"]: result["relevance_score"] for result in content["results"]}


def test_the_scores_of_a_rerank_are_those_of_a_search(encoder, tmp_path):
    texts = [*TEXTS, PASSAGE, LONG]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder)
    # A rerank does not tell the languages of documents, so the index must not know them either.
    index._stored.languages = np.zeros(len(texts), dtype=np.int64)
    with serving(encoder, index) as address:
        _, content = ask(f"{address}/v1/rerank", {"query": QUERY, "documents": texts})

    ranking = Ranking(find_passage_ranker(encoder))
    retrieval = Retrieval(index._stored, ranking)
    matches = retrieval.search([QUERY], encoder.encode([QUERY]), k=len(texts))
    expected = dict(zip(matches.documents[0].tolist(), matches.scores[0], strict=True))
    assert scores_by_index(content) == pytest.approx(expected, abs=1e-5)


class EncoderWithoutPieces:
    """Has what the encoder has, but another type, so that its word pieces are not known."""

    def __init__(self, encoder):
        self.encoder = encoder

    def __getattr__(self, name):
        return getattr(self.encoder, name)


def test_a_model_without_pieces_ranks_by_cosine(encoder):
    with serving(EncoderWithoutPieces(encoder)) as address:
        _, content = ask(f"{address}/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})

    units = encoder.encode(TEXTS, normalize=True)
    cosines = units @ units[0]
    assert scores_by_index(content) == pytest.approx(dict(enumerate(cosines)), abs=1e-5)


# Fields that replace those of a valid request, or are added to them, and a part of the message.
INVALID_RERANKS = {
    "query a list": ({"query": ["a"]}, "query is ['a']"),
    "query blank": ({"query": " "}, "query[0]"),
    "documents empty": ({"documents": []}, "documents is []"),
    "document blank": ({"documents": ["a", ""]}, "documents[1]"),
    "document a number": ({"documents": ["a", 1]}, "documents[1] is 1"),
    "document without text": ({"documents": [{"title": "a"}]}, "documents[0]"),
    # 2,048 documents are allowed.
    "too many documents": ({"documents": ["a"] * 2049}, "2,049"),
    "top_n zero": ({"top_n": 0}, "top_n is 0"),
    "top_n true": ({"top_n": True}, "top_n is True"),
    "return_documents 1": ({"return_documents": 1}, "return_documents is 1"),
    "unknown field": ({"rank_fields": ["title"]}, "rank_fields"),
}


@pytest.mark.parametrize("case", INVALID_RERANKS)
def test_the_error_of_an_invalid_rerank_names_the_field(address, case):
    invalid_fields, fragment = INVALID_RERANKS[case]
    fields = {"query": "a", "documents": ["a"]} | invalid_fields

    answer = ask(f"{address}/v1/rerank", fields, **KEY)

    check_error(answer, 400, fragment)


@pytest.mark.parametrize(
    ("fields", "fragment"),
    [({"documents": ["a"]}, "query is None"), ({"query": "a"}, "documents is None")],
    ids=["query", "documents"],
)
def test_the_error_of_a_rerank_names_a_missing_field(address, fields, fragment):
    answer = ask(f"{address}/v1/rerank", fields, **KEY)

    check_error(answer, 400, fragment)


def test_a_rerank_of_too_many_comparisons_of_pieces_is_refused(address, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.rerank.MOST_COMPARISONS", 1000)

    # PASSAGE has more than 10 pieces, and each of the documents more than 100.
    fields = {"query": PASSAGE, "documents": [LONG] * 10}
    status, content = ask(f"{address}/v1/rerank", fields, **KEY)

    assert status == 400
    assert content["error"]["param"] == "documents"


def test_a_rerank_of_few_comparisons_of_pieces_is_answered(address, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.rerank.MOST_COMPARISONS", 1000)

    status, _ = ask(f"{address}/v1/rerank", {"query": PASSAGE, "documents": ["a"]}, **KEY)

    assert status == 200


def test_the_block_size_of_a_rerank_changes_no_score(address, monkeypatch):
    fields = {"query": QUERY, "documents": [*TEXTS, PASSAGE, LONG]}
    # All five documents in one block.
    expected = post(address, "/v1/rerank", **fields)

    monkeypatch.setattr("fairseq_lxsr.serve.rerank.ROWS_AT_ONCE", 2)

    assert post(address, "/v1/rerank", **fields) == expected


# -- Ollama


def test_ollama_clients_get_the_embeddings_of_the_encoder_the_model_and_the_tokens(
    address, encoder
):
    # Ollama adds a tag to the names of models.
    content = post(address, "/api/embed", model=f"{NAME}:latest", input=TEXTS)

    expected = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(content["embeddings"], expected, atol=1e-6)
    assert content["model"] == NAME
    assert content["prompt_eval_count"] > 0


def test_ollama_clients_may_send_one_text_a_width_and_options_of_ollama(address):
    content = post(address, "/api/embed", input=TEXTS[0], dimensions=4, keep_alive="5m", options={})

    assert np.shape(content["embeddings"]) == (1, 4)


@pytest.mark.parametrize(
    ("fields", "headers", "expected_status"),
    [
        ({"model": "llama3", "input": "a"}, KEY, 404),
        ({"input": ["a", ""]}, KEY, 400),
        ({"input": "a"}, {}, 401),
    ],
    ids=["unknown model", "blank text", "no key"],
)
def test_errors_for_ollama_clients_are_a_text(address, fields, headers, expected_status):
    """Those of OpenAI are an object."""
    status, content = ask(f"{address}/api/embed", fields, **headers)

    assert status == expected_status
    assert isinstance(content["error"], str)


def test_the_error_for_another_path_of_ollama_names_the_one_for_embeddings(address):
    _, content = ask(f"{address}/api/chat", {}, **KEY)

    assert "/api/embed" in content["error"]


# -- fields of hits


def test_hits_have_score_id_line_and_snippet_if_no_fields_are_named(address):
    [hit] = search_hits(address, query=QUERY, k=1)

    assert list(hit) == ["score", "id", "line", "snippet"]


def test_the_snippet_of_a_long_text_begins_with_the_best_sentence(address):
    hits = search_hits(address, query="Six black horses find", k=5)

    # LONG_PASSAGE.
    [hit] = [hit for hit in hits if hit["id"] == "e"]
    # Ellipses stand for what is left out before and after 300 characters.
    assert hit["snippet"].startswith("\u2026Six black horses find a bird.")
    assert hit["snippet"].endswith("\u2026")
    assert len(hit["snippet"]) <= 300 + 2


def test_hits_have_the_fields_of_the_request_in_its_order_each_once(address):
    fields = ["text", "match", "id", "id"]

    [hit] = search_hits(address, query=QUERY, k=1, fields=fields)

    assert list(hit) == ["text", "match", "id"]


def test_the_best_match_of_a_hit_is_a_part_of_its_text(address):
    [hit] = search_hits(address, query=QUERY, k=1, fields=["text", "match"])

    assert hit["match"] in hit["text"]


@pytest.mark.parametrize(
    "fields",
    [[], "text", ["title"], [["text"]], [None], 3],
    ids=["none", "no list", "unknown", "list", "null", "number"],
)
def test_the_error_for_invalid_fields_of_hits_names_the_option(address, fields):
    status, content = ask(f"{address}/search", {"query": QUERY, "fields": fields}, **KEY)

    assert status == 400
    assert content["error"]["param"] == "fields"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param("word " * 200, "word", id="words"),
        pytest.param("\u5b57" * 1000, "\u5b57", id="no spaces"),
        pytest.param("x" * 1000, "", id="no match"),
        pytest.param("a " + "b" * 500, "c", id="unknown match"),
    ],
)
def test_a_snippet_is_a_part_of_a_long_text_of_200_to_300_characters(text, match):
    from fairseq_lxsr.serve.hits import snippet

    part = snippet(text, match)

    assert part.endswith("\u2026")
    assert part.strip("\u2026") in text
    # Up to two ellipses are added.
    assert 200 < len(part) <= 300 + 2


@pytest.mark.parametrize(
    ("text", "match"),
    [("word " * 60, "word"), ("\u5b57" * 300, "\u5b57"), ("x" * 300, ""), ("b" * 300, "c")],
    ids=["words", "no spaces", "no match", "unknown match"],
)
def test_the_snippet_of_a_text_of_300_characters_is_the_text(text, match):
    from fairseq_lxsr.serve.hits import snippet

    assert snippet(text, match) == text


# -- description


def test_the_server_sends_the_stored_description_of_its_paths(address):
    from fairseq_lxsr.serve.openapi import OPENAPI_FILE

    status, content = ask(f"{address}/openapi.json")

    assert status == 200
    stored = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
    assert content["paths"] == stored["paths"]


def test_the_description_has_the_operations_that_the_error_of_an_unknown_path_lists(address):
    _, description = ask(f"{address}/openapi.json")
    _, content = ask(f"{address}/x", {}, **KEY)

    described_operations = set()
    for path, methods in description["paths"].items():
        for method in methods:
            described_operations.add(f"{method.upper()} {path}")
    # The message ends with "expected GET /health, POST /search, ..."
    _, operations = content["error"]["message"].split("expected ")
    assert described_operations == set(operations.split(", "))


def test_the_description_of_a_server_without_an_index_has_no_search(encoder):
    with serving(encoder) as address:
        _, description = ask(f"{address}/openapi.json")

    assert "/search" not in description["paths"]
    assert "/v1/rerank" in description["paths"]


# The fields of a valid request for each path, in an order in which edits can be made; None for GET.
VALID_REQUESTS = {
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


def described(address, path):
    """The schemas of all types, and the description of the only method of a path."""
    _, description = ask(f"{address}/openapi.json")
    [operation] = description["paths"][path].values()
    return description["components"], operation


def validate(value, described_body, components):
    """Check that a JSON value has the schema of a described request or response."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = described_body["content"]["application/json"]["schema"]
    jsonschema.validate(value, schema | {"components": components})


def test_valid_requests_and_their_responses_have_the_described_schemas(address):
    for path, fields in VALID_REQUESTS.items():
        components, operation = described(address, path)
        if fields is not None:
            validate(fields, operation["requestBody"], components)

        status, response = ask(f"{address}{path}", fields, **KEY)

        assert status == 200, response
        validate(response, operation["responses"]["200"], components)


def test_errors_have_the_described_schema(address):
    for path, fields in VALID_REQUESTS.items():
        if fields is None:
            continue
        components, operation = described(address, path)

        # No path has a field x.
        status, error = ask(f"{address}{path}", {"input": [], "x": 1}, **KEY)

        assert status == 400
        validate(error, operation["responses"]["default"], components)
