"""Ask NVIDIA's management library for the GPUs of this machine. Run as a script, by its path.

It runs in a process of its own because a driver that hangs never answers, and may make the process that asks
unkillable. It imports nothing of attnfuzz, so that it starts quickly. Its argument is the value of
CUDA_VISIBLE_DEVICES, if that is set.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any


def found(chosen: str | None) -> dict[str, Any]:
    """Return the number of GPUs that are `present` and the chosen `gpus`, or a `reason` why none can be named.

    A GPU has a name, a capability such as 9.0, its memory in bytes, and a UUID. The order is that of `chosen`.
    """
    import pynvml  # noqa: PLC0415 - the caller has checked that it is installed

    try:
        pynvml.nvmlInit()
        try:
            present = [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())]
            gpus = present if chosen is None else list(_chosen(pynvml, present, chosen))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibraryNotFound:
        return {"reason": "it has no NVIDIA driver"}
    except pynvml.NVMLError as error:
        return {"reason": f"NVIDIA's driver does not answer ({error})"}
    return {"present": len(present), "gpus": gpus}


def _gpu(nvml: ModuleType, handle: object) -> dict[str, Any]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "capability": f"{major}.{minor}",
        "memory": nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "uuid": nvml.nvmlDeviceGetUUID(handle),
    }


def _chosen(nvml: ModuleType, present: Sequence[dict[str, Any]], chosen: str) -> Iterator[dict[str, Any]]:
    """Yield the GPUs in a list of numbers, UUIDs or their prefixes. CUDA ignores the rest after an invalid entry.

    See https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith("MIG-"):
            # A slice of a GPU: its architecture, and at most its memory. CUDA takes no second one.
            handle = nvml.nvmlDeviceGetHandleByUUID(entry)
            whole = _gpu(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            yield whole | {"memory": nvml.nvmlDeviceGetMemoryInfo(handle).total, "uuid": entry}
            return
        if entry.isdecimal():
            named = [present[int(entry)]] if int(entry) < len(present) else []
        else:
            named = [gpu for gpu in present if entry and gpu["uuid"].startswith(entry)]
        if len(named) != 1:
            return
        yield named[0]


if __name__ == "__main__":
    json.dump(found(sys.argv[1] if len(sys.argv) > 1 else None), sys.stdout)
