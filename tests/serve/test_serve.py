"""`lxsr serve`: its endpoints, options and limits, with requests over sockets and by clients."""

import base64
import concurrent.futures
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest
import random_model
from conftest import COMPATIBILITY, ROOT, lxsr_here, refused

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.serve import ServeOptions

needs_server = pytest.mark.skipif(
    not all(map(find_spec, ("starlette", "uvicorn", "orjson", "prometheus_client"))),
    reason="the extra serve is not installed",
)
# The first two are translations of each other.
TEXTS = ["One red dog sees the cat.", "Un chien rouge voit le chat.", "Two blue birds."]
NAME = "best"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
    """An index of TEXTS, which records the folder of its model."""
    folder = tmp_path_factory.mktemp("index") / "index"
    model = str(encoder.folder.resolve())
    return CorpusIndex.build(
        folder, TEXTS, encoder.encode, encoder.fingerprint, model_folder=model, plain=True
    )


@contextmanager
def serving(encoder, index=None, **options):
    """The address of a server in a thread."""
    pytest.importorskip("uvicorn")
    from fairseq_lxsr.serve.app import make_app
    from fairseq_lxsr.serve.connections import make_server

    options = {"timeout": 5} | options
    app = make_app(encoder, NAME, ServeOptions(**options), index)
    limits = ServeOptions(**options)
    server = make_server(app, limits.timeout, limits.max_connections)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def address(encoder, index):
    """A server of the index, for at most 3000 texts a request."""
    with serving(encoder, index, max_inputs=3000) as address:
        yield address


