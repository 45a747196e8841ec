"""The process of a server without a GPU: its own platform, and its own compiled kernels."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.imports import imported
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.vllm.cpu.kernels import ATTEND, replace_operators
from attnfuzz.kernels.vllm.cpu.project import library_of
from attnfuzz.kernels.vllm.platform import built_as, set_platform


@contextmanager
def on_a_cpu(release: Release) -> Iterator[None]:
    """Let modules that are imported inside find no GPU, and replace their operators by launches afterwards.

    Raises ReleaseError if the compiled kernels are missing or can't be loaded.
    """
    library = library_of(release)
    # The platform imports it as a module of the package (0.32.0: platforms/cpu.py:632).
    sys.modules[release.project.name].__path__.append(str(library.parent))
    platform = imported(release, "vllm.platforms.cpu").CpuPlatform()
    set_platform(release, platform)
    # A build for CPUs does not use Triton (triton_utils/importing.py).
    with built_as(release, f"{release.version.public}+cpu"):
        yield
    if not hasattr(torch.ops._C, ATTEND):  # noqa: SLF001 - the name that vLLM gave its operators
        raise ReleaseError(f"{release.name}: {library} can't be loaded, or has no {ATTEND}")
    # Checked on the class, because an instance has any attribute.
    if hasattr(type(platform), "register_triton_kernel_overrides"):
        # As when a worker begins (0.32.0: v1/worker/worker_base.py:282).
        platform.register_triton_kernel_overrides()
    replace_operators()
