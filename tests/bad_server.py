"""A server of our own that behaves as badly as those of the world."""

import contextlib
import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from fairseq_lxsr.files import download as downloads

CONTENT = bytes(range(256)) * 2000  # half a megabyte


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` at any path; `troubles` are consumed one a request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.tag, self.ranges, self.troubles, self.requests = CONTENT, '"1"', True, [], []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/corpus"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, trouble = self.server, (self.server.troubles or [None]).pop(0)
        asked = self.headers.get("Range")
        server.requests.append(asked)
        if isinstance(trouble, int):
            self.send_error(trouble)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        if self.headers.get("If-Range", server.tag) != server.tag:
            start = 0
        if start and start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            wrong = 7 if trouble == "wrong part" else 0
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start + wrong}-{last}/{len(server.content)}")
        self.send_header("ETag", server.tag)
        self.send_header("Content-Length", str(len(body) + (1000 if trouble == "longer" else 0)))
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
    """Run a server inside the block, where a second attempt follows the first at once."""
    server = Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "BACK_OFF", 0.001)
        yield server
    server.shutdown()
    server.server_close()
