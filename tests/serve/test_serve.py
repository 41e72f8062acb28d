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
TEXTS = ["One red dog sees the cat.", "Un chien rouge voit le chat.", "Two blue birds."]
NAME = "best"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture(scope="module")
def index(encoder, tmp_path_factory):
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
    status, content = answer
    assert status == 200, content
    assert [item["index"] for item in content["data"]] == list(range(len(content["data"])))
    return np.array([item["embedding"] for item in content["data"]], dtype=np.float32)


@needs_server
def test_embeddings_are_those_of_the_encoder(address, encoder):
    url = f"{address}/v1/embeddings"
    expected = encoder.encode(TEXTS, normalize=True)
    answer = ask(url, {"input": TEXTS, "model": NAME})
    np.testing.assert_array_equal(vectors(answer), expected)
    pieces = int(encoder.tokenizer.encode_flat(TEXTS)[1].sum())
    assert answer[1]["usage"] == {"prompt_tokens": pieces, "total_tokens": pieces}
    assert (answer[1]["object"], answer[1]["model"]) == ("list", NAME)
    np.testing.assert_allclose(vectors(ask(url, {"input": TEXTS[1]})), expected[1:2], atol=1e-6)

    fields = {"input": TEXTS, "dimensions": 4, "user": "x", "encoding_format": None}
    expected_short = encoder.encode(TEXTS, truncate_dim=4, normalize=True)
    np.testing.assert_allclose(vectors(ask(url, fields)), expected_short, atol=1e-6)

    _, content = ask(url, {"input": TEXTS, "encoding_format": "base64"})
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


@needs_server
def test_the_answer_numbers_the_texts_that_are_cut(tmp_path):
    texts = [TEXTS[0], LONG_TEXT]
    folder = random_model.write_model(tmp_path / "m", num_layers=1, max_positions=24)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)
    with serving(encoder, index) as address:
        answer = ask(f"{address}/v1/embeddings", {"input": texts})
        assert answer[1]["cut"] == [1]
        expected = encoder.encode(texts, normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)
        assert "cut" not in ask(f"{address}/v1/embeddings", {"input": TEXTS})[1]
        assert ask(f"{address}/search", {"query": texts})[1]["cut"] == [1]
        assert "lxsr_texts_cut_total 2.0" in ask(f"{address}/metrics")[1]
    with serving(encoder, on_long="split-mean") as address:
        answer = ask(f"{address}/v1/embeddings", {"input": texts})
        assert "cut" not in answer[1]
        expected = encoder.encode(texts, on_long="split-mean", normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)


@needs_server
@pytest.mark.parametrize("tokens", ["model", "cl100k_base"])
def test_token_ids_are_read_as_their_text(encoder, tokens, monkeypatch):
    if tokens == "model":
        ids = [row.tolist() for row in encoder.tokenizer.encode(TEXTS)]
    else:
        tiktoken = pytest.importorskip("tiktoken")
        use_stored_tokens(monkeypatch)
        ids = tiktoken.get_encoding(tokens).encode_batch(TEXTS)
    expected = encoder.encode(TEXTS, normalize=True)
    with serving(encoder, tokens=tokens) as address:
        url = f"{address}/v1/embeddings"
        np.testing.assert_allclose(vectors(ask(url, {"input": ids})), expected, atol=1e-6)
        np.testing.assert_allclose(vectors(ask(url, {"input": ids[0]})), expected[:1], atol=1e-6)
        for invalid_ids in ([10**6], [-1], [10**30], [[2**40]]):
            status, content = ask(url, {"input": invalid_ids})
            assert status == 400, content
            message = content["error"]["message"]
            assert tokens in message or "input" in message


@needs_server
def test_token_ids_may_be_padded_and_unknown(encoder):
    texts = ["a dog", "a dog ꙮꙮ sees"]
    padded = encoder.tokenize(texts)["input_ids"].tolist()
    with serving(encoder, tokens="model") as address:
        rows = vectors(ask(f"{address}/v1/embeddings", {"input": padded}))
    np.testing.assert_allclose(rows, encoder.encode(texts, normalize=True), atol=1e-6)


def use_stored_tokens(monkeypatch):
    """tiktoken downloads its encodings; LlamaIndex brings one."""
    core = pytest.importorskip("llama_index.core", reason="no encoding of tiktoken on this machine")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{core.__path__[0]}/_static/tiktoken_cache")


