"""Memory of requests and answers that wait for their clients."""

import asyncio


class WaitingData:
    """Sizes of the requests that are received and of the answers that are sent.

    If they exceed the memory limit, the request without progress for the longest time is ended,
    because its client probably neither sends nor reads.

        async with asyncio.timeout(30) as deadline:
            waiting.hold(deadline, 2**20)

    Args:
        limit: memory limit in bytes.
    """

    def __init__(self, limit: int):
        self._limit = limit
        # Ordered by progress: the request with the latest progress is last.
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
            # The request may take another step before it notices.
            return
        self._sizes[deadline] = size
        self._total += size
        while self._total > self._limit and len(self._sizes) > 1:
            stalled = next(iter(self._sizes))
            self.release(stalled)
            end_now(stalled)

    def release(self, deadline: asyncio.Timeout) -> None:
        """Record that a request no longer waits for its client."""
        self._total -= self._sizes.pop(deadline, 0)


def has_ended(deadline: asyncio.Timeout) -> bool:
    """Return whether the time limit of a request is over."""
    end = deadline.when()
    return end is not None and end <= asyncio.get_running_loop().time()


def end_now(deadline: asyncio.Timeout) -> None:
    """End the time limit of a request."""
    if not deadline.expired():
        deadline.reschedule(asyncio.get_running_loop().time())
