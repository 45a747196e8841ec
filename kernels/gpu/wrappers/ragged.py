"""Prefill on FlashInfer's wrapper for packed keys and values."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnfuzz.kernels.gpu.wrappers.life import WrapperLife, live
from attnfuzz.kernels.gpu.wrappers.masks import mask_arguments
from attnfuzz.kernels.gpu.wrappers.options import in_base_2, plan_options, run_options
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper, WrapperKind
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.planning.lengths import place_int32, running_sum
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case, KvView, Step, Workspace
from attnfuzz.reference.geometry import KvLayout

_Keys = tuple[torch.Tensor, torch.Tensor]


def _ragged(backend: str, *, splits: bool, packed_masks: bool = False) -> WrapperKind:
    names = ("qo_indptr", "kv_indptr")
    return WrapperKind(
        module="flashinfer.prefill",
        name="BatchPrefillWithRaggedKVCacheWrapper",
        backend=backend,
        lists={name: name for name in names},
        buffers={name: f"{name}_buf" for name in names},
        splits=splits,
        packed_masks=packed_masks,
    )


FA2_RAGGED = _ragged("fa2", splits=True)
FA2_RAGGED_PACKED = _ragged("fa2", splits=True, packed_masks=True)
FA3_RAGGED = _ragged("fa3", splits=False)


class RaggedSession:
    """A session with one wrapper per step if workspaces are FRESH, otherwise one that plans another layer first.

    K and V are separate; PAIRED halves of one tensor [tokens, 2, heads, dim]; or TOKEN_MAJOR [tokens, heads, dim] in
    any layout, V with a gap after each head, like a slice of MLA's joint projection of K and V. k_scale and v_scale are
    those of 8-bit caches (docstring of run): no other cache is scaled. Lives plan for layers of `buckets`.
    """

    def __init__(self, form: WrapperKind, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        geometry = case.geometry
        self._buckets = buckets
        self._form, self._case, self._bench, self._geometry = form, case, bench, geometry
        self._tokens = SlotTokens.cached(case, device=bench.device)
        quantised = geometry.kv_dtype.itemsize == 1
        self._k_scale = case.scales.k if quantised else None
        self._v_scale = case.scales.v if quantised else None
        self._sm_scale = softmax_scale(case)
        self._layer = layer_of(geometry, "head_dim_qk", "head_dim_vo", "window_left", "logits_soft_cap")
        self._layer |= {"causal": True, "sm_scale": self._sm_scale}
        self._layer |= plan_options(case, self._layer, in_graph=False)
        self._kept: Wrapper | None = None

    def forward(self, index: int) -> Output:
        """Run one step."""
        step = self._case.steps[index]
        queries = draw_queries(self._case, index, step.padded_tokens, self._geometry.head_dim_qk)
        keys = self._place_keys(step)
        wrapper = self._planned(step)
        if wrapper is self._kept or EarlierUse.RAN_BEFORE in self._case.life:
            # Servers run a plan once for every layer.
            self._run(wrapper, step, queries.flip(-1), keys, prefix="another_")
        if EarlierUse.NEIGHBOUR in self._case.life:
            other = self._new_wrapper(neighbour=wrapper)
            other.plan(self._lists(Row.real(step)), self._layer)
            self._run(other, step, queries.flip(-1), keys, prefix="another_")
        query, results = self._run(wrapper, step, queries, keys)
        results[step.tokens :].clear()
        in_base_2(self._case, results.lse)
        v_scale = 1.0 if self._v_scale is None else self._v_scale
        return Output(
            out=results.out,
            lse=results.lse,
            attended=self._tokens.attended(step, query, packed_rows(step)),
            bmm1_scale=self._sm_scale * (1.0 if self._k_scale is None else self._k_scale),
            bmm2_scale=v_scale,
            # The kernel's roundings, and that of v_scale, by which the output is multiplied.
            roundings=wrapper.roundings + (v_scale != 1),
        )

    def _planned(self, step: Step) -> Wrapper:
        rows = Row.real(step)
        lists = self._lists(rows)
        wrapper = self._kept or self._new_wrapper()
        if self._case.workspace is not Workspace.FRESH:
            self._kept = wrapper
            wrapper.plan(lists, self._layer | {"causal": False, "sm_scale": 2 * self._sm_scale})

        def plan(others: Sequence[Row], layer: Mapping[str, Any]) -> None:
            wrapper.plan(self._lists(others), layer)

        past = WrapperLife(rows, self._layer, self._geometry, plan, wrapper.reset, wrapper.overwrite, self._buckets)
        live(past, self._case.life, self._bench.memory)
        mask = mask_arguments(self._case, self._bench, step, rows, packed=self._form.packed_masks)
        wrapper.plan(lists, self._layer, mask=mask)
        return wrapper

    def _new_wrapper(self, neighbour: Wrapper | None = None) -> Wrapper:
        layout = self._geometry.kv_layout.value
        return Wrapper(self._form, self._case, self._bench, layout, neighbour=neighbour)

    def _lists(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """Place the lists of a plan, which the kernel reads directly."""
        starts = {
            "qo_indptr": running_sum(row.q_len for row in rows),
            "kv_indptr": running_sum(row.kv_len for row in rows),
        }
        with self._bench.memory.at_once():
            return {name: place_int32(self._bench, name, values) for name, values in starts.items()}

    def _run(
        self, wrapper: Wrapper, step: Step, queries: torch.Tensor, keys: _Keys, prefix: str = ""
    ) -> tuple[torch.Tensor, Results]:
        """Launch on the planned rows, since wrappers reject additional ones; returns the placed query too."""
        case, bench = self._case, self._bench
        with bench.memory.at_once():
            query = place_queries(case, bench, queries)
            results = Results.place(case, bench, step.padded_tokens, prefix=prefix)
        planned = results[: step.tokens]
        wrapper.run(
            q=query[: step.tokens],
            k=keys[0],
            v=keys[1],
            k_scale=self._k_scale,
            v_scale=self._v_scale,
            out=planned.out,
            return_lse=True,
            **run_options(self._case, planned),
        )
        return query, results

    def _place_keys(self, step: Step) -> _Keys:
        """Place K and V of all requests, packed, with the layout and the strides that the case asks for."""
        return place_tokens(self._case, self._bench, *self._tokens.packed(step))


def place_tokens(case: Case, bench: Bench, key: torch.Tensor, value: torch.Tensor) -> _Keys:
    """Place K and V [tokens, heads, dim] in guarded memory, with the layout and the strides that the case asks for."""
    memory, view, (_, heads, dim) = bench.memory, case.views.kv, value.shape
    head_major = case.geometry.kv_layout is KvLayout.HND
    if view is KvView.PAIRED:
        both = memory.copy("key_and_value", torch.stack((key, value), dim=1))
        key, value = both[:, 0], both[:, 1]
    elif view is KvView.TOKEN_MAJOR:
        row = dim + case.geometry.head_dim_qk
        with memory.at_once():
            key, value = memory.copy("key", key), memory.copy("value", value, stride=(heads * row, row, 1))
    else:
        order = (1, 0, 2) if head_major else (0, 1, 2)
        with memory.at_once():
            return memory.copy("key", key.permute(order)), memory.copy("value", value.permute(order))
    return (key.transpose(0, 1), value.transpose(0, 1)) if head_major else (key, value)
