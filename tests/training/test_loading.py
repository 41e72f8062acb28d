"""Loading threads end before Python does."""

import threading

import pytest
from fairseq.data.iterators import BackgroundConsumer, BufferedIterator

from fairseq_lxsr.training.fairseq_patches import end_loading_threads


class Batches:
    """An endless number of batches, which are counted."""

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
    """Batches that a thread loads until its buffer is full."""
    batches = Batches()
    iterator = BufferedIterator(2, batches)
    assert next(iterator) == 1
    yield batches
    end_loading_threads()


def running_threads():
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]


def test_a_thread_whose_buffer_is_full_ends_within_the_time_limit(batches):
    end_loading_threads(timeout=0)
    assert running_threads()
    end_loading_threads()
    assert not running_threads()
    assert batches.count < 10
