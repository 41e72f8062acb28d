"""`lxsr serve` with clients that are idle, do not read, or ask for too much."""

import concurrent.futures
import json
import resource
import select
import signal
import socket
import time
from contextlib import ExitStack

import numpy as np
import pytest
from conftest import COMPATIBILITY
from serve.test_serve import NAME, TEXTS, SlowEncoder, ask, needs_server, serving, started, vectors

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

pytestmark = needs_server
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


def connected(address, content=b"", receive_buffer=None):
    """A connection on which content was sent."""
    host, port = address.split("/")[2].split(":")
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    connection.sendall(content)
    return connection


def request_of(content):
    body = json.dumps(content).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_to_end(connection):
    """Everything that the server sends until it closes the connection."""
    content = b""
    try:
        while chunk := connection.recv(2**16):
            content += chunk
    except ConnectionResetError:
        pass
    return content


def num_running(address):
    """The number of running requests, without the one that asks."""
    for line in ask(f"{address}/metrics")[1].splitlines():
        if line.startswith("lxsr_requests_running "):
            return float(line.split()[1]) - 1
    raise AssertionError("no counter of running requests")


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_connections_without_a_whole_header_are_closed(encoder):
    request = request_of({"input": "a"})
    with serving(encoder, timeout=0.4) as address, ExitStack() as stack:
        start = time.monotonic()
        without_request = []
        for content in (b"", b"P", HEAD):
            without_request.append(stack.enter_context(connected(address, content)))
        # After an answer, uvicorn ends its own time limit with the first byte.
        after_request = stack.enter_context(connected(address, request + b"P"))
        for connection in without_request:
            assert b"HTTP/1.1 200" not in read_to_end(connection)
        assert read_to_end(after_request).count(b"HTTP/1.1 200") == 1
        assert 0.2 < time.monotonic() - start < 5


def test_a_connection_that_sends_its_header_slowly_is_closed(encoder):
    with (
        serving(encoder, timeout=0.4) as address,
        connected(address) as connection,
        pytest.raises(ConnectionError),
    ):
        for byte in HEAD * 3:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)


def test_a_new_connection_replaces_the_one_that_is_idle_longest(encoder):
    with serving(encoder, max_connections=8) as address, ExitStack() as stack:
        request = request_of({"input": "a"})
        begun = stack.enter_context(connected(address, request[:-1]))
        wait_until(lambda: num_running(address) == 1)
        idle = [stack.enter_context(connected(address)) for _ in range(20)]
        assert ask(f"{address}/health")[0] == 200
        assert read_to_end(idle[0]) == b""
        # A connection with a running request is older and stays.
        begun.sendall(request[-1:])
        assert begun.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_server_with_fewer_descriptors_than_connections_answers(encoder):
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))}
    process = started("--model", encoder.folder, **limits)
    try:
        address = process.stdout.readline().split()[-1].removesuffix("/v1")
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connected(address))
            assert ask(f"{address}/health")[0] == 200
        process.send_signal(signal.SIGINT)
        messages = process.communicate(timeout=20)[1].splitlines()
        assert process.returncode == 0
        # The last message is that the server stopped.
        assert len(messages) <= 3, messages
        assert messages[0].startswith("--max-connections 4096: "), messages
    finally:
        process.kill()
        process.communicate()


def test_repeated_errors_of_accept_are_reported_once_in_one_line(capsys):
    import asyncio

    from fairseq_lxsr.serve.connections import make_server

    server = make_server(None, 1, 1)
    server._next_report = 0.0
    loop = asyncio.new_event_loop()
    error = {"message": "socket.accept() out of system resource", "exception": OSError(24, "many")}
    for _ in range(3):
        server.report(loop, error)
    loop.close()
    assert capsys.readouterr().err == "lxsr serve: cannot accept connections: [Errno 24] many\n"


def test_a_request_whose_answer_is_not_read_runs_until_the_time_limit(encoder):
    request = request_of({"input": TEXTS[:1] * 12000})
    with serving(encoder, timeout=2, max_inputs=12000) as address, ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(address, request, 4096))
        wait_until(lambda: num_running(address) == 3)
        wait_until(lambda: num_running(address) == 0)
        assert not read_to_end(connection).endswith(b"]}\r\n0\r\n\r\n")
        assert 'path="/v1/embeddings",status="200"' not in ask(f"{address}/metrics")[1]
        # A client that reads gets a whole answer.
        assert vectors(ask(f"{address}/v1/embeddings", {"input": TEXTS * 1000})).shape[0] == 3000


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off_when_another_needs_the_memory(encoder):
    count = 2**20 * 3 // 4 // (4 * encoder.output_dim)
    request = request_of({"input": TEXTS[:1] * count})
    options = {"max_waiting": 1, "max_inputs": count, "timeout": 30}
    with serving(encoder, **options) as address, ExitStack() as stack:
        first = stack.enter_context(connected(address, request, 4096))
        wait_until(lambda: num_running(address) == 1)
        assert first.recv(4)
        second = stack.enter_context(connected(address, request, 4096))
        assert second.recv(4)
        wait_until(lambda: num_running(address) == 1)
        assert not read_to_end(first).endswith(b"0\r\n\r\n")


