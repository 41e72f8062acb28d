"""ASGI application of `lxsr serve`."""

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import orjson
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError, first_line, shown
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.options import at_least
from fairseq_lxsr.search import CorpusIndex, SearchOptions
from fairseq_lxsr.serve import MEBIBYTE, MODEL_TOKENS, ServeOptions
from fairseq_lxsr.serve.queue import EncodingQueue
from fairseq_lxsr.text.tokenizer import MASK, SPECIAL, UNK
from fairseq_lxsr.vectors.rows import unit_rows

logger = logging.getLogger(__name__)
# Seconds after which a token vocabulary that could not be loaded is tried again.
RETRY = 600.0
# Maximum number of hits per query.
MAX_HITS = 1000
LOCAL_NAMES = ["localhost", "127.0.0.1", "::1", "[::1]"]
Handler = Callable[[Request], Awaitable[Response]]


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


def make_app(
    encoder: SentenceEncoder, name: str, options: ServeOptions, index: CorpusIndex | None = None
) -> Starlette:
    """Create the ASGI application, for `lxsr serve` or any other ASGI server.

        encoder = SentenceEncoder.from_pretrained("lxsr-static")
        uvicorn.run(make_app(encoder, "lxsr-static", ServeOptions()))

    Args:
        encoder: encoder of the texts.
        name: model name for clients.
        options: limits and API key. If `host` is a local address, requests must name a local host.
        index: index of /search; None answers 404.

    Raises:
        InputError: if the index was built with another model, or `truncate_dim` is larger than the
            width of the model.
    """
    if options.truncate_dim is not None:
        at_least(1, encoder.output_dim).check("truncate_dim", options.truncate_dim)
    if index is not None:
        index.check_model(encoder)
    return Service(encoder, name, options, index).app()


