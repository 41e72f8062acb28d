"""ASGI application of `lxsr serve`."""

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import logging
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
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from fairseq_lxsr import __version__
from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError, first_line, shown
from fairseq_lxsr.files.lines import single_line
from fairseq_lxsr.options import FINITE, at_least
from fairseq_lxsr.search import CorpusIndex, Hit, SearchOptions
from fairseq_lxsr.search.corpus import hit_fields
from fairseq_lxsr.search.passages import find_passage_ranker
from fairseq_lxsr.search.splitting import passage_rows
from fairseq_lxsr.serve import CONNECTION, MEBIBYTE, MODEL_TOKENS, ServeOptions
from fairseq_lxsr.serve.live import LiveIndex, embedded_texts
from fairseq_lxsr.serve.queue import BATCH_TEXTS, EncodingQueue, TextVectors
from fairseq_lxsr.serve.responses import (
    RequestError,
    TrackedResponse,
    as_json,
    list_as_json,
    refusal,
)
from fairseq_lxsr.serve.tokens import OpenaiTokens, token_lists
from fairseq_lxsr.serve.waiting import WaitingData
from fairseq_lxsr.text.tokenizer import MASK, SPECIAL, UNK
from fairseq_lxsr.vectors.rows import FloatArray, unit_rows

