"""A kernel compiled by numba-cuda and launched: prints one JSON object with what it saw."""

import json

import numpy as np
from numba import cuda


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def main():
    seen = {}
    info = cuda.current_context().get_memory_info()
    seen["total"], seen["free"] = info.total, info.free
    x = cuda.to_device(np.arange(1 << 16, dtype=np.float32))
    y = cuda.to_device(np.ones(1 << 16, dtype=np.float32))
    out = cuda.device_array_like(x)
    add[256, 256](x, y, out)
    cuda.synchronize()
    seen["launched"] = True
    seen["copy_read_back"] = bool((x.copy_to_host() == np.arange(1 << 16)).all())
    try:
        cuda.device_array(info.total + (1 << 20), dtype=np.uint8)
        seen["refused"] = False
    except Exception as error:  # numba wraps the driver's error in one of its own
        seen["refused"] = "OUT_OF_MEMORY" in str(error)
    print(json.dumps(seen))


main()
