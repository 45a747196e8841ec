"""Model runners of ranks that share keys: each has its own heads and pool, and prepares the same steps.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, ClassVar, Final
from unittest import mock

import torch
from msgspec.structs import replace

from attnfuzz.kernels.planning.queries import draw_queries, key_dim
from attnfuzz.kernels.releases import recording
from attnfuzz.kernels.releases.factories import GuardedFactories
from attnfuzz.kernels.vllm.adaptations import ALL_TO_ALL_APART
from attnfuzz.kernels.vllm.config import ServerLimits, drafting
from attnfuzz.kernels.vllm.dcp.group import RankGroup
from attnfuzz.kernels.vllm.dcp.kernels import BatchPrefillWithRaggedKVCacheWrapper
from attnfuzz.kernels.vllm.dcp.ranks import RankThreads, Variable
from attnfuzz.kernels.vllm.dcp.sharded_pool import RankPool, ShardedPool
from attnfuzz.kernels.vllm.drafter import DraftingRunner, DraftModel
from attnfuzz.kernels.vllm.model import Model
from attnfuzz.kernels.vllm.runner import ModelRunner, machine
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.reference.case import Case, Request, Step

_OF_A_PROCESS: Final = (
    ("vllm.forward_context", "_forward_context"),
    ("vllm.config.vllm", "_current_vllm_config"),
    ("vllm.v1.worker.dp_utils", "dist"),
    ("vllm.v1.worker.workspace", "_manager"),
)
"""vLLM's global variables, of which each rank's process has its own."""

_OPS: Final = "vllm.v1.attention.ops"
"""The package of the module that calls torch.distributed."""

_CONTEXT: Final = "TrtllmDCPContextWrapper"
"""The class that runs trtllm-gen's kernel on a rank's part of a prefix."""

_LAYER_WITHOUT_WINDOW: Final = "model.layers.1.self_attn.attn"
"""A layer that never runs. With --disable-hybrid-kv-cache-manager, windowed layers are in its group."""

MERGES: Final = 3
"""Number of roundings, after the kernel's own, of an output with a prefix: each rank's part, their sum, and the merge
with the attention to the new tokens."""


class RankModel(Model):
    """The model of a rank, which has some of the query heads."""

    def _draw(self, index: int, rows: int) -> torch.Tensor:
        assert isinstance(self._pool, RankPool)
        heads, whole = self._case.geometry.q_heads, self._pool.case
        drawn = draw_queries(whole, index, rows, key_dim(whole))
        return drawn[:, self._pool.rank * heads :][:, :heads]


class RankRunner(ModelRunner):
    """The release's model runner on one rank."""

    model_type = RankModel

    def _machine(self) -> AbstractContextManager[None]:
        """Return an empty context: `ShardedRunner` enters one for all ranks."""
        return nullcontext()

    def _set_limits(self) -> ServerLimits:
        """Return the server's limits; each request may have keys on all ranks, as in captures (cp_utils.py:66)."""
        limits, pool = super()._set_limits(), self._server.pool
        assert isinstance(pool, RankPool)
        captured = pool.sharding.ranks * pool.sharding.interleave + 1 + self._drafts
        return replace_fields(limits, model_len=max(limits.model_len, captured))

    def _make_layer(self) -> Any:
        pool = self._server.pool
        assert isinstance(pool, RankPool)
        vars(self._config.parallel_config).update(
            decode_context_parallel_size=pool.sharding.ranks,
            cp_kv_cache_interleave_size=pool.sharding.interleave,
            # The field's earlier name (0.29.0: config/parallel.py:354).
            dcp_kv_cache_interleave_size=pool.sharding.interleave,
            dcp_comm_backend="a2a" if pool.sharding.all_to_all else "ag_rs",
            tensor_parallel_size=pool.sharding.ranks,
        )
        self._server.loaded.module("vllm.v1.worker.workspace").init_workspace_manager(self._server.bench.device)
        if self._window is not None:
            # Without such a layer, windowed ones get a pool that ranks can't share (v1/kv_cache_interface.py:947).
            self._layers[_LAYER_WITHOUT_WINDOW] = self._layer_with(None)
        return super()._make_layer()


