"""Requests as proxies, browsers and other programs send them to `lxsr serve`."""

import concurrent.futures
import gzip
import json
import socket
import threading
import time

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused
from serve.test_serve import TEXTS, ask, check_error, host_and_port, needs_server, serving

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
    """An index of TEXTS with the ids a, b and c."""
    return CorpusIndex.build(tmp_path / "index", TEXTS, encoder, ids=["a", "b", "c"])


def raw_answer(address, content):
    """Send bytes, and return all bytes that the server sends until it closes the connection."""
    with socket.create_connection(host_and_port(address), timeout=10) as connection:
        connection.sendall(content)
        received = b""
        while chunk := connection.recv(2**16):
            received += chunk
        return received


def status_for_host(address, host):
    """The status of a request that calls the server by this name."""
    return ask(f"{address}/v1/models", Host=host)[0]


# -- names of the server


ALLOWED_HOSTS = ("search.example.org", "10.0.0.7", "[fd00::7]")


@pytest.mark.parametrize(
    "host",
    [
        *ALLOWED_HOSTS,
        pytest.param("SEARCH.Example.org:443", id="capitals and port"),
        pytest.param("search.example.org.", id="final dot"),
        # This machine is always allowed.
        "localhost:8000",
    ],
)
def test_requests_to_allowed_names_of_the_server_are_answered(encoder, host):
    with serving(encoder, allow_host=ALLOWED_HOSTS) as address:
        assert status_for_host(address, host) == 200


@pytest.mark.parametrize(
    "host", ["example.org", "a.search.example.org", "search.example.org@evil.org", "[::2]"]
)
def test_the_error_for_another_name_of_the_server_names_the_option(encoder, host):
    with serving(encoder, allow_host=ALLOWED_HOSTS) as address:
        answer = ask(f"{address}/v1/models", Host=host)

    check_error(answer, 400, "--allow-host")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"allow_host": ("*",)}, id="star"),
        # A server for other machines cannot know by which names they call it.
        pytest.param({"host": "0.0.0.0"}, id="all interfaces"),
    ],
)
def test_any_name_is_answered_with_a_star_and_on_all_interfaces(encoder, options):
    with serving(encoder, **options) as address:
        assert status_for_host(address, "a.org") == 200


def test_on_all_interfaces_allowed_names_exclude_others(encoder):
    with serving(encoder, host="0.0.0.0", allow_host=("a.org",)) as address:
        assert status_for_host(address, "a.org") == 200
        assert status_for_host(address, "b.org") == 400


def test_a_request_without_a_host_is_answered(encoder):
    """HTTP/1.0 does not need this header."""
    with serving(encoder) as address:
        answer = raw_answer(address, b"GET /health HTTP/1.0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("https://a.org", id="address"),
        pytest.param("a.org:443", id="port"),
        pytest.param("", id="empty"),
        pytest.param("a b", id="space"),
        # Clients send such a name in ASCII, and IPv6 addresses in brackets.
        pytest.param("bücher.example", id="not ascii"),
        pytest.param("::1", id="ipv6 without brackets"),
    ],
)
def test_an_allowed_name_that_no_client_sends_is_refused(name):
    done = lxsr_here("serve", "--model", "lxsr-static", "--allow-host", name, check=False)

    refused(done, "--allow-host")


# -- headers and bodies


@pytest.mark.parametrize(
    ("header", "key", "expected_status"),
    [("api-key", "k", 200), ("x-api-key", "k", 200), ("api-key", "x", 401), ("api-key", "", 401)],
    ids=["api-key", "x-api-key", "wrong", "empty"],
)
def test_the_key_may_be_in_the_headers_of_azure(encoder, header, key, expected_status):
    with serving(encoder, api_key="k") as address:
        status, _ = ask(f"{address}/v1/models", **{header: key})

    assert status == expected_status