INVALID_REQUESTS = [
    (b"", 400, "JSON"),
    (b"{", 400, "JSON"),
    (b'{"input": NaN}', 400, "JSON"),
    (b'{"input": "\xff"}', 400, "JSON"),
    (b"[" * 100_000, 400, "JSON"),
    ([], 400, "object"),
    ({}, 400, "input is None"),
    ({"input": []}, 400, "input is []"),
    ({"input": ["a", None]}, 400, "input[1] is None"),
    ({"input": ["a", 3]}, 400, "input[1] is 3"),
    ({"input": [True]}, 400, "input[0] is True"),
    ({"input": [1.5]}, 400, "input[0] is 1.5"),
    ({"input": {"a": 1}}, 400, "input"),
    ({"input": ["a", ""]}, 400, "input[1] ''"),
    ({"input": " \u200b"}, 400, "input"),
    ({"input": "a", "dimensions": 10**9}, 400, "dimensions is 1000000000"),
    ({"input": "a", "dimensions": 0}, 400, "dimensions is 0"),
    ({"input": "a", "dimensions": -1}, 400, "dimensions is -1"),
    ({"input": "a", "dimensions": "8"}, 400, "dimensions is '8'"),
    ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format is 'hex'"),
    ({"input": "a", "model": "text-embedding-3-small"}, 404, "'best'"),
    ({"input": "a", "model": 7}, 404, "model 7"),
    ({"input": ["a"] * 3001}, 400, "3,001"),
    ({"input": [[1]] * 3001}, 400, "3,001"),
    (b" " * (8 * 2**20 + 1), 413, "8 MiB"),
]


@needs_server
def test_the_error_of_an_invalid_request_names_the_value(address):
    for content, status, fragment in INVALID_REQUESTS:
        check_error(ask(f"{address}/v1/embeddings", content), status, fragment)


@needs_server
def test_a_search_finds_passages_and_their_best_sentence(encoder, tmp_path):
    passages = [" ".join(TEXTS), "Four green fish hear the mouse. Six black horses find a bird."]
    index = CorpusIndex.build(tmp_path / "index", passages, encoder)
    with serving(encoder, index) as address:
        query = {"query": "Six black horses", "k": 1, "fields": ["line", "text", "match"]}
        _, answer = ask(f"{address}/search", query)
        [hit] = answer["results"][0]["hits"]
        assert (hit["line"], hit["text"]) == (2, passages[1])
        assert hit["match"] in passages[1]
        _, answer = ask(f"{address}/search", {"query": "horses", "k": 1})
        assert answer["results"][0]["hits"][0]["line"] == 2
        assert ask(f"{address}/search", {"query": "horses", "hybrid": True})[0] == 400


