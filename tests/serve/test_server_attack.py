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
from serve.test_serve import NAME, TEXTS, Slow, ask, needs_server, serving, started, vectors

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

pytestmark = needs_server
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


def connected(address, sent=b"", receive_buffer=None):
    """A connection on which something was sent."""
    host, port = address.split("/")[2].split(":")
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    connection.sendall(sent)
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


def running(address):
    """Requests at work, without the one that asks."""
    for line in ask(f"{address}/metrics")[1].splitlines():
        if line.startswith("lxsr_requests_running "):
            return float(line.split()[1]) - 1
    raise AssertionError("no such counter")


def wait_until(is_true, seconds=5.0):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_connections_without_a_whole_header_are_closed(encoder):
    """Also after an answer, where uvicorn ends its own time limit with the first byte."""
    with serving(encoder, timeout=0.4) as address, ExitStack() as stack:
        answered = request_of({"input": "a"})
        start = time.monotonic()
        idle = {}
        for sent in (b"", b"P", HEAD, answered + b"P"):
            idle[stack.enter_context(connected(address, sent))] = sent
        for connection, sent in idle.items():
            assert read_to_end(connection).count(b"HTTP/1.1 200") == sent.count(answered)
        assert 0.2 < time.monotonic() - start < 5
        slow = stack.enter_context(connected(address))
        with pytest.raises(ConnectionError):
            for byte in HEAD * 3:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)


def test_a_new_connection_replaces_the_one_that_is_idle_longest(encoder):
    with serving(encoder, max_connections=8) as address, ExitStack() as stack:
        body = request_of({"input": "a"})
        half = stack.enter_context(connected(address, body[:-1]))
        wait_until(lambda: running(address) == 1)
        idle = [stack.enter_context(connected(address)) for _ in range(20)]
        assert ask(f"{address}/health")[0] == 200
        assert read_to_end(idle[0]) == b""
        # A request at work is older and stays.
        half.sendall(body[-1:])
        assert half.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_more_connections_than_files(encoder):
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))}
    process = started("--model", encoder.folder, **limits)
    try:
        address = process.stdout.readline().split()[-1].removesuffix("/v1")
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connected(address))
            assert ask(f"{address}/health")[0] == 200
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1].splitlines()
        assert process.returncode == 0
        # That fewer connections are possible, and that it stopped.
        assert len(said) <= 3, said
        assert said[0].startswith("--max-connections 4096: "), said
    finally:
        process.kill()
        process.communicate()


def test_errors_of_accept_are_one_line(capsys):
    import asyncio

    from fairseq_lxsr.serve.connections import make_server

    server = make_server(None, 1, 1)
    server._next_report = 0.0
    loop = asyncio.new_event_loop()
    error = {"message": "socket.accept() out of system resource", "exception": OSError(24, "many")}
    for _ in range(3):
        server.report(loop, error)
    loop.close()
    assert capsys.readouterr().err == ("lxsr serve: cannot accept connections: [Errno 24] many\n")


def test_an_answer_that_is_not_read_is_a_request_at_work_until_it_is_cut_off(encoder):
    request = request_of({"input": TEXTS[:1] * 12000})
    with serving(encoder, timeout=2, max_inputs=12000) as address, ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(address, request, 4096))
        wait_until(lambda: running(address) == 3)
        wait_until(lambda: running(address) == 0)
        assert not read_to_end(connection).endswith(b"]}\r\n0\r\n\r\n")
        assert 'path="/v1/embeddings",status="200"' not in ask(f"{address}/metrics")[1]
        # One that is read has all of it.
        assert vectors(ask(f"{address}/v1/embeddings", {"input": TEXTS * 1000})).shape[0] == 3000


