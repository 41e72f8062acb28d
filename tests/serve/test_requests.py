"""Requests as proxies, browsers and other programs send them to `lxsr serve`."""

import concurrent.futures
import gzip
import json
import socket
import threading
import time

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused
from serve.test_serve import TEXTS, ask, check_error, needs_server, serving

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


def raw_answer(address, content):
    """All bytes that the server sends until it closes the connection."""
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(content)
        received = b""
        while chunk := connection.recv(2**16):
            received += chunk
        return received


# -- names of the server


def test_only_allowed_names_of_the_server_are_answered(encoder):
    names = ("search.example.org", "10.0.0.7", "[fd00::7]")
    with serving(encoder, allow_host=names) as address:
        for host in ("search.example.org", "SEARCH.Example.org:443", "search.example.org.", *names):
            assert ask(f"{address}/v1/models", Host=host)[0] == 200, host
        assert ask(f"{address}/v1/models", Host="localhost:8000")[0] == 200
        for host in ("example.org", "a.search.example.org", "search.example.org@evil.org", "[::2]"):
            check_error(ask(f"{address}/v1/models", Host=host), 400, "--allow-host")
    with serving(encoder, allow_host=("*",)) as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
    with serving(encoder, host="0.0.0.0") as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
    with serving(encoder, host="0.0.0.0", allow_host=("a.org",)) as address:
        assert ask(f"{address}/health", Host="a.org")[0] == 200
        assert ask(f"{address}/health", Host="b.org")[0] == 400


def test_a_request_without_a_host_is_answered(encoder):
    with serving(encoder) as address:
        answer = raw_answer(address, b"GET /health HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")


def test_an_allowed_name_that_no_client_sends_is_refused():
    for name in ("https://a.org", "a.org:443", "", "a b", "bücher.example", "::1"):
        command = ("serve", "--model", "lxsr-static", "--allow-host", name)
        refused(lxsr_here(*command, check=False), "--allow-host")


# -- headers and bodies


def test_the_key_may_be_in_the_headers_of_azure(encoder):
    with serving(encoder, api_key="k") as address:
        url = f"{address}/v1/models"
        assert ask(url, **{"api-key": "k"})[0] == 200
        assert ask(url, **{"x-api-key": "k"})[0] == 200
        assert ask(url, **{"api-key": "x"})[0] == 401
        assert ask(url, **{"api-key": ""})[0] == 401


def test_a_lone_surrogate_is_read_as_a_replacement_character(encoder):
    texts = [
        (rb"The shop is open \ud83d", "The shop is open \ufffd"),
        (rb"\uDE00 one red dog", "\ufffd one red dog"),
        (rb"\ud83d\ud83d\ude00 dog", "\ufffd\U0001f600 dog"),
        (rb"dog \\ud83d \ud83dx", "dog \\ud83d \ufffdx"),
        (rb"dog \\\ud83d", "dog \\\ufffd"),
    ]
    with serving(encoder) as address:
        for escaped, expected_text in texts:
            content = b'{"input": ["A dog.", "' + escaped + b'"]}'
            status, answer = ask(f"{address}/v1/embeddings", content)
            assert status == 200, answer
            expected = ask(f"{address}/v1/embeddings", {"input": ["A dog.", expected_text]})[1]
            assert answer == expected
        assert ask(f"{address}/v1/embeddings", rb'{"input": "\ud83d" "a"}')[0] == 400
        assert ask(f"{address}/v1/embeddings", rb'{"input": "\ud8zz"}')[0] == 400


def test_a_compressed_request_is_refused_with_the_name_of_its_encoding(encoder):
    body = gzip.compress(json.dumps({"input": "A dog."}).encode())
    with serving(encoder) as address:
        answer = ask(f"{address}/v1/embeddings", body, **{"Content-Encoding": "gzip"})
        check_error(answer, 415, "gzip")
        headers = {"Content-Encoding": "identity"}
        assert ask(f"{address}/v1/embeddings", {"input": "A dog."}, **headers)[0] == 200


