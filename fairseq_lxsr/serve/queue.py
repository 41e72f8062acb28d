"""Encodes what concurrent requests wait for together."""

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
    """Embeddings float32 [N, D] of the texts of a request, and the number of pieces of each [N]."""

    embeddings: FloatArray
    lengths: IntArray


class EncodingQueue:
    """Runs the encoder in one thread; texts that arrive while it runs become the next batch, in
    their order.

        embedded = await EncodingQueue(encoder, "split-mean", 2048).embed(["A dog."])

    One thread, because encoding uses all cores by itself. What a client no longer waits for is not
    encoded.

    Args:
        encoder: the encoder.
        on_long: as for `SentenceEncoder.encode`.
        most: texts of a batch; one request may be more.
        count: called with the number of texts of every batch.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        on_long: str,
        most: int,
        count: Callable[[int], Any] = lambda texts: None,
    ):
        self._encoder, self._on_long, self._most, self._count = encoder, on_long, most, count
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
        """Call a function in the thread of the encoder, after what waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """End the thread; what has not begun is not done."""
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
        """Encode the requests of a batch that failed one by one, so that only those fail that are
        at fault.
        """
        for texts, result in batch:
            try:
                found = await self.run(self._encode, texts) if len(batch) > 1 else error
            except Exception as own:
                found = own
            if result.done():
                continue
            if isinstance(found, Exception):
                result.set_exception(found)
            else:
                result.set_result(found)

    def _next_batch(self) -> list[tuple[list[str], asyncio.Future[TextVectors]]]:
        batch: list[tuple[list[str], asyncio.Future[TextVectors]]] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0][0]) <= self._most):
            texts, result = self._waiting.popleft()
            if not result.done():  # one that is, is cancelled
                batch.append((texts, result))
                size += len(texts)
        return batch

    def _encode(self, texts: list[str]) -> TextVectors:
        self._count(len(texts))
        embeddings = self._encoder.encode(texts, on_long=self._on_long)
        return TextVectors(embeddings, self._encoder.tokenizer.encode_flat(texts)[1])