@needs_server
def test_a_passage_is_added_over_http(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", [" ".join(TEXTS)], encoder)
    passage = "Four green fish hear the mouse. Six black horses find a bird."
    key = {"Authorization": "Bearer k"}
    with serving(encoder, index, allow_edits=True, api_key="k") as address:
        status, answer = ask(f"{address}/index/add", {"texts": [passage]}, **key)
        assert (status, answer["added"]) == (200, 1)
        _, answer = ask(f"{address}/search", {"query": "Six black horses", "k": 1}, **key)
        assert answer["results"][0]["hits"][0]["snippet"] == passage


@needs_server
def test_a_word_that_the_model_does_not_know_finds_its_text(encoder, tmp_path):
    word = "\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8"
    index = CorpusIndex.build(tmp_path / "index", [*TEXTS, f"One bird {word}."], encoder)
    with serving(encoder, index) as address:
        status, answer = ask(f"{address}/search", {"query": [word, TEXTS[0]], "k": 1})
        assert status == 200
        assert [result["hits"][0]["line"] for result in answer["results"]] == [4, 1]


@needs_server
def test_search_leaves_out_hits_below_the_threshold(address, index, encoder):
    hits = index.search(TEXTS[1], encoder.encode, 3)
    query = {"query": TEXTS[1], "k": 3, "score_threshold": hits[1].score}
    _, answer = ask(f"{address}/search", query)
    lines = [hit["line"] for hit in answer["results"][0]["hits"]]
    assert lines == [hits[0].line + 1, hits[1].line + 1]
    for value in ("0.5", True, [0.5]):
        assert ask(f"{address}/search", {"query": "a", "score_threshold": value})[0] == 400


@needs_server
def test_hits_of_a_search_are_those_of_the_index(address, index, encoder):
    queries = [TEXTS[1], TEXTS[2]]
    all_hits = index.search(queries, encoder.encode, 2)
    status, answer = ask(f"{address}/search", {"query": queries, "k": 2})
    assert status == 200
    assert [result["query"] for result in answer["results"]] == queries
    for result, expected_hits in zip(answer["results"], all_hits, strict=True):
        for hit, expected in zip(result["hits"], expected_hits, strict=True):
            assert hit["line"] == expected.line + 1
            assert hit["snippet"] == expected.sentence
            assert hit["score"] == pytest.approx(expected.score)
    _, answer = ask(f"{address}/search", {"query": TEXTS[0], "k": 100})
    assert len(answer["results"][0]["hits"]) == 3
    _, answer = ask(f"{address}/search", {"query": LONG_TEXT, "k": 1})
    [hit] = answer["results"][0]["hits"]
    [query_vector] = encoder.encode([LONG_TEXT], normalize=True)
    cosines = encoder.encode(TEXTS, normalize=True) @ query_vector
    assert hit["score"] == pytest.approx(cosines.max(), abs=1e-3)


@needs_server
def test_an_invalid_search_is_refused(address):
    for content in (
        {"query": "a", "k": 0},
        {"query": "a", "k": 10**9},
        {"k": 1},
        {"query": [1]},
        {"query": ""},
        {"query": "a", "top_k": 1},
    ):
        assert ask(f"{address}/search", content)[0] == 400, content
    assert ask(f"{address}/search", {"query": "a", "model": "other"})[0] == 404
    assert ask(f"{address}/search", {"query": "a", "k": None, "model": None})[0] == 200


@needs_server
def test_health_tells_the_model_and_the_index(address, encoder):
    status, health = ask(f"{address}/health")
    assert (status, health["status"], health["model"], health["sentences"]) == (200, "ok", NAME, 3)
    assert (health["width"], health["fingerprint"]) == (encoder.output_dim, encoder.fingerprint)
    assert ask(f"{address}/v1/models")[1]["data"][0]["id"] == NAME
    assert ask(f"{address}/health", Host="attacker.example")[0] == 400


@needs_server
def test_the_error_of_an_unknown_path_names_the_paths_or_the_option(address):
    check_error(ask(f"{address}/v1/completions", {}), 404, "POST /v1/embeddings")
    check_error(ask(f"{address}/index/compact", {}), 404, "--allow-edits")
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
    before = ask(f"{address}/metrics")[1]
    ask(f"{address}/v1/embeddings", {"input": TEXTS})
    after = ask(f"{address}/metrics")[1]
    assert metric(after, "lxsr_texts_total") - metric(before, "lxsr_texts_total") == 3
    requests = 'lxsr_requests_total{path="/v1/embeddings",status="200"}'
    assert metric(after, requests) - metric(before, requests) == 1
    assert f'name="{NAME}"' in after


@needs_server
def test_all_paths_but_health_need_the_key(encoder):
    with serving(encoder, api_key="sécret") as address:
        url = f"{address}/v1/embeddings"
        content = {"input": "a"}
        key = "Bearer sécret".encode()
        assert ask(url, content)[0] == 401
        for wrong_key in ("Bearer wrong", "sécret", "Bearer ", "Basic sécret"):
            assert ask(url, content, Authorization=wrong_key.encode())[0] == 401
        assert ask(url, content, Authorization=key)[0] == 200
        assert ask(f"{address}/metrics")[0] == 401
        assert ask(f"{address}/health")[0] == 200
        answer = ask(f"{address}/search", content, Authorization=key)
        check_error(answer, 404, "--index FOLDER")


@needs_server
def test_the_scheme_of_a_key_is_read_without_regard_to_case_and_spaces(encoder):
    with serving(encoder, api_key="k") as address:
        url = f"{address}/v1/embeddings"
        for header in ("bearer k", "BEARER k", "Bearer  k "):
            assert ask(url, {"input": "a"}, Authorization=header)[0] == 200, header
        for header in ("bearer", "bearer K", "basic k", "k"):
            assert ask(url, {"input": "a"}, Authorization=header)[0] == 401, header


def test_a_key_that_no_client_can_send_is_refused(monkeypatch):
    command = ("serve", "--model", "lxsr-static")
    for key in ("", " ", "a\n", "\ta", "a\rb", "a\x00b", "a "):
        refused(lxsr_here(*command, "--api-key", key, check=False), "--api-key")
        with pytest.raises(InputError, match="api_key"):
            ServeOptions(api_key=key)
    # An empty environment variable is no key; "\0" cannot be in a variable.
    for key in (" ", "a\n", "\ta", "a\rb", "a "):
        monkeypatch.setenv("LXSR_API_KEY", key)
        refused(lxsr_here(*command, check=False), "LXSR_API_KEY")


def test_an_origin_that_no_browser_sends_is_refused():
    for origin in ("example.org", "https://a.org/", "https://", "", "https://a b"):
        done = lxsr_here("serve", "--model", "m", "--allow-origin", origin, check=False)
        refused(done, "--allow-origin")


@needs_server
def test_only_pages_of_allowed_origins_may_read_answers(encoder):
    preflight = {
        "Origin": "https://a.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }

    def status_and_origin(address, method, path, **headers):
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        connection.request(method, path, None, headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status, response.headers.get("access-control-allow-origin")

    page = "https://a.org"
    with serving(encoder, api_key="k", allow_origin=(page, "http://localhost:3000")) as address:
        assert status_and_origin(address, "OPTIONS", "/v1/embeddings", **preflight) == (200, page)
        assert status_and_origin(address, "GET", "/health", Origin=page) == (200, page)
        # A page must be able to read why it was refused.
        assert status_and_origin(address, "GET", "/v1/models", Origin=page) == (401, page)
        assert status_and_origin(address, "GET", "/health", Origin="https://b.org")[1] is None
    with serving(encoder, allow_origin=("*",)) as address:
        assert status_and_origin(address, "GET", "/health", Origin=page) == (200, "*")
    with serving(encoder) as address:
        assert status_and_origin(address, "GET", "/health", Origin=page) == (200, None)


@needs_server
def test_only_the_name_of_the_host_and_of_this_machine_are_answered(encoder):
    with serving(encoder, host="127.0.0.2") as address:
        for host in ("127.0.0.2", "127.0.0.2:80", "localhost", "[::1]:80"):
            assert ask(f"{address}/health", Host=host)[0] == 200, host
        assert ask(f"{address}/health", Host="127.0.0.3")[0] == 400
        # There is no redirect to the host that was sent.
        assert ask(f"{address}/health/")[0] == 404


@needs_server
def test_paths_with_names_of_models_are_counted_as_one_path(encoder):
    with serving(encoder) as address:
        assert ask(f"{address}/v1/models/{NAME}")[1] == ask(f"{address}/v1/models")[1]["data"][0]
        assert ask(f"{address}/v1/models/a/b")[0] == 404
        for number in range(3):
            ask(f"{address}/v1/models/m{number}")
        counters = ask(f"{address}/metrics")[1]
        assert "m1" not in counters
        assert 'path="/v1/models/{name:path}",status="404"} 4.0' in counters


@needs_server
def test_the_answer_numbers_texts_without_a_known_word_and_blank_ones_are_refused(encoder):
    texts = [TEXTS[0], "\U0001f44d", TEXTS[1], "\u4e00"]
    with serving(encoder) as address:
        url = f"{address}/v1/embeddings"
        answer = ask(url, {"input": texts, "dimensions": 3})
        expected = encoder.encode(texts, truncate_dim=3, normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
        assert answer[1]["empty"] == [1, 3]
        assert "empty" not in ask(url, {"input": texts[0]})[1]
        for blank in ("", " \n", "\u200b\ufeff", "\u3000"):
            check_error(ask(url, {"input": [*texts, blank]}), 400, "input[4]")
    with serving(encoder, on_empty="error") as address:
        check_error(ask(f"{address}/v1/embeddings", {"input": texts}), 400, "input[1]")


@needs_server
def test_a_token_table_that_cannot_be_loaded_is_tried_once_until_the_retry_time(
    encoder, monkeypatch
):
    tiktoken = pytest.importorskip("tiktoken")
    attempts = []

    def get_encoding(name):
        attempts.append(name)
        time.sleep(0.2)
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", get_encoding)
    with serving(encoder) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"{address}/v1/embeddings"
        answers = list(pool.map(lambda _: ask(url, {"input": [1, 2]}), range(4)))
        answers.append(ask(url, {"input": [[1]]}))
        assert [status for status, _ in answers] == [400] * 5
        assert len(attempts) == 1
        monkeypatch.setattr("fairseq_lxsr.serve.tokens.RETRY", 0)
        assert ask(url, {"input": [1]})[0] == 400
        assert len(attempts) == 2
        monkeypatch.setattr(tiktoken, "get_encoding", lambda name: FakeEncoding)
        assert ask(url, {"input": [1]})[0] == 200


class FakeEncoding:
    """A vocabulary in which each number is a sentence."""

    @staticmethod
    def decode(ids):
        return " ".join(TEXTS[number] for number in ids)


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
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(9) as pool:
        texts = [TEXTS[0], *(f"{number} dogs" for number in range(6)), TEXTS[2], "fail"]
        answers = list(
            pool.map(lambda text: ask(f"{address}/v1/embeddings", {"input": [text]}), texts)
        )
        assert max(len(batch) for batch in slow.batches) >= 4
        for text, answer in zip(texts[:-1], answers[:-1], strict=True):
            expected = encoder.encode([text], normalize=True)
            np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
        check_error(answers[-1], 400, "its embedding is not finite")


# The body of this request is incomplete.
HALF_REQUEST = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@needs_server
def test_a_request_over_the_time_limit_is_answered_with_504(encoder):
    with serving(SlowEncoder(encoder, 0.6), timeout=0.3) as address:
        status, answer = ask(f"{address}/v1/embeddings", {"input": "a"})
        assert (status, answer["error"]["type"]) == (504, "server_error")
        with socket.create_connection(address.split("/")[2].split(":"), timeout=10) as connection:
            connection.sendall(HALF_REQUEST)
            assert connection.recv(100).startswith(b"HTTP/1.1 504")


@needs_server
def test_requests_over_the_limit_are_answered_with_503(encoder):
    with (
        serving(SlowEncoder(encoder, 0.5), max_requests=2) as address,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        answers = list(
            pool.map(lambda text: ask(f"{address}/v1/embeddings", {"input": text}), "abcdefgh")
        )
        assert {status for status, _ in answers} == {200, 503}
        assert ask(f"{address}/v1/embeddings", {"input": "a"})[0] == 200


@needs_server
def test_a_client_that_closes_its_connection_early_disturbs_no_other(address):
    host_and_port = address.split("/")[2].split(":")
    for content in (HALF_REQUEST, b"\x16\x03\x01", b""):
        with socket.create_connection(host_and_port, timeout=10) as connection:
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


@needs_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_requests_that_have_begun(index, number):
    # The index records the model.
    process = started("--index", index.folder, LXSR_API_KEY="k")
    try:
        address = process.stdout.readline().split()[-1].removesuffix("/v1")
        assert ask(f"{address}/health")[0] == 200
        body = json.dumps({"input": TEXTS, "model": "best.model"}).encode()
        head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer k\r\nContent-Length: {len(body)}"
        )
        with socket.create_connection(address.split("/")[2].split(":"), timeout=20) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode() + body[:9])
            time.sleep(0.2)
            process.send_signal(number)
            time.sleep(0.2)
            connection.sendall(body[9:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert process.wait(20) == 0
        assert process.stderr.read().startswith("lxsr serve: ")
    finally:
        process.kill()
        process.communicate()


@needs_server
def test_answers_on_an_open_connection_are_not_delayed(encoder):
    """A second packet that waits for the acknowledgement of the first would take 40 ms."""
    process = started("--model", encoder.folder)
    try:
        address = process.stdout.readline().split()[-1].removesuffix("/v1")
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            connection.request("POST", "/v1/embeddings", json.dumps({"input": TEXTS[:1]}))
            response = connection.getresponse()
            response.read()
            seconds.append(time.perf_counter() - start)
            assert response.status == 200
        connection.close()
        assert statistics.median(seconds) < 0.02
    finally:
        process.kill()
        process.communicate()


@needs_server
def test_embeddings_and_queries_are_cut_to_the_widths_of_server_and_index(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, truncate_dim=7, plain=True)
    with serving(encoder, index, truncate_dim=5) as address:
        assert ask(f"{address}/health")[1]["width"] == 5
        expected = encoder.encode(TEXTS, truncate_dim=5, normalize=True)
        rows = vectors(ask(f"{address}/v1/embeddings", {"input": TEXTS}))
        np.testing.assert_allclose(rows, expected, atol=1e-6)
        status, content = ask(f"{address}/v1/embeddings", {"input": TEXTS, "dimensions": 6})
        assert (status, content["error"]["param"]) == (400, "dimensions")
        hits = ask(f"{address}/search", {"query": TEXTS[1], "k": 1})[1]["results"][0]["hits"]
        assert hits[0]["snippet"] == TEXTS[1]
    options = ("--model", encoder.folder, "--port", 0, "--truncate-dim", 9999)
    refused(lxsr_here("serve", *options, check=False), 9999, encoder.output_dim)


@needs_server
def test_models_ports_and_hosts_that_cannot_be_used_are_refused(tmp_path):
    model = COMPATIBILITY / "best.model"
    refused(lxsr_here("serve", check=False), "--model", "--index")
    refused(lxsr_here("serve", "--model", tmp_path, "--port", 0, check=False), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used_port = listener.getsockname()[1]
        done = lxsr_here("serve", "--model", model, "--port", used_port, check=False)
        refused(done, f"--port {used_port}")
    for host in ("256.1.1.1", "no-such-host.invalid", "a" * 300):
        done = lxsr_here("serve", "--model", model, "--host", host, "--port", 0, check=False)
        refused(done, "--host")


@needs_server
def test_a_server_for_other_machines_needs_a_key(monkeypatch):
    """The container listens on all addresses, of which `docker run -p` opens the port."""
    model = COMPATIBILITY / "best.model"
    for host in ("0.0.0.0", "::"):
        options = ("--model", model, "--host", host, "--port", 0)
        monkeypatch.delenv("LXSR_API_KEY", raising=False)
        done = lxsr_here("serve", *options, check=False)
        refused(done, f"--host {host}", "LXSR_API_KEY", "127.0.0.1")
        monkeypatch.setenv("LXSR_API_KEY", "")
        done = lxsr_here("serve", *options, check=False)
        refused(done, f"--host {host}", "LXSR_API_KEY", "127.0.0.1")


def test_a_missing_package_is_named_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: module == "uvicorn")
    done = lxsr_here("serve", "--model", "lxsr-static", check=False)
    refused(done, "lxsr serve", "pip install", "uvicorn")


@needs_server
def test_the_openai_client_gets_embeddings_models_and_errors(address, encoder):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    expected = encoder.encode(TEXTS, normalize=True)
    for options in ({}, {"encoding_format": "float"}):
        response = client.embeddings.create(model=NAME, input=TEXTS, **options)
        rows = [item.embedding for item in response.data]
        np.testing.assert_allclose(rows, expected, atol=1e-6)
        assert response.usage.total_tokens > 0
    response = client.embeddings.create(model=NAME, input="a", dimensions=5)
    assert len(response.data[0].embedding) == 5
    assert [model.id for model in client.models.list()] == [NAME]
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]"):
        client.embeddings.create(model=NAME, input=["a", ""])
    with pytest.raises(openai.NotFoundError, match="'best'"):
        client.embeddings.create(model="gpt", input="a")


@needs_server
@pytest.mark.parametrize("sends_tokens", [False, True])
def test_langchain_gets_the_embeddings_of_the_encoder(address, encoder, sends_tokens, monkeypatch):
    langchain = pytest.importorskip("langchain_openai")
    options = {"base_url": f"{address}/v1", "api_key": "none", "model": NAME}
    if sends_tokens:
        # This is what LangChain does by default.
        use_stored_tokens(monkeypatch)
    else:
        options["check_embedding_ctx_length"] = False
    embeddings = langchain.OpenAIEmbeddings(**options)
    expected = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), expected[0], atol=1e-6)


@needs_server
def test_chroma_finds_a_text_by_its_embedding(address):
    chromadb = pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    function = OpenAIEmbeddingFunction(api_key="none", api_base=f"{address}/v1", model_name=NAME)
    collection = chromadb.EphemeralClient().create_collection("served", embedding_function=function)
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    assert collection.query(query_texts=[TEXTS[2]], n_results=1)["ids"] == [["c"]]
