"""Request inputs given as token ids."""

import asyncio
import logging
import math
import time
from typing import Any

from fairseq_lxsr.errors import first_line
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.serve.responses import RequestError

logger = logging.getLogger(__name__)
# Delay in seconds before retrying an encoding that could not be loaded.
RETRY = 600.0


def is_tokens(given: Any) -> bool:
    """Return whether a value is a non-empty list of integers."""
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


def token_lists(given: Any) -> list[list[int]] | None:
    """Return the token ids of one or several texts, or None for any other input."""
    if is_tokens(given):
        return [given]
    if isinstance(given, list) and given and all(map(is_tokens, given)):
        return given
    return None


class OpenaiTokens:
    """A tiktoken encoding, which is downloaded on first use.

    After a failed download, requests are rejected for the next `RETRY` seconds.

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
            # Shield the download from the cancellation of this request, because others may wait for
            # it.
            if encoding := await asyncio.shield(self._loading):
                return encoding
            self._loading = None
        raise RequestError(
            400,
            f"input contains token ids, but the server cannot load {self._name}; {advice}",
            "input",
        )

    def _load(self) -> Any:
        """Load the encoding, or return None if this fails."""
        import tiktoken

        try:
            return tiktoken.get_encoding(self._name)
        # Network errors can have any exception type.
        except Exception as error:
            logger.warning("tiktoken cannot load %s: %s", self._name, first_line(error))
            self._failed_at = time.monotonic()
            return None
