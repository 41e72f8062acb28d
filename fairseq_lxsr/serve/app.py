"""ASGI application of `lxsr serve`."""

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
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
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from fairseq_lxsr import __version__
from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.files.lines import single_line
from fairseq_lxsr.options import FINITE, at_least
from fairseq_lxsr.search import CorpusIndex, Hit, SearchOptions
from fairseq_lxsr.search.passages import find_passage_ranker, with_pieces
from fairseq_lxsr.search.segment_vectors import Mask
from fairseq_lxsr.search.splitting import passage_rows
from fairseq_lxsr.serve import CONNECTION, MEBIBYTE, MODEL_TOKENS, ServeOptions
from fairseq_lxsr.serve.fields import (
    check_names,
    checked_ids,
    checked_texts,
    is_blank,
    parse_object,
    refuse_blank,
    replace_half_characters,
)
from fairseq_lxsr.serve.hits import checked_hit_fields, hit_values
from fairseq_lxsr.serve.live import LiveIndex, embedded_texts
from fairseq_lxsr.serve.openapi import description
from fairseq_lxsr.serve.queue import BATCH_TEXTS, EncodingQueue, TextVectors
from fairseq_lxsr.serve.rerank import RerankRequest, rerank
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
SEARCH_FIELDS = ("query", "k", "only_ids", "score_threshold", "fields", "model")
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
# Endpoints that require no key and ignore the limit of concurrent requests.
OPEN_PATHS = ("/health", "/openapi.json")
LOCAL_NAMES = ["localhost", "127.0.0.1", "[::1]"]
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
        self.hosts = host_names(options)
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
            ("GET", "/openapi.json", self.openapi),
            ("POST", "/v1/embeddings", self.embeddings),
            ("POST", "/v1/rerank", self.rerank),
            ("POST", "/v2/rerank", self.rerank),
            ("POST", "/api/embed", self.ollama_embed),
        ]
        if self.live is not None:
            endpoints.append(("POST", "/search", self.search))
            if self.options.allow_edits:
                endpoints.append(("POST", "/index/add", self.add))
                endpoints.append(("POST", "/index/update", self.update))
                endpoints.append(("POST", "/index/delete", self.delete))
                endpoints.append(("POST", "/index/compact", self.compact))
        self.paths = [f"{method} {path.replace(':path', '')}" for method, path, _ in endpoints]
        self.description = description(self.paths)
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
        """Return the middleware that checks the Origin header."""
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

    def check_host(self, request: Request) -> None:
        """Raise an error if a request names a host that is not a name of this server.

        A web page may reach this machine through the page's own host name (DNS rebinding). Browsers
        always send a name, but health checks of proxies may not.
        """
        name = host_name(request.headers.get("host", ""))
        if name and self.hosts and name not in self.hosts:
            raise RequestError(
                400,
                f"Host {shown(name)} is not a name of this server; expected {self.options.host}, "
                "or a name from --allow-host",
            )

    def admit(self, request: Request) -> None:
        """Raise an error if the API key is wrong, or if there are too many concurrent requests."""
        key = self.options.api_key
        # Compare in constant time, so that the response time does not reveal the key.
        if key and not hmac.compare_digest(sent_key(request), key.encode()):
            raise RequestError(
                401,
                "missing or wrong API key; send `Authorization: Bearer KEY`, or `api-key: KEY`",
            )
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
        advice = f"expected {', '.join(self.paths)}"
        if path == "/search" and not self.live:
            advice = "start the server with --index FOLDER"
        elif path.startswith("/index/") and not self.options.allow_edits:
            advice = "start the server with --index FOLDER and --allow-edits"
        message = f"{request.method} {shown(path)}; {advice}"
        response = refusal(RequestError(status, message), path)
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    def without_paths(self, message: str) -> str:
        """Return a message without the path of the index, which clients need not know."""
        if self.live is None:
            return message
        folder = self.live.folder
        return message.replace(str(folder.resolve()), "index").replace(str(folder), "index")

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

    async def openapi(self, request: Request) -> TrackedResponse:
        """Describe the endpoints in the format of OpenAPI."""
        return as_json(self.description)

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
        encoding = fields.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise RequestError(
                400,
                f"encoding_format is {shown(encoding)}; expected float or base64",
                "encoding_format",
            )
        head, rows = await self.embed_input(fields)
        pieces = head.pop("pieces")
        usage = {"prompt_tokens": pieces, "total_tokens": pieces}
        return embeddings_as_json({"object": "list", **head, "usage": usage}, rows, encoding)

    async def ollama_embed(self, request: Request) -> TrackedResponse:
        """Embed texts, in the format of Ollama."""
        start = time.perf_counter_ns()
        fields = await self.body(request)
        if isinstance(fields.get("model"), str):
            fields["model"] = fields["model"].removesuffix(":latest")
        self.check_model(fields)
        head, rows = await self.embed_input(fields)
        if fields.get("truncate") is False and "cut" in head:
            raise RequestError(
                400, f"input[{head['cut'][0]}] is too long for the model; shorten it", "truncate"
            )
        head["prompt_eval_count"] = head.pop("pieces")
        head["load_duration"] = 0
        head["total_duration"] = time.perf_counter_ns() - start
        step = max(1, PART_BYTES // (NUMBER_BYTES * rows.shape[1]))
        return list_as_json(
            head, "embeddings", len(rows), step, lambda i, j: list(rows[i:j]), rows.nbytes
        )

    async def embed_input(self, fields: dict[str, Any]) -> tuple[dict[str, Any], FloatArray]:
        """Embed the texts in the field `input`.

        Returns:
            The other fields of the response, with the number of word pieces as `pieces`, and the
            embeddings [N, D].
        """
        width = fields.get("dimensions", self.width)
        if type(width) is not int or not 1 <= width <= self.width:
            raise RequestError(
                400,
                f"dimensions is {shown(width)}; expected 1 to {self.width}",
                "dimensions",
            )
        texts = await self.texts_of(fields.get("input"))
        embedded = await self.queue.embed(texts)
        empty = np.flatnonzero(~embedded.embeddings.any(axis=1)).tolist()
        self.check_empty(texts, empty)
        head: dict[str, Any] = {"model": self.name, "pieces": int(embedded.lengths.sum())}
        if empty:
            head["empty"] = empty
        if cut := self.cut_texts(embedded):
            head["cut"] = cut
        rows = embedded.embeddings[:, :width]
        if len(texts) > BATCH_TEXTS:
            # Run in the encoder thread, so that the event loop can serve other requests.
            rows = await self.queue.run(unit_rows, rows)
        else:
            rows = unit_rows(rows)
        return head, rows.astype("<f4", copy=False)

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

    async def rerank(self, request: Request) -> TrackedResponse:
        """Score `documents` for `query`, in the format of Cohere and Jina."""
        fields = await self.body(request)
        self.check_model(fields)
        rerank_request = RerankRequest.parse(fields, self.options.max_inputs)
        response = await rerank(rerank_request, self.encoder, self.queue)
        return as_json({"model": self.name, **response})

    async def search(self, request: Request) -> TrackedResponse:
        """Search the index for the `k` best sentences for `query`, which is one text or several."""
        fields = await self.body(request)
        self.check_model(fields)
        check_names(fields, *SEARCH_FIELDS)
        k = checked_k(fields)
        queries = checked_texts(fields.get("query"), "query", self.options.max_inputs)
        refuse_blank(queries, "query")
        index = self.open_index()
        hit_fields = checked_hit_fields(fields.get("fields"), index.config["ids"])
        where = None
        if (only_ids := fields.get("only_ids")) is not None:
            # Checking a million ids takes a second, so do it once and in a thread.
            where = await asyncio.to_thread(allowed_documents, index, only_ids)
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

        def results(start: int, end: int) -> list[dict[str, Any]]:
            return [result_of(queries[row], hits[row], hit_fields) for row in range(start, end)]

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
            part = slice(start, start + QUERIES_AT_ONCE)
            hits += await self.queue.run(search, queries[part], embeddings[part])
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
        return await self.edit("compacted", lambda index: index.compact(self.encoder))

    async def embed_documents(self, texts: list[str]) -> Callable[[Text], Any]:
        """Embed texts in the queue, and return a function that looks up their embeddings."""
        lines = [single_line(text) for text in texts]
        index = self.open_index()
        if not index.is_plain:
            lines = [line[start:stop] for line in lines for start, stop in passage_rows(line)]
        embedded = await self.queue.embed(lines)
        embed = embedded_texts(lines, embedded.embeddings)
        return with_pieces(embed, self.encoder, index.fingerprint)

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
        encoding = request.headers.get("content-encoding") or "identity"
        if encoding.lower() != "identity":
            raise RequestError(
                415, f"Content-Encoding {shown(encoding)}; send the request without compression"
            )
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
            return parse_object(content)
        except RequestError:
            if b"\\u" not in content:
                raise
        # Repairing a large request takes a second, so do it in a thread.
        return parse_object(await asyncio.to_thread(replace_half_characters, content))

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


def allowed_documents(index: CorpusIndex, only_ids: Any) -> Mask:
    """Check the field `only_ids`, and return a mask of the documents with these ids."""
    return index.mask(checked_ids(only_ids, "only_ids"), "only_ids")


def result_of(query: str, hits: list[Hit], hit_fields: tuple[str, ...]) -> dict[str, Any]:
    """Return fields of the hits of a query as a JSON-compatible dictionary."""
    return {"query": query, "hits": [hit_values(hit, hit_fields) for hit in hits]}


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


class Endpoint:
    """Endpoint with checks, a time limit, counters, and error responses.

    A request counts as being processed until its response has been sent.

    Args:
        service: service that the handler belongs to.
        path: path of the endpoint, which is also the label of the counters, so that unknown paths
            do not create new counters.
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
            response = refusal(self.timeout_error(deadline.when() != end), self.path)
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
            self.service.check_host(request)
            if self.path not in OPEN_PATHS:
                self.service.admit(request)
            return await self.handler(request)
        except RequestError as error:
            return refusal(error, self.path)
        except InputError as error:
            message = self.service.without_paths(str(error))
            return refusal(RequestError(400, message), self.path)
        except TimeoutError:
            raise
        except ClientDisconnect:
            return refusal(RequestError(CLOSED_STATUS, "the client has disconnected"))
        except Exception:
            logger.exception("%s", self.path)
            failure = RequestError(500, "internal server error; see the server log")
            return refusal(failure, self.path)

    async def send(self, response: TrackedResponse, request: Request, send: Send) -> None:
        """Send a response, and record the progress."""

        async def send_and_note(message: Message) -> None:
            self.service.waiting.hold(request.state.deadline, response.size)
            await send(message)

        await response(request.scope, request.receive, send_and_note)

    def timeout_error(self, is_early: bool) -> RequestError:
        """Return the error for a request that was ended before the response was complete.

        Args:
            is_early: whether it was ended because its memory was needed, or the server stops.
        """
        options = self.service.options
        if is_early:
            return RequestError(
                503,
                f"waiting requests exceed {options.max_waiting} MiB, or the server is stopping; "
                "try again later",
            )
        advice = "retry, or send fewer texts"
        if self.path.startswith("/index/"):
            advice = "the edit may still be made: search for it before you send it again"
        return RequestError(504, f"no response within {options.timeout:g} s; {advice}")


def host_names(options: ServeOptions) -> set[str]:
    """Return the names by which clients may address the server; an empty set allows all names."""
    is_public = not is_local(options.host) and not options.allow_host
    if is_public or "*" in options.allow_host:
        return set()
    return {host_name(name) for name in (*LOCAL_NAMES, options.host, *options.allow_host)}


def sent_key(request: Request) -> bytes:
    """Return the API key of a request. Azure's clients send it in the header `api-key`."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("api-key", request.headers.get("x-api-key", ""))
    return key.strip().encode("latin-1")


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port, in lower case."""
    name = re.sub(r":\d*$", "", header.strip())
    return name.rstrip(".").lower()


def is_local(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
