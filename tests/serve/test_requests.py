"""Requests as proxies, browsers and other programs send them to `lxsr serve`."""

import concurrent.futures
import gzip
import json
import socket
import threading
import time

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused
from serve.test_serve import TEXTS, ask, needs_server, serving

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.edits import editing

pytestmark = needs_server
KEY = {"Authorization": "Bearer k"}


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


@pytest.fixture
def index(encoder, tmp_path):
    return CorpusIndex.build(tmp_path / "index", TEXTS, encoder, ids=["a", "b", "c"])


def message(answer):
    return answer[1]["error"]["message"]


def raw(address, content):
    """Everything that the server sends for bytes."""
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(content)
        received = b""
        while chunk := connection.recv(2**16):
            received += chunk
        return received


# -- names of the server


def test_names_of_the_server_behind_a_proxy(encoder):
    names = ("search.example.org", "10.0.0.7", "[fd00::7]")
    with serving(encoder, allow_host=names) as address:
        for host in ("search.example.org", "SEARCH.Example.org:443", "search.example.org.", *names):
            assert ask(f"{address}/v1/models", Host=host)[0] == 200, host
        assert ask(f"{address}/v1/models", Host="localhost:8000")[0] == 200
        for host in ("example.org", "a.search.example.org", "search.example.org@evil.org", "[::2]"):
            status, answer = ask(f"{address}/v1/models", Host=host)
            assert status == 400, host
            assert "--allow-host" in answer["error"]["message"]
    with serving(encoder, allow_host=("*",)) as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
    with serving(encoder, host="0.0.0.0") as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
    with serving(encoder, host="0.0.0.0", allow_host=("a.org",)) as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
        assert ask(f"{address}/health", Host="b.org")[0] == 400


