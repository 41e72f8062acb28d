"""Limits the number of connections to `lxsr serve`, and closes idle ones."""

import asyncio
import os
from math import ceil
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fairseq_lxsr.errors import say
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.serve import CONNECTION
from fairseq_lxsr.serve.waiting import end_now

# Maximum number of connections that wait for the server to accept them.
BACKLOG = 512
# Size in bytes of the operating system's send buffer.
SEND_BUFFER = 2**18
# Number of received bytes to parse at once. They may contain hundreds of small requests.
SLICE = 2**13
# Number of requests that a client may send before it has received a response.
MAX_PIPELINE = 32
# Number of files that the server may open in addition to its connections.
SPARE_FILES = 64
# Seconds without progress after which a stopping server ends a request that its client neither
# sends nor reads.
STALLED_SECONDS = 5.0
# Minimum number of seconds between two messages about connections that could not be accepted.
PAUSE = 60.0


class Connections:
    """Open connections, in the order in which they started to wait for a request.

    Args:
        timeout: seconds after which a connection without a whole request header is closed.
        limit: maximum number of connections. Beyond it, the connection that has waited longest
            is closed.
    """

    def __init__(self, timeout: float, limit: int):
        self._timeout = timeout
        self._limit = limit
        self._waiting_since: dict[Connection, float] = {}

    def protocol(self, **arguments: Any) -> "Connection":
        """Return the protocol of a new connection, for uvicorn's option `http`."""
        return Connection(self, **arguments)

    def add(self, connection: "Connection") -> None:
        """Record that a connection starts to wait for a request."""
        self._waiting_since.pop(connection, None)
        self._waiting_since[connection] = asyncio.get_running_loop().time()
        if len(self._waiting_since) > self._limit:
            # If all other connections are busy, the new connection itself is closed.
            idle = next(filter(Connection.is_idle, self._waiting_since), connection)
            self.remove(idle)
            idle.cut_off()

    def remove(self, connection: "Connection") -> None:
        """Forget a connection that was closed."""
        self._waiting_since.pop(connection, None)

    async def close_idle(self) -> None:
        """Close the connections that have waited too long."""
        now = asyncio.get_running_loop().time()
        for connection, since in list(self._waiting_since.items()):
            seconds = now - since
            if seconds <= self._timeout:
                break
            # Reading the header and sending the response may each take as long as the timeout. This
            # is the only time limit for responses that do not come from an `Endpoint`, for example
            # to a request for an unknown path.
            is_stalled = seconds > 2 * self._timeout + 2
            if is_stalled or connection.is_idle():
                connection.cut_off()


class Connection(AutoHTTPProtocol):
    """A connection of uvicorn that is registered in `Connections`.

    Attributes:
        deadline: time limit of the current request; None between requests. It expires at once when
            the client disconnects.
        is_closed: whether the connection is closed.
    """

    def __init__(self, connections: Connections, app_state: dict[str, Any], **arguments: Any):
        super().__init__(app_state=app_state | {CONNECTION: self}, **arguments)
        self._listed = connections
        self.deadline: asyncio.Timeout | None = None
        self.is_closed = False
        self._received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Wait until the kernel has accepted the whole response, so that a request counts as running
        # until its client has read most of the response.
        transport.set_write_buffer_limits(0)
        # By default, the kernel buffers up to 4 MB of an unread response.
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BUFFER)
        self._listed.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        # Without a limit, uvicorn accepts all requests of a client that never reads the responses.
        for start in range(0, len(data), SLICE):
            super().data_received(data[start : start + SLICE])
            if len(getattr(self, "pipeline", ())) > MAX_PIPELINE:
                self.cut_off()
            if self.transport.is_closing():
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._listed.remove(self)
        self.is_closed = True
        super().connection_lost(exc)
        if self.deadline is not None:
            # The client has disconnected, so the response is no longer needed.
            end_now(self.deadline)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listed.add(self)

    def is_idle(self) -> bool:
        """Return whether no request is being processed."""
        return self.cycle is None or self.cycle.response_complete

    def progress(self) -> tuple[int, int] | None:
        """Return a value that changes when the client sends or reads.

        Return None if the server does not wait for the client.
        """
        unread = self.transport.get_write_buffer_size()
        if self.is_idle() or not (unread or self.cycle.more_body):
            return None
        return self._received, unread

    def end_request(self) -> None:
        """End the current request, with an error response if there is no response yet."""
        if self.deadline is None:
            self.cut_off()
        else:
            end_now(self.deadline)

    def cut_off(self) -> None:
        """Close the connection, and discard the data that its client has not read."""
        if self.cycle is not None:
            # Otherwise, uvicorn would report an incomplete response as an application error.
            self.cycle.disconnected = True
        self.transport.abort()


class Server(uvicorn.Server):
    """A uvicorn server that does not wait for stalled clients when it stops.

    It reports connections it cannot accept, in at most one line per minute. asyncio would print a
    traceback for each of them, up to 2,000 per second.
    """

    async def startup(self, sockets: Any = None) -> None:
        self._next_report = 0.0
        asyncio.get_running_loop().set_exception_handler(self.report)
        await super().startup(sockets)

    async def shutdown(self, sockets: Any = None) -> None:
        ending = asyncio.create_task(self._end_stalled())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_stalled(self) -> None:
        """End requests whose clients make no progress, so that they do not delay the end."""
        progress: dict[Any, tuple[int, int] | None] = {}
        while True:
            for connection in list(self.server_state.connections):
                previous = progress.get(connection)
                progress[connection] = connection.progress()
                if previous and progress[connection] == previous:
                    connection.end_request()
            await asyncio.sleep(STALLED_SECONDS)

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error in the event loop."""
        if "accept" not in context["message"]:
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_report:
            self._next_report = loop.time() + PAUSE
            say(f"lxsr serve: cannot accept connections: {context.get('exception')}")


def make_server(app: Any, timeout: float, max_connections: int) -> Server:
    """Create the server of an ASGI application. Its method `run` takes the listening socket.

    Args:
        app: ASGI application.
        timeout: seconds that a client may take to send a request header, and that a stopping server
            waits for running requests.
        max_connections: maximum number of connections. It is lowered if the process cannot open as
            many files.
    """
    limit, backlog = connection_limits(max_connections)
    if limit < max_connections:
        say(
            f"--max-connections {max_connections}: the limit on open files allows only "
            f"{limit}; raise it with `ulimit -n`"
        )
    connections = Connections(timeout, limit)
    config = uvicorn.Config(
        app,
        http=connections.protocol,
        ws="none",
        # Otherwise, a client could cause a warning with every request.
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=backlog,
        timeout_graceful_shutdown=ceil(timeout),
        # uvicorn calls this function at most once per second.
        callback_notify=connections.close_idle,
        timeout_notify=0,
    )
    return Server(config)


def connection_limits(most: int) -> tuple[int, int]:
    """Raise the limit on open files, and return how many connections it allows.

    Args:
        most: maximum number of connections.

    Returns:
        The maximum number of connections, at most `most`, and the number that the operating system
        may accept before the server does. The server closes connections beyond the first number,
        but it may accept as many as the second number at a time.
    """
    if is_missing("resource"):
        return most, BACKLOG
    import resource

    open_files = len(os.listdir("/dev/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files + SPARE_FILES + BACKLOG + most
    if soft == resource.RLIM_INFINITY:
        return most, BACKLOG
    if soft < needed:
        soft = needed
        if hard != resource.RLIM_INFINITY:
            soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = max(2, soft - open_files - SPARE_FILES)
    backlog = min(BACKLOG, free // 2)
    return min(most, free - backlog), backlog
