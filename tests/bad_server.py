"""A server of our own that behaves as badly as those of the world."""

import contextlib
import http.server
import socket
import socketserver
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
        self.content, self.tag, self.ranges = CONTENT, '"1"', True
        self.troubles, self.requests, self.paths = [], [], []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/corpus"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, trouble = self.server, (self.server.troubles or [None]).pop(0)
        asked = self.headers.get("Range")
        server.requests.append(asked)
        server.paths.append(self.path)
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


OK, CHUNKED = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MOVED = "HTTP/1.1 302 Found\r\nLocation: "
# What a server says once, and then again and again until nobody listens; a number is the seconds
# between two.
HOSTILE = {
    "says nothing": ("", "", 0.025),
    "drips its status": ("HTTP/1.1 200 O", "O", 0.025),
    "drips headers": (f"{OK}X: ", "x", 0.025),
    "drips a body": (f"{OK}Content-Length: 100000\r\n\r\n", "x", 0.025),
    "drips chunks": (CHUNKED, "1\r\nx\r\n", 0.025),
    "says continue for ever": ("", "HTTP/1.1 100 Continue\r\n\r\n", 0),
    "one header for ever": (f"{OK}X: ", "x" * 999, 0),
    "headers for ever": (OK, "X: x\r\n", 0),
    "a body for ever": (f"{OK}\r\n", "x" * 9999, 0),
    "chunks for ever": (CHUNKED, f"{9999:x}\r\n{'x' * 9999}\r\n", 0),
    "one chunk for ever": (f"{CHUNKED}{'f' * 30}\r\n", "x" * 9999, 0),
    "a chunk's length for ever": (CHUNKED, "0" * 999, 0),
    "trailers for ever": (f"{CHUNKED}0\r\n", "X: x\r\n", 0),
    "a moved page for ever": (f"{MOVED}/y\r\n\r\n", "x" * 9999, 0),
    "an error for ever": ("HTTP/1.1 500 Error\r\n\r\n", "x" * 9999, 0),
    "more than the disk": (f"{OK}Content-Length: {10**18}\r\n\r\n", "x" * 9999, 0),
    "a length of 30 digits": f"{OK}Content-Length: {'9' * 30}\r\n\r\nx",
    "a length of 5,000 digits": f"{OK}Content-Length: {'9' * 5000}\r\n\r\nx",
    "a negative length": f"{OK}Content-Length: -7\r\n\r\nx",
    "a length that is no number": f"{OK}Content-Length: \u0661\r\n\r\nx",
    "two lengths": f"{OK}Content-Length: 1\r\nContent-Length: 999\r\n\r\nx",
    "a negative chunk": f"{CHUNKED}-5\r\nxxxxx\r\n0\r\n\r\n",
    "a chunk of no number": f"{CHUNKED}zz\r\nx\r\n",
    "half a chunk": f"{CHUNKED}ff\r\nx",
    "the wrong part": "HTTP/1.1 206 x\r\nContent-Range: bytes 5-9/10\r\n"
    "Content-Length: 5\r\n\r\nxxxxx",
    "parts of nothing": "HTTP/1.1 206 x\r\nContent-Range: bytes */*\r\n"
    "Content-Length: 5\r\n\r\nxxxxx",
    "no more bytes": "HTTP/1.1 416 x\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n",
    "no content": "HTTP/1.1 204 No Content\r\n\r\n",
    "status 99999": "HTTP/1.1 99999 x\r\n\r\n",
    "status 1": "HTTP/1.1 1 x\r\n\r\n",
    "a status with escapes": "HTTP/1.1 404 \x1b[2J\x1b]0;owned\x07\r\n\r\n",
    "escapes for a status": "\x1b[2J\x07" * 999,
    "a tag with escapes": f"{OK}ETag: \x1b[2J\r\nContent-Length: 99\r\n\r\nx",
    "a tag of 60,000 letters": f"{OK}ETag: {'x' * 60_000}\r\nContent-Length: 99\r\n\r\nx",
    "folded headers": f"{OK}ETag: x\r\n y\r\nContent-Length:\r\n 99\r\n\r\nx",
    "another protocol": "SSH-2.0-OpenSSH_9.2\r\n",
    "a mailbox": "220 mail ESMTP\r\n",
    "the start of TLS": ("\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", "\0", 0.025),
    "an alert of TLS": "\x15\x03\x01\x00\x02\x02\x50",
    "zeros": "\0" * 9999,
    **{
        f"moves to {to!r:.30}": f"{MOVED}{to}\r\n\r\n"
        for to in (
            *(
                "/x",
                "//",
                "",
                " ",
                "http://",
                "http://[::1/x",
                "http://[::1]:x/",
                "http://a..b/x",
                "http://a:99999/x",
            ),
            *(
                "http://127.0.0.1:0/",
                "http://\xe9/\xe9",
                f"http://{'a' * 70}.example/x",
                "http://a b/c",
                "?" * 60_000,
            ),
            *(
                "file:///etc/passwd",
                "ftp://127.0.0.1/x",
                "data:,x",
                "gopher://x",
                "javascript:x",
                "x:y",
                "http:x",
            ),
            *(
                "http://%00/",
                "http://user:word@x:y/",
                "https://127.0.0.1:9\\@x/",
                "http://\x1b[2J/",
                "HTTP://127.1:1/",
            ),
        )
    },
}


class HostileServer(socketserver.ThreadingTCPServer):
    """Answers every request with `says`, a value of HOSTILE."""

    def __init__(self, says):
        super().__init__(("127.0.0.1", 0), HostileHandler)
        self.daemon_threads, self.block_on_close, self.requests = True, False, 0
        self.says = (says, "", None) if isinstance(says, str) else says
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/x.zip"


class HostileHandler(socketserver.StreamRequestHandler):
    def handle(self):
        self.server.requests += 1
        once, again, seconds = self.server.says
        with contextlib.suppress(OSError):
            request = self.rfile.readline(99)
            while not request.startswith(b"\x16") and self.rfile.readline().strip():
                pass
            self.wfile.write(once.encode("latin-1", "replace"))
            began = time.monotonic()
            while seconds is not None and time.monotonic() - began < 60:
                self.wfile.write(again.encode("latin-1"))
                time.sleep(seconds)


@contextlib.contextmanager
def hostile(name: str) -> Iterator[HostileServer]:
    """Run a hostile server inside the block, where a download is patient for parts of a second
    only.
    """
    server = HostileServer(HOSTILE[name])
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in (("BACK_OFF", 0.001), ("TIMEOUT", 0.1), ("MAX_BYTES", 3_000_000)):
            patch.setattr(downloads, limit, value)
        yield server
    server.shutdown()
    server.server_close()
