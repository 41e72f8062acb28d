"""Responses of the server. Long responses are created and sent in parts."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class RequestError(Exception):
    """Error that is reported to the client.

    Args:
        status: HTTP status.
        message: message for the client.
        field: invalid field of the request.
    """

    def __init__(self, status: int, message: str, field: str | None = None):
        self.status = status
        self.message = message
        self.field = field


class TrackedResponse(Response):
    """JSON response that is complete only when the operating system has accepted all of it.

    Each part is created only after the previous part was accepted. So a client that reads slowly
    does not use much memory, and the event loop can serve other requests between two parts.

    Args:
        parts: parts of the body.
        size: bytes of memory that the response needs until it is sent.
        status: HTTP status.
        length: size of the body in bytes; None if unknown.
    """

    media_type = "application/json"

    def __init__(
        self, parts: Iterable[bytes], size: int, status: int = 200, length: int | None = None
    ):
        super().__init__(status_code=status)
        self.parts = parts
        self.size = size
        del self.headers["content-length"]
        if length is not None:
            self.headers["content-length"] = str(length)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        # `send` waits until the previous parts were accepted, but does not wait for the part it
        # sends.
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def as_json(content: Any, status: int = 200) -> TrackedResponse:
    """Return a JSON response in one part."""
    body = orjson.dumps(content)
    return TrackedResponse([body], len(body), status, len(body))


def list_as_json(
    head: dict[str, Any],
    name: str,
    count: int,
    step: int,
    elements: Callable[[int, int], list[Any]],
    size: int,
) -> TrackedResponse:
    """Return a JSON object whose last field is a list.

    Args:
        head: all other fields.
        name: name of the list.
        count: number of elements.
        step: number of elements per part of the response.
        elements: returns the elements from a start to an end index. NumPy arrays become lists.
        size: bytes of memory that the elements need until they are sent.
    """
    parts = _list_parts(head, name, count, step, elements)
    if count > step:
        return TrackedResponse(parts, size)
    body = b"".join(parts)
    return TrackedResponse([body], len(body), length=len(body))


def _list_parts(
    head: dict[str, Any],
    name: str,
    count: int,
    step: int,
    elements: Callable[[int, int], list[Any]],
) -> Iterator[bytes]:
    # Remove the closing bracket and brace; they are written after the last element.
    opening = orjson.dumps(head | {name: []})[:-2]
    for start in range(0, count, step):
        group = elements(start, min(start + step, count))
        yield opening + orjson.dumps(group, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        opening = b","
    yield b"]}"


def refusal(error: RequestError, path: str = "") -> TrackedResponse:
    """Return an error response in the format of OpenAI, or of Ollama for paths below /api/."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    content: Any = {"message": error.message, "type": kind, "param": error.field, "code": None}
    if path.startswith("/api/"):
        content = error.message
    response = as_json({"error": content}, error.status)
    if error.status == 503:
        response.headers["retry-after"] = "1"
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