def test_a_health_check_without_a_host(encoder):
    with serving(encoder) as address:
        assert raw(address, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", ["https://a.org", "a.org:443", "", "a b", "bücher.example", "::1"])
def test_a_name_that_no_client_sends(name):
    command = ("serve", "--model", "lxsr-static", "--allow-host", name)
    refused(lxsr_here(*command, check=False), "--allow-host")


# -- headers and bodies


def test_a_key_in_the_headers_of_azure(encoder):
    with serving(encoder, api_key="k") as address:
        url = f"{address}/v1/models"
        assert ask(url, **{"api-key": "k"})[0] == 200
        assert ask(url, **{"x-api-key": "k"})[0] == 200
        assert ask(url, **{"api-key": "x"})[0] == 401
        assert ask(url, **{"api-key": ""})[0] == 401


def test_half_an_emoji_is_a_replacement_character(encoder):
    halves = [
        (rb"The shop is open \ud83d", "The shop is open \ufffd"),
        (rb"\uDE00 one red dog", "\ufffd one red dog"),
        (rb"\ud83d\ud83d\ude00 dog", "\ufffd\U0001f600 dog"),
        (rb"dog \\ud83d \ud83dx", "dog \\ud83d \ufffdx"),
        (rb"dog \\\ud83d", "dog \\\ufffd"),
    ]
    with serving(encoder) as address:
        for sent, read in halves:
            content = b'{"input": ["A dog.", "' + sent + b'"]}'
            status, answer = ask(f"{address}/v1/embeddings", content)
            assert status == 200, answer
            assert answer == ask(f"{address}/v1/embeddings", {"input": ["A dog.", read]})[1]
        assert ask(f"{address}/v1/embeddings", rb'{"input": "\ud83d" "a"}')[0] == 400
        assert ask(f"{address}/v1/embeddings", rb'{"input": "\ud8zz"}')[0] == 400


def test_a_compressed_request_is_refused_by_its_name(encoder):
    body = gzip.compress(json.dumps({"input": "A dog."}).encode())
    with serving(encoder) as address:
        answer = ask(f"{address}/v1/embeddings", body, **{"Content-Encoding": "gzip"})
        assert answer[0] == 415
        assert "gzip" in message(answer)
        plain = {"Content-Encoding": "identity"}
        assert ask(f"{address}/v1/embeddings", {"input": "A dog."}, **plain)[0] == 200


def test_clients_that_stall_do_not_delay_the_end(encoder, monkeypatch):
    """One sends half a request, the other does not read."""
    monkeypatch.setattr("fairseq_lxsr.serve.connections.STALLED_SECONDS", 0.3)
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    long = json.dumps({"input": TEXTS[:1] * 12000}).encode()
    with serving(encoder, timeout=30, max_inputs=12000) as address:
        host, port = address.split("/")[2].split(":")
        half = socket.create_connection((host, int(port)), timeout=20)
        half.sendall(head % 100 + b"{")
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect((host, int(port)))
        unread.sendall(head % len(long) + long)
        time.sleep(1)
        start = time.monotonic()
    assert time.monotonic() - start < 8
    assert half.recv(2**16).startswith(b"HTTP/1.1 503")
    half.close()
    unread.close()


# -- one state


def test_a_response_has_the_sentences_of_one_state(encoder, index, monkeypatch):
    """An edit between two parts of a search does not change the second part."""
    search = CorpusIndex.search
    begun = threading.Event()

    def slow(self, queries, *arguments, **options):
        hits = search(self, queries, *arguments, **options)
        begun.set()
        time.sleep(0.5)
        return hits

    monkeypatch.setattr(CorpusIndex, "search", slow)
    with (
        serving(encoder, index, api_key="k", allow_edits=True) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        query = {"query": TEXTS[:1] * 200, "k": 3, "only_ids": ["a", "c"]}
        answer = pool.submit(ask, f"{address}/search", query, **KEY)
        begun.wait(10)
        edit = {"ids": ["a"], "texts": ["One red bird."]}
        assert ask(f"{address}/index/update", edit, **KEY)[0] == 200
        status, content = answer.result()
        assert status == 200
        results = content["results"]
        assert all(result == results[0] for result in results)


def test_the_ids_of_a_request_are_checked_once(encoder, index, monkeypatch):
    from fairseq_lxsr.search import documents

    checks = []
    id_text = documents.id_text
    monkeypatch.setattr(
        documents, "id_text", lambda value, name: checks.append(value) or id_text(value, name)
    )
    with serving(encoder, index) as address:
        query = {"query": TEXTS[:1] * 300, "k": 3, "only_ids": ["b", "x", 7]}
        status, answer = ask(f"{address}/search", query)
        assert status == 200
        assert {hit["id"] for result in answer["results"] for hit in result["hits"]} == {"b"}
        assert len(checks) == 3
        for ids, value in (([""], "''"), ("b", "'b'"), ([True], "True")):
            answer = ask(f"{address}/search", {"query": "a", "only_ids": ids})
            assert answer[0] == 400
            assert "only_ids" in message(answer)
            assert value in message(answer)


# -- edits


def test_an_edit_that_may_still_be_made_is_not_to_be_sent_again(encoder, index):
    add = {"texts": ["One red bird."], "ids": ["d"]}
    with serving(encoder, index, api_key="k", allow_edits=True, timeout=0.5) as address:
        with editing(index.folder):
            answer = ask(f"{address}/index/add", add, **KEY)
            assert answer[0] == 504
            assert "may still be made" in message(answer)
            assert "retry" not in message(answer)
            # This one waits for the first, so it is never begun.
            assert ask(f"{address}/index/delete", {"ids": ["a"]}, **KEY)[0] == 504
        end = time.monotonic() + 10
        while len(CorpusIndex.load(index.folder)) < 4 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.3)
        assert CorpusIndex.load(index.folder).ids == ["a", "b", "c", "d"]


def test_errors_of_edits_do_not_show_folders(encoder, index, tmp_path):
    (tmp_path / "link").symlink_to(index.folder)
    index = CorpusIndex.load(tmp_path / "link")
    with serving(encoder, index, api_key="k", allow_edits=True) as address:
        for name, fields in (
            ("add", {"texts": ["One."], "ids": ["a"]}),
            ("add", {"texts": ["One."]}),
            ("delete", {"ids": ["x"]}),
        ):
            answer = ask(f"{address}/index/{name}", fields, **KEY)
            assert answer[0] == 400
            assert message(answer).startswith("index: ")
            assert str(tmp_path) not in message(answer)


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_edits_by_requests_store_the_pieces_of_passages(encoder, tmp_path, kind):
    passages = [" ".join(TEXTS), "Four green fish hear the mouse. Six black horses find a bird."]
    index = CorpusIndex.build(
        tmp_path / "index", passages[:1] * 2, encoder, ids=["a", "b"], kind=kind
    )
    with serving(encoder, index, api_key="k", allow_edits=True) as address:

        def edit(name, **fields):
            status, answer = ask(f"{address}/index/{name}", fields, **KEY)
            assert status == 200, answer
            segments = CorpusIndex.load(index.folder)._stored.segments
            assert all(segment.description["pieces"] for segment in segments)

        edit("add", texts=passages[1:], ids=["c"])
        edit("update", texts=passages[1:], ids=["a"])
        edit("delete", ids=["b"])
        edit("compact")