def ask(url, content=None, **headers):
    """Send a request, and return the status and the JSON, or text, of the answer.

    Without content, it is a GET request. Content is sent as JSON, bytes as they are.
    """
    method = "POST"
    data = content
    if content is None:
        method = "GET"
    elif not isinstance(content, bytes):
        data = json.dumps(content).encode()
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=30)
    try:
        path = "/" + url.split("/", 3)[3]
        connection.request(method, path, data, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.headers.get("content-type") == "application/json":
            return response.status, json.loads(text)
        return response.status, text
    finally:
        connection.close()


def check_error(answer, status, fragment=""):
    """Check that an answer is an error with this status, whose message has the fragment."""
    assert answer[0] == status, answer
    assert fragment in answer[1]["error"]["message"], answer


def vectors(answer):
    """The embeddings of an answer, whose status must be 200, in the order of the texts."""
    status, content = answer
    assert status == 200, content
    assert [item["index"] for item in content["data"]] == list(range(len(content["data"])))
    return np.array([item["embedding"] for item in content["data"]], dtype=np.float32)


def search_hits(address, **fields):
    """The hits of a search with one query."""
    status, content = ask(f"{address}/search", fields)
    assert status == 200, content
    return content["results"][0]["hits"]


def host_and_port(address):
    host, port = address.removeprefix("http://").split(":")
    return host, int(port)


@needs_server
def test_embeddings_are_those_of_the_encoder_to_the_last_bit(address, encoder):
    answer = ask(f"{address}/v1/embeddings", {"input": TEXTS, "model": NAME})

    np.testing.assert_array_equal(vectors(answer), encoder.encode(TEXTS, normalize=True))


@needs_server
def test_an_answer_with_embeddings_has_the_model_and_the_number_of_pieces(address, encoder):
    _, content = ask(f"{address}/v1/embeddings", {"input": TEXTS, "model": NAME})

    _, lengths = encoder.tokenizer.encode_flat(TEXTS)
    pieces = int(lengths.sum())
    assert content["usage"] == {"prompt_tokens": pieces, "total_tokens": pieces}
    assert content["object"] == "list"
    assert content["model"] == NAME


@needs_server
def test_the_input_may_be_a_single_text(address, encoder):
    answer = ask(f"{address}/v1/embeddings", {"input": TEXTS[1]})

    expected = encoder.encode([TEXTS[1]], normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)


@needs_server
def test_embeddings_have_the_dimensions_that_are_asked_for(address, encoder):
    # OpenAI's other fields may be sent as well.
    fields = {"input": TEXTS, "dimensions": 4, "user": "x", "encoding_format": None}

    answer = ask(f"{address}/v1/embeddings", fields)

    expected = encoder.encode(TEXTS, truncate_dim=4, normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)


@needs_server
def test_embeddings_in_base64_are_little_endian_float32(address, encoder):
    _, content = ask(f"{address}/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})

    expected = encoder.encode(TEXTS, normalize=True)
    for item, row in zip(content["data"], expected, strict=True):
        decoded = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
        np.testing.assert_array_equal(decoded, row)


# Longer than the models with layers read.
LONG_TEXT = " ".join([TEXTS[0]] * 100 + [TEXTS[2]] * 300)


@needs_server
def test_a_model_without_layers_cuts_no_text(address, encoder):
    texts = [TEXTS[0], LONG_TEXT]

    answer = ask(f"{address}/v1/embeddings", {"input": texts})

    assert "cut" not in answer[1]
    np.testing.assert_allclose(vectors(answer), encoder.encode(texts, normalize=True), atol=1e-6)


@pytest.fixture(scope="module")
def short_encoder(tmp_path_factory):
    """A random model with a layer, which reads 24 pieces."""
    parent = tmp_path_factory.mktemp("model")
    folder = random_model.write_model(parent / "m", num_layers=1, max_positions=24)
    return SentenceEncoder.from_pretrained(folder, "cpu")


@needs_server
def test_the_answer_numbers_the_texts_that_are_cut(short_encoder):
    texts = [TEXTS[0], LONG_TEXT]
    with serving(short_encoder) as address:
        answer = ask(f"{address}/v1/embeddings", {"input": texts})

    # Texts are counted from 0.
    assert answer[1]["cut"] == [1]
    expected = short_encoder.encode(texts, normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)


@needs_server
def test_the_answer_does_not_mention_cut_texts_if_there_are_none(short_encoder):
    with serving(short_encoder) as address:
        _, content = ask(f"{address}/v1/embeddings", {"input": TEXTS})

    assert "cut" not in content


@needs_server
def test_the_answer_of_a_search_numbers_the_queries_that_are_cut(short_encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, short_encoder, plain=True)
    with serving(short_encoder, index) as address:
        _, content = ask(f"{address}/search", {"query": [TEXTS[0], LONG_TEXT]})

    assert content["cut"] == [1]


@needs_server
def test_metrics_count_the_texts_that_are_cut(short_encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, short_encoder, plain=True)
    with serving(short_encoder, index) as address:
        ask(f"{address}/v1/embeddings", {"input": LONG_TEXT})
        ask(f"{address}/search", {"query": LONG_TEXT})

        assert "lxsr_texts_cut_total 2.0" in ask(f"{address}/metrics")[1]


@needs_server
def test_a_server_that_splits_long_texts_cuts_none(short_encoder):
    texts = [TEXTS[0], LONG_TEXT]
    with serving(short_encoder, on_long="split-mean") as address:
        answer = ask(f"{address}/v1/embeddings", {"input": texts})

    assert "cut" not in answer[1]
    expected = short_encoder.encode(texts, on_long="split-mean", normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)


def use_stored_tokens(monkeypatch):
    """Let tiktoken read the encoding that LlamaIndex brings, as it would download it."""
    core = pytest.importorskip("llama_index.core", reason="no encoding of tiktoken on this machine")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{core.__path__[0]}/_static/tiktoken_cache")


def token_ids(texts, tokens, encoder, monkeypatch):
    """The ids of the texts in the vocabulary of the model, or in one of OpenAI."""
    if tokens == "model":
        return [row.tolist() for row in encoder.tokenizer.encode(texts)]
    tiktoken = pytest.importorskip("tiktoken")
    use_stored_tokens(monkeypatch)
    return tiktoken.get_encoding(tokens).encode_batch(texts)


@needs_server
@pytest.mark.parametrize("tokens", ["model", "cl100k_base"])
def test_token_ids_of_one_or_more_texts_are_read_as_their_text(encoder, tokens, monkeypatch):
    ids = token_ids(TEXTS, tokens, encoder, monkeypatch)
    expected = encoder.encode(TEXTS, normalize=True)
    with serving(encoder, tokens=tokens) as address:
        answer_of_all = ask(f"{address}/v1/embeddings", {"input": ids})
        answer_of_first = ask(f"{address}/v1/embeddings", {"input": ids[0]})

    np.testing.assert_allclose(vectors(answer_of_all), expected, atol=1e-6)
    np.testing.assert_allclose(vectors(answer_of_first), expected[:1], atol=1e-6)


@needs_server
@pytest.mark.parametrize("tokens", ["model", "cl100k_base"])
@pytest.mark.parametrize(
    "invalid_ids",
    # No vocabulary has a million ids; 10^30 and 2^40 exceed integers of 64 and 32 bits.
    [[10**6], [-1], [10**30], [[2**40]]],
    ids=["unknown", "negative", "over int64", "over int32"],
)
def test_the_error_for_invalid_token_ids_names_the_vocabulary_or_the_field(
    encoder, tokens, invalid_ids, monkeypatch
):
    if tokens != "model":
        pytest.importorskip("tiktoken")
        use_stored_tokens(monkeypatch)
    with serving(encoder, tokens=tokens) as address:
        status, content = ask(f"{address}/v1/embeddings", {"input": invalid_ids})

    assert status == 400, content
    message = content["error"]["message"]
    assert tokens in message or "input" in message


@needs_server
def test_token_ids_may_be_padded_and_unknown(encoder):
    # The model does not know the character of the second text, which is longer than the first.
    texts = ["a dog", "a dog ꙮꙮ sees"]
    padded_ids = encoder.tokenize(texts)["input_ids"].tolist()
    with serving(encoder, tokens="model") as address:
        answer = ask(f"{address}/v1/embeddings", {"input": padded_ids})

    np.testing.assert_allclose(vectors(answer), encoder.encode(texts, normalize=True), atol=1e-6)


@needs_server
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"input": NaN}', b'{"input": "\xff"}', b"[" * 100_000],
    ids=["empty", "unclosed", "nan", "no utf-8", "deep"],
)
def test_the_error_of_a_request_that_is_no_json_says_so(address, content):
    answer = ask(f"{address}/v1/embeddings", content)

    check_error(answer, 400, "JSON")