@pytest.mark.slow
def test_one_of_two_incomplete_requests_is_refused_when_they_need_the_memory(encoder):
    begun = HEAD + b"Content-Length: 2000000\r\n\r\n" + b" " * 2**20
    rest = b" " * (2000000 - 2**20)
    with serving(encoder, max_waiting=1, timeout=30) as address, ExitStack() as stack:
        connections = [stack.enter_context(connected(address, begun)) for _ in range(2)]
        # The connection whose last bytes are older is refused.
        readable, _, _ = select.select(connections, [], [], 10)
        [refused] = readable
        assert refused.recv(12) == b"HTTP/1.1 503"
        connections.remove(refused)
        [accepted] = connections
        accepted.sendall(rest)
        assert accepted.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_sends_requests_without_reading_the_answers_is_cut_off(encoder):
    """uvicorn keeps all requests of a connection in memory."""
    content = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(encoder) as address:
        with connected(address, content * 20) as connection:
            connection.sendall(content.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert read_to_end(connection).count(b"HTTP/1.1 200") == 21
        with pytest.raises(ConnectionError), connected(address) as connection:
            for _ in range(1000):
                connection.sendall(content * 1000)
        assert ask(f"{address}/health")[0] == 200


def test_the_size_of_a_search_is_limited(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)
    with serving(encoder, index, max_inputs=200) as address:
        url = f"{address}/search"
        status, answer = ask(url, {"query": TEXTS[:1] * 101, "k": 20})
        assert (status, answer["error"]["param"]) == (400, "k")
        assert ask(url, {"query": TEXTS[:1] * 100, "k": 20})[0] == 200


def test_a_search_of_many_queries_has_the_hits_of_the_index(encoder, tmp_path):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)
    queries = [*TEXTS, "\U0001f44d"] * 50
    with serving(encoder, index, max_inputs=200) as address:
        results = ask(f"{address}/search", {"query": queries, "k": 2})[1]["results"]
    assert [result["query"] for result in results] == queries
    for result, hits in zip(results, index.search(queries, encoder, 2), strict=True):
        assert [hit["snippet"] for hit in result["hits"]] == [hit.sentence for hit in hits]


def test_other_requests_are_answered_during_a_search(encoder, tmp_path, monkeypatch):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)
    search = CorpusIndex.search

    def slow_search(self, queries, *arguments, **options):
        time.sleep(0.1)
        return search(self, queries, *arguments, **options)

    monkeypatch.setattr(CorpusIndex, "search", slow_search)
    with (
        serving(encoder, index) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        content = {"query": TEXTS[:1] * 1000, "k": 1}
        answer = pool.submit(ask, f"{address}/search", content)
        time.sleep(0.2)
        for _ in range(3):
            assert ask(f"{address}/v1/embeddings", {"input": "a", "model": NAME})[0] == 200
        assert not answer.done()
        assert answer.result()[0] == 200


def test_a_small_request_does_not_wait_for_large_ones(encoder):
    slow = SlowEncoder(encoder, 0.02)
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"{address}/v1/embeddings"
        answers = [pool.submit(ask, url, {"input": TEXTS[:1] * 2000}) for _ in range(4)]
        time.sleep(0.1)
        assert ask(url, {"input": TEXTS[1]})[0] == 200
        for answer in answers:
            assert not answer.done()
        for answer in answers:
            assert len(answer.result()[1]["data"]) == 2000
        assert max(len(batch) for batch in slow.batches) <= 512


def test_the_request_of_a_client_that_closes_its_connection_is_stopped(encoder):
    slow = SlowEncoder(encoder, 0.2)
    request = request_of({"input": TEXTS[:1] * 2000})
    with serving(slow) as address:
        with connected(address, request):
            wait_until(lambda: len(slow.batches) >= 2)
        wait_until(lambda: num_running(address) == 0)
        assert len(slow.batches) <= 4
        assert 'path="/v1/embeddings",status="499"} 1.0' in ask(f"{address}/metrics")[1]


def test_long_answers_have_all_fields_and_embeddings(encoder):
    texts = [f"{number} dogs {TEXTS[number % 3]}" for number in range(1500)]
    expected = encoder.encode(texts, normalize=True)
    with serving(encoder) as address:
        for encoding in ("float", "base64"):
            content = {"input": texts, "encoding_format": encoding}
            status, answer = ask(f"{address}/v1/embeddings", content)
            assert (status, answer["object"], answer["model"]) == (200, "list", NAME)
            assert answer["usage"]["total_tokens"] > 1500
        rows = vectors(ask(f"{address}/v1/embeddings", {"input": texts}))
        np.testing.assert_allclose(rows, expected, atol=1e-6)
