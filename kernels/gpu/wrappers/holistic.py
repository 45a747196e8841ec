"""FlashInfer's BatchAttention: one persistent kernel for prefills and decodes together, which owns its workspaces."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.lives import on_another_stream
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct.mla import MlaBatch, MlaWrapperSession, StaticSize
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.library_ops import library_op, object_ops
from attnfuzz.kernels.gpu.wrappers.backends import (
    CAPPED,
    CONTRACT,
    EIGHT_BITS,
    PLAIN,
    capability_of,
    described,
    each_variant,
    fa2_noise,
)
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.interface.library_call import Action, LibraryCall
from attnfuzz.kernels.interface.transfers import write
from attnfuzz.kernels.planning.paged_kv import ListedKv
from attnfuzz.kernels.planning.paged_session import Captured
from attnfuzz.kernels.planning.queries import cached_scales, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case, Mode, Workspace

_MODULE = "flashinfer.attention"
_NAME = "BatchAttention"


@cache
def holistic_ops(module: str) -> dict[str, Op]:
    """Make the ops of the class in a module: those of its objects by their action, and those of its methods by name."""
    plan = LibraryCall(action=Action.METHOD, module=module, name=_NAME, method="plan")
    return {
        **object_ops(module, _NAME, frozenset(), filled="(float|int)_workspace_buffer"),
        "plan": library_op(plan, plans=True),
        "run": library_op(replace(plan, method="run"), ("out", "lse")),
    }


class HolisticWrapper:
    """A BatchAttention. For a graph (`static`), the page ids of all plans lie in one buffer, which the kernel reads.

    The rest of a plan lies in workspaces that the class allocates, which are garbage at first if the case wants them
    DIRTY: torch.empty promises no contents.
    """

    module = _MODULE

    def __init__(self, case: Case, bench: Bench, backend: str, static: StaticSize | None = None) -> None:
        del backend
        self._case, self._bench = case, bench
        device, layout = str(bench.device), case.geometry.kv_layout.value
        self._ops = holistic_ops(self.module)
        self._wrapper = bench.launcher.launch(self._ops[Action.MAKE], kv_layout=layout, device=device)
        self._lists: dict[str, torch.Tensor] = {}
        run = self._ops["run"]
        self._run_op = run if static else on_another_stream(run, case.life)
        self._ids: torch.Tensor | None = None
        if static is not None:
            self._ids = bench.memory.tensor("kv_indices_buf", (max(1, static.pages),), torch.int32)
        if case.workspace is Workspace.DIRTY:
            self.overwrite()

    def overwrite(self) -> None:
        """Overwrite its workspaces."""
        self._bench.launcher.launch(self._ops[Action.FILL], wrapper=self._wrapper)

    def layer(self, sm_scale: float) -> dict[str, Any]:
        """Return the arguments of a plan of causal attention, besides its lists."""
        geometry = layer_of(self._case.geometry, "head_dim_qk", "head_dim_vo", "page_size", "logits_soft_cap")
        return {**geometry, "causal": True, "sm_scale": sm_scale}

    def plan_layer(self, batch: MlaBatch, layer: Mapping[str, Any]) -> None:
        """Plan a batch."""
        self._lists = batch.place(self._bench)
        if self._ids is not None:
            ids = self._lists["kv_indices"]
            write(self._ids[: len(ids)], ids)
            self._lists["kv_indices"] = self._ids
        self._bench.launcher.launch(self._ops["plan"], wrapper=self._wrapper, **self._lists, **layer)
        if EarlierUse.COPIED in self._case.life:
            self._wrapper = self._bench.launcher.launch(self._ops[Action.COPY], wrapper=self._wrapper)

    def launch(self, query: torch.Tensor, kv_cache: Any, results: Results) -> None:
        """Run on queries [tokens, heads, dim] and a pool. Of the plan's lists, the kernel reads the page ids."""
        self._bench.launcher.launch(
            self._run_op,
            wrapper=self._wrapper,
            held=frozenset({"kv_indices"}),
            kv_indices=self._lists["kv_indices"],
            q=query,
            kv_cache=kv_cache,
            out=results.out,
            lse=results.lse,
            k_scale=self._case.scales.k,
            v_scale=self._case.scales.v,
            # "Must be consistent with the logits_soft_cap passed to plan" (docstring of run).
            logits_soft_cap=self._case.geometry.soft_cap,
        )


class HolisticSession(MlaWrapperSession):
    """A session that plans and runs each step, with a wrapper of its own unless the case reuses its workspace."""

    holistic_type: type[HolisticWrapper] = HolisticWrapper

    def __init__(self, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        self._case, self._bench, self._backend, self._buckets = case, bench, "", buckets
        self._kv = ListedKv(case, bench)
        self._scales = cached_scales(case)
        self._kept = None
        self._captured: dict[tuple[Mode, int], Captured[Any]] = {}

    @property
    def wrapper_type(self) -> Any:  # type: ignore[override] # planned and launched alike
        """The class of its wrappers."""
        return self.holistic_type

    def _layer(self, wrapper: Any) -> dict[str, Any]:
        # The scale of K is an argument of run.
        layer: dict[str, Any] = wrapper.layer(softmax_scale(self._case))
        return layer

    def _launch(self, wrapper: Any, query: torch.Tensor, results: Results) -> None:
        wrapper.launch(query, self._kv.cache, results)


def holistic_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of BatchAttention, for K and V of equal and of different strides. It has no window."""
    different = each_variant(bucket, "holistic attention of different strides", _different_strides_spec)
    return (*each_variant(bucket, "holistic attention", _spec), *different)


def _spec(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    assert not window
    generate = getattr(modules, "_gen_batch_attention_primary_module", modules.gen_batch_attention_module)
    return generate(*described(dtypes, dims), cap, False)


def _different_strides_spec(
    dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    assert not window
    # A release without it has one module for all strides.
    generate = getattr(modules, "_gen_batch_attention_independent_module", modules.gen_batch_attention_module)
    return generate(*described(dtypes, dims), cap, False)


def _without_window(bucket: Bucket) -> Bucket:
    return msgspec.structs.replace(bucket, windows=(-1,))


_BUCKETS: Final = (PLAIN, _without_window(EIGHT_BITS), CAPPED)
_GRAPHS: Final = (Mode.DECODE, Mode.TARGET_VERIFY)

HOLISTIC: Final = GpuBackend(
    name="batch_attention",
    archs=frozenset(Arch),
    capability=msgspec.structs.replace(
        capability_of(Mode.of_kernels(), _GRAPHS, *_BUCKETS),
        arguments=rules.HOLISTIC,
        earlier_uses=lives.of_holistic(_BUCKETS),
    ),
    # LSE in base 2, as FlashInfer's other kernels have it: normalize_d and log2 (attention/persistent.cuh).
    contract=CONTRACT,
    session=partial(HolisticSession, buckets=_BUCKETS),
    kernels=tuple(holistic_ops(_MODULE).values()),
    modules_of=holistic_modules,
    # Its device functions are those of FA2 (attention/persistent.cuh includes prefill.cuh).
    theoretical=fa2_noise,
)
