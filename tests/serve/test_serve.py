"""`lxsr serve`, asked over sockets, by the clients that people have and by worse ones."""

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
    """Status and JSON, or text, of an answer; content is sent as JSON, bytes as they are."""
    data = (
        content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
    )
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=30)
    try:
        path = "/" + url.split("/", 3)[3]
        connection.request(
            "GET" if data is None else "POST",
            path,
            data,
            {"Content-Type": "application/json"} | headers,
        )
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers.get("content-type") == "application/json"
        return response.status, json.loads(text) if is_json else text
    finally:
        connection.close()


def vectors(answer):
    status, content = answer
    assert status == 200, content
    assert [item["index"] for item in content["data"]] == list(range(len(content["data"])))
    return np.array([item["embedding"] for item in content["data"]], dtype=np.float32)


@needs_server
def test_embeddings_are_those_of_the_encoder(address, encoder):
    url, expected = f"{address}/v1/embeddings", encoder.encode(TEXTS, normalize=True)
    answer = ask(url, {"input": TEXTS, "model": NAME})
    np.testing.assert_array_equal(vectors(answer), expected)
    pieces = int(encoder.tokenizer.encode_flat(TEXTS)[1].sum())
    assert answer[1]["usage"] == {"prompt_tokens": pieces, "total_tokens": pieces}
    assert (answer[1]["object"], answer[1]["model"]) == ("list", NAME)
    np.testing.assert_allclose(vectors(ask(url, {"input": TEXTS[1]})), expected[1:2], atol=1e-6)
    short = vectors(
        ask(url, {"input": TEXTS, "dimensions": 4, "user": "x", "encoding_format": None})
    )
    np.testing.assert_allclose(
        short, encoder.encode(TEXTS, truncate_dim=4, normalize=True), atol=1e-6
    )
    _, content = ask(url, {"input": TEXTS, "encoding_format": "base64"})
    read = [
        np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") for item in content["data"]
    ]
    np.testing.assert_array_equal(np.stack(read), expected)


@needs_server
def test_texts_beyond_what_the_model_reads_are_named(address, encoder, tmp_path):
    long = " ".join(TEXTS[0] for _ in range(100)) + " " + " ".join(TEXTS[2] for _ in range(300))
    texts = [TEXTS[0], long]
    # A model without layers reads all of it.
    answer = ask(f"{address}/v1/embeddings", {"input": texts})
    assert "cut" not in answer[1]
    np.testing.assert_allclose(vectors(answer), encoder.encode(texts, normalize=True), atol=1e-6)

    folder = random_model.write_model(tmp_path / "m", num_layers=1, max_positions=24)
    layers = SentenceEncoder.from_pretrained(folder, "cpu")
    index = CorpusIndex.build(tmp_path / "index", TEXTS, layers, plain=True)
    with serving(layers, index) as cutting:
        answer = ask(f"{cutting}/v1/embeddings", {"input": texts})
        assert answer[1]["cut"] == [1]
        expected = layers.encode(texts, normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)
        assert "cut" not in ask(f"{cutting}/v1/embeddings", {"input": TEXTS})[1]
        assert ask(f"{cutting}/search", {"query": texts})[1]["cut"] == [1]
        assert "lxsr_texts_cut_total 2.0" in ask(f"{cutting}/metrics")[1]
    with serving(layers, on_long="split-mean") as splitting:
        answer = ask(f"{splitting}/v1/embeddings", {"input": texts})
        assert "cut" not in answer[1]
        expected = layers.encode(texts, on_long="split-mean", normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-5)


@needs_server
@pytest.mark.parametrize("tokens", ["model", "cl100k_base"])
def test_tokens_are_text(encoder, tokens, monkeypatch):
    if tokens == "model":
        ids = [row.tolist() for row in encoder.tokenizer.encode(TEXTS)]
    else:
        tiktoken = pytest.importorskip("tiktoken")
        use_stored_tokens(monkeypatch)
        ids = tiktoken.get_encoding(tokens).encode_batch(TEXTS)
    with serving(encoder, tokens=tokens) as address:
        found = vectors(ask(f"{address}/v1/embeddings", {"input": ids}))
        np.testing.assert_allclose(found, encoder.encode(TEXTS, normalize=True), atol=1e-6)
        np.testing.assert_allclose(
            vectors(ask(f"{address}/v1/embeddings", {"input": ids[0]})), found[:1], atol=1e-6
        )
        if tokens == "model":
            odd = ["a dog ꙮꙮ sees", "ꙮ"]
            padded = encoder.tokenize(["a dog", *odd])["input_ids"].tolist()
            found = vectors(ask(f"{address}/v1/embeddings", {"input": padded[:2]}))
            np.testing.assert_allclose(
                found, encoder.encode(["a dog", odd[0]], normalize=True), atol=1e-6
            )
        for wrong in ([10**6], [-1], [10**30], [[2**40]]):
            status, content = ask(f"{address}/v1/embeddings", {"input": wrong})
            assert status == 400, content
            message = content["error"]["message"]
            assert tokens in message or "input" in message


