"""The memory of `lxsr embed` does not depend on the number of lines.

Resident memory would say little, because it includes freed memory. The allocated memory shows a
single object per line after a few thousand lines.
"""

import ctypes
import itertools
import statistics
import sys

import pytest
import small_model
import toy
from conftest import lxsr_here

from fairseq_lxsr.embeddings import write as stream

WINDOW = 1000
WINDOWS = 10
# A window of any size may grow caches by 5,000 bytes.
BYTES_PER_LINE = 12
# The smallest size of an object of Python, in bytes.
OBJECT = 32
# Positions in mallinfo2 of the mapped memory, and of the used memory of the heap.
HBLKHD = 4
UORDBLKS = 7


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("sizes", 10 * ctypes.c_size_t),)


def in_use() -> int:
    """Return the number of bytes that are allocated by C and by Python."""
    allocated = ctypes.CDLL(None).mallinfo2
    allocated.restype = Allocated
    sizes = allocated().sizes
    return sizes[HBLKHD] + sizes[UORDBLKS] + OBJECT * sys.getallocatedblocks()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="a C library without mallinfo2"
)
@pytest.mark.parametrize(
    ("leak", "grows"),
    [
        pytest.param(None, False, id="no leak"),
        # The two leaks, of bytes and of an object per line, show that the test would notice one.
        pytest.param(lambda: bytes(3 * BYTES_PER_LINE * WINDOW), True, id="bytes"),
        pytest.param(lambda: [object() for _ in range(WINDOW)], True, id="objects"),
    ],
)
def test_memory_grows_with_the_number_of_lines_only_if_something_leaks(
    tmp_path, monkeypatch, leak, grows
):
    model = small_model.write_folder(tmp_path / "model")
    window_text = "".join(f"{english}\n" for english, _ in toy.sentences(WINDOW))
    (tmp_path / "text").write_text(window_text * WINDOWS)
    monkeypatch.setattr(stream, "WINDOW", WINDOW)
    write_progress = stream.Record.write
    bytes_after_windows = []
    leaked = []

    def measuring_write(record, path):
        """Measure the memory after each window, when progress is written."""
        if leak is not None:
            leaked.append(leak())
        write_progress(record, path)
        bytes_after_windows.append(in_use())

    monkeypatch.setattr(stream.Record, "write", measuring_write)

    files = ("--input", tmp_path / "text", "--output", tmp_path / "x.npy")
    lxsr_here("embed", "--model", model, *files)

    assert len(bytes_after_windows) == WINDOWS
    # The median leaves out the growth of caches in the first windows.
    growths = [after - before for before, after in itertools.pairwise(bytes_after_windows)]
    assert (statistics.median(growths) >= BYTES_PER_LINE * WINDOW) == grows, bytes_after_windows
