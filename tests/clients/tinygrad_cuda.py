"""tinygrad's CUDA backend, with its own PTX: prints one JSON object with what it saw."""

import ctypes
import json

import numpy as np
from tinygrad import Device, Tensor, TinyJit
from tinygrad.device import BufferSpec
from tinygrad.runtime.graph.cuda import CUDAGraph


@TinyJit
def step(x, y):
    return (x @ y + 1).relu().realize(), (x.sum() + y.sum()).realize()


def memory():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert code == 0, code
    return free.value, total.value


def main():
    seen = {"backend": Device.DEFAULT}
    data = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    x, y = Tensor(data).realize(), Tensor(data.T.copy()).realize()
    graphs = 0
    launch = CUDAGraph.__call__

    def counted(*arguments, **named):
        nonlocal graphs
        graphs += 1
        return launch(*arguments, **named)

    CUDAGraph.__call__ = counted
    # The first calls run kernel by kernel, the later ones as one graph whose parameters are set anew.
    for _ in range(4):
        step(x, y)
    Device[Device.DEFAULT].synchronize()
    seen["graph_launches"] = graphs
    seen["copy_read_back"] = bool((x.numpy() == data).all())
    seen["free"], seen["total"] = memory()
    try:
        Device[Device.DEFAULT].allocator.alloc(seen["total"] + (1 << 20), BufferSpec())
        seen["refused"] = False
    except MemoryError as error:  # what the driver said is its cause
        seen["refused"] = "out of memory" in f"{error} {error.__cause__!r} {error.__context__!r}"
    print(json.dumps(seen))


main()