class Service:
    """Endpoints and their shared state; the arguments are those of `make_app`."""

    def __init__(
        self, encoder: SentenceEncoder, name: str, options: ServeOptions, index: CorpusIndex | None
    ):
        self.encoder = encoder
        self.name = name
        self.options = options
        self.index = index
        # Default and maximum number of dimensions of the returned embeddings.
        self.width = options.truncate_dim or encoder.output_dim
        self.running = 0
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "lxsr_requests", "Answered requests", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "lxsr_request_seconds", "Time of a request", ["path"], registry=self.registry
        )
        self.texts = Counter("lxsr_texts", "Texts that were embedded", registry=self.registry)
        self.batches = Counter(
            "lxsr_batches", "Batches that these were embedded in", registry=self.registry
        )
        Gauge("lxsr_requests_running", "Requests at work", registry=self.registry).set_function(
            lambda: self.running
        )
        model = {"name": name, "fingerprint": encoder.fingerprint, "version": __version__}
        Gauge("lxsr_model", "The model", list(model), registry=self.registry).labels(**model).set(1)
        self.openai_tokens = OpenaiTokens(options.tokens)
        self.queue = EncodingQueue(encoder, options.on_long, options.max_inputs, self.count)

    def count(self, texts: int) -> None:
        """Update the counters after a batch of texts."""
        self.texts.inc(texts)
        self.batches.inc()

    def app(self) -> Starlette:
        """Create the application with these endpoints."""
        endpoints: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.metrics),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/v1/embeddings", self.embeddings),
        ]
        if self.index is not None:
            endpoints.append(("POST", "/search", self.search))
        routes = []
        for method, path, handler in endpoints:
            routes.append(Route(path, self.guarded(path, handler), methods=[method]))
        app = Starlette(
            routes=routes,
            middleware=self.middleware(),
            exception_handlers={HTTPException: self.unknown_route},
            lifespan=self.lifespan,
        )
        # A redirect would lead to the host name that the client sent.
        app.router.redirect_slashes = False
        return app

    def middleware(self) -> list[Middleware]:
        """Return the checks of the Origin and Host headers."""
        checks = []
        if self.options.allow_origin:
            checks.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=[origin.lower() for origin in self.options.allow_origin],
                    allow_methods=["GET", "POST"],
                    allow_headers=["*"],
                    allow_private_network=True,
                )
            )
        # A web page may reach this machine through the page's own host name (DNS rebinding).
        if is_local(self.options.host):
            names = [*LOCAL_NAMES, self.options.host]
            checks.append(
                Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
            )
        return checks

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Warm up the encoder before the first request; stop its thread at the end."""
        # Warm up: the first text is slow, because memory is allocated and libraries are loaded.
        await self.queue.embed(["a"])
        yield
        self.queue.close()

    def guarded(self, path: str, handler: Handler) -> Handler:
        """Wrap a handler with checks, a time limit, counters and error responses.

        Args:
            path: path of the endpoint; without the key and within any number of requests, only
                /health is answered. It is also the name of the counters: with a counter for each
                path that is requested, a client could fill the memory.
            handler: handler of the endpoint.
        """

        async def answer(request: Request) -> Response:
            start = time.perf_counter()
            self.running += 1
            try:
                if path != "/health":
                    self.admit(request)
                async with asyncio.timeout(self.options.timeout):
                    response = await handler(request)
            except RequestError as error:
                response = refusal(error)
            except InputError as error:
                response = refusal(RequestError(400, str(error)))
            except TimeoutError:
                response = refusal(
                    RequestError(
                        504,
                        f"no answer in {self.options.timeout:g} s; retry, or send fewer texts",
                    )
                )
            except ClientDisconnect:
                # The client has disconnected; the request is counted with the status nginx uses.
                response = Response(status_code=499)
            except Exception:
                logger.exception("%s", path)
                response = refusal(
                    RequestError(500, "internal server error; see the log of the server")
                )
            finally:
                self.running -= 1
            self.requests.labels(path, response.status_code).inc()
            self.seconds.labels(path).observe(time.perf_counter() - start)
            return response

        return answer

    def admit(self, request: Request) -> None:
        """Raise an error if the API key is wrong, or if there are too many concurrent requests."""
        key = self.options.api_key
        authorization = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, sent_key = authorization.partition(b" ")
        # Compare in constant time, so that the response time does not reveal the key.
        is_right = hmac.compare_digest(sent_key.strip(), (key or "").encode())
        if key and not (scheme.lower() == b"bearer" and is_right):
            raise RequestError(401, "missing or wrong API key; send `Authorization: Bearer KEY`")
        if self.running > self.options.max_requests:
            raise RequestError(
                503,
                f"{self.options.max_requests} concurrent requests are the limit; try again later",
            )

    async def unknown_route(self, request: Request, error: Exception) -> Response:
        """Answer a request for an unknown path or method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        # With a counter for every unknown path, a client could fill the memory.
        self.requests.labels("other", status).inc()
        paths = "POST /v1/embeddings, GET /v1/models, /health, /metrics" + (
            ", POST /search" if self.index else ""
        )
        response = refusal(
            RequestError(status, f"{request.method} {shown(request.url.path)}; expected {paths}")
        )
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    async def health(self, request: Request) -> Response:
        """Report the status, the model and the size of the index."""
        sentences = {} if self.index is None else {"sentences": len(self.index)}
        model = {
            "model": self.name,
            "width": self.width,
            "fingerprint": self.encoder.fingerprint,
        }
        return as_json({"status": "ok", **model, **sentences})

    async def metrics(self, request: Request) -> Response:
        """Return the counters in the format of Prometheus."""
        return Response(
            generate_latest(self.registry), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def models(self, request: Request) -> Response:
        """List the only model."""
        return as_json({"object": "list", "data": [self.model_entry()]})

    async def model(self, request: Request) -> Response:
        """Describe a model by name."""
        self.check_model({"model": request.path_params["name"]})
        return as_json(self.model_entry())

    def model_entry(self) -> dict[str, Any]:
        """Return the description of the model."""
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "fairseq-lxsr"}

    async def embeddings(self, request: Request) -> Response:
        """Embed texts; embeddings are truncated to `dimensions`, then scaled to unit length."""
        fields = await self.body(request)
        self.check_model(fields)
        fields = {"encoding_format": "float", "dimensions": self.width} | fields
        encoding = fields["encoding_format"]
        width = fields["dimensions"]
        if encoding not in ("float", "base64"):
            raise RequestError(
                400,
                f"encoding_format {shown(encoding)}; expected float or base64",
                "encoding_format",
            )
        if type(width) is not int or not 1 <= width <= self.width:
            raise RequestError(
                400,
                f"dimensions {shown(width)}; expected 1 to {self.width}",
                "dimensions",
            )
        texts = await self.texts_of(fields.get("input"))
        embedded = await self.queue.embed(texts)
        empty = np.flatnonzero(~embedded.embeddings.any(axis=1)).tolist()
        self.check_empty(texts, empty)
        rows = unit_rows(embedded.embeddings[:, :width]).astype("<f4", copy=False)
        values = (
            [base64.b64encode(row.tobytes()).decode() for row in rows]
            if encoding == "base64"
            else list(rows)
        )
        data = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values)
        ]
        pieces = int(embedded.lengths.sum())
        usage = {"prompt_tokens": pieces, "total_tokens": pieces}
        answer = {"object": "list", "data": data, "model": self.name, "usage": usage}
        if empty:
            answer["empty"] = empty
        return as_json(answer)

    def check_empty(self, texts: list[str], empty: list[int]) -> None:
        """Raise an error for a blank text, or for one without a known word if these are refused.

        A zero embedding has no direction: its cosine similarity with any other is undefined.

        Args:
            texts: texts of a request.
            empty: numbers of the texts with zero embeddings.
        """
        for row in empty:
            if is_blank(texts[row]) or self.options.on_empty == "error":
                raise RequestError(
                    400,
                    f"input[{row}] {shown(texts[row])} has no known word: its embedding is zero",
                    "input",
                )

    async def search(self, request: Request) -> Response:
        """Search the index for the `k` best sentences of `query`, one text or several."""
        fields = await self.body(request)
        self.check_model(fields)
        if unknown := fields.keys() - {"model", "query", "k"}:
            raise RequestError(
                400,
                f"unknown field {shown(min(unknown))}; expected query, k or model",
                min(unknown),
            )
        k = fields.get("k", SearchOptions.k)
        if type(k) is not int or not 1 <= k <= MAX_HITS:
            raise RequestError(400, f"k {shown(k)}; expected 1 to {MAX_HITS}", "k")
        queries = checked_texts(fields.get("query"), "query", self.options.max_inputs)
        assert self.index is not None
        encode = partial(self.encoder.encode, on_long=self.options.on_long)
        hits_by_query = await self.queue.run(self.index.search, queries, encode, k)
        results = [
            {
                "query": query,
                "hits": [
                    {"score": hit.score, "line": hit.line + 1, "text": hit.sentence} for hit in hits
                ],
            }
            for query, hits in zip(queries, hits_by_query, strict=True)
        ]
        return as_json({"model": self.name, "results": results})

    async def body(self, request: Request) -> dict[str, Any]:
        """Read the JSON object of a request."""
        limit = self.options.max_body * MEBIBYTE
        # The declared content length may be wrong, so the received bytes are counted.
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise RequestError(
                    413,
                    f"request larger than {self.options.max_body} MiB; send fewer texts at once",
                )
        try:
            fields = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise RequestError(400, f"the request is not JSON: {first_line(error):.80}") from None
        if not isinstance(fields, dict):
            raise RequestError(
                400, f"the request is {shown(fields)}; expected an object with model and input"
            )
        return {name: value for name, value in fields.items() if value is not None}

    def check_model(self, fields: dict[str, Any]) -> None:
        """Raise an error if another model is requested, as its embeddings are not comparable."""
        if fields.get("model", self.name) != self.name:
            raise RequestError(
                404, f"model {shown(fields['model'])}; this server has {self.name!r}", "model"
            )

    async def texts_of(self, given: Any) -> list[str]:
        """Return the texts of an input: one or several, each as text or as tokens."""
        tokens = [given] if is_tokens(given) else given
        if not (isinstance(tokens, list) and tokens and all(map(is_tokens, tokens))):
            return checked_texts(given, "input", self.options.max_inputs)
        if len(tokens) > self.options.max_inputs:
            raise RequestError(
                400, f"{len(tokens):,} texts; expected at most {self.options.max_inputs:,}", "input"
            )
        decode: Callable[[list[int]], str] = self.decode_pieces
        if self.options.tokens != MODEL_TOKENS:
            decode = (await self.openai_tokens.encoding()).decode
        return await asyncio.to_thread(self.decode, tokens, decode)

    def decode(self, tokens: list[list[int]], decode: Callable[[list[int]], str]) -> list[str]:
        """Convert tokens to texts."""
        try:
            return [decode(ids) for ids in tokens]
        except (LookupError, OverflowError):
            raise RequestError(
                400, f"input contains ids that are not {self.options.tokens} tokens", "input"
            ) from None

    def decode_pieces(self, ids: list[int]) -> str:
        """Convert dictionary ids to texts."""
        # A negative id would index from the end of the symbols.
        symbols = self.encoder.tokenizer.symbols if min(ids) >= 0 else []
        # No dictionary contains the replacement character.
        special = dict.fromkeys((*SPECIAL, MASK), "") | {UNK: "\ufffd"}
        return "".join(special.get(symbols[index], symbols[index]) for index in ids).replace(
            "\u2581", " "
        )


