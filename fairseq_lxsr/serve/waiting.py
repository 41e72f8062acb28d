"""Limits the memory used by requests being received and responses being sent."""

import asyncio


class WaitingData:
    """Tracks the size of each request being received and of each response being sent.

    If the memory limit is exceeded, the request that has made no progress for the longest time is
    ended, because its client probably neither sends nor reads.

        async with asyncio.timeout(30) as deadline:
            waiting.hold(deadline, 2**20)

    Args:
        limit: memory limit in bytes.
    """

    def __init__(self, limit: int):
        self._limit = limit
        # Requests in the order of their latest progress, the most recent last.
        self._sizes: dict[asyncio.Timeout, int] = {}
        self._total = 0

    def hold(self, deadline: asyncio.Timeout, size: int) -> None:
        """Record the progress of a request.

        Args:
            deadline: time limit of the request, which ends at once if its memory is needed.
            size: bytes that the request needs now.
        """
        self.release(deadline)
        if has_ended(deadline):
            # The request may take another step before it notices that it was ended.
            return
        self._sizes[deadline] = size
        self._total += size
        while self._total > self._limit and len(self._sizes) > 1:
            stalled = next(iter(self._sizes))
            self.release(stalled)
            end_now(stalled)

    def release(self, deadline: asyncio.Timeout) -> None:
        """Record that the server no longer waits for the client of a request."""
        self._total -= self._sizes.pop(deadline, 0)


def has_ended(deadline: asyncio.Timeout) -> bool:
    """Return whether the time limit of a request has expired."""
    end = deadline.when()
    return end is not None and end <= asyncio.get_running_loop().time()


def end_now(deadline: asyncio.Timeout) -> None:
    """End a request by moving its time limit to the present."""
    if not deadline.expired():
        deadline.reschedule(asyncio.get_running_loop().time())