@needs_server
def test_a_request_over_8_mib_has_status_413(address):
    answer = ask(f"{address}/v1/embeddings", b" " * (8 * 2**20 + 1))

    check_error(answer, 413, "8 MiB")


INVALID_REQUESTS = {
    "no object": ([], 400, "object"),
    "no input": ({}, 400, "input is None"),
    "no texts": ({"input": []}, 400, "input is []"),
    "null text": ({"input": ["a", None]}, 400, "input[1] is None"),
    "text and number": ({"input": ["a", 3]}, 400, "input[1] is 3"),
    "true": ({"input": [True]}, 400, "input[0] is True"),
    "float": ({"input": [1.5]}, 400, "input[0] is 1.5"),
    "input object": ({"input": {"a": 1}}, 400, "input"),
    "empty text": ({"input": ["a", ""]}, 400, "input[1] ''"),
    "invisible text": ({"input": " \u200b"}, 400, "input"),
    "dimensions large": ({"input": "a", "dimensions": 10**9}, 400, "dimensions is 1000000000"),
    "dimensions zero": ({"input": "a", "dimensions": 0}, 400, "dimensions is 0"),
    "dimensions negative": ({"input": "a", "dimensions": -1}, 400, "dimensions is -1"),
    "dimensions text": ({"input": "a", "dimensions": "8"}, 400, "dimensions is '8'"),
    "format": ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format is 'hex'"),
    # The message has the name of the model that is served.
    "other model": ({"input": "a", "model": "text-embedding-3-small"}, 404, "'best'"),
    "model number": ({"input": "a", "model": 7}, 404, "model 7"),
    # This server takes 3,000 inputs.
    "many texts": ({"input": ["a"] * 3001}, 400, "3,001"),
    "many token ids": ({"input": [[1]] * 3001}, 400, "3,001"),
}


@needs_server
@pytest.mark.parametrize("case", INVALID_REQUESTS)
def test_the_error_of_an_invalid_request_names_the_value(address, case):
    content, status, fragment = INVALID_REQUESTS[case]

    answer = ask(f"{address}/v1/embeddings", content)

    check_error(answer, status, fragment)


SHORT_PASSAGE = "Four green fish hear the mouse. Six black horses find a bird."


@pytest.fixture(scope="module")
def passage_address(encoder, tmp_path_factory):
    """A server of an index of two passages, of which the second is SHORT_PASSAGE."""
    folder = tmp_path_factory.mktemp("passages") / "index"
    index = CorpusIndex.build(folder, [" ".join(TEXTS), SHORT_PASSAGE], encoder)
    with serving(encoder, index) as address:
        yield address


@needs_server
def test_a_search_finds_a_passage_by_one_of_its_sentences_and_returns_the_match(passage_address):
    fields = ["line", "text", "match"]

    [hit] = search_hits(passage_address, query="Six black horses", k=1, fields=fields)

    assert hit["line"] == 2
    assert hit["text"] == SHORT_PASSAGE
    assert hit["match"] in SHORT_PASSAGE


@needs_server
def test_a_search_finds_a_passage_by_one_of_its_words(passage_address):
    [hit] = search_hits(passage_address, query="horses", k=1)

    assert hit["line"] == 2


@needs_server
def test_a_search_of_passages_refuses_the_option_of_hybrid_search(passage_address):
    status, _ = ask(f"{passage_address}/search", {"query": "horses", "hybrid": True})

    assert status == 400


@needs_server
def test_a_passage_added_by_a_request_is_found(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", [" ".join(TEXTS)], encoder)
    key = {"Authorization": "Bearer k"}
    with serving(encoder, index, allow_edits=True, api_key="k") as address:
        add_answer = ask(f"{address}/index/add", {"texts": [SHORT_PASSAGE]}, **key)
        _, content = ask(f"{address}/search", {"query": "Six black horses", "k": 1}, **key)

    status, added = add_answer
    assert status == 200
    assert added["added"] == 1
    [hit] = content["results"][0]["hits"]
    assert hit["snippet"] == SHORT_PASSAGE


@needs_server
def test_a_word_that_the_model_does_not_know_finds_its_text(encoder, tmp_path):
    unknown_word = "\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8"  # Tbilisi in Georgian
    texts = [*TEXTS, f"One bird {unknown_word}."]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder)
    with serving(encoder, index) as address:
        # The second query has known words.
        status, content = ask(f"{address}/search", {"query": [unknown_word, TEXTS[0]], "k": 1})

    assert status == 200
    lines = [result["hits"][0]["line"] for result in content["results"]]
    assert lines == [4, 1]


