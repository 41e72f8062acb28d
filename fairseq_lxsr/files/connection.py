"""Connections to servers that nobody trusts: no answer, however slow, endless or absurd, keeps a
process for ever.
"""

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

SLOWEST = 60_000  # bytes within the timeout
SCHEMES = ("http", "https")
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d*)?", re.ASCII)  # without name and password


class InterruptedDownloadError(Exception):
    """A download was interrupted, and another attempt may resume it."""


class Connection:
    """Opens addresses inside its block, and cuts the connection when too little comes or the time
    `until` is over.

    Too little are less than `SLOWEST` bytes within `timeout` seconds; `until` is a time of
    `time.monotonic`. The timeout of a socket is not enough: a byte every minute, in the headers
    too, never exceeds it, and some headers may be repeated without end. The one who reads counts
    the bytes in `received`.
    """

    def __init__(self, timeout: float, until: float):
        self.timeout, self.until, self.received, self.is_cut = timeout, until, 0, False
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()

    def __enter__(self) -> "Connection":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        for copy in self._sockets:
            copy.close()
        if self.is_cut and (kind is None or issubclass(kind, OSError | http.client.HTTPException)):
            slow = f"less than {SLOWEST:,} bytes within {self.timeout:g} s"
            raise InterruptedDownloadError(
                "took too long" if time.monotonic() > self.until else slow
            )

    def _watch(self) -> None:
        before = 0
        while not self._over.wait(min(self.timeout, max(0.0, self.until - time.monotonic()))):
            if self.received - before < SLOWEST or time.monotonic() >= self.until:
                self.is_cut = True
                for copy in self._sockets:
                    with contextlib.suppress(OSError):  # it is closed already
                        copy.shutdown(socket.SHUT_RDWR)
                return
            before = self.received

    def add(self, copy: socket.socket) -> None:
        """Cut this socket too; it is a copy, because TLS takes the number of the socket for
        itself.
        """
        self._sockets.append(copy)
        if self.is_cut:
            raise TimeoutError

    def open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Return the answer of a server, or of the one that it redirects to."""
        opener = urllib.request.OpenerDirector()  # that of urllib also opens files and FTP
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
    """Its handshake comes after `_Plain.connect`, so it is watched too."""


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
    """Follows redirects to other pages of the web, without reading what comes with them, which may
    have no end.
    """

    def http_error_302(self, request, answer, code, message, headers):
        answer.close()
        return super().http_error_302(request, io.BytesIO(), code, message, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, request, answer, code, message, headers, url):
        if urlsplit(url).scheme not in SCHEMES:
            raise ValueError(f"redirected to {url!r:.100}")
        return super().redirect_request(request, answer, code, message, headers, ascii_address(url))


def ascii_address(url: str) -> str:
    """Return an address as HTTP sends it: other letters than ASCII as their UTF-8 bytes, and in the
    host as IDNA.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
        if parts.scheme not in SCHEMES or not HOST.fullmatch(host) or parts.port == 0:
            raise ValueError("no address of the web")
        host.encode("idna")
        rest = (quote(part, safe=string.punctuation) for part in parts[2:4])
        return urlunsplit((parts.scheme, host, *rest, ""))
    except ValueError as error:
        raise InputError(
            f"{url}: {first_line(error)}; expected an address, https://HOST/FILE"
        ) from None


def plain(text: object) -> str:
    """Shorten what a server says to a line that a terminal can show."""
    return "".join(letter if letter.isprintable() else "?" for letter in f"{text}"[:200])
