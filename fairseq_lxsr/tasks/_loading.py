"""fairseq's loading threads, ended before Python ends."""

import atexit
import contextlib
import queue
import threading
import time

from fairseq.data.iterators import BackgroundConsumer

PATIENCE = 10  # seconds for all of them; one that waits longer is left to Python


@atexit.register
def end_loading_threads() -> None:
    """Stop every thread that loads batches, and wait for it.

    They are daemons: one that Python ends inside of torch ends the process with SIGABRT, when all work is done.
    """
    deadline = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # it stops after the batch it is at
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get_nowait()  # it may wait for room
                thread.join(0.01)
