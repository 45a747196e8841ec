"""BatchMLAPagedAttentionWrapper on FA2 and FA3: latents in pages, queries of any lengths, graphs."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.gpu import mla_wrapper
from attnfuzz.kernels.gpu.deepseek import DEEPSEEK_V3
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.mla_wrapper import MLA_PLAN, MLA_RUN, MlaBatch, MlaWrapper, StaticSize
from attnfuzz.kernels.gpu.visible import Arch
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.paged_session import PLANNED_AFTER_PADDING, Captured, GraphedSession, capture
from attnfuzz.kernels.plan import Row
from attnfuzz.kernels.queries import cached_scales, packed_rows, place_queries
from attnfuzz.kernels.results import Results
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, QueryView, Step, Workspace
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel


class MlaWrapperSession(GraphedSession):
    """Plans each step and runs it. A wrapper is made anew for each step, unless the case reuses its workspace."""

    wrapper_type: type[MlaWrapper] = MlaWrapper

    def __init__(self, case: Case, bench: Bench, backend: str) -> None:
        latent = case.geometry.latent
        assert latent is not None
        self._case, self._bench, self._backend = case, bench, backend
        self._kv = PagedKv(case, bench)
        # The softmax scale is that of the per-head keys, which the latents stand for.
        self._scales = cached_scales(case, latent.nope + latent.rope)
        self._kept: MlaWrapper | None = None
        self._captured: dict[tuple[Mode, int], Captured[MlaWrapper]] = {}

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        rows = Row.padded(step) if step.mode in PLANNED_AFTER_PADDING else Row.real(step)
        query = place_queries(self._case, self._bench, queries)
        results = Results.place(self._case, self._bench, step.padded_tokens, self._case.geometry.head_dim_vo)
        planned = sum(row.q_len for row in rows)
        # FlashInfer plans no empty batch: "FA MLA native planning requires a nonempty batch."
        if rows:
            wrapper = self._wrapper()
            self._plan(wrapper, rows)
            self._launch(wrapper, query[:planned], results[:planned])
        results[planned:].clear()
        return self._output(step, query, results)

    def _wrapper(self) -> MlaWrapper:
        if self._kept is None or self._case.workspace is Workspace.FRESH:
            self._kept = self.wrapper_type(self._case, self._bench, self._backend)
        return self._kept

    def _plan(self, wrapper: MlaWrapper, rows: Sequence[Row]) -> None:
        wrapper.plan(MlaBatch.of(rows, self._kv), self._scales["bmm1_scale"])

    def _launch(self, wrapper: MlaWrapper, query: torch.Tensor, results: Results) -> None:
        assert isinstance(self._kv.cache, torch.Tensor)
        wrapper.launch(query, self._kv.cache, results)

    def _capture(self, step: Step) -> None:
        replays = [other for other in self._case.steps if other.launch is Launch.REPLAY and other.mode is step.mode]
        batches = [Row.padded(other) for other in (step, *replays) if other.padded_tokens == step.padded_tokens]
        page = self._kv.page_size
        pages = max(sum(-(-row.kv_len // page) for row in rows) for rows in batches)
        static = StaticSize(step.padded_batch, pages)
        wrapper = self.wrapper_type(self._case, self._bench, self._backend, static)
        self._plan(wrapper, Row.padded(step))
        self._captured[step.mode, step.padded_tokens] = capture(
            self._case, self._bench, step, wrapper, lambda query, results: self._launch(wrapper, query, results)
        )

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured = self._captured[step.mode, step.padded_tokens]
        self._plan(captured.plan, Row.padded(step))
        captured.replay(self._bench, queries)
        return self._output(step, captured.query, captured.results)

    def _output(self, step: Step, query: torch.Tensor, results: Results) -> Output:
        attended = self._kv.tokens.attended(step, query, packed_rows(step))
        # Split KV keeps partial outputs in 16 bits, and merges them (scheduler.cuh, MLAPlan: sizeof_dtype_o).
        return Output(out=results.out, lse=results.lse, attended=attended, roundings=2, **self._scales)


BUCKET: Final = msgspec.structs.replace(
    DEEPSEEK_V3,
    # Others are refused wherever a tile of 64 or 128 query rows would end within a token (_fa_common.py,
    # _validate_fa_causal_tile_bound).
    heads=((1, 1), (8, 1), (16, 1), (128, 1)),
    page_sizes=(1, 16, 32, 64),
    layouts=(KvLayout.HND, KvLayout.NHD),
)


def _backend(name: str, backend: str, archs: frozenset[Arch]) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=archs,
        capability=Capability(
            device=Device.CUDA,
            buckets=(BUCKET,),
            modes=tuple(Mode),
            graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
            padding=True,
            query_views=tuple(QueryView),
        ),
        contract=Contract(lse=LseBase.TWO),
        session=partial(MlaWrapperSession, backend=backend),
        kernels=(MLA_PLAN, MLA_RUN),
        modules_of=lambda bucket: mla_wrapper.modules_of(bucket, backend),
        # Weights enter the second product in the cache's dtype; nothing is said of the denominator.
        theoretical=lambda _: NoiseModel.unknown_kernel(),
    )


# "fa2 MLA requires SM80 or newer", "fa3 MLA requires SM90" (_fa_common.py, _validate_generated_fa_plan, which refuses a
# plan whose tiles find no shared memory).
MLA_FA2: Final = _backend("mla_fa2", "fa2", frozenset(Arch))
MLA_FA3: Final = _backend("mla_fa3", "fa3", frozenset({Arch.HOPPER}))
