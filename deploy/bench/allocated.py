"""How many bytes has this process got from its allocator? As glibc counts them, whichever library asked for them."""

from __future__ import annotations

import ctypes
import gc

from fleet.errors import ConfigError

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
"""Of `struct mallinfo2`, mallinfo(3)."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def allocated_bytes() -> int:
    """Bytes in use, in arenas and in blocks of their own, after garbage is collected.

    Files mapped into memory, code and stacks are not among them. Raises ConfigError where the C library cannot say.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        raise ConfigError("memory is counted by glibc's mallinfo2 (2.33 or later), and this C library has none")
    gc.collect()
    library.mallinfo2.restype = _Mallinfo2
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd)
