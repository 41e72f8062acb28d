"""HTTP connections that resist slow, endless or malformed responses of untrusted servers."""

import contextlib
import http.client
import io
import re
import socket
import string
import threading
import time
import urllib.request
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from fairseq_lxsr.errors import InputError, first_line

# Minimum number of bytes that a server must send per timeout period.
MIN_BYTES = 60_000
SCHEMES = ("http", "https")
# Matches a host and optional port, without user name and password.
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d*)?", re.ASCII)


class InterruptedDownloadError(Exception):
    """Raised when a download is interrupted and may be resumed."""


class Connection:
    """Opens URLs, and closes the connection when the server is too slow.

        with Connection(timeout=60, deadline=time.monotonic() + 3600) as connection:
            response = connection.open("https://example.org/x.zip", {})
            while block := response.read1(2**20):
                connection.received += len(block)

    A socket timeout is not enough: a server that sends one byte per minute, even in the headers,
    never exceeds the timeout, and some headers may be repeated forever.

    Args:
        timeout: seconds within which at least `MIN_BYTES` bytes must arrive.
        deadline: `time.monotonic` time at which the connection is closed.

    Attributes:
        received: number of bytes received so far, counted by the caller.
    """

    def __init__(self, timeout: float, deadline: float):
        self.timeout = timeout
        self.deadline = deadline
        self.received = 0
        self.is_cut = False
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()

    def __enter__(self) -> "Connection":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        for copy in self._sockets:
            copy.close()
        is_network_error = kind is None or issubclass(kind, OSError | http.client.HTTPException)
        if not self.is_cut or not is_network_error:
            return
        if time.monotonic() > self.deadline:
            raise InterruptedDownloadError("took too long")
        raise InterruptedDownloadError(f"fewer than {MIN_BYTES:,} bytes within {self.timeout:g} s")

    def _watch(self) -> None:
        before = 0
        while not self._is_over.wait(self._seconds_to_next_check()):
            is_slow = self.received - before < MIN_BYTES
            if is_slow or time.monotonic() >= self.deadline:
                self._cut()
                return
            before = self.received

    def _seconds_to_next_check(self) -> float:
        return min(self.timeout, max(0.0, self.deadline - time.monotonic()))

    def _cut(self) -> None:
        self.is_cut = True
        for copy in self._sockets:
            # The socket may already be closed.
            with contextlib.suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)

    def add(self, copy: socket.socket) -> None:
        """Monitor another socket, given as a duplicate, because TLS detaches the original.

        Raises:
            TimeoutError: if the connection has already been closed.
        """
        self._sockets.append(copy)
        if self.is_cut:
            raise TimeoutError

    def open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send a request, follow redirects, and return the response."""
        # urllib's default opener would also accept local files and FTP.
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(),
            _Handler(self),
        ):
            opener.add_handler(handler)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=self.timeout)


class _Plain(http.client.HTTPConnection):
    watch: Connection

    def connect(self) -> None:
        super().connect()
        self.watch.add(self.sock.dup())


class _Secure(http.client.HTTPSConnection, _Plain):
    """A TLS connection. Its handshake is monitored too, because `_Plain.connect` precedes it."""


class _Handler(urllib.request.AbstractHTTPHandler):
    def __init__(self, watch: Connection):
        super().__init__()
        self._watch = watch

    def _make(self, kind: type[_Plain], *args: Any, **options: Any) -> _Plain:
        connection = kind(*args, **options)
        connection.watch = self._watch
        return connection

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._make, _Plain), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._make, _Secure), request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows HTTP redirects without reading response bodies, which may be endless."""

    def http_error_302(self, request, response, code, message, headers):
        response.close()
        return super().http_error_302(request, io.BytesIO(), code, message, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, request, response, code, message, headers, url):
        if urlsplit(url).scheme not in SCHEMES:
            raise ValueError(f"redirected to {url!r:.100}")
        return super().redirect_request(
            request, response, code, message, headers, ascii_address(url)
        )


def ascii_address(url: str) -> str:
    """Return a URL in ASCII, as HTTP requires.

    Other characters are percent-encoded as UTF-8; in the host name, they are encoded as IDNA.

        ascii_address("https://bücher.example/é")  # https://xn--bcher-kva.example/%C3%A9

    Raises:
        InputError: if this is not an HTTP URL, or the URL contains a user name.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc
        if not host.isascii():
            host = host.encode("idna").decode()
        if parts.scheme not in SCHEMES or not HOST.fullmatch(host) or parts.port == 0:
            raise ValueError("not an HTTP URL")
        # Labels that are empty or too long raise an error.
        host.encode("idna")
        path = quote(parts.path, safe=string.punctuation)
        query = quote(parts.query, safe=string.punctuation)
        return urlunsplit((parts.scheme, host, path, query, ""))
    except ValueError as error:
        raise InputError(
            f"{url}: {first_line(error)}; expected a URL such as https://HOST/FILE"
        ) from None


def plain(text: object) -> str:
    """Shorten a message from a server to one printable line."""
    return "".join(letter if letter.isprintable() else "?" for letter in f"{text}"[:200])
