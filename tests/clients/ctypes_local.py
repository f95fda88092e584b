"""Loads a library locally that opens the driver itself: prints bytes used, code of an over-ask."""

import ctypes
import sys

library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL)
used, beyond = ctypes.c_size_t(), ctypes.c_int()
code = library.open_and_allocate(ctypes.byref(used), ctypes.byref(beyond))
if code != 0:
    raise SystemExit(f"the library answers {code}")
print(used.value, beyond.value)