logger = logging.getLogger(__name__)
# Maximum number of hits per query.
MAX_HITS = 1000
# Maximum number of hits per query if a request contains the maximum number of queries.
HITS_PER_TEXT = 10
# Number of queries to search at a time. Other requests wait during this search.
QUERIES_AT_ONCE = 64
# Size in bytes of each part of a response. Other requests wait while a part is created.
PART_BYTES = 2**17
HITS_IN_PART = 1000
# Approximate size in bytes of a number in JSON, and of a hit in memory without its text.
NUMBER_BYTES = 12
HIT_BYTES = 200
# Status that is never sent. It counts requests whose client has disconnected, as in nginx.
CLOSED_STATUS = 499
LOCAL_NAMES = ["localhost", "127.0.0.1", "::1", "[::1]"]
Handler = Callable[[Request], Awaitable[TrackedResponse]]


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
        index: index for /search; None responds to /search with status 404.

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
    """Endpoints and their shared state. The arguments are those of `make_app`."""

    def __init__(
        self, encoder: SentenceEncoder, name: str, options: ServeOptions, index: CorpusIndex | None
    ):
        self.encoder = encoder
        self.name = name
        self.options = options
        self.live = None if index is None else LiveIndex(index, encoder)
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
        self.cut = Counter("lxsr_texts_cut", "Texts that were truncated", registry=self.registry)
        self.batches = Counter(
            "lxsr_batches", "Batches of texts that were embedded", registry=self.registry
        )
        Gauge(
            "lxsr_requests_running", "Requests being processed", registry=self.registry
        ).set_function(lambda: self.running)
        model = {"name": name, "fingerprint": encoder.fingerprint, "version": __version__}
        Gauge("lxsr_model", "The model", list(model), registry=self.registry).labels(**model).set(1)
        self.openai_tokens = OpenaiTokens(options.tokens)
        self.waiting = WaitingData(options.max_waiting * MEBIBYTE)
        self.queue = EncodingQueue(encoder, options.on_long, options.max_inputs, self.count)

    def count(self, texts: int) -> None:
        """Add a batch to the counters."""
        self.texts.inc(texts)
        self.batches.inc()

    def app(self) -> Starlette:
        """Create the ASGI application. Its endpoints depend on the options and the index."""
        endpoints: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.metrics),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/v1/embeddings", self.embeddings),
        ]
        if self.live is not None:
            endpoints.append(("POST", "/search", self.search))
            if self.options.allow_edits:
                endpoints.append(("POST", "/index/add", self.add))
                endpoints.append(("POST", "/index/update", self.update))
                endpoints.append(("POST", "/index/delete", self.delete))
                endpoints.append(("POST", "/index/compact", self.compact))
        routes = []
        for method, path, handler in endpoints:
            routes.append(Route(path, Endpoint(self, path, handler), methods=[method]))
        app = Starlette(
            routes=routes,
            middleware=self.middleware(),
            exception_handlers={HTTPException: self.unknown_route},
            lifespan=self.lifespan,
        )
        # A redirect would point to the host name that the client has sent.
        app.router.redirect_slashes = False
        return app

    def middleware(self) -> list[Middleware]:
        """Return the middleware that checks the Origin and Host headers."""
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
        """Warm up the encoder before the first request, and stop its thread at the end."""
        # Encoding the first text is slow, because memory is allocated and libraries are loaded.
        await self.queue.embed(["a"])
        async with contextlib.AsyncExitStack() as stack:
            if self.live is not None:
                await stack.enter_async_context(self.live.following())
            yield
        self.queue.close()

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
                f"the limit of {self.options.max_requests} concurrent requests has been reached; "
                "try again later",
            )

    async def unknown_route(self, request: Request, error: Exception) -> TrackedResponse:
        """Respond to a request for an unknown path or method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        # Use one counter for all unknown paths. Otherwise, a client could fill the memory with
        # counters.
        self.requests.labels("other", status).inc()
        path = request.url.path
        paths = "POST /v1/embeddings, GET /v1/models, /health, /metrics"
        if self.live:
            paths += ", POST /search"
        advice = f"expected {paths}"
        if path == "/search" and not self.live:
            advice = "start the server with --index FOLDER"
        elif path.startswith("/index/") and not self.options.allow_edits:
            advice = "start the server with --index FOLDER and --allow-edits"
        response = refusal(RequestError(status, f"{request.method} {shown(path)}; {advice}"))
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    async def health(self, request: Request) -> TrackedResponse:
        """Report the status, the model and the size of the index."""
        sentences = {}
        if self.live is not None:
            index = self.live.current()
            sentences["sentences"] = 0 if index is None else len(index)
        model = {
            "model": self.name,
            "width": self.width,
            "fingerprint": self.encoder.fingerprint,
        }
        return as_json({"status": "ok", **model, **sentences})

    async def metrics(self, request: Request) -> TrackedResponse:
        """Return the counters in the format of Prometheus."""
        counters = generate_latest(self.registry)
        response = TrackedResponse([counters], len(counters), length=len(counters))
        response.headers["content-type"] = "text/plain; version=0.0.4; charset=utf-8"
        return response

    async def models(self, request: Request) -> TrackedResponse:
        """List the models: there is only one."""
        return as_json({"object": "list", "data": [self.model_entry()]})

    async def model(self, request: Request) -> TrackedResponse:
        """Describe a model by name."""
        self.check_model({"model": request.path_params["name"]})
        return as_json(self.model_entry())

    def model_entry(self) -> dict[str, Any]:
        """Return the description of the model."""
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "fairseq-lxsr"}

    async def embeddings(self, request: Request) -> TrackedResponse:
        """Embed texts. Embeddings are truncated to `dimensions`, then scaled to unit length."""
        fields = await self.body(request)
        self.check_model(fields)
        encoding, width = self.embedding_options(fields)
        texts = await self.texts_of(fields.get("input"))
        embedded = await self.queue.embed(texts)
        head = self.embedding_head(texts, embedded)
        rows = embedded.embeddings[:, :width]
        if len(texts) > BATCH_TEXTS:
            # Run in the encoder thread, so that the event loop can serve other requests.
            rows = await self.queue.run(unit_rows, rows)
        else:
            rows = unit_rows(rows)
        return embeddings_as_json(head, rows.astype("<f4", copy=False), encoding)

    def embedding_options(self, fields: dict[str, Any]) -> tuple[str, int]:
        """Return the requested encoding and number of dimensions."""
        encoding = fields.get("encoding_format", "float")
        width = fields.get("dimensions", self.width)
        if encoding not in ("float", "base64"):
            raise RequestError(
                400,
                f"encoding_format is {shown(encoding)}; expected float or base64",
                "encoding_format",
            )
        if type(width) is not int or not 1 <= width <= self.width:
            raise RequestError(
                400,
                f"dimensions is {shown(width)}; expected 1 to {self.width}",
                "dimensions",
            )
        return encoding, width

    def embedding_head(self, texts: list[str], embedded: TextVectors) -> dict[str, Any]:
        """Return the fields of a response other than the embeddings."""
        empty = np.flatnonzero(~embedded.embeddings.any(axis=1)).tolist()
        self.check_empty(texts, empty)
        pieces = int(embedded.lengths.sum())
        head: dict[str, Any] = {
            "object": "list",
            "model": self.name,
            "usage": {"prompt_tokens": pieces, "total_tokens": pieces},
        }
        if empty:
            head["empty"] = empty
        if cut := self.cut_texts(embedded):
            head["cut"] = cut
        return head

    def cut_texts(self, embedded: TextVectors) -> list[int]:
        """Return the indices of the truncated texts, and add their number to the counter."""
        limit = self.encoder.max_seq_length
        if self.options.on_long != "cut" or limit is None:
            return []
        cut = np.flatnonzero(embedded.lengths > limit).tolist()
        self.cut.inc(len(cut))
        return cut

    def check_empty(self, texts: list[str], empty: list[int]) -> None:
        """Raise an error for a blank text; if `on_empty` is `error`, for any zero embedding.

        The cosine similarity with a zero embedding is undefined.

        Args:
            texts: texts of a request.
            empty: indices of the texts with zero embeddings.
        """
        for row in empty:
            if is_blank(texts[row]) or self.options.on_empty == "error":
                raise RequestError(
                    400,
                    f"input[{row}] {shown(texts[row])} has no known word, so its embedding "
                    "would be zero",
                    "input",
                )

    async def search(self, request: Request) -> TrackedResponse:
        """Search the index for the `k` best sentences for `query`, which is one text or several."""
        fields = await self.body(request)
        self.check_model(fields)
        check_names(fields, "query", "k", "only_ids", "score_threshold", "model")
        k = checked_k(fields)
        queries = checked_texts(fields.get("query"), "query", self.options.max_inputs)
        refuse_blank(queries, "query")
        index = self.open_index()
        where = fields.get("only_ids")
        if where is not None:
            where = checked_ids(where, "only_ids")
        refuse_too_many_hits(len(queries), k, self.options.max_inputs)
        score_threshold = checked_threshold(fields)
        ranker = find_passage_ranker(self.encoder)
        embedded = await self.queue.embed(queries)
        search = partial(
            search_index,
            index,
            k=k,
            where=where,
            ranker=ranker,
            score_threshold=score_threshold,
        )
        hits = await self.hits(queries, embedded.embeddings, search)
        head: dict[str, Any] = {"model": self.name}
        if cut := self.cut_texts(embedded):
            head["cut"] = cut

        has_ids = index.config["ids"]

        def results(start: int, end: int) -> list[dict[str, Any]]:
            return [result_of(queries[row], hits[row], has_ids) for row in range(start, end)]

        size = sum(len(hit.sentence) + HIT_BYTES for hits_of_query in hits for hit in hits_of_query)
        step = max(1, HITS_IN_PART // k)
        return list_as_json(head, "results", len(queries), step, results, size)

    async def hits(
        self, queries: list[str], embeddings: FloatArray, search: Callable[..., list[list[Hit]]]
    ) -> list[list[Hit]]:
        """Call `search` for queries and their embeddings [N, D].

        Only a few queries are searched at a time, so that other requests can be served in between,
        and a search ends soon after its time limit.
        """
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            hits += await self.queue.run(search, queries[rows], embeddings[rows])
        return hits

    def open_index(self) -> CorpusIndex:
        """Return the current index, or raise an error if it was removed."""
        index = None if self.live is None else self.live.current()
        if index is None:
            raise RequestError(503, "the index was removed; try again after it has been rebuilt")
        return index

    async def add(self, request: Request) -> TrackedResponse:
        """Add `texts` to the index, with `ids` if the index has ids."""
        fields = await self.body(request)
        check_names(fields, "texts", "ids")
        texts = checked_texts(fields.get("texts"), "texts", self.options.max_inputs)
        ids = fields.get("ids")
        if ids is not None:
            ids = checked_ids(ids, "ids")
        embed = await self.embed_documents(texts)
        return await self.edit("added", lambda index: index.add(texts, ids, embed))

    async def update(self, request: Request) -> TrackedResponse:
        """Replace the texts with these `ids` in the index with `texts`."""
        fields = await self.body(request)
        check_names(fields, "texts", "ids")
        texts = checked_texts(fields.get("texts"), "texts", self.options.max_inputs)
        ids = checked_ids(fields.get("ids"), "ids")
        embed = await self.embed_documents(texts)
        return await self.edit("updated", lambda index: index.update(ids, texts, embed))

    async def delete(self, request: Request) -> TrackedResponse:
        """Delete the texts with these `ids` from the index."""
        fields = await self.body(request)
        check_names(fields, "ids")
        ids = checked_ids(fields.get("ids"), "ids")
        return await self.edit("deleted", lambda index: index.delete(ids))

    async def compact(self, request: Request) -> TrackedResponse:
        """Merge the segments of the index."""
        check_names(await self.body(request))
        return await self.edit("compacted", lambda index: index.compact(self.encoder.encode))

    async def embed_documents(self, texts: list[str]) -> Callable[[Text], Any]:
        """Embed texts in the queue, and return a function that looks up their embeddings."""
        lines = [single_line(text) for text in texts]
        if not self.open_index().is_plain:
            lines = [line[start:stop] for line in lines for start, stop in passage_rows(line)]
        embedded = await self.queue.embed(lines)
        return embedded_texts(lines, embedded.embeddings)

    async def edit(
        self, result: str, change: Callable[[CorpusIndex], int | None]
    ) -> TrackedResponse:
        """Edit the index on disk, and report the result and the number of sentences.

        Args:
            result: name of the response field for the return value of `change`.
            change: edits the index, and returns the number of edited texts. For None, the field is
                true.
        """
        self.open_index()
        assert self.live is not None
        count, sentences = await self.live.edit(change)
        return as_json({result: True if count is None else count, "sentences": sentences})

    async def body(self, request: Request) -> dict[str, Any]:
        """Read the JSON object of a request."""
        limit = self.options.max_body * MEBIBYTE
        # Count the received bytes, because the declared content length may be wrong.
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            self.waiting.hold(request.state.deadline, len(content))
            if len(content) > limit:
                raise RequestError(
                    413,
                    f"request is larger than {self.options.max_body} MiB; send fewer texts at once",
                )
        self.waiting.release(request.state.deadline)
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
        """Raise an error if another model is requested: its embeddings are not comparable."""
        if fields.get("model", self.name) != self.name:
            raise RequestError(
                404,
                f"unknown model {shown(fields['model'])}; this server uses {self.name!r}",
                "model",
            )

    async def texts_of(self, given: Any) -> list[str]:
        """Return the texts of an input, which is one text or several, as strings or as tokens."""
        tokens = None
        if isinstance(given, list) and given and not isinstance(given[0], str):
            # Checking millions of tokens is slow, so do it in a thread.
            tokens = await asyncio.to_thread(token_lists, given)
        if tokens is None:
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
        # No dictionary contains the replacement character, so unknown tokens become unknown words.
        special = dict.fromkeys((*SPECIAL, MASK), "") | {UNK: "\ufffd"}
        return "".join(special.get(symbols[index], symbols[index]) for index in ids).replace(
            "\u2581", " "
        )


def checked_texts(given: Any, field: str, most: int) -> list[str]:
    """Check that a value is a text or a list of texts, and return it as a list."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise RequestError(
            400, f"{field} is {shown(given)}; expected a text, or a list of texts", field
        )
    if len(texts) > most:
        raise RequestError(
            400, f"{field} has {len(texts):,} texts; expected at most {most:,}", field
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(400, f"{field}[{row}] is {shown(text)}; expected a text", field)
    return texts


def checked_k(fields: dict[str, Any]) -> int:
    """Check and return the number of hits of each query."""
    k = fields.get("k", SearchOptions.k)
    if type(k) is not int or not 1 <= k <= MAX_HITS:
        raise RequestError(400, f"k is {shown(k)}; expected 1 to {MAX_HITS}", "k")
    return k


def refuse_too_many_hits(num_queries: int, k: int, max_inputs: int) -> None:
    """Reject a request for more hits than one response may have.

    Args:
        num_queries: number of queries in the request.
        k: number of hits of each query.
        max_inputs: maximum number of texts per request.
    """
    limit = max(MAX_HITS, max_inputs * HITS_PER_TEXT)
    if num_queries * k > limit:
        raise RequestError(
            400, f"{num_queries:,} queries with k {k:,} exceed {limit:,} hits per request", "k"
        )


def checked_threshold(fields: dict[str, Any]) -> float | None:
    """Check and return the minimum score of the hits; None for any score."""
    threshold = fields.get("score_threshold")
    if threshold is not None and threshold not in FINITE:
        raise RequestError(
            400, f"score_threshold is {shown(threshold)}; expected a number", "score_threshold"
        )
    return threshold


def search_index(
    index: CorpusIndex,
    queries: list[str],
    embeddings: FloatArray,
    **options: Any,
) -> list[list[Hit]]:
    """Search an index for queries with these embeddings [N, D], with options of its `search`."""
    return index.search(queries, lambda text: embeddings, **options)


def result_of(query: str, hits: list[Hit], has_ids: bool) -> dict[str, Any]:
    """Return the hits of a query as a JSON-compatible dictionary."""
    return {"query": query, "hits": [hit_fields(hit, has_ids) for hit in hits]}


def embeddings_as_json(head: dict[str, Any], rows: FloatArray, encoding: str) -> TrackedResponse:
    """Return a response with embeddings [N, D], as numbers or in base64."""

    def items(start: int, end: int) -> list[dict[str, Any]]:
        data = []
        for row in range(start, end):
            vector: Any = rows[row]
            if encoding == "base64":
                vector = base64.b64encode(vector.tobytes()).decode()
            data.append({"object": "embedding", "index": row, "embedding": vector})
        return data

    step = max(1, PART_BYTES // (NUMBER_BYTES * rows.shape[1]))
    return list_as_json(head, "data", len(rows), step, items, rows.nbytes)


def check_names(fields: dict[str, Any], *names: str) -> None:
    """Raise an error if a request contains a field other than `names`."""
    if unknown := fields.keys() - set(names):
        expected = ", ".join(names) or "no fields"
        raise RequestError(
            400, f"unknown field {shown(min(unknown))}; expected {expected}", min(unknown)
        )


def checked_ids(given: Any, field: str) -> list[str | int]:
    """Check that a value is a list of ids, and return it."""
    if not isinstance(given, list):
        raise RequestError(400, f"{field} {shown(given)}; expected a list of ids", field)
    for row, value in enumerate(given):
        if type(value) not in (str, int):
            raise RequestError(400, f"{field}[{row}] {shown(value)}; expected an id", field)
    return given


def refuse_blank(texts: list[str], field: str) -> None:
    """Raise an error for a text without visible characters."""
    for row, text in enumerate(texts):
        if is_blank(text):
            raise RequestError(
                400, f"{field}[{row}] is {shown(text)}, which contains no words", field
            )


def is_blank(text: str) -> bool:
    """Return whether a text has no visible characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


class Endpoint:
    """Endpoint with checks, a time limit, counters, and error responses.

    A request counts as being processed until its response has been sent.

    Args:
        service: service that the handler belongs to.
        path: path of the endpoint. Only /health requires no key and ignores the request limit. The
            path is also the label of the counters, so that unknown paths do not create new
            counters.
        handler: returns the response to a request.
    """

    def __init__(self, service: Service, path: str, handler: Handler):
        self.service = service
        self.path = path
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self.service
        start = time.perf_counter()
        service.running += 1
        status = CLOSED_STATUS
        try:
            status = await self.serve(Request(scope, receive), send)
        finally:
            service.running -= 1
            service.requests.labels(self.path, status).inc()
            service.seconds.labels(self.path).observe(time.perf_counter() - start)

    async def serve(self, request: Request, send: Send) -> int:
        """Respond to a request within the time limit, and return the status."""
        end = asyncio.get_running_loop().time() + self.service.options.timeout
        deadline = asyncio.timeout_at(end)
        request.state.deadline = deadline
        connection = getattr(request.state, CONNECTION, None)
        response: TrackedResponse | None = None
        try:
            async with deadline:
                if connection:
                    connection.deadline = deadline
                response = await self.respond(request)
                await self.send(response, request, send)
                return response.status_code
        except TimeoutError:
            pass
        finally:
            self.service.waiting.release(deadline)
            if connection:
                connection.deadline = None
        if connection and connection.is_closed:
            return CLOSED_STATUS
        if response is None:
            response = refusal(self.timeout_error(deadline.when() != end))
            with contextlib.suppress(TimeoutError):
                # A client that does not read responses would not read this message either.
                async with asyncio.timeout(1):
                    await response(request.scope, request.receive, send)
                    return response.status_code
        # Other servers close the connection by themselves, because the response is incomplete.
        if connection:
            connection.cut_off()
        return CLOSED_STATUS

    async def respond(self, request: Request) -> TrackedResponse:
        """Return the response of the handler, or an error response."""
        try:
            if self.path != "/health":
                self.service.admit(request)
            return await self.handler(request)
        except RequestError as error:
            return refusal(error)
        except InputError as error:
            return refusal(RequestError(400, str(error)))
        except TimeoutError:
            raise
        except ClientDisconnect:
            return refusal(RequestError(CLOSED_STATUS, "the client has disconnected"))
        except Exception:
            logger.exception("%s", self.path)
            return refusal(RequestError(500, "internal server error; see the server log"))

    async def send(self, response: TrackedResponse, request: Request, send: Send) -> None:
        """Send a response, and record the progress."""

        async def send_and_note(message: Message) -> None:
            self.service.waiting.hold(request.state.deadline, response.size)
            await send(message)

        await response(request.scope, request.receive, send_and_note)

    def timeout_error(self, is_early: bool) -> RequestError:
        """Return the error for a request that was ended before the response was complete.

        Args:
            is_early: whether it was ended because its memory was needed.
        """
        options = self.service.options
        if is_early:
            return RequestError(
                503, f"waiting requests exceed {options.max_waiting} MiB; try again later"
            )
        return RequestError(
            504, f"no response within {options.timeout:g} s; retry, or send fewer texts"
        )


def is_local(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
