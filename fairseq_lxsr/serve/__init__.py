"""HTTP server for embeddings and search (`lxsr serve`), compatible with OpenAI clients."""

import re
from dataclasses import dataclass
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import (
    ON_LONG,
    Allowed,
    FileName,
    at_least,
    check_fields,
    option,
    positive,
)

# Name of the environment variable that contains the API key.
API_KEY = "LXSR_API_KEY"
MODEL_TOKENS = "model"
# Supported token vocabularies: tiktoken encodings, and the subwords of the model.
TOKENS = ("cl100k_base", "o200k_base", MODEL_TOKENS)
# How to handle texts without a known word.
ON_EMPTY = ("zero", "error")
MEBIBYTE = 2**20
# Key under which `lxsr serve` stores the `Connection` in the state of a request.
CONNECTION = "lxsr_connection"
HOST_NAME = FileName(description="an address")


class Origin(Allowed):
    """Origins, in the format of the browsers' Origin header, and `*`."""

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, str):
            return False
        scheme, separator, host = value.partition("://")
        has_parts = bool(scheme and separator and host)
        return value == "*" or (has_parts and value.isprintable() and not set(host) & set("/?#@ "))

    def __str__(self) -> str:
        return "* or SCHEME://HOST[:PORT] without a path, the format that browsers send"


class HostHeader(Allowed):
    """Host names without a port, in the format of the Host header, and `*`."""

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, str):
            return False
        return value == "*" or bool(re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", value))

    def __str__(self) -> str:
        return "* or a host name or address without a port, the format that clients send"


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server: address, access, handling of inputs, and limits."""

    host: str = option(
        "address to listen on; 0.0.0.0 for all addresses of this machine",
        "127.0.0.1",
        HOST_NAME,
        metavar="HOST",
    )
    port: int = option("port to listen on; 0 chooses a free port", 8000, at_least(0, 65535))
    name: str | None = option(
        "model name for clients (default: name of the model folder)", None, metavar="NAME"
    )
    api_key: str | None = option(
        f"key that clients must send; prefer {API_KEY}, because command lines are visible to other "
        "users (default: none)",
        None,
        metavar="KEY",
    )
    truncate_dim: int | None = option(
        "return only the first N dimensions of each embedding (default: all)", None, at_least(1)
    )
    on_long: str = option(
        "how to handle texts that are too long for the model, as in `lxsr embed`; models "
        "without layers read whole texts",
        ON_LONG[0],
        ON_LONG,
    )
    tokens: str = option(
        "vocabulary of inputs sent as token ids: an OpenAI encoding, or model for the subwords of "
        "the model",
        TOKENS[0],
        TOKENS,
    )
    on_empty: str = option(
        "how to handle a text without a known word, for example a single emoji: zero returns "
        "a zero embedding and lists the text in the field `empty`, error rejects the request",
        ON_EMPTY[0],
        ON_EMPTY,
    )
    allow_origin: tuple[str, ...] = option(
        "origins of web pages that may use the server from a browser, such as "
        "https://example.org; * allows every page (default: none)",
        (),
        Origin(),
        nargs="+",
        metavar="ORIGIN",
    )
    allow_host: tuple[str, ...] = option(
        "host names by which clients may address the server, such as search.example.org, in "
        "addition to names of this machine; * allows every name (default: none if HOST is a local "
        "address, else every name)",
        (),
        HostHeader(),
        nargs="+",
        metavar="NAME",
    )
    allow_edits: bool = option(
        "let clients with the API key add, update and delete sentences of the index (default: no)",
        False,
    )
    max_body: int = option("maximum request size in MiB", 8, at_least(1, 1024))
    max_inputs: int = option("maximum number of texts per request", 2048, at_least(1))
    max_requests: int = option(
        "maximum number of concurrent requests; others receive status 503", 256, at_least(1)
    )
    max_connections: int = option(
        "maximum number of open connections; beyond it, the longest idle connection is closed",
        4096,
        at_least(1),
    )
    max_waiting: int = option(
        "memory limit in MiB for requests being received and responses being sent; if it is "
        "exceeded, the slowest client is disconnected",
        128,
        at_least(1),
    )
    timeout: float = option(
        "time limit in seconds for receiving a request and responding to it, for idle "
        "connections, and for running requests when the server stops",
        30.0,
        positive(),
    )

    def __post_init__(self):
        check_fields(self)
        if self.api_key is not None:
            check_key("api_key", self.api_key)


def check_key(place: str, key: str) -> None:
    """Check that clients can send an API key in a header. The key itself is not part of messages.

    Raises:
        InputError: if the key is blank, has spaces around it, or contains a control character.
    """
    problem = ""
    if not key.strip():
        problem = "is blank"
    elif key != key.strip():
        problem = "begins or ends with a space or a newline"
    elif not key.isprintable():
        problem = "contains a control character"
    if problem:
        raise InputError(
            f"{place}: the key {problem}, so no client could send it in a header; use "
            "printable characters without spaces around them"
        )
