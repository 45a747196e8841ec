"""FlashInfer's decode wrapper on tensor cores, which takes several queries of a request, and its variant for graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.wrappers.backends import (
    CAPPED,
    DECODE_BUCKETS,
    EIGHT_BITS,
    PLAIN,
    WINDOWED,
    capability_of,
    decode_modules,
    decode_noise,
    fa2_noise,
    fa2_paged_modules,
    fa3_noise,
    prefill_modules,
    wrapper_backend,
)
from attnfuzz.kernels.gpu.wrappers.life import IN_GRAPHS
from attnfuzz.kernels.gpu.wrappers.paged import DECODE, PagedForm, PagedWrapper, PageLists
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.kernels.interface.backend import Output, Unsupported
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, Step
from attnfuzz.reference.geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class TensorCoreForm(PagedForm):
    """BatchDecodeWithPagedKVCacheWrapper(use_tensor_cores=True), whose kernels are those of prefill."""

    def constructed(self, geometry: Geometry, common: Mapping[str, Any], *, in_graph: bool) -> dict[str, Any]:
        """See `WrapperKind`."""
        return {**super().constructed(geometry, common, in_graph=in_graph), "use_tensor_cores": True}


def _tensor_cores(backend: str, *, splits: bool) -> TensorCoreForm:
    return TensorCoreForm(**{**vars(DECODE), "backend": backend, "splits": splits})


FA2_DECODE: Final = _tensor_cores("fa2", splits=True)
FA3_DECODE: Final = _tensor_cores("fa3", splits=False)


_QUERIES: Final = "q_len_per_req"


class TensorCoreDecode(PagedWrapper):
    """A wrapper whose plan says how many queries each request has: as many as all others."""

    def reserve_for(self, lists: PageLists) -> bool:
        """See `PagedWrapper`."""
        self._set_queries(lists)
        return super().reserve_for(lists)

    def plan_batch(
        self,
        lists: PageLists,
        placed: PageLists,
        mask: Mapping[str, Any] | None = None,
        layer: Mapping[str, Any] | None = None,
    ) -> None:
        """See `PagedWrapper`."""
        self._set_queries(lists)
        others = None if layer is None else {**layer, _QUERIES: self.layer[_QUERIES]}
        super().plan_batch(lists, placed, mask, others)

    def _set_queries(self, lists: PageLists) -> None:
        batch = max(1, len(lists.last_page_len))
        queries = int(lists.qo_indptr[-1]) // batch
        page = self.layer["page_size"]
        keys = (lists.kv_indptr.diff() - 1).clamp(min=0) * page + lists.last_page_len
        if queries > 1 and bool((keys < queries).any()):
            # ValueError of _plan_impl: "q_len_per_req=... requires kv_len >= q_len_per_req for every request".
            raise Unsupported(f"{queries} queries of a request with fewer keys")
        self.layer = {**self.layer, _QUERIES: max(1, queries)}


class TensorCoreDecodeSession(PagedWrapperSession):
    """A session on tensor cores."""

    wrapper_type = TensorCoreDecode


@dataclass(frozen=True, kw_only=True)
class GraphForm(PagedForm):
    """CUDAGraphBatchDecodeWithPagedKVCacheWrapper, whose metadata always lie in buffers."""

    tensor_cores: bool

    def constructed(self, geometry: Geometry, common: Mapping[str, Any], *, in_graph: bool) -> dict[str, Any]:
        """See `WrapperKind`."""
        del geometry, in_graph
        return {
            "workspace_buffer": common["float_workspace_buffer"],
            "kv_layout": common["kv_layout"],
            "use_tensor_cores": self.tensor_cores,
        }


def _for_graphs(*, tensor_cores: bool) -> GraphForm:
    return GraphForm(
        **{
            **vars(DECODE),
            "name": "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
            "buffers": {ours: f"{theirs}_buffer" for ours, theirs in DECODE.lists.items()},
        },
        tensor_cores=tensor_cores,
    )


class GraphDecodeSession(PagedWrapperSession):
    """A session whose eager steps have buffers too, of exactly their size: each has a wrapper of its own."""

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        case, bench, rows = self._case, self._bench, self._planned_rows(step)
        buffers = PageLists.reserve(bench, len(rows), self._stale_ids([rows]))
        wrapper = self.wrapper_type(self._form, case, bench, self._sm_scale, buffers)
        lists = PageLists.of(case, self._table, rows)
        self._live(wrapper, rows, [use for use in case.life if use in IN_GRAPHS])
        wrapper.plan_batch(lists, lists.placed(bench))
        if EarlierUse.RAN_BEFORE in case.life:
            self._run_another_layer(wrapper, rows, queries)
        self._let_neighbour_run(wrapper, rows, queries)
        query, results = self._placed(step, queries)
        self._launch(wrapper, rows, query, results)
        return self._rounded(self._output(step, rows, query, results), wrapper)

    def _neighbour_of(self, wrapper: PagedWrapper, rows: Sequence[Row]) -> PagedWrapper:
        buffers = PageLists.reserve(self._bench, len(rows), self._stale_ids([rows]))
        return self.wrapper_type(self._form, self._case, self._bench, self._sm_scale, buffers, neighbour=wrapper)


class GraphTensorCoreDecodeSession(GraphDecodeSession):
    """The same on tensor cores."""

    wrapper_type = TensorCoreDecode


def without_short_requests(capability: Capability) -> Capability:
    """Return a capability whose requests have no keys, or at least as many as queries."""
    return msgspec.structs.replace(capability, empty_kv=True, kv_shorter_than_q=False)


_DECODES: Final = (Mode.DECODE,)
_VERIFIES: Final = (Mode.DECODE, Mode.TARGET_VERIFY)

DECODE_VARIANTS: Final = (
    wrapper_backend(
        "batch_decode_tensor_cores",
        TensorCoreDecodeSession,
        FA2_DECODE,
        without_short_requests(capability_of(_VERIFIES, _VERIFIES, PLAIN, EIGHT_BITS, CAPPED)),
        fa2_noise,
        rules.TENSOR_CORE_DECODE,
        lives.of_decode_on_tensor_cores,
        fa2_paged_modules,
    ),
    # "q_len_per_req > 1 is currently only supported on the fa2 tensor-core backend" (_plan_impl).
    wrapper_backend(
        "fa3_batch_decode",
        TensorCoreDecodeSession,
        FA3_DECODE,
        capability_of(_DECODES, _DECODES, PLAIN, WINDOWED),
        fa3_noise,
        rules.FA3_DECODE,
        lives.of_decode,
        partial(prefill_modules, backend="fa3"),
    ),
    wrapper_backend(
        "cuda_graph_decode",
        GraphDecodeSession,
        _for_graphs(tensor_cores=False),
        capability_of(_DECODES, _DECODES, *DECODE_BUCKETS),
        decode_noise,
        rules.GRAPH_DECODE,
        lives.of_graph_decode,
        decode_modules,
    ),
    wrapper_backend(
        "cuda_graph_decode_tensor_cores",
        GraphTensorCoreDecodeSession,
        _for_graphs(tensor_cores=True),
        without_short_requests(capability_of(_VERIFIES, _VERIFIES, PLAIN, EIGHT_BITS, CAPPED)),
        fa2_noise,
        rules.GRAPH_TENSOR_CORE_DECODE,
        lives.of_graph_decode,
        fa2_paged_modules,
    ),
)
