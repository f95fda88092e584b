"""Memory figures through nvidia-ml-py, both forms: prints one JSON object."""

import json

import pynvml

pynvml.nvmlInit()
seen = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    one = pynvml.nvmlDeviceGetMemoryInfo(device)
    two = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    seen.append(
        {
            "name": pynvml.nvmlDeviceGetName(device),
            "total": one.total,
            "used": one.used,
            "free": one.free,
            "v2_total": two.total,
            "v2_used": two.used,
            "v2_free": two.free,
            "v2_reserved": two.reserved,
        }
    )
pynvml.nvmlShutdown()
print(json.dumps(seen))
