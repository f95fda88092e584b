"""The driver through ctypes, by the name in the first argument: prints total and an over-ask."""

import ctypes
import sys

cuda = ctypes.CDLL(sys.argv[1])


def ok(code):
    if code != 0:
        raise SystemExit(f"the driver answers {code}")


ok(cuda.cuInit(0))
device, context = ctypes.c_int(), ctypes.c_void_p()
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
ok(cuda.cuCtxSetCurrent(context))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
pointer = ctypes.c_uint64()
refused = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total.value + 1))
print(total.value, refused)