def use_stored_tokens(monkeypatch):
    """tiktoken downloads its encodings; LlamaIndex brings one."""
    core = pytest.importorskip("llama_index.core", reason="no encoding of tiktoken on this machine")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{core.__path__[0]}/_static/tiktoken_cache")


REFUSED = [
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
    (
        {"input": "a", "encoding_format": "hex"},
        400,
        "encoding_format is 'hex'",
    ),
    ({"input": "a", "model": "text-embedding-3-small"}, 404, "'best'"),
    ({"input": "a", "model": 7}, 404, "model 7"),
    ({"input": ["a"] * 3001}, 400, "3,001"),
    ({"input": [[1]] * 3001}, 400, "3,001"),
    (b" " * (8 * 2**20 + 1), 413, "8 MiB"),
]


@needs_server
@pytest.mark.parametrize(("content", "status", "said"), REFUSED)
def test_wrong_requests_are_told_why(address, content, status, said):
    found, answer = ask(f"{address}/v1/embeddings", content)
    assert (found, said in answer["error"]["message"]) == (status, True), answer


@needs_server
def test_search_of_passages(encoder, tmp_path):
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
    with serving(encoder, index, allow_edits=True, api_key="k") as address:
        key = {"Authorization": "Bearer k"}
        status, answer = ask(f"{address}/index/add", {"texts": [passage]}, **key)
        assert (status, answer["added"]) == (200, 1)
        _, answer = ask(f"{address}/search", {"query": "Six black horses", "k": 1}, **key)
        assert answer["results"][0]["hits"][0]["snippet"] == passage


@needs_server
def test_words_are_searched_even_if_the_model_does_not_know_them(encoder, tmp_path):
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
    assert [hit["line"] - 1 for hit in answer["results"][0]["hits"]] == [hits[0].line, hits[1].line]
    for value in ("0.5", True, [0.5]):
        assert ask(f"{address}/search", {"query": "a", "score_threshold": value})[0] == 400


@needs_server
def test_search(address, index, encoder):
    hits = index.search([TEXTS[1], TEXTS[2]], encoder.encode, 2)
    status, answer = ask(f"{address}/search", {"query": [TEXTS[1], TEXTS[2]], "k": 2})
    assert status == 200
    for query, result, expected in zip((TEXTS[1], TEXTS[2]), answer["results"], hits, strict=True):
        assert result["query"] == query
        assert [(hit["line"], hit["snippet"]) for hit in result["hits"]] == [
            (h.line + 1, h.sentence) for h in expected
        ]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(
            [hit.score for hit in expected]
        )
    assert (
        len(ask(f"{address}/search", {"query": TEXTS[0], "k": 100})[1]["results"][0]["hits"]) == 3
    )
    long = " ".join(TEXTS[0] for _ in range(100)) + " " + " ".join(TEXTS[2] for _ in range(300))
    found = ask(f"{address}/search", {"query": long, "k": 1})[1]["results"][0]["hits"][0]
    expected = encoder.encode([long], normalize=True) @ encoder.encode(TEXTS, normalize=True).T
    assert found["score"] == pytest.approx(expected.max(), abs=1e-3)
    wrong = [
        {"query": "a", "k": 0},
        {"query": "a", "k": 10**9},
        {"k": 1},
        {"query": [1]},
        {"query": ""},
        {"query": "a", "top_k": 1},
        {"query": "a"},
    ]
    wrong[-1]["model"] = "other"
    assert [ask(f"{address}/search", content)[0] for content in wrong] == [400] * 6 + [404]
    assert ask(f"{address}/search", {"query": "a", "k": None, "model": None})[0] == 200


