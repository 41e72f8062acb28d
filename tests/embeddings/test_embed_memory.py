"""What `lxsr embed` holds in memory does not depend on the number of lines.

Resident memory tells little: it grows with the largest window of text so far, and holds what was
freed. What is in use is exact: an allocation for every line shows after a few thousand lines.
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

WINDOW, WINDOWS = 1000, 10
BYTES_A_LINE = 12  # a window alone, however many lines it has, takes up to 5,000 bytes of caches
OBJECT = 32  # bytes of a small object of Python, at least
HBLKHD, UORDBLKS = 4, 7  # places of what is mapped and what is in use of the heap


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("sizes", 10 * ctypes.c_size_t),)


def in_use() -> int:
    """Bytes that are allocated, by C and by Python."""
    allocated = ctypes.CDLL(None).mallinfo2
    allocated.restype = Allocated
    sizes = allocated().sizes
    return sizes[HBLKHD] + sizes[UORDBLKS] + OBJECT * sys.getallocatedblocks()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="a C library without mallinfo2"
)
@pytest.mark.parametrize(
    "leak", [None, lambda: bytes(36 * WINDOW), lambda: [object() for _ in range(WINDOW)]]
)
def test_nothing_is_kept_of_a_line(tmp_path, monkeypatch, leak):
    """The last two show that the test would see it."""
    model = small_model.write_folder(tmp_path / "model")
    text = "".join(f"{english}\n" for english, _ in toy.sentences(WINDOW))
    (tmp_path / "text").write_text(text * WINDOWS)
    monkeypatch.setattr(stream, "WINDOW", WINDOW)
    write, used, kept = stream.Record.write, [], []

    def observed(record, path):
        kept.append(leak() if leak else None)
        write(record, path)
        used.append(in_use())

    monkeypatch.setattr(stream.Record, "write", observed)
    lxsr_here(
        "embed", "--model", model, "--input", tmp_path / "text", "--output", tmp_path / "x.npy"
    )
    assert len(used) == WINDOWS
    grown = statistics.median(after - before for before, after in itertools.pairwise(used))
    assert (grown < BYTES_A_LINE * WINDOW) == (leak is None), used