def test_a_server_ends_in_spite_of_clients_that_neither_send_nor_read(encoder, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.connections.STALLED_SECONDS", 0.3)
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    large_body = json.dumps({"input": TEXTS[:1] * 12000}).encode()
    with serving(encoder, timeout=30, max_inputs=12000) as address:
        host, port = address.split("/")[2].split(":")
        half_request = socket.create_connection((host, int(port)), timeout=20)
        half_request.sendall(head % 100 + b"{")
        unread_answer = socket.socket()
        unread_answer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread_answer.connect((host, int(port)))
        unread_answer.sendall(head % len(large_body) + large_body)
        time.sleep(1)
        start = time.monotonic()
    assert time.monotonic() - start < 8
    assert half_request.recv(2**16).startswith(b"HTTP/1.1 503")
    half_request.close()
    unread_answer.close()


# -- ids, and edits during a search


def test_an_edit_during_a_search_does_not_change_its_hits(encoder, index, monkeypatch):
    """The queries of a large request are searched in several parts."""
    search = CorpusIndex.search
    first_part_is_done = threading.Event()

    def slow_search(self, queries, *arguments, **options):
        hits = search(self, queries, *arguments, **options)
        first_part_is_done.set()
        time.sleep(0.5)
        return hits

    monkeypatch.setattr(CorpusIndex, "search", slow_search)
    with (
        serving(encoder, index, api_key="k", allow_edits=True) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        query = {"query": TEXTS[:1] * 200, "k": 3, "only_ids": ["a", "c"]}
        answer = pool.submit(ask, f"{address}/search", query, **KEY)
        first_part_is_done.wait(10)
        edit = {"ids": ["a"], "texts": ["One red bird."]}
        assert ask(f"{address}/index/update", edit, **KEY)[0] == 200
        status, content = answer.result()
        assert status == 200
        results = content["results"]
        assert len(results) == 200
        for result in results:
            assert result == results[0]


def test_the_ids_of_a_request_are_checked_once(encoder, index, monkeypatch):
    from fairseq_lxsr.search import documents

    checked_ids = []
    id_text = documents.id_text

    def counting_id_text(value, name):
        checked_ids.append(value)
        return id_text(value, name)

    monkeypatch.setattr(documents, "id_text", counting_id_text)
    with serving(encoder, index) as address:
        query = {"query": TEXTS[:1] * 300, "k": 3, "only_ids": ["b", "x", 7]}
        status, answer = ask(f"{address}/search", query)
        assert status == 200
        for result in answer["results"]:
            assert [hit["id"] for hit in result["hits"]] == ["b"]
        assert len(checked_ids) == 3


def test_invalid_ids_of_a_search_are_named(encoder, index):
    with serving(encoder, index) as address:
        for ids, value in (([""], "''"), ("b", "'b'"), ([True], "True")):
            answer = ask(f"{address}/search", {"query": "a", "only_ids": ids})
            check_error(answer, 400, "only_ids")
            check_error(answer, 400, value)


# -- edits


def test_the_error_of_an_edit_over_the_time_limit_tells_that_it_may_still_be_made(encoder, index):
    add = {"texts": ["One red bird."], "ids": ["d"]}
    with serving(encoder, index, api_key="k", allow_edits=True, timeout=0.5) as address:
        with editing(index.folder):
            answer = ask(f"{address}/index/add", add, **KEY)
            check_error(answer, 504, "may still be made")
            assert "retry" not in answer[1]["error"]["message"]
            # This edit waits for the first until its time is over, so it is never made.
            assert ask(f"{address}/index/delete", {"ids": ["a"]}, **KEY)[0] == 504
        deadline = time.monotonic() + 10
        while len(CorpusIndex.load(index.folder)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        assert CorpusIndex.load(index.folder).ids == ["a", "b", "c", "d"]


def test_errors_of_edits_do_not_tell_the_path_of_the_index(encoder, index, tmp_path):
    (tmp_path / "link").symlink_to(index.folder)
    index = CorpusIndex.load(tmp_path / "link")
    with serving(encoder, index, api_key="k", allow_edits=True) as address:
        for name, fields in (
            ("add", {"texts": ["One."], "ids": ["a"]}),
            ("add", {"texts": ["One."]}),
            ("delete", {"ids": ["x"]}),
        ):
            status, answer = ask(f"{address}/index/{name}", fields, **KEY)
            assert status == 400
            message = answer["error"]["message"]
            assert message.startswith("index: ")
            assert str(tmp_path) not in message


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_edits_by_requests_store_the_pieces_of_passages(encoder, tmp_path, kind):
    passages = [" ".join(TEXTS), "Four green fish hear the mouse. Six black horses find a bird."]
    texts = [passages[0], passages[0]]
    index = CorpusIndex.build(tmp_path / "index", texts, encoder, ids=["a", "b"], kind=kind)
    with serving(encoder, index, api_key="k", allow_edits=True) as address:

        def edit(name, **fields):
            status, answer = ask(f"{address}/index/{name}", fields, **KEY)
            assert status == 200, answer
            for segment in CorpusIndex.load(index.folder)._stored.segments:
                assert segment.description["pieces"]

        edit("add", texts=passages[1:], ids=["c"])
        edit("update", texts=passages[1:], ids=["a"])
        edit("delete", ids=["b"])
        edit("compact")