@needs_server
def test_health_metrics_and_unknown_paths(address, encoder):
    status, health = ask(f"{address}/health")
    assert (status, health["status"], health["model"], health["sentences"]) == (200, "ok", NAME, 3)
    assert (health["width"], health["fingerprint"]) == (encoder.output_dim, encoder.fingerprint)
    assert ask(f"{address}/v1/models")[1]["data"][0]["id"] == NAME
    status, answer = ask(f"{address}/v1/completions", {})
    assert (status, "POST /v1/embeddings" in answer["error"]["message"]) == (404, True)
    status, answer = ask(f"{address}/index/compact", {})
    assert (status, "--allow-edits" in answer["error"]["message"]) == (404, True)
    assert ask(f"{address}/v1/embeddings")[0] == 405
    before = ask(f"{address}/metrics")[1]
    ask(f"{address}/v1/embeddings", {"input": TEXTS})
    after = ask(f"{address}/metrics")[1]

    def value(text, name):
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)
        )

    assert value(after, "lxsr_texts_total") - value(before, "lxsr_texts_total") == 3
    counted = 'lxsr_requests_total{path="/v1/embeddings",status="200"}'
    assert value(after, counted) - value(before, counted) == 1
    assert f'name="{NAME}"' in after
    assert ask(f"{address}/health", Host="attacker.example")[0] == 400


@needs_server
def test_only_who_has_the_key_is_answered(encoder):
    with serving(encoder, api_key="sécret") as address:
        url, content = f"{address}/v1/embeddings", {"input": "a"}
        for given in (None, "Bearer wrong", "sécret", "Bearer ", "Basic sécret"):
            headers = {} if given is None else {"Authorization": given.encode()}
            assert ask(url, content, **headers)[0] == 401
        assert ask(url, content, Authorization="Bearer sécret".encode())[0] == 200
        assert ask(f"{address}/metrics")[0] == 401
        assert ask(f"{address}/health")[0] == 200
        status, answer = ask(f"{address}/search", content, Authorization="Bearer sécret".encode())
        assert (status, "--index FOLDER" in answer["error"]["message"]) == (404, True)


@needs_server
def test_a_key_in_any_form_of_the_scheme(encoder):
    with serving(encoder, api_key="k") as address:
        url, content = f"{address}/v1/embeddings", {"input": "a"}
        for given in ("bearer k", "BEARER k", "Bearer  k "):
            assert ask(url, content, Authorization=given)[0] == 200, given
        for given in ("bearer", "bearer K", "basic k", "k"):
            assert ask(url, content, Authorization=given)[0] == 401, given


@pytest.mark.parametrize("key", ["", " ", "a\n", "\ta", "a\rb", "a\x00b", "a "])
def test_a_key_that_no_client_can_send(key, monkeypatch):
    command = ("serve", "--model", "lxsr-static")
    refused(lxsr_here(*command, "--api-key", key, check=False), "--api-key")
    with pytest.raises(InputError, match="api_key"):
        ServeOptions(api_key=key)
    # An empty variable of the environment is no key.
    if key and "\0" not in key:
        monkeypatch.setenv("LXSR_API_KEY", key)
        refused(lxsr_here(*command, check=False), "LXSR_API_KEY")


@pytest.mark.parametrize("origin", ["example.org", "https://a.org/", "https://", "", "https://a b"])
def test_an_origin_that_no_browser_sends(origin):
    refused(
        lxsr_here("serve", "--model", "m", "--allow-origin", origin, check=False), "--allow-origin"
    )