@needs_server
def test_a_search_leaves_out_hits_below_the_threshold(address, index, encoder):
    first, second, _ = index.search(TEXTS[1], encoder.encode, 3)

    hits = search_hits(address, query=TEXTS[1], k=3, score_threshold=second.score)

    # A hit at the threshold stays. Over HTTP, lines are counted from 1.
    assert [hit["line"] for hit in hits] == [first.line + 1, second.line + 1]


@needs_server
@pytest.mark.parametrize("threshold", ["0.5", True, [0.5]], ids=["text", "true", "list"])
def test_a_threshold_that_is_no_number_is_refused(address, threshold):
    status, _ = ask(f"{address}/search", {"query": "a", "score_threshold": threshold})

    assert status == 400


@needs_server
def test_hits_of_each_query_are_those_of_the_index(address, index, encoder):
    queries = [TEXTS[1], TEXTS[2]]

    status, content = ask(f"{address}/search", {"query": queries, "k": 2})

    assert status == 200
    assert [result["query"] for result in content["results"]] == queries
    expected_hits_of_queries = index.search(queries, encoder.encode, 2)
    for result, expected_hits in zip(content["results"], expected_hits_of_queries, strict=True):
        for hit, expected in zip(result["hits"], expected_hits, strict=True):
            # Over HTTP, lines are counted from 1.
            assert hit["line"] == expected.line + 1
            assert hit["snippet"] == expected.sentence
            assert hit["score"] == pytest.approx(expected.score)


@needs_server
def test_a_search_for_more_hits_than_texts_returns_all_texts(address):
    hits = search_hits(address, query=TEXTS[0], k=100)

    assert len(hits) == len(TEXTS)


@needs_server
def test_the_score_for_a_long_query_is_the_cosine_to_the_whole_of_it(address, encoder):
    [hit] = search_hits(address, query=LONG_TEXT, k=1)

    [query_vector] = encoder.encode([LONG_TEXT], normalize=True)
    cosines = encoder.encode(TEXTS, normalize=True) @ query_vector
    assert hit["score"] == pytest.approx(cosines.max(), abs=1e-3)


@needs_server
@pytest.mark.parametrize(
    "fields",
    [
        {"query": "a", "k": 0},
        {"query": "a", "k": 10**9},
        {"k": 1},
        {"query": [1]},
        {"query": ""},
        {"query": "a", "top_k": 1},
    ],
    ids=["k zero", "k large", "no query", "number", "empty", "unknown field"],
)
def test_an_invalid_search_is_refused(address, fields):
    status, _ = ask(f"{address}/search", fields)

    assert status == 400


@needs_server
def test_a_search_with_the_name_of_another_model_has_status_404(address):
    status, _ = ask(f"{address}/search", {"query": "a", "model": "other"})

    assert status == 404


@needs_server
def test_null_in_a_search_means_the_default(address):
    status, _ = ask(f"{address}/search", {"query": "a", "k": None, "model": None})

    assert status == 200


@needs_server
def test_health_tells_the_model_and_the_number_of_sentences(address, encoder):
    status, health = ask(f"{address}/health")

    assert status == 200
    assert health["status"] == "ok"
    assert health["model"] == NAME
    assert health["width"] == encoder.output_dim
    assert health["fingerprint"] == encoder.fingerprint
    assert health["sentences"] == len(TEXTS)


@needs_server
def test_the_list_of_models_has_the_model_that_is_served(address):
    _, content = ask(f"{address}/v1/models")

    assert [model["id"] for model in content["data"]] == [NAME]


@needs_server
def test_the_error_of_an_unknown_path_names_the_known_ones(address):
    answer = ask(f"{address}/v1/completions", {})

    check_error(answer, 404, "POST /v1/embeddings")


@needs_server
def test_the_error_of_a_path_for_edits_names_the_option_that_allows_them(address):
    answer = ask(f"{address}/index/compact", {})

    check_error(answer, 404, "--allow-edits")


@needs_server
def test_a_get_request_for_embeddings_has_status_405(address):
    assert ask(f"{address}/v1/embeddings")[0] == 405


