"""Combines texts from concurrent requests into batches."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

Result = TypeVar("Result")
# Maximum number of texts per batch. Requests that arrive in the meantime wait for the batch.
BATCH_TEXTS = 512
# Number of texts that a request may add to a batch even if many requests wait.
SHARE_TEXTS = 16


@dataclass(frozen=True)
class TextVectors:
    """Embeddings of the texts in one request.

    Attributes:
        embeddings: sentence embeddings, float32 [N, D].
        lengths: number of subwords of each text [N].
    """

    embeddings: FloatArray
    lengths: IntArray


class _Request:
    """Texts of a request, to be encoded in slices.

    Args:
        texts: all texts.
    """

    def __init__(self, texts: list[str]):
        self.texts = texts
        self.result: asyncio.Future[TextVectors] = asyncio.get_running_loop().create_future()
        # Number of texts that have been added to batches so far.
        self.taken = 0
        self._encoded: list[TextVectors] = []
        self._missing = len(texts)

    def take(self, count: int) -> list[str]:
        """Return the next texts, at most `count`."""
        texts = self.texts[self.taken : self.taken + count]
        self.taken += len(texts)
        return texts

    def add(self, encoded: TextVectors) -> None:
        """Add the embeddings of the next texts."""
        self._encoded.append(encoded)
        self._missing -= len(encoded.lengths)
        if not self._missing and not self.result.done():
            embeddings = np.concatenate([vectors.embeddings for vectors in self._encoded])
            lengths = np.concatenate([vectors.lengths for vectors in self._encoded])
            self._encoded.clear()
            self.result.set_result(TextVectors(embeddings, lengths))

    def fail(self, error: Exception) -> None:
        """Report an error to the client. The remaining texts are not encoded."""
        if not self.result.done():
            self.result.set_exception(error)


Batch = list[tuple[_Request, list[str]]]


class EncodingQueue:
    """Queue of requests that are encoded in batches by one thread.

    Texts that arrive while the encoder runs become the next batch. The requests take turns: a
    request with many texts is encoded in several batches, so that other requests need not wait.

        embedded = await EncodingQueue(encoder, "cut", 2048).embed(["A dog."])

    A single thread suffices, because encoding uses all cores. Cancelled requests are not encoded.

    Args:
        encoder: encoder of the texts.
        on_long: see `SentenceEncoder.encode`.
        max_texts: maximum number of texts per batch.
        count: called with the number of texts of every batch.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        on_long: str,
        max_texts: int,
        count: Callable[[int], Any] = lambda texts: None,
    ):
        self._encoder = encoder
        self._on_long = on_long
        self._max_texts = min(max_texts, BATCH_TEXTS)
        self._count = count
        self._waiting: deque[_Request] = deque()
        # Requests that are partly encoded.
        self._begun: deque[_Request] = deque()
        self._thread = ThreadPoolExecutor(1, "encode")
        self._work: asyncio.Task[None] | None = None

    async def embed(self, texts: list[str]) -> TextVectors:
        """Embed the texts of a request."""
        request = _Request(texts)
        self._waiting.append(request)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._encode_all())
        return await request.result

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the encoder thread, after the current batch."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Stop the encoder thread. Pending requests are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _encode_all(self) -> None:
        while batch := self._next_batch():
            all_texts = [text for _, texts in batch for text in texts]
            try:
                encoded = await self.run(self._encode, all_texts)
            except Exception as error:
                await self._encode_each(batch, error)
                continue
            end = 0
            for request, texts in batch:
                rows = slice(end, end + len(texts))
                request.add(TextVectors(encoded.embeddings[rows], encoded.lengths[rows]))
                end += len(texts)

    async def _encode_each(self, batch: Batch, error: Exception) -> None:
        """Encode the requests of a failed batch separately, so that only invalid ones fail."""
        for request, texts in batch:
            if len(batch) == 1:
                request.fail(error)
                continue
            try:
                request.add(await self.run(self._encode, texts))
            except Exception as request_error:
                request.fail(request_error)

    def _next_batch(self) -> Batch:
        """Return texts of new requests first, then of partly encoded requests."""
        batch: Batch = []
        begun = []
        free = self._max_texts
        count = len(self._waiting) + len(self._begun)
        share = max(SHARE_TEXTS, self._max_texts // max(1, count))
        while free and (self._waiting or self._begun):
            request = (self._waiting or self._begun).popleft()
            # A pending request is already done if it has failed or was cancelled.
            if request.result.done():
                continue
            texts = request.take(min(share, free))
            batch.append((request, texts))
            free -= len(texts)
            if request.taken < len(request.texts):
                begun.append(request)
        self._begun.extend(begun)
        return batch

    def _encode(self, texts: list[str]) -> TextVectors:
        self._count(len(texts))
        # Pass a counter, so that `encode` does not log truncated texts. The responses list them.
        counts: Counter[str] = Counter()
        embeddings = self._encoder.encode(texts, on_long=self._on_long, counts=counts)
        return TextVectors(embeddings, self._encoder.tokenizer.encode_flat(texts)[1])