@needs_server
def test_pages_of_allowed_origins(encoder):
    preflight = {
        "Origin": "https://a.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }

    def allowed(address, method, path, **headers):
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        connection.request(method, path, None, headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status, response.headers.get("access-control-allow-origin")

    page = "https://a.org"
    with serving(encoder, api_key="k", allow_origin=(page, "http://localhost:3000")) as address:
        assert allowed(address, "OPTIONS", "/v1/embeddings", **preflight) == (200, page)
        assert allowed(address, "GET", "/health", Origin=page) == (200, page)
        # A page must be able to read why it was refused.
        assert allowed(address, "GET", "/v1/models", Origin=page) == (401, page)
        assert allowed(address, "GET", "/health", Origin="https://b.org")[1] is None
    with serving(encoder, allow_origin=("*",)) as address:
        assert allowed(address, "GET", "/health", Origin=page) == (200, "*")
    with serving(encoder) as address:
        assert allowed(address, "GET", "/health", Origin=page) == (200, None)


@needs_server
def test_hosts_and_paths(encoder):
    with serving(encoder, host="127.0.0.2") as address:
        for host in ("127.0.0.2", "127.0.0.2:80", "localhost", "[::1]:80"):
            assert ask(f"{address}/health", Host=host)[0] == 200, host
        assert ask(f"{address}/health", Host="127.0.0.3")[0] == 400
        # No redirect to the host that was sent.
        assert ask(f"{address}/health/")[0] == 404
        assert ask(f"{address}/v1/models/{NAME}")[1] == ask(f"{address}/v1/models")[1]["data"][0]
        assert ask(f"{address}/v1/models/a/b")[0] == 404
        for number in range(3):
            ask(f"{address}/v1/models/m{number}")
        counters = ask(f"{address}/metrics")[1]
        assert "m1" not in counters
        assert 'path="/v1/models/{name:path}",status="404"} 4.0' in counters


@needs_server
def test_a_text_without_a_known_word_among_others(encoder):
    texts = [TEXTS[0], "\U0001f44d", TEXTS[1], "\u4e00"]
    with serving(encoder) as address:
        url = f"{address}/v1/embeddings"
        answer = ask(url, {"input": texts, "dimensions": 3})
        expected = encoder.encode(texts, truncate_dim=3, normalize=True)
        np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
        assert answer[1]["empty"] == [1, 3]
        assert "empty" not in ask(url, {"input": texts[0]})[1]
        for blank in ("", " \n", "\u200b\ufeff", "\u3000"):
            status, content = ask(url, {"input": [*texts, blank]})
            assert (status, "input[4]" in content["error"]["message"]) == (400, True)
    with serving(encoder, on_empty="error") as address:
        status, content = ask(f"{address}/v1/embeddings", {"input": texts})
        assert (status, "input[1]" in content["error"]["message"]) == (400, True)


@needs_server
def test_tokens_without_a_network(encoder, monkeypatch):
    """One attempt to load the table, for requests at once and for later ones."""
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


class Slow:
    """An encoder that waits, and may fail for one text."""

    def __init__(self, encoder, seconds=0.2):
        self.encoder, self.seconds, self.batches = encoder, seconds, []

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
def test_requests_that_wait_are_encoded_together_and_fail_alone(encoder):
    slow = Slow(encoder)
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(9) as pool:
        texts = [TEXTS[0], *(f"{number} dogs" for number in range(6)), "fail", TEXTS[2]]
        answers = list(
            pool.map(lambda text: ask(f"{address}/v1/embeddings", {"input": [text]}), texts)
        )
        assert max(map(len, slow.batches)) >= 4
        assert [status for status, _ in answers] == [200] * 7 + [400, 200]
        for text, (status, answer) in zip(texts, answers, strict=True):
            if status == 200:
                np.testing.assert_allclose(
                    answer["data"][0]["embedding"],
                    encoder.encode([text], normalize=True)[0],
                    atol=1e-6,
                )
        assert "its embedding is not finite" in answers[7][1]["error"]["message"]


@needs_server
def test_limits_of_time_and_of_requests(encoder):
    with serving(Slow(encoder, 0.6), timeout=0.3) as address:
        status, answer = ask(f"{address}/v1/embeddings", {"input": "a"})
        assert (status, answer["error"]["type"]) == (504, "server_error")
        with socket.create_connection(address.split("/")[2].split(":"), timeout=10) as half:
            half.sendall(
                b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
            assert half.recv(100).startswith(b"HTTP/1.1 504")
    with (
        serving(Slow(encoder, 0.5), max_requests=2) as address,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        answers = list(
            pool.map(lambda text: ask(f"{address}/v1/embeddings", {"input": text}), "abcdefgh")
        )
        assert sorted({status for status, _ in answers}) == [200, 503]
        assert ask(f"{address}/v1/embeddings", {"input": "a"})[0] == 200


@needs_server
def test_a_client_that_goes_away_harms_nobody(address):
    place = address.split("/")[2].split(":")
    for sent in (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01",
        b"",
    ):
        with socket.create_connection(place, timeout=10) as half:
            half.sendall(sent)
    assert ask(f"{address}/v1/embeddings", {"input": "a"})[0] == 200


def started(*arguments, preexec_fn=None, **variables):
    command = [
        sys.executable,
        "-m",
        "fairseq_lxsr.cli.main",
        "serve",
        "--port",
        "0",
        *map(str, arguments),
    ]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | variables, preexec_fn=preexec_fn, **streams
    )


@needs_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_what_is_at_work(index, number):
    """The model is the one that the index names; a request that is half received is answered."""
    process = started("--index", index.folder, LXSR_API_KEY="k")
    try:
        address = process.stdout.readline().split()[-1].removesuffix("/v1")
        assert ask(f"{address}/health")[0] == 200
        body = json.dumps({"input": TEXTS, "model": "best.model"}).encode()
        head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer k\r\nContent-Length: {len(body)}"
        )
        with socket.create_connection(address.split("/")[2].split(":"), timeout=20) as half:
            half.sendall(f"{head}\r\n\r\n".encode() + body[:9])
            time.sleep(0.2)
            process.send_signal(number)
            time.sleep(0.2)
            half.sendall(body[9:])
            assert half.recv(100).startswith(b"HTTP/1.1 200")
        assert process.wait(20) == 0
        assert process.stderr.read().startswith("lxsr serve: ")
    finally:
        process.kill()
        process.communicate()


@needs_server
def test_the_command_answers_a_kept_connection_at_once(encoder):
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
def test_embeddings_and_queries_are_cut(encoder, tmp_path):
    cut = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, truncate_dim=7, plain=True)
    with serving(encoder, cut, truncate_dim=5) as address:
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
def test_what_cannot_be_served_is_refused(tmp_path):
    refused(lxsr_here("serve", check=False), "--model", "--index")
    model = COMPATIBILITY / "best.model"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(
            lxsr_here("serve", "--model", model, "--port", port, check=False),
            f"--port {port}",
        )
    for host in ("256.1.1.1", "no-such-host.invalid", "a" * 300):
        refused(
            lxsr_here("serve", "--model", model, "--host", host, "--port", 0, check=False), "--host"
        )
    refused(lxsr_here("serve", "--model", tmp_path, "--port", 0, check=False), tmp_path)


@needs_server
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize("key", [None, ""])
def test_a_server_for_other_machines_needs_a_key(monkeypatch, host, key):
    """The container listens on all addresses, of which `docker run -p` opens the port."""
    monkeypatch.delenv("LXSR_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("LXSR_API_KEY", key)
    options = ("--model", COMPATIBILITY / "best.model", "--host", host, "--port", 0)
    refused(
        lxsr_here("serve", *options, check=False), f"--host {host}", "LXSR_API_KEY", "127.0.0.1"
    )


def test_without_its_packages_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.machine.is_missing", lambda module: module == "uvicorn")
    refused(
        lxsr_here("serve", "--model", "lxsr-static", check=False),
        "lxsr serve",
        "pip install",
        "uvicorn",
    )


@needs_server
def test_the_openai_client(address, encoder):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    expected = encoder.encode(TEXTS, normalize=True)
    for form in ({}, {"encoding_format": "float"}):
        found = client.embeddings.create(model=NAME, input=TEXTS, **form)
        np.testing.assert_allclose([item.embedding for item in found.data], expected, atol=1e-6)
    assert len(client.embeddings.create(model=NAME, input="a", dimensions=5).data[0].embedding) == 5
    assert found.usage.total_tokens > 0
    assert [model.id for model in client.models.list()] == [NAME]
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]"):
        client.embeddings.create(model=NAME, input=["a", ""])
    with pytest.raises(openai.NotFoundError, match="'best'"):
        client.embeddings.create(model="gpt", input="a")


@needs_server
@pytest.mark.parametrize("by_tokens", [False, True])
def test_langchain(address, encoder, by_tokens, monkeypatch):
    """As it is without options, it sends tokens of OpenAI."""
    langchain = pytest.importorskip("langchain_openai")
    if by_tokens:
        use_stored_tokens(monkeypatch)
    how = {} if by_tokens else {"check_embedding_ctx_length": False}
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{address}/v1", api_key="none", model=NAME, **how
    )
    expected = encoder.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), expected[0], atol=1e-6)


@needs_server
def test_chroma(address, monkeypatch):
    chromadb = pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    function = OpenAIEmbeddingFunction(api_key="none", api_base=f"{address}/v1", model_name=NAME)
    collection = chromadb.EphemeralClient().create_collection("served", embedding_function=function)
    collection.add(ids=["a", "b", "c"], documents=TEXTS)
    assert collection.query(query_texts=[TEXTS[2]], n_results=1)["ids"] == [["c"]]
