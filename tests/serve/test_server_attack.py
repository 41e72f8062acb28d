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
from serve.test_serve import (
    NAME,
    TEXTS,
    SlowEncoder,
    ask,
    host_and_port,
    needs_server,
    printed_address,
    serving,
    started,
    vectors,
)

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

pytestmark = needs_server
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(COMPATIBILITY / "best.model")


def connected(address, content=b"", receive_buffer=None):
    """A connection on which content was sent."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect(host_and_port(address))
    connection.sendall(content)
    return connection


def request_of(content):
    """The bytes of a request for embeddings with this content."""
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
    """Wait until the condition is true, five seconds at most."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def index(encoder, tmp_path):
    """An index of TEXTS."""
    return CorpusIndex.build(tmp_path / "index", TEXTS, encoder, plain=True)


@pytest.mark.parametrize("content", [b"", b"P", HEAD], ids=["nothing", "a byte", "half a header"])
def test_a_connection_without_a_whole_header_is_closed_at_the_time_limit(encoder, content):
    with serving(encoder, timeout=0.4) as address:
        start = time.monotonic()
        with connected(address, content) as connection:
            received = read_to_end(connection)
        seconds = time.monotonic() - start

    assert b"HTTP/1.1 200" not in received
    assert 0.2 < seconds < 5


def test_a_connection_with_a_byte_after_a_request_is_closed_at_the_time_limit(encoder):
    """After an answer, uvicorn ends its own time limit with the first byte."""
    request = request_of({"input": "a"})
    with serving(encoder, timeout=0.4) as address:
        start = time.monotonic()
        with connected(address, request + b"P") as connection:
            received = read_to_end(connection)
        seconds = time.monotonic() - start

    assert received.count(b"HTTP/1.1 200") == 1
    assert 0.2 < seconds < 5


def test_a_connection_that_sends_its_header_slowly_is_closed(encoder):
    # 141 bytes, one every 0.02 seconds, take longer than the time limit of 0.4 seconds.
    slow_header = HEAD * 3
    with (
        serving(encoder, timeout=0.4) as address,
        connected(address) as connection,
        pytest.raises(ConnectionError),
    ):
        for byte in slow_header:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)


def test_a_new_connection_replaces_the_one_that_is_idle_longest_and_no_running_request(encoder):
    request = request_of({"input": "a"})
    with serving(encoder, max_connections=8) as address, ExitStack() as stack:
        # The first connection has sent all of its request but one byte.
        running = stack.enter_context(connected(address, request[:-1]))
        wait_until(lambda: num_running(address) == 1)
        # More idle connections than the limit.
        idle = [stack.enter_context(connected(address)) for _ in range(20)]

        assert ask(f"{address}/health")[0] == 200
        # The connection that is idle longest was closed.
        assert read_to_end(idle[0]) == b""
        # The running request is older, but can be completed.
        running.sendall(request[-1:])
        assert running.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_server_with_fewer_descriptors_than_connections_answers_and_warns_once(encoder):
    def allow_150_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))

    process = started("--model", encoder.folder, preexec_fn=allow_150_descriptors)
    try:
        address = printed_address(process)
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connected(address))

            assert ask(f"{address}/health")[0] == 200

        process.send_signal(signal.SIGINT)
        messages = process.communicate(timeout=20)[1].splitlines()
        assert process.returncode == 0
        # The default limit of connections needs more descriptors.
        assert messages[0].startswith("--max-connections 4096: "), messages
        # At most one other message, and the last, that the server has stopped.
        assert len(messages) <= 3, messages
    finally:
        process.kill()
        process.communicate()


def test_repeated_errors_of_accept_are_reported_once_in_one_line(capsys):
    import asyncio

    from fairseq_lxsr.serve.connections import make_server

    server = make_server(None, 1, 1)
    # The next error may be reported at once.
    server._next_report = 0.0
    loop = asyncio.new_event_loop()
    error = {"message": "socket.accept() out of system resource", "exception": OSError(24, "many")}

    for _ in range(3):
        server.report(loop, error)

    loop.close()
    assert capsys.readouterr().err == "lxsr serve: cannot accept connections: [Errno 24] many\n"