@pytest.mark.parametrize(
    ("escaped", "expected_text"),
    [
        pytest.param(rb"The shop is open \ud83d", "The shop is open \ufffd", id="first half"),
        pytest.param(rb"\uDE00 one red dog", "\ufffd one red dog", id="second half"),
        pytest.param(rb"\ud83d\ud83d\ude00 dog", "\ufffd\U0001f600 dog", id="before a pair"),
        # Two backslashes are one in the text, which escapes nothing.
        pytest.param(rb"dog \\ud83d \ud83dx", "dog \\ud83d \ufffdx", id="after an even number"),
        pytest.param(rb"dog \\\ud83d", "dog \\\ufffd", id="after an odd number"),
    ],
)
def test_a_lone_surrogate_in_json_is_read_as_a_replacement_character(
    encoder, escaped, expected_text
):
    """Programs that cut text within an emoji send one half of a pair of surrogates."""
    content = b'{"input": ["A dog.", "' + escaped + b'"]}'
    with serving(encoder) as address:
        status, answer = ask(f"{address}/v1/embeddings", content)
        _, expected = ask(f"{address}/v1/embeddings", {"input": ["A dog.", expected_text]})

    assert status == 200
    assert answer == expected


@pytest.mark.parametrize(
    "content",
    [rb'{"input": "\ud83d" "a"}', rb'{"input": "\ud8zz"}'],
    ids=["invalid json", "invalid escape"],
)
def test_invalid_json_with_a_surrogate_is_refused(encoder, content):
    with serving(encoder) as address:
        status, _ = ask(f"{address}/v1/embeddings", content)

    assert status == 400


def test_the_error_of_a_compressed_request_names_its_encoding(encoder):
    body = gzip.compress(json.dumps({"input": "A dog."}).encode())
    with serving(encoder) as address:
        answer = ask(f"{address}/v1/embeddings", body, **{"Content-Encoding": "gzip"})

    check_error(answer, 415, "gzip")


def test_a_request_with_the_encoding_identity_is_answered(encoder):
    """It means that the body is not compressed."""
    headers = {"Content-Encoding": "identity"}
    with serving(encoder) as address:
        status, _ = ask(f"{address}/v1/embeddings", {"input": "A dog."}, **headers)

    assert status == 200


def test_a_server_ends_soon_in_spite_of_clients_that_neither_send_nor_read(encoder, monkeypatch):
    monkeypatch.setattr("fairseq_lxsr.serve.connections.STALLED_SECONDS", 0.3)
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    num_texts = 12000
    large_body = json.dumps({"input": TEXTS[:1] * num_texts}).encode()
    # A request may take 30 seconds.
    with serving(encoder, timeout=30, max_inputs=num_texts) as address:
        half_request = socket.create_connection(host_and_port(address), timeout=20)
        half_request.sendall(head % 100 + b"{")
        # The answer does not fit into this buffer.
        unread_answer = socket.socket()
        unread_answer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread_answer.connect(host_and_port(address))
        unread_answer.sendall(head % len(large_body) + large_body)
        time.sleep(1)
        # Leaving the block ends the server.
        start = time.monotonic()
    seconds = time.monotonic() - start

    assert seconds < 8
    assert half_request.recv(2**16).startswith(b"HTTP/1.1 503")
    half_request.close()
    unread_answer.close()


# -- ids, and edits during a search


