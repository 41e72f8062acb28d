"""Combines texts from concurrent requests into batches."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.vectors.rows import FloatArray, IntArray

Result = TypeVar("Result")


@dataclass(frozen=True)
class TextVectors:
    """Embeddings of the texts in one request.

    Args:
        embeddings: sentence embeddings, float32 [N, D].
        lengths: number of subwords of each text [N].
    """

    embeddings: FloatArray
    lengths: IntArray


class EncodingQueue:
    """Queue of requests that are encoded in batches by one thread.

    Texts that arrive while the encoder runs become the next batch, in order of arrival.

        embedded = await EncodingQueue(encoder, "split-mean", 2048).embed(["A dog."])

    One thread is enough, because encoding uses all cores. Requests that a client has cancelled are
    not encoded.

    Args:
        encoder: encoder of the texts.
        on_long: as for `SentenceEncoder.encode`.
        max_texts: largest batch; a single request may be larger.
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
        self._max_texts = max_texts
        self._count = count
        self._waiting: deque[tuple[list[str], asyncio.Future[TextVectors]]] = deque()
        self._thread = ThreadPoolExecutor(1, "encode")
        self._work: asyncio.Task[None] | None = None

    async def embed(self, texts: list[str]) -> TextVectors:
        """Embed the texts of a request."""
        result: asyncio.Future[TextVectors] = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, result))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._encode_all())
        return await result

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the encoder thread, after the pending requests."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """Stop the encoder thread; pending requests are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _encode_all(self) -> None:
        while batch := self._next_batch():
            try:
                embedded = await self.run(
                    self._encode, [text for texts, _ in batch for text in texts]
                )
            except Exception as error:
                await self._encode_each(batch, error)
                continue
            ends = np.cumsum([len(texts) for texts, _ in batch])
            for (texts, result), end in zip(batch, ends.tolist(), strict=True):
                rows = slice(end - len(texts), end)
                if not result.done():
                    result.set_result(
                        TextVectors(embedded.embeddings[rows], embedded.lengths[rows])
                    )

    async def _encode_each(
        self, batch: list[tuple[list[str], asyncio.Future[TextVectors]]], error: Exception
    ) -> None:
        """Encode the requests of a failed batch separately, so that only invalid ones fail."""
        for texts, result in batch:
            outcome: TextVectors | Exception = error
            if len(batch) > 1:
                try:
                    outcome = await self.run(self._encode, texts)
                except Exception as request_error:
                    outcome = request_error
            if result.done():
                continue
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    def _next_batch(self) -> list[tuple[list[str], asyncio.Future[TextVectors]]]:
        batch: list[tuple[list[str], asyncio.Future[TextVectors]]] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0][0]) <= self._max_texts):
            texts, result = self._waiting.popleft()
            # If a pending request is already done, the client has cancelled it.
            if not result.done():
                batch.append((texts, result))
                size += len(texts)
        return batch

    def _encode(self, texts: list[str]) -> TextVectors:
        self._count(len(texts))
        embeddings = self._encoder.encode(texts, on_long=self._on_long)
        return TextVectors(embeddings, self._encoder.tokenizer.encode_flat(texts)[1])
