"""What is done before a worker on a GPU is ready, so that its first case costs little more than the others."""

import contextlib
import importlib
import os
import sys

import torch

from attnfuzz.harness import registry
from attnfuzz.harness.warm_up import judge_one
from attnfuzz.kernels.gpu import loading, nvcc
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.device import Device

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def preload() -> None:
    """Import FlashInfer before workers are forked, which takes seconds and which each would do again.

    It sees no GPU meanwhile: while it is imported it asks torch what the GPU can do (0.7.2, kda_kernels/__init__.py),
    which creates a context that no fork survives. The architectures to compile for come from the environment.
    """
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ""
    try:
        # Without it there is no backend that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module("flashinfer")
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def begin(*names: str) -> None:
    """Create the CUDA context, judge a case, and load what the backends of these names need.

    Called in the worker and never in the nursery: neither a context nor the threads that come with it survive a fork.
    """
    torch.cuda.init()
    torch.ones(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    judge_one(Device.CUDA)
    for backend in map(registry.resolve, names):
        backend.prepare(lambda _: None)
        if isinstance(backend, GpuBackend):
            for package in backend.needs:
                importlib.import_module(package)
            for source in backend.sources:
                nvcc.load(source)
            loading.load(backend.modules())
    if "flashinfer" in sys.modules:
        loading.trust_the_cache()
