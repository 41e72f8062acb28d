"""A local HTTP server of one file, which can drop or reset connections."""

import contextlib
import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator

# Half a megabyte.
CONTENT = bytes(range(256)) * 2000


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` at every path.

    Attributes:
        content: the bytes of the file.
        ranges: whether the header Range is respected.
        troubles: for the next requests, one each: an error status; "drop" or "reset", which end
            the connection after half of the requested bytes; or None.
        requests: the headers Range of all requests.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True
        self.troubles = []
        self.requests = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/corpus"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        trouble = server.troubles.pop(0) if server.troubles else None
        requested_range = self.headers.get("Range")
        server.requests.append(requested_range)
        if isinstance(trouble, int):
            self.send_error(trouble)
            return
        start = 0
        if requested_range and server.ranges:
            start = int(requested_range.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if trouble in ("drop", "reset") else body)
        if trouble == "reset":
            time.sleep(0.1)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Run a server inside the block."""
    server = Server()
    yield server
    server.shutdown()
    server.server_close()
