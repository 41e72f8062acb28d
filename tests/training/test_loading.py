"""Loading threads end before Python does."""

import threading

import pytest
from fairseq.data.iterators import BackgroundConsumer, BufferedIterator

from fairseq_lxsr.training.fairseq_patches import end_loading_threads


class EndlessBatches:
    """Batches 1, 2, 3 ...; `count` is the number of those that have been loaded."""

    def __init__(self):
        self.count = 0

    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:
            self.count += 1
            yield self.count


@pytest.fixture
def batches():
    """Batches that a thread is loading into a buffer of two, of which one has been read."""
    batches = EndlessBatches()
    iterator = BufferedIterator(2, batches)
    assert next(iterator) == 1
    yield batches
    end_loading_threads()


def loading_threads():
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]


@pytest.mark.usefixtures("batches")
def test_a_thread_whose_buffer_is_full_is_not_ended_within_no_time():
    end_loading_threads(timeout=0)
    assert loading_threads()


def test_a_thread_whose_buffer_is_full_ends_within_the_default_time_limit(batches):
    end_loading_threads()
    assert not loading_threads()
    # It has not loaded on: the one read, two in the buffer, and a few to empty it.
    assert batches.count < 10
