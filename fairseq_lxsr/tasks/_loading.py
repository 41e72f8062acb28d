"""Ends fairseq's loading threads before Python exits."""

import atexit
import contextlib
import queue
import threading
import time

from fairseq.data.iterators import BackgroundConsumer

PATIENCE = 10  # seconds for all threads together; one that takes longer is left to Python


@atexit.register
def end_loading_threads() -> None:
    """Stop every thread that loads batches, and wait for it.

    They are daemons: if Python ends one inside of torch, the process aborts with SIGABRT although all work is done.
    """
    deadline = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # it stops after its current batch
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get_nowait()  # it may be blocked by a full queue
                thread.join(0.01)