def checked_texts(given: Any, field: str, most: int) -> list[str]:
    """Check that a value is a text or a list of texts, and return it as a list."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise RequestError(
            400, f"{field} {shown(given)}; expected a text, or a list of texts", field
        )
    if len(texts) > most:
        raise RequestError(
            400, f"{field} has {len(texts):,} texts; expected at most {most:,}", field
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(400, f"{field}[{row}] {shown(text)}; expected a text", field)
    return texts


def is_blank(text: str) -> bool:
    """Return whether nothing of a text can be seen."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def is_tokens(given: Any) -> bool:
    """Return whether a value is a non-empty list of integers."""
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


class OpenaiTokens:
    """An encoding of tiktoken, which is downloaded on first use.

    If it cannot be loaded, requests are refused at once until `RETRY` seconds later.

    Args:
        name: name of the encoding.
    """

    def __init__(self, name: str):
        self._name = name
        self._loading: asyncio.Future[Any] | None = None
        self._failed_at = -math.inf

    async def encoding(self) -> Any:
        """Return the encoding.

        Raises:
            RequestError: if it cannot be loaded.
        """
        advice = "send text (LangChain: check_embedding_ctx_length=False)"
        if is_missing("tiktoken"):
            raise RequestError(
                400,
                f"input contains {self._name} tokens, but tiktoken is not installed on the server; "
                f"{advice}",
                "input",
            )
        if time.monotonic() > self._failed_at + RETRY:
            if self._loading is None:
                self._loading = asyncio.create_task(asyncio.to_thread(self._load))
            # The load continues if this request is cancelled, because others may wait for it.
            if encoding := await asyncio.shield(self._loading):
                return encoding
            self._loading = None
        raise RequestError(
            400,
            f"input contains token ids, but the server cannot load {self._name}; {advice}",
            "input",
        )

    def _load(self) -> Any:
        """Load the encoding; return None if this fails."""
        import tiktoken

        try:
            return tiktoken.get_encoding(self._name)
        # Network errors can have any exception type.
        except Exception as error:
            logger.warning("tiktoken cannot load %s: %s", self._name, first_line(error))
            self._failed_at = time.monotonic()
            return None


def is_local(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def as_json(content: Any, status: int = 200) -> Response:
    """Return a JSON response; NumPy arrays are converted to lists."""
    return Response(
        orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY),
        status,
        media_type="application/json",
    )


def refusal(error: RequestError) -> Response:
    """Return an error response in the format that OpenAI clients expect."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    content = {"message": error.message, "type": kind, "param": error.field, "code": None}
    response = as_json({"error": content}, error.status)
    if error.status == 503:
        response.headers["retry-after"] = "1"
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