def metric(text, name):
    """The sum of the counters whose names begin with `name`."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name):
            total += float(line.rsplit(" ", 1)[1])
    return total


@needs_server
def test_metrics_count_requests_and_texts(address):
    texts_counter = "lxsr_texts_total"
    requests_counter = 'lxsr_requests_total{path="/v1/embeddings",status="200"}'
    before = ask(f"{address}/metrics")[1]

    ask(f"{address}/v1/embeddings", {"input": TEXTS})

    after = ask(f"{address}/metrics")[1]
    assert metric(after, texts_counter) - metric(before, texts_counter) == len(TEXTS)
    assert metric(after, requests_counter) - metric(before, requests_counter) == 1


@needs_server
def test_metrics_have_the_name_of_the_model(address):
    assert f'name="{NAME}"' in ask(f"{address}/metrics")[1]


@pytest.fixture(scope="module")
def locked_address(encoder):
    """A server with a key that is not ASCII."""
    with serving(encoder, api_key="sécret") as address:
        yield address


@needs_server
def test_a_request_with_the_key_is_answered(locked_address):
    key = "Bearer sécret".encode()

    status, _ = ask(f"{locked_address}/v1/embeddings", {"input": "a"}, Authorization=key)

    assert status == 200


@needs_server
@pytest.mark.parametrize("header", ["Bearer wrong", "sécret", "Bearer ", "Basic sécret"])
def test_a_request_with_a_wrong_key_is_refused(locked_address, header):
    answer = ask(f"{locked_address}/v1/embeddings", {"input": "a"}, Authorization=header.encode())

    assert answer[0] == 401


@needs_server
@pytest.mark.parametrize(
    ("path", "content", "expected_status"),
    [("/v1/embeddings", {"input": "a"}, 401), ("/metrics", None, 401), ("/health", None, 200)],
    ids=["embeddings", "metrics", "health"],
)
def test_without_the_key_only_health_is_answered(locked_address, path, content, expected_status):
    assert ask(f"{locked_address}{path}", content)[0] == expected_status


@needs_server
def test_the_error_of_a_search_without_an_index_names_the_option(encoder):
    with serving(encoder) as address:
        answer = ask(f"{address}/search", {"query": "a"})

    check_error(answer, 404, "--index FOLDER")


@needs_server
@pytest.mark.parametrize(
    ("header", "expected_status"),
    [
        ("bearer k", 200),
        ("BEARER k", 200),
        ("Bearer  k ", 200),
        ("bearer", 401),
        # The case of the key itself counts.
        ("bearer K", 401),
        ("basic k", 401),
        ("k", 401),
    ],
)
def test_the_word_bearer_is_read_without_regard_to_case_and_spaces(
    encoder, header, expected_status
):
    with serving(encoder, api_key="k") as address:
        status, _ = ask(f"{address}/v1/embeddings", {"input": "a"}, Authorization=header)

    assert status == expected_status


# Headers cannot have control characters, and lose blanks at their ends.
KEYS_OF_NO_CLIENT = {
    "blank": " ",
    "newline": "a\n",
    "tab": "\ta",
    "return": "a\rb",
    "space": "a ",
}


@pytest.mark.parametrize("key", ["", "a\x00b", *KEYS_OF_NO_CLIENT.values()], ids=ascii)
def test_a_key_that_no_client_can_send_is_refused(key):
    done = lxsr_here("serve", "--model", "lxsr-static", "--api-key", key, check=False)

    refused(done, "--api-key")
    with pytest.raises(InputError, match="api_key"):
        ServeOptions(api_key=key)


@pytest.mark.parametrize("key", KEYS_OF_NO_CLIENT.values(), ids=KEYS_OF_NO_CLIENT)
def test_a_key_in_the_environment_that_no_client_can_send_is_refused(key, monkeypatch):
    """An empty variable is no key, and no variable can have a zero byte."""
    monkeypatch.setenv("LXSR_API_KEY", key)

    done = lxsr_here("serve", "--model", "lxsr-static", check=False)

    refused(done, "LXSR_API_KEY")


@pytest.mark.parametrize(
    "origin",
    ["example.org", "https://a.org/", "https://", "", "https://a b"],
    ids=["no scheme", "path", "no host", "empty", "space"],
)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    done = lxsr_here("serve", "--model", "m", "--allow-origin", origin, check=False)

    refused(done, "--allow-origin")


PAGE = "https://a.org"


def status_and_allowed_origin(address, method, path, **headers):
    """The status of a request of a browser, and the origin whose pages may read the answer."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.request(method, path, None, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.headers.get("access-control-allow-origin")


@needs_server
def test_pages_of_an_allowed_origin_may_read_answers_and_errors(encoder):
    # A browser asks this first, whether the page may send a request.
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(encoder, api_key="k", allow_origin=(PAGE, "http://localhost:3000")) as address:
        preflight_answer = status_and_allowed_origin(
            address, "OPTIONS", "/v1/embeddings", Origin=PAGE, **preflight
        )
        answer = status_and_allowed_origin(address, "GET", "/health", Origin=PAGE)
        # Without the key. The page must be able to read why it was refused.
        error = status_and_allowed_origin(address, "GET", "/v1/models", Origin=PAGE)

    assert preflight_answer == (200, PAGE)
    assert answer == (200, PAGE)
    assert error == (401, PAGE)


@needs_server
@pytest.mark.parametrize(
    ("allowed_origins", "expected"),
    [(("https://b.org",), None), (("*",), "*"), ((), None)],
    ids=["other", "any", "none"],
)
def test_pages_may_read_answers_only_if_their_origin_or_any_is_allowed(
    encoder, allowed_origins, expected
):
    with serving(encoder, allow_origin=allowed_origins) as address:
        answer = status_and_allowed_origin(address, "GET", "/health", Origin=PAGE)

    assert answer == (200, expected)


