"""Processes on device 0 through nvidia-ml-py, in each form: prints one JSON object."""

import ctypes
import json

import pynvml

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)


def pids(entries):
    return sorted(entry.pid for entry in entries)


def oldest():
    """`nvmlDeviceGetComputeRunningProcesses` as tools call it that know no versions."""

    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]

    count = ctypes.c_uint(64)
    infos = (Info * 64)()
    library = ctypes.CDLL("libnvidia-ml.so.1")
    code = library.nvmlDeviceGetComputeRunningProcesses(device, ctypes.byref(count), infos)
    assert code == 0, code
    return pids(infos[: count.value])


def detailed():
    """`nvmlDeviceGetRunningProcessDetailList`; the binding's own wrapper answers an empty list always."""
    infos = (pynvml.c_nvmlProcessDetail_v1_t * 64)()
    answer = pynvml.c_nvmlProcessDetailList_t()
    answer.version = ctypes.sizeof(answer) | 1 << 24
    answer.mode = 0
    answer.numProcArrayEntries = len(infos)
    answer.procArray = ctypes.cast(infos, type(answer.procArray))
    library = ctypes.CDLL("libnvidia-ml.so.1")
    code = library.nvmlDeviceGetRunningProcessDetailList(device, ctypes.byref(answer))
    assert code == 0, code
    return pids(infos[: answer.numProcArrayEntries])


seen = {
    "v1": oldest(),
    "v2": pids(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(device)),
    "v3": pids(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(device)),
    "detail": detailed(),
    "utilization": pids(pynvml.nvmlDeviceGetProcessUtilization(device, 0)),
    "utilization info": pids(pynvml.nvmlDeviceGetProcessesUtilizationInfo(device, 0)),
}
pynvml.nvmlShutdown()
print(json.dumps(seen))