@pytest.mark.slow
def test_memory_of_answers_that_are_not_read_is_limited(encoder):
    """The first of these clients is cut off when the second needs the memory."""
    count = 2**20 * 3 // 4 // (4 * encoder.output_dim)
    request = request_of({"input": TEXTS[:1] * count})
    options = {"max_waiting": 1, "max_inputs": count, "timeout": 30}
    with serving(encoder, **options) as address, ExitStack() as stack:
        first = stack.enter_context(connected(address, request, 4096))
        wait_until(lambda: running(address) == 1)
        assert first.recv(4)
        second = stack.enter_context(connected(address, request, 4096))
        assert second.recv(4)
        wait_until(lambda: running(address) == 1)
        assert not read_to_end(first).endswith(b"0\r\n\r\n")
        # Bodies that do not end need memory as well.
        big = HEAD + b"Content-Length: 2000000\r\n\r\n" + b" " * 2**20
        third = stack.enter_context(connected(address, big))
        fourth = stack.enter_context(connected(address, big))
        # The one whose last bytes are older is refused.
        ((refused,), _, _) = select.select([third, fourth], [], [], 10)
        assert refused.recv(12) == b"HTTP/1.1 503"
        other = fourth if refused is third else third
        other.sendall(b" " * (2000000 - 2**20))
        assert other.recv(12) == b"HTTP/1.1 400"


def test_requests_that_are_sent_without_reading_the_answers(encoder):
    """uvicorn keeps all of them in memory."""
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
        queries = [*TEXTS, "\U0001f44d"] * 50
        results = ask(url, {"query": queries, "k": 2})[1]["results"]
        assert [result["query"] for result in results] == queries
        expected = [[hit.sentence for hit in hits] for hits in index.search(queries, encoder, 2)]
        assert [[hit["snippet"] for hit in result["hits"]] for result in results] == expected


def test_other_requests_are_answered_during_a_search(encoder, tmp_path, monkeypatch):
    index = CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)
    search = CorpusIndex.search

    def slow(self, queries, *arguments, **options):
        time.sleep(0.1)
        return search(self, queries, *arguments, **options)

    monkeypatch.setattr(CorpusIndex, "search", slow)
    with (
        serving(encoder, index) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        content = {"query": TEXTS[:1] * 1000, "k": 1}
        begun = pool.submit(ask, f"{address}/search", content)
        time.sleep(0.2)
        for _ in range(3):
            assert ask(f"{address}/v1/embeddings", {"input": "a", "model": NAME})[0] == 200
        assert not begun.done()
        assert begun.result()[0] == 200


def test_a_small_request_does_not_wait_for_large_ones(encoder):
    slow = Slow(encoder, 0.02)
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"{address}/v1/embeddings"
        large = [pool.submit(ask, url, {"input": TEXTS[:1] * 2000}) for _ in range(4)]
        time.sleep(0.1)
        assert ask(url, {"input": TEXTS[1]})[0] == 200
        assert not any(request.done() for request in large)
        for request in large:
            assert len(request.result()[1]["data"]) == 2000
        assert max(map(len, slow.batches)) <= 512


def test_the_work_for_a_client_that_goes_away_ends(encoder):
    slow = Slow(encoder, 0.2)
    request = request_of({"input": TEXTS[:1] * 2000})
    with serving(slow) as address:
        with connected(address, request):
            wait_until(lambda: len(slow.batches) >= 2)
        wait_until(lambda: running(address) == 0)
        assert len(slow.batches) <= 4
        assert 'path="/v1/embeddings",status="499"} 1.0' in ask(f"{address}/metrics")[1]


def test_long_answers_have_the_same_content(encoder):
    texts = [f"{number} dogs {TEXTS[number % 3]}" for number in range(1500)]
    expected = encoder.encode(texts, normalize=True)
    with serving(encoder) as address:
        for encoding in ("float", "base64"):
            content = {"input": texts, "encoding_format": encoding}
            status, answer = ask(f"{address}/v1/embeddings", content)
            assert (status, answer["object"], answer["model"]) == (200, "list", NAME)
            assert answer["usage"]["total_tokens"] > 1500
        shown = ask(f"{address}/v1/embeddings", {"input": texts})
        np.testing.assert_allclose(vectors(shown), expected, atol=1e-6)