# An answer of so many embeddings does not fit into the buffers of a connection.
NUM_TEXTS = 12000
# The end of the JSON of an answer that is sent in chunks.
END_OF_ANSWER = b"]}\r\n0\r\n\r\n"


def test_a_request_whose_answer_is_not_read_is_cut_off_at_the_time_limit(encoder):
    request = request_of({"input": TEXTS[:1] * NUM_TEXTS})
    with serving(encoder, timeout=2, max_inputs=NUM_TEXTS) as address, ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(address, request, receive_buffer=4096))

        wait_until(lambda: num_running(address) == 3)
        wait_until(lambda: num_running(address) == 0)

        assert not read_to_end(connection).endswith(END_OF_ANSWER)
        # It is not counted as a success.
        assert 'path="/v1/embeddings",status="200"' not in ask(f"{address}/metrics")[1]


def test_a_client_that_reads_a_long_answer_gets_all_of_it(encoder):
    texts = TEXTS * 1000
    with serving(encoder, timeout=2, max_inputs=NUM_TEXTS) as address:
        answer = ask(f"{address}/v1/embeddings", {"input": texts})

    assert len(vectors(answer)) == len(texts)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off_when_another_needs_the_memory(encoder):
    # An answer takes three quarters of the memory of all waiting answers, which is 1 MiB. A
    # dimension is 4 bytes.
    num_texts = 2**20 * 3 // 4 // (4 * encoder.output_dim)
    request = request_of({"input": TEXTS[:1] * num_texts})
    options = {"max_waiting": 1, "max_inputs": num_texts, "timeout": 30}
    with serving(encoder, **options) as address, ExitStack() as stack:
        first = stack.enter_context(connected(address, request, receive_buffer=4096))
        wait_until(lambda: num_running(address) == 1)
        # Its answer begins.
        assert first.recv(4)

        second = stack.enter_context(connected(address, request, receive_buffer=4096))
        assert second.recv(4)

        wait_until(lambda: num_running(address) == 1)
        # The answer of the first is not complete.
        assert not read_to_end(first).endswith(b"0\r\n\r\n")


@pytest.mark.slow
def test_one_of_two_incomplete_requests_is_refused_when_they_need_the_memory(encoder):
    # Each has sent 1 MiB, which is the memory of all waiting requests, and not yet all.
    size = 2_000_000
    begun = HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * 2**20
    rest = b" " * (size - 2**20)
    with serving(encoder, max_waiting=1, timeout=30) as address, ExitStack() as stack:
        connections = [stack.enter_context(connected(address, begun)) for _ in range(2)]

        # The connection whose last bytes are older is refused.
        readable, _, _ = select.select(connections, [], [], 10)
        [refused] = readable
        assert refused.recv(12) == b"HTTP/1.1 503"

        # The other is read to its end; blanks are no JSON.
        connections.remove(refused)
        [accepted] = connections
        accepted.sendall(rest)
        assert accepted.recv(12) == b"HTTP/1.1 400"


HEALTH_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST_HEALTH_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_requests_sent_at_once_on_a_connection_are_all_answered(encoder):
    with (
        serving(encoder) as address,
        connected(address, HEALTH_REQUEST * 20 + LAST_HEALTH_REQUEST) as connection,
    ):
        assert read_to_end(connection).count(b"HTTP/1.1 200") == 21


def test_a_client_that_sends_requests_without_reading_the_answers_is_cut_off(encoder):
    """uvicorn keeps all requests of a connection in memory."""
    with serving(encoder) as address:
        with pytest.raises(ConnectionError), connected(address) as connection:
            # 41 MB of requests.
            for _ in range(1000):
                connection.sendall(HEALTH_REQUEST * 1000)

        # Other clients are answered.
        assert ask(f"{address}/health")[0] == 200