class RankDraftModel(DraftModel, RankModel):
    """The draft model of a rank."""


class RankDraftingRunner(DraftingRunner, RankRunner):
    """The release's model runner on one rank, with a draft model."""

    draft_type = RankDraftModel


class ShardedRunner:
    """The model runners of all ranks, in place of a `ModelRunner`."""

    runners: ClassVar[tuple[type[RankRunner], type[RankRunner]]] = RankRunner, RankDraftingRunner
    """The types of a rank's runner, without and with a draft model."""

    def __init__(self, server: VllmServer, drafts: int) -> None:
        pool = server.pool
        assert isinstance(pool, ShardedPool)
        self._server, loaded = server, server.loaded
        variables = [Variable(loaded.module(module), name) for module, name in _OF_A_PROCESS]
        # A replay counts as this project's code.
        self._ranks = RankThreads(pool.sharding.ranks, [*variables, Variable(recording, "_outside")])
        self._group = RankGroup(self._ranks)
        runner = self.runners[bool(drafts and drafting(server.case))]
        self._runners: list[RankRunner] = []
        for rank in pool.ranks:
            with self._machine(), self._ranks.alone(rank.rank):
                self._runners.append(runner(server.of_rank(_case_of_rank(server.case, pool), rank), drafts))

    def capture(self, index: int, step: Step) -> None:
        """Capture the graph of a step's size on each rank."""
        self._run([partial(runner.capture, index, step) for runner in self._runners])

    def run(self, index: int, requests: Sequence[Request]) -> tuple[torch.Tensor, list[int]]:
        """Run a step with these requests. Returns the output's rows, and the first row of each request of the step."""
        outs, rows = zip(*self._run([partial(runner.run, index, requests) for runner in self._runners]), strict=True)
        if any(each != rows[0] for each in rows):
            raise RuntimeError(f"the ranks have the requests of a step in different orders: {rows}")
        return torch.cat(outs, dim=1), rows[0]

    def again(self) -> torch.Tensor:
        """Run the last step's layer again without its writes. Returns the output's rows."""
        return torch.cat(self._run([runner.again for runner in self._runners]), dim=1)

    def _run(self, works: Any) -> list[Any]:
        with self._machine():
            return self._ranks.run(works, lambda: GuardedFactories(self._server.bench))

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """Enter the context of all ranks: a simulated GPU, and their groups."""
        loaded = self._server.loaded
        calls = "dcp_alltoall" if loaded.release.version in ALL_TO_ALL_APART else "dcp"
        with (
            machine(self._server),
            mock.patch.object(loaded.module("vllm.distributed.parallel_state"), "_DCP", self._group),
            mock.patch.object(loaded.module(f"{_OPS}.{calls}"), "dist", self._group),
            # v1/worker/workspace.py:261
            mock.patch.object(torch.accelerator, "empty_cache"),
            self._wrappers(),
        ):
            yield

    @contextmanager
    def _wrappers(self) -> Iterator[None]:
        """Replace the wrapper that FlashInfer's backend has for such ranks, and let all batches fit the workspace."""
        backend = self._server.loaded.backend
        wrapper = BatchPrefillWithRaggedKVCacheWrapper
        with ExitStack() as replaced:
            if hasattr(backend, wrapper.__name__):
                replaced.enter_context(mock.patch.object(backend, wrapper.__name__, wrapper))
            if hasattr(backend, _CONTEXT):
                # Larger batches run on wrappers, as all do before 0.33.0 (v1/attention/backends/flashinfer.py:356).
                fits = mock.patch.object(getattr(backend, _CONTEXT), "fits_workspace", return_value=True)
                replaced.enter_context(fits)
            yield


def _case_of_rank(case: Case, pool: ShardedPool) -> Case:
    heads = case.geometry.q_heads // pool.sharding.ranks
    return replace(case, geometry=replace(case.geometry, q_heads=heads))
