"""Importing a release without a server: a bare package, stubs for unneeded modules, a simulated GPU.

Module names of two releases collide, so a process loads one. Importing starts no thread, so a nursery may do it before
it forks.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from attnfuzz.kernels.releases.imports import ImportedRelease, check_classes, check_unedited, imported, importing
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.versions import stubbed_in
from attnfuzz.kernels.vllm.adaptations import STUBBED
from attnfuzz.kernels.vllm.cpu.imports import on_a_cpu
from attnfuzz.kernels.vllm.cpu.project import CPU_RUNNER
from attnfuzz.kernels.vllm.kinds import BLACKWELL, KINDS, BackendKind
from attnfuzz.kernels.vllm.launching import have_own_kernels
from attnfuzz.kernels.vllm.mla.imports import install_packages, on_the_cpu
from attnfuzz.kernels.vllm.mla.kernels import replace_latent_kernels
from attnfuzz.kernels.vllm.platform import built_as, claim, set_platform
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.sparse.kernels import replace_indexer_kernels
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS, SparseKind
from attnfuzz.kernels.vllm.stand_ins import replace_kernels, replace_model

_RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
_TRITON_WRITER: Final = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
"""The module of the Scheduler, which only the engine needs."""
ASYNC_SCHEDULER: Final = "vllm.v1.core.sched.async_scheduler"
"""The module of its subclass AsyncScheduler."""

_CLASSES: Final = {
    _RUNNER: ("GPUModelRunner",),
    "vllm.v1.core.sched.output": ("NewRequestData", "SchedulerOutput"),
    "vllm.v1.kv_cache_interface": ("FullAttentionSpec", "KVCacheConfig", "KVCacheGroupSpec"),
    "vllm.v1.worker.gpu_input_batch": ("CachedRequestState",),
}
"""Required classes."""

_ENVIRONMENT: Final = {
    # Pretends that FlashInfer's cubins are installed, so that trtllm-gen is chosen (0.26.0: utils/flashinfer.py:308).
    "VLLM_HAS_FLASHINFER_CUBIN": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

_NO_GPU_VISIBLE: Final = {"CUDA_VISIBLE_DEVICES": ""}

_loaded: "list[LoadedRelease]" = []
"""The release of this process, once there is one."""


@dataclass(frozen=True)
class LoadedRelease(ImportedRelease):
    """A release, and the kind of backend that runs. `hopper`: it runs on a real Hopper GPU, not a simulated one."""

    kind: BackendKind | SparseKind
    hopper: bool

    @property
    def backend(self) -> Any:
        """The module of the backend."""
        return self.module(self.kind.module)

    def part(self, name: str) -> Any:
        """Return a class of the backend: "Backend", "Impl" or "MetadataBuilder"."""
        return getattr(self.backend, self.kind.class_names[name])


def load(release: Release, kind: str = "flashinfer", *, hopper: bool = False) -> LoadedRelease:
    """Import a release, or return it if this process has imported it already, with the GPU of a kind of backend.

    `hopper` is for a process that gets a Hopper GPU: Triton's kernels are compiled, and FlashInfer's are its own.

    Raises:
        Moved: a module or class is not at its known place.
        ReleaseError: it does not import, for the stated reason; a file of a fetched release was edited; this process
            has another release.

    """
    if _loaded:
        _loaded[0].check_same(release)
        return as_kind(_loaded[0], _kind(kind))
    first = KINDS[kind] if _kind(kind).on_cpu else KINDS["flashinfer"]
    os.environ.update(_ENVIRONMENT)
    # Its warnings are for operators of a server.
    logging.getLogger(VLLM.name).setLevel(logging.ERROR)
    with importing(release, stubbed_in(release.version, STUBBED), compiled=hopper) as stubs, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install_packages(release)
        with on_a_cpu(release) if first.on_cpu else _on_a_gpu(release, hopper=hopper):
            backend = imported(release, first.module)
            # The package's own name for it (v1/sample/logits_processor/builtin.py:12).
            sampling = imported(release, "vllm.sampling_params").SamplingParams
            setattr(sys.modules[VLLM.name], sampling.__name__, sampling)
            runner = imported(release, _RUNNER)
        check_classes(release, _CLASSES)
        check_unedited(release)
    if not first.on_cpu:
        replace_kernels(backend)
    if hopper:
        have_own_kernels(backend, imported(release, _TRITON_WRITER))
    drafter = getattr(runner, "EagleProposer", object)
    for asking in {runner.__name__, *(base.__module__ for base in drafter.__mro__ if base is not object)}:
        replace_model(sys.modules[asking])
    _loaded.append(LoadedRelease(release, stubs, first, hopper))
    return as_kind(_loaded[0], _kind(kind))


def _kind(name: str) -> BackendKind | SparseKind:
    return SPARSE_KINDS[name] if name in SPARSE_KINDS else KINDS[name]


def as_kind(loaded: LoadedRelease, kind: BackendKind | SparseKind) -> LoadedRelease:
    """Import a kind's module with its GPU as the platform, and return the release. Raises ReleaseError, or Moved."""
    release = loaded.release
    if isinstance(kind, BackendKind) and kind.on_cpu:
        check_classes(release, {kind.module: list(kind.class_names.values()), CPU_RUNNER: ["CPUModelRunner"]})
        return replace(loaded, kind=kind)
    # Some classes decide by the GPU when they are made (0.33.0: v1/attention/backends/flash_attn.py:610).
    imported(release, "vllm.platforms").current_platform.become(kind.gpu)
    with _triton_for_a_gpu(release), on_the_cpu():
        check_classes(release, {kind.module: list(kind.class_names.values())})
        if isinstance(kind, SparseKind):
            modules = imported(release, kind.module), imported(release, kind.layer)
            replace_indexer_kernels(imported(release, "vllm.utils.deep_gemm"), *modules)
    if isinstance(kind, BackendKind) and kind.capability.latent:
        replace_latent_kernels(imported(release, kind.module))
    return replace(loaded, kind=kind)


@contextmanager
def _triton_for_a_gpu(release: Release) -> Iterator[None]:
    """Make the release use Triton although Triton has no driver here (triton_utils/importing.py).

    It does so if no GPU is visible to a process that will get one; it checks its own version first.
    """
    with built_as(release, str(release.version)), mock.patch.dict(os.environ, _NO_GPU_VISIBLE):
        yield


@contextmanager
def _on_a_gpu(release: Release, *, hopper: bool) -> Iterator[None]:
    """Simulate a GPU for modules that are imported inside."""
    set_platform(release, claim(imported(release, "vllm.platforms.interface"), BLACKWELL, real=hopper))
    with _triton_for_a_gpu(release):
        yield
