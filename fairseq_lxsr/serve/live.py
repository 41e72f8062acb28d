"""Keeps the index of a server up to date with changes on disk, and edits it on request."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, TypeVar

import numpy as np

from fairseq_lxsr.embeddings import Text
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import file_identity
from fairseq_lxsr.files.write import restore_folder
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.index_config import INDEX_CONFIG
from fairseq_lxsr.vectors.rows import FloatArray

logger = logging.getLogger(__name__)
# Seconds between two checks of the folder.
POLL_SECONDS = 1.0

Result = TypeVar("Result")


class LiveIndex:
    """An index that is opened again when its folder is edited, replaced or removed.

        live = LiveIndex(CorpusIndex.load("index"), encoder)
        async with live.following():
            hits = live.current().search("A dog.", k=5)

    The new index is opened in a thread, while the previous one continues to serve requests.

    Args:
        index: the open index.
        encoder: encoder of the queries. An index of another model is ignored.

    Attributes:
        folder: path of the index folder.
    """

    def __init__(self, index: CorpusIndex, encoder: SentenceEncoder):
        self._index: CorpusIndex | None = index
        self.folder = index.folder
        self._encoder = encoder
        self._opening = asyncio.Lock()
        # Edits wait for other processes, so they must not block the encoder thread.
        self._editor = ThreadPoolExecutor(1, "edit")
        # Identity of the file that every change of the index replaces, at the last check.
        self._seen: tuple[int, ...] | None = None
        self._problem = ""

    def current(self) -> CorpusIndex | None:
        """Return the index as it is now, or None if its folder was removed.

        Later edits do not change the returned object.
        """
        return copy(self._index)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Check the folder regularly, and after SIGHUP, inside the block."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._follow())]

        def reload() -> None:
            self._seen = None
            tasks.append(loop.create_task(self.refresh()))

        # Windows has no SIGHUP, and only the main thread may handle signals.
        with contextlib.suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGHUP, reload)
        try:
            yield
        finally:
            with contextlib.suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):
                loop.remove_signal_handler(signal.SIGHUP)
            for task in tasks:
                task.cancel()
            self._editor.shutdown(wait=False, cancel_futures=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Open the index again if it has changed on disk."""
        async with self._opening:
            try:
                await asyncio.to_thread(self._refresh)
            except InputError as error:
                # Report each problem only once, not every second.
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.error("cannot open the changed index: %s", error)
            except Exception:
                logger.exception("%s", self.folder)

    def _refresh(self) -> None:
        restore_folder(self.folder)
        if not self.folder.exists():
            self._index = None
        seen = self._identity()
        if seen == self._seen and self._index is not None:
            return
        if self._index is None or not self._index.is_current():
            index = CorpusIndex.load(self.folder)
            index.check_model(self._encoder)
            self._index = index
            logger.warning(
                "%s: opened the changed index, %s sentences", self.folder, f"{len(index):,}"
            )
        self._seen = seen
        self._problem = ""

    def _identity(self) -> tuple[int, ...] | None:
        """Return the identity of the file that every change of the index replaces."""
        return file_identity(self.folder / INDEX_CONFIG)

    async def edit(self, change: Callable[[CorpusIndex], Result]) -> tuple[Result, int]:
        """Edit the index in a thread.

        If the caller is cancelled, an edit that has begun is completed. One that waits for other
        requests is not made.

        Returns:
            The return value of `change`, and the number of sentences in the index after the edit.
        """
        index = self._index
        if index is None:
            raise InputError(f"{self.folder}: the index was removed; build it again")

        def run() -> tuple[Result, int]:
            result = change(index)
            return result, len(index)

        result = await asyncio.get_running_loop().run_in_executor(self._editor, run)
        if index is not self._index:
            # The index may have been opened again while the edit was waiting for another process.
            await self.refresh()
        return result


def embedded_texts(texts: Sequence[str], embeddings: FloatArray) -> Callable[[Text], Any]:
    """Return a function that looks up the embeddings [N, D] of N texts, each a single line."""
    vectors = dict(zip(texts, embeddings, strict=True))

    def embed(text: Text) -> FloatArray:
        return np.stack([vectors[sentence] for sentence in text])

    return embed
