"""What is done before a worker on a GPU is ready, so that its first case costs little more than the others."""

import contextlib
import importlib
import sys

import torch

from attnfuzz.harness.backends import registry
from attnfuzz.harness.inside.warm_up import judge_one
from attnfuzz.kernels.gpu import modules, nvcc
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.visible import no_gpu_visible
from attnfuzz.reference.device import Device


def preload() -> None:
    """Import FlashInfer before workers are forked, which takes seconds and which each would do again.

    While it is imported it asks torch what the GPU can do (0.7.2, kda_kernels/__init__.py). The architectures to
    compile for come from the environment.
    """
    # Without it there is no backend that needs it.
    with no_gpu_visible(), contextlib.suppress(ImportError):
        importlib.import_module("flashinfer")


def begin(*names: str) -> None:
    """Create the CUDA context, judge a case, and load what the backends of these names need.

    Called in the worker and never in the nursery: neither a context nor the threads that come with it survive a fork.
    """
    torch.cuda.init()
    torch.ones(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    judge_one(Device.CUDA)
    for backend in map(registry.load, names):
        backend.prepare(lambda _: None)
        if isinstance(backend, GpuBackend):
            for package in backend.needs:
                importlib.import_module(package)
            for files in backend.libraries:
                nvcc.load(*files)
            modules.load(backend.modules())
    if "flashinfer" in sys.modules:
        modules.trust_the_cache()
