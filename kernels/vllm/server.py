"""The state of a server around a release's model runner: the process's buffers, the pool.

A file and line below vllm/ is that of vLLM 0.26.0 unless another version is named.
"""

import os
from copy import copy
from typing import Any, Final

import torch

from attnfuzz.kernels.entry_points.decode import XQA_SEMAPHORES
from attnfuzz.kernels.gpu.wrappers.wrapper import RECOMMENDED
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.queries import place_sinks
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.workspace import native_workspace
from attnfuzz.kernels.vllm.adaptations import PINNED, SPLIT, STACKED
from attnfuzz.kernels.vllm.cpu.cpu_pool import CpuKv
from attnfuzz.kernels.vllm.dcp.sharded_pool import RankPool
from attnfuzz.kernels.vllm.kinds import HOPPER
from attnfuzz.kernels.vllm.mla.buffers import renew_buffers
from attnfuzz.kernels.vllm.pool import PackedKv, SplitKv, StackedKv, VllmPool
from attnfuzz.reference.case import Case

REMEDY: Final = "add it in kernels/vllm/config.py"


class VllmServer:
    """The parts of a server that its model runners share: the pool and the layer's parameters.

    Attributes:
        pool: The KV cache.
        sinks: The layer's attention sinks; None if it has none.

    """

    def __init__(self, loaded: Any, case: Case, bench: Bench, pool: type[VllmPool] = VllmPool) -> None:
        self.loaded, self.case, self.bench = loaded, case, bench
        release = loaded.release
        ASKED.watch(release.root, release.project.title, release.version, PINNED, REMEDY)
        loaded.listen(ASKED.note)
        # Read where the first backend of a process allocates it (v1/attention/backends/flashinfer.py:99).
        semaphores = XQA_SEMAPHORES if loaded.kind.gpu == HOPPER else 0
        scheduled = loaded.kind.capability.schedules
        scratch = RECOMMENDED.floats if loaded.hopper else native_workspace(case, scheduled=scheduled)
        os.environ["VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"] = str(scratch + semaphores)
        _resolve_layout(loaded, case)
        if case.geometry.latent:
            renew_buffers(loaded, scratch, bench.device)
        else:
            _renew_buffers(loaded.backend)
        self.pool = pool(case, bench, PagedKv if case.geometry.latent else _form(loaded))
        # A checkpoint's sinks have the model's dtype; backends for GPUs take them in float32.
        own = case.geometry.dtype.torch_dtype if loaded.kind.on_cpu else torch.float32
        self.sinks = place_sinks(case, bench, own)

    def of_rank(self, case: Case, pool: RankPool) -> "VllmServer":
        """Return the server as one of its ranks sees it: with a part of the heads and of the pool."""
        rank = copy(self)
        rank.case, rank.pool = case, pool
        if self.sinks is not None:
            rank.sinks = self.sinks[pool.rank * case.geometry.q_heads :][: case.geometry.q_heads]
        return rank


def _form(loaded: Any) -> type[PackedKv]:
    """Return the memory layout of the release's pool."""
    version = loaded.release.version
    if loaded.kind.on_cpu:
        return CpuKv
    if loaded.kind.classes == "FlashAttention" and version in SPLIT:
        return SplitKv
    return StackedKv if version in STACKED else PackedKv


_BUFFERS: Final = ("trtllm_workspace_buffer", "trtllm_gen_workspace_buffer", "_fi_multi_ctas_kv_counter")
"""Buffers shared by all layers of a server's process, in the module of the FlashInfer backend."""


_MAKES_WORKSPACE: Final = ("_get_trtllm_workspace_buffer", "_get_trtllm_gen_workspace_buffer")
"""The function that allocates the workspace; the second one in early releases (0.19.0: flashinfer.py:79)."""


def _renew_buffers(backend: Any) -> None:
    """Drop the last server's buffers, and allocate the workspace, as a server's warm-up runs do before a capture.

    0.26.0: v1/worker/gpu_model_runner.py:6866.
    """
    for name in _BUFFERS:
        if hasattr(backend, name):
            setattr(backend, name, None)
    for name in _MAKES_WORKSPACE:
        if hasattr(backend, name):
            getattr(backend, name)()


def _resolve_layout(loaded: Any, case: Case) -> None:
    """Set the layout of KV caches, in releases where it is global (v1/attention/selector.py:201).

    Later releases have it in the configuration (0.29.0: v1/attention/backends/flashinfer.py:537).
    """
    utils = loaded.module("vllm.v1.attention.backends.utils")
    if hasattr(utils, "set_kv_cache_layout"):
        utils.set_kv_cache_layout(case.geometry.kv_layout.name)