@needs_server
@pytest.mark.parametrize(
    ("host", "expected_status"),
    [
        ("127.0.0.2", 200),
        ("127.0.0.2:80", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("127.0.0.3", 400),
        ("attacker.example", 400),
    ],
)
def test_requests_to_other_names_than_those_of_the_host_and_this_machine_are_refused(
    encoder, host, expected_status
):
    """Otherwise a page on the web could read answers under a name of its own (DNS rebinding)."""
    with serving(encoder, host="127.0.0.2") as address:
        assert ask(f"{address}/health", Host=host)[0] == expected_status


@needs_server
def test_a_path_with_a_final_slash_is_unknown_and_not_redirected(address):
    """A redirect would lead to the host that the client has sent."""
    assert ask(f"{address}/health/")[0] == 404


@needs_server
def test_a_model_is_described_under_its_name_as_in_the_list(address):
    _, listed = ask(f"{address}/v1/models")

    _, described = ask(f"{address}/v1/models/{NAME}")

    assert described == listed["data"][0]


@needs_server
def test_paths_with_unknown_names_of_models_are_counted_as_one_path(encoder):
    """Counters of their own would let clients fill the memory."""
    with serving(encoder) as address:
        statuses = [ask(f"{address}/v1/models/{name}")[0] for name in ("m1", "m2", "m3", "a/b")]
        counters = ask(f"{address}/metrics")[1]

    assert statuses == [404, 404, 404, 404]
    assert 'path="/v1/models/{name:path}",status="404"} 4.0' in counters
    assert "m1" not in counters


# The model knows no word of the second and the fourth.
TEXTS_WITH_UNKNOWN = [TEXTS[0], "\U0001f44d", TEXTS[1], "\u4e00"]


@needs_server
def test_the_answer_numbers_the_texts_without_a_known_word(address, encoder):
    answer = ask(f"{address}/v1/embeddings", {"input": TEXTS_WITH_UNKNOWN, "dimensions": 3})

    # Texts are counted from 0.
    assert answer[1]["empty"] == [1, 3]
    expected = encoder.encode(TEXTS_WITH_UNKNOWN, truncate_dim=3, normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)


@needs_server
def test_the_answer_does_not_mention_unknown_words_if_each_text_has_a_known_one(address):
    _, content = ask(f"{address}/v1/embeddings", {"input": TEXTS[0]})

    assert "empty" not in content


@needs_server
@pytest.mark.parametrize(
    "blank",
    ["", " \n", "\u200b\ufeff", "\u3000"],
    ids=["empty", "space", "invisible", "wide space"],
)
def test_the_error_for_a_blank_text_has_its_number(address, blank):
    answer = ask(f"{address}/v1/embeddings", {"input": [*TEXTS, blank]})

    check_error(answer, 400, "input[3]")


@needs_server
def test_texts_without_a_known_word_are_refused_if_the_server_is_told_so(encoder):
    with serving(encoder, on_empty="error") as address:
        answer = ask(f"{address}/v1/embeddings", {"input": TEXTS_WITH_UNKNOWN})

    check_error(answer, 400, "input[1]")


class FakeEncoding:
    """Stands for a vocabulary of tiktoken; each id is one of TEXTS."""

    @staticmethod
    def decode(ids):
        return " ".join(TEXTS[id_] for id_ in ids)


@needs_server
def test_a_vocabulary_that_cannot_be_downloaded_is_tried_again_after_the_retry_time(
    encoder, monkeypatch
):
    tiktoken = pytest.importorskip("tiktoken")
    attempts = []

    def get_encoding_without_network(name):
        attempts.append(name)
        time.sleep(0.2)
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", get_encoding_without_network)
    with serving(encoder) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:

        def status_for_tokens(*_):
            return ask(f"{address}/v1/embeddings", {"input": [1, 2]})[0]

        # Four requests at once and a later one share one attempt.
        statuses = [*pool.map(status_for_tokens, range(4)), status_for_tokens()]
        assert statuses == [400] * 5
        assert len(attempts) == 1

        # The time is over at once.
        monkeypatch.setattr("fairseq_lxsr.serve.tokens.RETRY", 0)
        assert status_for_tokens() == 400
        assert len(attempts) == 2

        # The network is back.
        monkeypatch.setattr(tiktoken, "get_encoding", lambda name: FakeEncoding)
        assert status_for_tokens() == 200


class SlowEncoder:
    """An encoder that waits from the second batch on, and fails for the text `fail`."""

    def __init__(self, encoder, seconds=0.2):
        self.encoder = encoder
        self.seconds = seconds
        self.batches = []

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def encode(self, texts, **options):
        self.batches.append(list(texts))
        if len(self.batches) > 1:
            time.sleep(self.seconds)
        if "fail" in texts:
            raise InputError("its embedding is not finite")
        return self.encoder.encode(texts, **options)


@needs_server
def test_waiting_requests_are_encoded_together_and_fail_separately(encoder):
    slow = SlowEncoder(encoder)
    valid_texts = [TEXTS[0], *(f"{number} dogs" for number in range(6)), TEXTS[2]]
    texts = [*valid_texts, "fail"]
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:

        def embed(text):
            return ask(f"{address}/v1/embeddings", {"input": [text]})

        *answers, failed_answer = pool.map(embed, texts)

    # All nine are sent at once, and those that wait for the first batches are encoded together.
    assert max(len(batch) for batch in slow.batches) >= 4
    for text, answer in zip(valid_texts, answers, strict=True):
        expected = encoder.encode([text], normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
    check_error(failed_answer, 400, "its embedding is not finite")


# The body of this request is incomplete.
HALF_REQUEST = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@needs_server
def test_a_request_that_takes_longer_than_the_time_limit_has_status_504(encoder):
    with serving(SlowEncoder(encoder, seconds=0.6), timeout=0.3) as address:
        status, content = ask(f"{address}/v1/embeddings", {"input": "a"})

    assert status == 504
    assert content["error"]["type"] == "server_error"


@needs_server
def test_a_request_that_is_not_sent_within_the_time_limit_has_status_504(encoder):
    with (
        serving(encoder, timeout=0.3) as address,
        socket.create_connection(host_and_port(address), timeout=10) as connection,
    ):
        connection.sendall(HALF_REQUEST)

        assert connection.recv(100).startswith(b"HTTP/1.1 504")


@needs_server
def test_of_more_requests_at_once_than_the_limit_some_have_status_503(encoder):
    with (
        serving(SlowEncoder(encoder, seconds=0.5), max_requests=2) as address,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):

        def embedding_status(text):
            return ask(f"{address}/v1/embeddings", {"input": text})[0]

        # Eight requests, each with one letter.
        statuses = set(pool.map(embedding_status, "abcdefgh"))

        assert statuses == {200, 503}
        # Afterwards, requests are answered as before.
        assert embedding_status("a") == 200


@needs_server
@pytest.mark.parametrize(
    "content",
    [HALF_REQUEST, b"\x16\x03\x01", b""],
    # A client that speaks TLS begins with these bytes.
    ids=["half request", "tls", "nothing"],
)
def test_a_client_that_closes_its_connection_early_disturbs_no_other(address, content):
    with socket.create_connection(host_and_port(address), timeout=10) as connection:
        connection.sendall(content)

    assert ask(f"{address}/v1/embeddings", {"input": "a"})[0] == 200


def started(*arguments, preexec_fn=None, **variables):
    """A process of `lxsr serve`, which prints its address first."""
    command = [sys.executable, "-m", "fairseq_lxsr.cli.main", "serve", "--port", "0"]
    command += [str(argument) for argument in arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | variables, preexec_fn=preexec_fn, **streams
    )


def printed_address(process):
    """The address that `lxsr serve` prints, without the path of the API."""
    return process.stdout.readline().split()[-1].removesuffix("/v1")


@needs_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_requests_that_have_begun(index, number):
    # The index records the model.
    process = started("--index", index.folder, LXSR_API_KEY="k")
    try:
        address = printed_address(process)
        assert ask(f"{address}/health")[0] == 200
        body = json.dumps({"input": TEXTS, "model": "best.model"}).encode()
        head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer k\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(host_and_port(address), timeout=20) as connection:
            # The signal comes while the body is being sent.
            connection.sendall(head + body[:9])
            time.sleep(0.2)
            process.send_signal(number)
            time.sleep(0.2)
            connection.sendall(body[9:])

            assert connection.recv(100).startswith(b"HTTP/1.1 200")

        assert process.wait(20) == 0
        # A message, and no traceback.
        assert process.stderr.read().startswith("lxsr serve: ")
    finally:
        process.kill()
        process.communicate()


@needs_server
def test_answers_on_an_open_connection_take_less_than_20_milliseconds(encoder):
    """A second packet that waits for the acknowledgement of the first would take 40 ms."""
    process = started("--model", encoder.folder)
    try:
        address = printed_address(process)
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            connection.request("POST", "/v1/embeddings", json.dumps({"input": TEXTS[:1]}))
            response = connection.getresponse()
            response.read()
            seconds.append(time.perf_counter() - start)
            assert response.status == 200
        connection.close()

        # Some may be slow for other reasons.
        assert statistics.median(seconds) < 0.02
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def narrow_address(encoder, tmp_path_factory):
    """A server of 5 dimensions, whose index has 7."""
    folder = tmp_path_factory.mktemp("narrow") / "index"
    index = CorpusIndex.build(folder, TEXTS, encoder, truncate_dim=7, plain=True)
    with serving(encoder, index, truncate_dim=5) as address:
        yield address


@needs_server
def test_embeddings_have_the_width_of_the_server(narrow_address, encoder):
    answer = ask(f"{narrow_address}/v1/embeddings", {"input": TEXTS})

    expected = encoder.encode(TEXTS, truncate_dim=5, normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
    assert ask(f"{narrow_address}/health")[1]["width"] == 5


@needs_server
def test_more_dimensions_than_the_server_has_are_refused(narrow_address):
    answer = ask(f"{narrow_address}/v1/embeddings", {"input": TEXTS, "dimensions": 6})

    status, content = answer
    assert status == 400
    assert content["error"]["param"] == "dimensions"


@needs_server
def test_an_index_may_have_another_width_than_the_server(narrow_address):
    [hit] = search_hits(narrow_address, query=TEXTS[1], k=1)

    assert hit["snippet"] == TEXTS[1]


@needs_server
def test_a_server_of_more_dimensions_than_its_model_is_refused(encoder):
    options = ("--model", encoder.folder, "--port", 0, "--truncate-dim", 9999)

    done = lxsr_here("serve", *options, check=False)

    refused(done, 9999, encoder.output_dim)


@needs_server
def test_the_error_without_a_model_and_an_index_names_both_options():
    refused(lxsr_here("serve", check=False), "--model", "--index")


@needs_server
def test_the_error_for_a_folder_without_a_model_names_it(tmp_path):
    done = lxsr_here("serve", "--model", tmp_path, "--port", 0, check=False)

    refused(done, tmp_path)


@needs_server
def test_the_error_for_a_port_in_use_names_it():
    model = COMPATIBILITY / "best.model"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used_port = listener.getsockname()[1]

        done = lxsr_here("serve", "--model", model, "--port", used_port, check=False)

    refused(done, f"--port {used_port}")


@needs_server
@pytest.mark.parametrize(
    "host",
    ["256.1.1.1", "no-such-host.invalid", "a" * 300],
    ids=["no address", "unknown", "too long"],
)
def test_the_error_for_a_host_that_does_not_exist_names_the_option(host):
    model = COMPATIBILITY / "best.model"

    done = lxsr_here("serve", "--model", model, "--host", host, "--port", 0, check=False)

    refused(done, "--host")


@needs_server
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize("key", [None, ""], ids=["unset", "empty"])
def test_a_server_for_other_machines_needs_a_key(monkeypatch, host, key):
    """The container listens on all addresses, of which `docker run -p` opens the port."""
    if key is None:
        monkeypatch.delenv("LXSR_API_KEY", raising=False)
    else:
        monkeypatch.setenv("LXSR_API_KEY", key)

    options = ("--model", COMPATIBILITY / "best.model", "--host", host, "--port", 0)
    done = lxsr_here("serve", *options, check=False)

    # The message names both remedies: a key, or the address of this machine alone.
    refused(done, f"--host {host}", "LXSR_API_KEY", "127.0.0.1")


def test_the_error_for_a_missing_package_has_the_command_to_install_it(monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: module == "uvicorn")

    done = lxsr_here("serve", "--model", "lxsr-static", check=False)

    refused(done, "lxsr serve", "pip install", "uvicorn")


@pytest.fixture
def openai_client(address):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none")


@needs_server
@pytest.mark.parametrize(
    "options",
    # By default, the client asks for base64.
    [{}, {"encoding_format": "float"}],
    ids=["base64", "float"],
)
def test_the_openai_client_gets_the_embeddings_of_the_encoder(openai_client, encoder, options):
    response = openai_client.embeddings.create(model=NAME, input=TEXTS, **options)

    rows = [item.embedding for item in response.data]
    np.testing.assert_allclose(rows, encoder.encode(TEXTS, normalize=True), atol=1e-6)
    assert response.usage.total_tokens > 0


@needs_server
def test_the_openai_client_gets_embeddings_of_fewer_dimensions(openai_client):
    response = openai_client.embeddings.create(model=NAME, input="a", dimensions=5)

    assert len(response.data[0].embedding) == 5


@needs_server
def test_the_openai_client_lists_the_model(openai_client):
    assert [model.id for model in openai_client.models.list()] == [NAME]


@needs_server
def test_the_openai_client_raises_its_errors_for_a_blank_text_and_an_unknown_model(openai_client):
    import openai

    with pytest.raises(openai.BadRequestError, match=r"input\[1\]"):
        openai_client.embeddings.create(model=NAME, input=["a", ""])
    with pytest.raises(openai.NotFoundError, match="'best'"):
        openai_client.embeddings.create(model="gpt", input="a")


@needs_server
@pytest.mark.parametrize("sends_tokens", [False, True], ids=["texts", "tokens"])
def test_langchain_gets_the_embeddings_of_the_encoder(address, encoder, sends_tokens, monkeypatch):
    langchain = pytest.importorskip("langchain_openai")
    options = {"base_url": f"{address}/v1", "api_key": "none", "model": NAME}
    if sends_tokens:
        # This is what LangChain does by default.
        use_stored_tokens(monkeypatch)
    else:
        options["check_embedding_ctx_length"] = False
    embeddings = langchain.OpenAIEmbeddings(**options)

    document_vectors = embeddings.embed_documents(TEXTS)
    query_vector = embeddings.embed_query(TEXTS[0])

    expected = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(document_vectors, expected, atol=1e-6)
    np.testing.assert_allclose(query_vector, expected[0], atol=1e-6)


@needs_server
def test_chroma_finds_a_text_by_its_embedding(address):
    chromadb = pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    function = OpenAIEmbeddingFunction(api_key="none", api_base=f"{address}/v1", model_name=NAME)
    collection = chromadb.EphemeralClient().create_collection("served", embedding_function=function)
    collection.add(ids=["a", "b", "c"], documents=TEXTS)

    found = collection.query(query_texts=[TEXTS[2]], n_results=1)

    # There is a list of ids for each query.
    assert found["ids"] == [["c"]]