def test_an_edit_during_a_search_does_not_change_its_hits(encoder, index, monkeypatch):
    """The queries of a large request are searched in several parts."""
    num_queries = 200
    search = CorpusIndex.search
    first_part_is_done = threading.Event()

    def slow_search(self, queries, *arguments, **options):
        hits = search(self, queries, *arguments, **options)
        first_part_is_done.set()
        time.sleep(0.5)
        return hits

    monkeypatch.setattr(CorpusIndex, "search", slow_search)
    with (
        serving(encoder, index, api_key="k", allow_edits=True, timeout=30) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        query = {"query": TEXTS[:1] * num_queries, "k": 3, "only_ids": ["a", "c"]}
        search_answer = pool.submit(ask, f"{address}/search", query, **KEY)
        first_part_is_done.wait(10)
        edit = {"ids": ["a"], "texts": ["One red bird."]}
        edit_status, _ = ask(f"{address}/index/update", edit, **KEY)
        search_status, content = search_answer.result()

    assert edit_status == 200
    assert search_status == 200
    # The same query has the same hits in all parts, before and after the edit.
    first_result = content["results"][0]
    assert content["results"] == [first_result] * num_queries


def test_the_ids_of_a_search_are_checked_once_for_all_its_queries(encoder, index, monkeypatch):
    from fairseq_lxsr.search import documents

    checked_ids = []
    id_text = documents.id_text

    def recording_id_text(value, name):
        checked_ids.append(value)
        return id_text(value, name)

    monkeypatch.setattr(documents, "id_text", recording_id_text)
    # So many queries are searched in several parts.
    query = {"query": TEXTS[:1] * 300, "k": 3, "only_ids": ["b", "x", 7]}
    with serving(encoder, index) as address:
        status, content = ask(f"{address}/search", query)

    assert status == 200
    assert sorted(map(str, checked_ids)) == ["7", "b", "x"]
    # No text has the ids x and 7.
    for result in content["results"]:
        assert [hit["id"] for hit in result["hits"]] == ["b"]


@pytest.mark.parametrize(
    ("ids", "value"),
    [([""], "''"), ("b", "'b'"), ([True], "True")],
    ids=["empty", "no list", "true"],
)
def test_the_error_for_invalid_ids_of_a_search_names_the_field_and_the_value(
    encoder, index, ids, value
):
    with serving(encoder, index) as address:
        answer = ask(f"{address}/search", {"query": "a", "only_ids": ids})

    check_error(answer, 400, "only_ids")
    check_error(answer, 400, value)


# -- edits


def wait_for_texts(index, count):
    """Wait until the index on the disk has so many texts."""
    deadline = time.monotonic() + 10
    while len(CorpusIndex.load(index.folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_edit_over_the_time_limit_that_may_still_be_made_is_made_later(encoder, index):
    """The error says so, and not that the client should try again."""
    add = {"texts": ["One red bird."], "ids": ["d"]}
    with serving(encoder, index, api_key="k", allow_edits=True, timeout=0.5) as address:
        # Another process edits the index longer than the time limit.
        with editing(index.folder):
            answer = ask(f"{address}/index/add", add, **KEY)

        check_error(answer, 504, "may still be made")
        assert "retry" not in answer[1]["error"]["message"]
        wait_for_texts(index, 4)
        assert CorpusIndex.load(index.folder).ids == ["a", "b", "c", "d"]


def test_an_edit_whose_time_ends_while_it_waits_for_another_is_never_made(encoder, index):
    add = {"texts": ["One red bird."], "ids": ["d"]}
    with serving(encoder, index, api_key="k", allow_edits=True, timeout=0.5) as address:
        with editing(index.folder):
            ask(f"{address}/index/add", add, **KEY)
            # This edit waits until the first is made.
            status, _ = ask(f"{address}/index/delete", {"ids": ["a"]}, **KEY)

        assert status == 504
        wait_for_texts(index, 4)
        # It would be made now.
        time.sleep(0.3)
        assert CorpusIndex.load(index.folder).ids == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("add", {"texts": ["One."], "ids": ["a"]}),
        ("add", {"texts": ["One."]}),
        ("delete", {"ids": ["x"]}),
    ],
    ids=["known id", "without ids", "unknown id"],
)
def test_errors_of_edits_do_not_tell_the_path_of_the_index(encoder, index, tmp_path, name, fields):
    # Neither the path of the link nor that of the folder.
    (tmp_path / "link").symlink_to(index.folder)
    linked_index = CorpusIndex.load(tmp_path / "link")
    with serving(encoder, linked_index, api_key="k", allow_edits=True) as address:
        status, content = ask(f"{address}/index/{name}", fields, **KEY)

    assert status == 400
    message = content["error"]["message"]
    assert message.startswith("index: ")
    assert str(tmp_path) not in message


@pytest.mark.parametrize("kind", ["flat", "int8"])
def test_all_segments_of_an_index_have_pieces_after_each_edit_by_requests(encoder, tmp_path, kind):
    """A search of passages ranks by word pieces, which are stored for each segment."""
    first_passage = " ".join(TEXTS)
    second_passage = "Four green fish hear the mouse. Six black horses find a bird."
    index = CorpusIndex.build(
        tmp_path / "index", [first_passage, first_passage], encoder, ids=["a", "b"], kind=kind
    )
    edits = [
        ("add", {"texts": [second_passage], "ids": ["c"]}),
        ("update", {"texts": [second_passage], "ids": ["a"]}),
        ("delete", {"ids": ["b"]}),
        ("compact", {}),
    ]
    with serving(encoder, index, api_key="k", allow_edits=True) as address:
        for name, fields in edits:
            status, content = ask(f"{address}/index/{name}", fields, **KEY)

            assert status == 200, content
            for segment in CorpusIndex.load(index.folder)._stored.segments:
                assert segment.description["pieces"], name
