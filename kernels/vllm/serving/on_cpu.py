"""A release's engine on its own compiled kernels, on a server without a GPU."""

from attnfuzz.kernels.vllm.cpu.cpu_pool import CpuPool
from attnfuzz.kernels.vllm.cpu.runner import CpuRunner
from attnfuzz.kernels.vllm.serving.runner import EngineRunner
from attnfuzz.kernels.vllm.serving.scheduled_pool import EnginePool
from attnfuzz.reference.case import Unused


class CpuEnginePool(EnginePool, CpuPool):
    """A pool whose blocks hold finite numbers initially: the kernels multiply those after the last key by 0."""

    free = Unused.NUMBERS


class CpuEngineRunner(EngineRunner, CpuRunner):
    """The release's runner for CPUs, and its scheduler."""
