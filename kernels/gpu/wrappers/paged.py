"""FlashInfer's wrappers for a paged KV cache, of which each has other names for the same things."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.wrappers.pages import PageLists
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper, WrapperKind
from attnfuzz.reference.case import Case


@dataclass(frozen=True, kw_only=True)
class PagedForm(WrapperKind):
    """A wrapper for a paged KV cache. `dims` are its plan's names for the head dims, `fixed` what plans always say."""

    dims: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)


_PREFILL_LISTS = {
    "qo_indptr": "qo_indptr",
    "kv_indptr": "paged_kv_indptr",
    "kv_indices": "paged_kv_indices",
    "last_page_len": "paged_kv_last_page_len",
}
_DECODE_LISTS = {"kv_indptr": "indptr", "kv_indices": "indices", "last_page_len": "last_page_len"}


def _prefill(backend: str, *, splits: bool) -> PagedForm:
    return PagedForm(
        module="flashinfer.prefill",
        name="BatchPrefillWithPagedKVCacheWrapper",
        backend=backend,
        lists=_PREFILL_LISTS,
        buffers={ours: f"{theirs}_buf" for ours, theirs in _PREFILL_LISTS.items()},
        dims=("head_dim_qk", "head_dim_vo"),
        fixed={"causal": True},
        splits=splits,
    )


FA2_PAGED = _prefill("fa2", splits=True)
FA3_PAGED = _prefill("fa3", splits=False)

DECODE = PagedForm(
    module="flashinfer.decode",
    name="BatchDecodeWithPagedKVCacheWrapper",
    backend="fa2",
    lists=_DECODE_LISTS,
    buffers={ours: f"paged_kv_{theirs}_buffer" for ours, theirs in _DECODE_LISTS.items()},
    dims=("head_dim",),
    zero_floats=True,
)
"""Without use_tensor_cores: the kernel on CUDA cores."""


class PagedWrapper:
    """A wrapper for a case's layer, whose logits are multiplied by `sm_scale`; for graphs if there are `buffers`."""

    def __init__(
        self, form: PagedForm, case: Case, bench: Bench, sm_scale: float, buffers: PageLists | None = None
    ) -> None:
        geometry = case.geometry
        self._form = form
        self._layer: dict[str, Any] = {
            "num_qo_heads": geometry.q_heads,
            "num_kv_heads": geometry.kv_heads,
            **dict(zip(form.dims, (geometry.head_dim_qk, geometry.head_dim_vo), strict=False)),
            "page_size": geometry.page_size,
            "window_left": geometry.window_left,
            "logits_soft_cap": geometry.soft_cap,
            "sm_scale": sm_scale,
            "q_data_type": geometry.dtype.torch_dtype,
            "kv_data_type": geometry.kv_dtype.torch_dtype,
            **form.fixed,
        }
        self._wrapper = Wrapper(form, case, bench, geometry.kv_layout.value, None if buffers is None else vars(buffers))

    @property
    def roundings(self) -> int:
        """As in Wrapper."""
        return self._wrapper.roundings

    def reserve(self, lists: PageLists) -> bool:
        """As in Wrapper, for a batch whose lists lie on the host."""
        return self._wrapper.reserve({**self._lists(lists), **self._layer})

    def plan(self, lists: PageLists, placed: PageLists) -> None:
        """Plan a batch, whose lists lie on the host and in guarded memory."""
        self._wrapper.plan(self._lists(placed), self._layer, self._lists(lists))

    def plan_another_layer(self, lists: PageLists, placed: PageLists) -> None:
        """Plan the batch for a layer with other logits, and without a causal mask where a plan can say so."""
        others = {"causal": False} if "causal" in self._layer else {}
        layer = {**self._layer, **others, "sm_scale": 2 * self._layer["sm_scale"]}
        self._wrapper.plan(self._lists(placed), layer, self._lists(lists))

    def run(self, **arguments: Any) -> None:
        """Launch on what was planned."""
        self._wrapper.run(arguments)

    def _lists(self, lists: PageLists) -> dict[str, torch.Tensor]:
        return {theirs: getattr(lists, ours) for ours, theirs in self._form.lists.items()}