def test_the_number_of_queries_and_hits_of_a_search_is_limited_together(encoder, index):
    with serving(encoder, index, max_inputs=200) as address:
        url = f"{address}/search"
        # At most ten times as many hits as inputs: 100 queries with 20 hits each.
        largest_status, _ = ask(url, {"query": TEXTS[:1] * 100, "k": 20})
        status, content = ask(url, {"query": TEXTS[:1] * 101, "k": 20})

    assert largest_status == 200
    assert status == 400
    assert content["error"]["param"] == "k"


def test_a_search_of_many_queries_has_the_hits_of_the_index(encoder, index):
    # The model knows no word of the last query.
    queries = [*TEXTS, "\U0001f44d"] * 50
    with serving(encoder, index, max_inputs=len(queries)) as address:
        _, content = ask(f"{address}/search", {"query": queries, "k": 2})

    results = content["results"]
    assert [result["query"] for result in results] == queries
    for result, hits in zip(results, index.search(queries, encoder, 2), strict=True):
        assert [hit["snippet"] for hit in result["hits"]] == [hit.sentence for hit in hits]


def test_other_requests_are_answered_during_a_search(encoder, index, monkeypatch):
    search = CorpusIndex.search

    def slow_search(self, queries, *arguments, **options):
        time.sleep(0.1)
        return search(self, queries, *arguments, **options)

    monkeypatch.setattr(CorpusIndex, "search", slow_search)
    with (
        serving(encoder, index) as address,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        # The queries are searched in 16 parts, so that this takes more than 1.6 seconds.
        search_fields = {"query": TEXTS[:1] * 1000, "k": 1}
        search_answer = pool.submit(ask, f"{address}/search", search_fields)
        time.sleep(0.2)

        for _ in range(3):
            status, _ = ask(f"{address}/v1/embeddings", {"input": "a", "model": NAME})
            assert status == 200

        assert not search_answer.done()
        assert search_answer.result()[0] == 200


def test_a_small_request_does_not_wait_for_large_ones(encoder):
    slow = SlowEncoder(encoder, seconds=0.02)
    with serving(slow) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"{address}/v1/embeddings"
        large_answers = [pool.submit(ask, url, {"input": TEXTS[:1] * 2000}) for _ in range(4)]
        time.sleep(0.1)

        small_status, _ = ask(url, {"input": TEXTS[1]})

        assert small_status == 200
        assert not any(answer.done() for answer in large_answers)
        for answer in large_answers:
            assert len(answer.result()[1]["data"]) == 2000
        # Large requests are encoded in parts, between which small ones have their turn.
        assert max(len(batch) for batch in slow.batches) <= 512


def test_the_request_of_a_client_that_closes_its_connection_is_stopped(encoder):
    slow = SlowEncoder(encoder, seconds=0.2)
    # At 512 texts a batch, or fewer, more than four batches.
    request = request_of({"input": TEXTS[:1] * 2000})
    with serving(slow) as address:
        with connected(address, request):
            wait_until(lambda: len(slow.batches) >= 2)

        wait_until(lambda: num_running(address) == 0)

        assert len(slow.batches) <= 4
        # The status that nginx has for such requests.
        assert 'path="/v1/embeddings",status="499"} 1.0' in ask(f"{address}/metrics")[1]


@pytest.fixture(scope="module")
def many_texts():
    return [f"{number} dogs {TEXTS[number % 3]}" for number in range(1500)]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_long_answers_have_all_fields(encoder, many_texts, encoding):
    fields = {"input": many_texts, "encoding_format": encoding}
    with serving(encoder) as address:
        status, content = ask(f"{address}/v1/embeddings", fields)

    assert status == 200
    assert content["object"] == "list"
    assert content["model"] == NAME
    # Each text has several pieces.
    assert content["usage"]["total_tokens"] > len(many_texts)


def test_long_answers_have_all_embeddings(encoder, many_texts):
    with serving(encoder) as address:
        answer = ask(f"{address}/v1/embeddings", {"input": many_texts})

    expected = encoder.encode(many_texts, normalize=True)
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
