"""The driver API through cuda-bindings: prints one JSON object with what it saw.

Allocates, fills and reads back, maps physical memory, loads and launches a kernel, and asks for
more than there is, as any program would.
"""

import json
import sys

import numpy as np
from cuda.bindings import driver as cuda

OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB = 1 << 20


def ok(answer):
    """The values of a call that must succeed."""
    code, *values = answer
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else tuple(values)


def linear(seen):
    """Plain memory: set, copied there and back, freed."""
    pointer = ok(cuda.cuMemAlloc(64 * MIB))
    ok(cuda.cuMemsetD8(pointer, 0x5A, 64 * MIB))
    back = np.zeros(4096, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(back.ctypes.data, pointer, back.nbytes))
    seen["memset_read_back"] = bool((back == 0x5A).all())
    numbers = np.arange(4096, dtype=np.uint32)
    ok(cuda.cuMemcpyHtoD(pointer, numbers.ctypes.data, numbers.nbytes))
    echo = np.zeros_like(numbers)
    ok(cuda.cuMemcpyDtoH(echo.ctypes.data, pointer, echo.nbytes))
    seen["copy_read_back"] = bool((echo == numbers).all())
    free, total = ok(cuda.cuMemGetInfo())
    seen["used_while_held"] = total - free
    ok(cuda.cuMemFree(pointer))


def physical(seen, device):
    """Physical memory behind a reserved range."""
    prop = cuda.CUmemAllocationProp()
    prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = int(device)
    flags = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granularity = ok(cuda.cuMemGetAllocationGranularity(prop, flags))
    bytes_ = 16 * granularity
    handle = ok(cuda.cuMemCreate(bytes_, prop, 0))
    address = ok(cuda.cuMemAddressReserve(bytes_, 0, 0, 0))
    ok(cuda.cuMemMap(address, bytes_, 0, handle, 0))
    access = cuda.CUmemAccessDesc()
    access.location = prop.location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cuda.cuMemSetAccess(address, bytes_, [access], 1))
    ok(cuda.cuMemsetD8(address, 0x33, bytes_))
    back = np.zeros(16, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(back.ctypes.data, int(address) + bytes_ - 16, 16))
    seen["mapped_read_back"] = bool((back == 0x33).all())
    ok(cuda.cuMemUnmap(address, bytes_))
    ok(cuda.cuMemRelease(handle))
    ok(cuda.cuMemAddressFree(address, bytes_))


def kernel(seen, source):
    """A kernel from PTX text on a stream, timed by events."""
    module = ok(cuda.cuModuleLoadData(source + b"\0"))
    function = ok(cuda.cuModuleGetFunction(module, b"spin_ns"))
    stream = ok(cuda.cuStreamCreate(0))
    begin, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ns = np.array(2_000_000, dtype=np.uint64)
    arguments = np.array([ns.ctypes.data], dtype=np.uint64)
    ok(cuda.cuEventRecord(begin, stream))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.ctypes.data, 0))
    ok(cuda.cuEventRecord(end, stream))
    ok(cuda.cuStreamSynchronize(stream))
    seen["kernel_ms"] = ok(cuda.cuEventElapsedTime(begin, end))
    ok(cuda.cuStreamDestroy(stream))
    ok(cuda.cuModuleUnload(module))


def beyond(seen, total):
    """More than there is: refused, and nothing else is spoilt."""
    code, _ = cuda.cuMemAlloc(total + MIB)
    seen["refused_as_out_of_memory"] = code == OUT_OF_MEMORY
    held = ok(cuda.cuMemAlloc(total // 2))
    code, _ = cuda.cuMemAlloc(total // 2 + MIB)
    seen["second_half_refused"] = code == OUT_OF_MEMORY
    ok(cuda.cuMemFree(held))
    again = ok(cuda.cuMemAlloc(total // 2 + MIB))
    ok(cuda.cuMemFree(again))
    ok(cuda.cuCtxSynchronize())


def main():
    seen = {}
    ok(cuda.cuInit(0))
    device = ok(cuda.cuDeviceGet(0))
    seen["device_total"] = ok(cuda.cuDeviceTotalMem(device))
    context = ok(cuda.cuDevicePrimaryCtxRetain(device))
    ok(cuda.cuCtxSetCurrent(context))
    free, total = ok(cuda.cuMemGetInfo())
    seen["total"], seen["free"] = total, free
    linear(seen)
    physical(seen, device)
    with open(sys.argv[1], "rb") as source:
        kernel(seen, source.read())
    beyond(seen, total)
    free, total = ok(cuda.cuMemGetInfo())
    seen["used_at_the_end"] = total - free
    print(json.dumps(seen))


main()
