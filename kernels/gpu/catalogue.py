"""Every backend on a GPU."""

from attnfuzz.kernels.gpu.blackwell.backends import BLACKWELL_BACKENDS
from attnfuzz.kernels.gpu.direct.backends import DIRECT_BACKENDS
from attnfuzz.kernels.gpu.fixup_backend import CUDA_FIXUP
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.hopper.backends import HOPPER_BACKENDS
from attnfuzz.kernels.gpu.wrappers.backends import WRAPPER_BACKENDS

GPU_BACKENDS: tuple[GpuBackend, ...] = (
    *HOPPER_BACKENDS,
    *BLACKWELL_BACKENDS,
    CUDA_FIXUP,
    *DIRECT_BACKENDS,
    *WRAPPER_BACKENDS,
)
