"""Loading threads end before Python does."""

import threading

import pytest
from fairseq.data.iterators import BackgroundConsumer, BufferedIterator

from fairseq_lxsr.training import fairseq_patches as _loading


class Batches:
    """More than anybody takes; `given` counts those that were."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:
            self.given += 1
            yield self.given


@pytest.fixture
def loading():
    batches = Batches()
    iterator = BufferedIterator(2, batches)
    assert next(iterator) == 1
    yield batches
    _loading.end_loading_threads()


def alive():
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]


def test_a_thread_that_waits_for_room_is_ended_and_not_waited_for_for_ever(loading):
    _loading.end_loading_threads(timeout=0)
    assert alive()
    _loading.end_loading_threads()
    assert not alive()
    assert loading.given < 10
