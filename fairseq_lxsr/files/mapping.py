"""Memory-maps files without keeping them open.

`numpy.memmap` keeps one file descriptor for each mapping, and a process may have only about a
thousand. An index in many shards or segments would use them up.
"""

import ctypes
import mmap
import os
import weakref
from functools import cache
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def map_file(stream: BinaryIO) -> NDArray[np.uint8]:
    """Map an open file into memory.

        with open("sentences.txt", "rb") as stream:
            content = map_file(stream)

    The content stays readable after the stream is closed and the file is removed.

    Returns:
        The bytes of the file, read-only.

    Raises:
        OSError: if the file cannot be mapped.
    """
    size = os.fstat(stream.fileno()).st_size
    if not size:
        return np.empty(0, dtype=np.uint8)
    if os.name == "nt":
        # Windows keeps a handle, but has no small limit for handles.
        return np.memmap(stream, np.uint8, "r").view(np.ndarray)
    library = _library()
    address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, stream.fileno(), 0)
    if address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), stream.name)
    buffer: Any = (ctypes.c_ubyte * size).from_address(address)
    # The arrays keep the buffer alive. At the end of the process the system removes the mapping.
    weakref.finalize(buffer, library.munmap, address, size).atexit = False
    content = np.frombuffer(buffer, dtype=np.uint8)
    content.flags.writeable = False
    return content


@cache
def _library() -> Any:
    """Return the C library. Python's `mmap` cannot be used, because it keeps a copy of the file
    descriptor."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_ssize_t,
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library
