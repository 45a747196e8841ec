"""A stand-in for FlashInfer's wrapper of attention to packed keys, and for its function that merges two states."""

from typing import Any

import torch

from attnfuzz.kernels.releases.planned_runs import MERGE_STATES, RAGGED_RUN
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import MERGE, current
from attnfuzz.kernels.releases.wrappers import PlannedWrapper


class PackedWrapper(PlannedWrapper):
    """Stand-in for FlashInfer's wrapper of packed keys, which no server has in a graph."""

    owner = "BatchPrefillWithRaggedKVCacheWrapper"
    copies_metadata = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self._given("__init__", args, kwargs)
        self._kv_layout, self._backend, self._use_cuda_graph = given["kv_layout"], given["backend"], False
        if given["use_cuda_graph"]:
            raise NotImplementedError("a wrapper of packed keys in a graph has no stand-in")

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a batch."""
        given = self._given("plan", args, kwargs)
        if given["custom_mask"] is not None:
            raise NotImplementedError("a mask of packed keys has no stand-in")
        self._qo_indptr_buf, self._kv_indptr_buf = given["qo_indptr"], given["kv_indptr"]
        with outside():
            self._qo_indptr_last = int(self._qo_indptr_buf[-1])
            self._keep({**given, "page_size": 1}, self._kv_indptr_buf.diff(), self._kv_indptr_buf)
        self._causal = given["causal"]

    begin_forward = plan

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries, keys and values [tokens, heads, dim]."""
        given = self._given("run", args, kwargs)
        query, value = given["q"], given["v"]
        made = {"out": torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)}
        if given["return_lse"]:
            made["lse"] = torch.empty(query.shape[:2], dtype=torch.float32)
        arguments = {
            **made,
            "q": query,
            "k": given["k"],
            "v": value,
            "qo_indptr": self._qo_indptr_buf,
            "kv_indptr": self._kv_indptr_buf,
            "sm_scale": self._scale(given),
            "causal": self._causal,
            **({"window_left": self._window} if self._window >= 0 else {}),
            **self._refused(query.shape[0]),
        }
        self._run(RAGGED_RUN, arguments)
        return (made["out"], made["lse"]) if given["return_lse"] else made["out"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars."""
        given = self._as_set("forward", args, kwargs)
        return self.run(given["q"], given["k"], given["v"])

    def forward_return_lse(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars. Returns out and LSE [tokens, heads] in base 2."""
        given = self._as_set("forward_return_lse", args, kwargs)
        return self.run(given["q"], given["k"], given["v"], return_lse=True)


def merge_state(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for FlashInfer's function of that name: v [tokens, heads, dim], s [tokens, heads] in base 2."""
    lower = current(MERGE)
    given = lower.bound(MERGE, args, kwargs).arguments
    v, s = torch.empty_like(given["v_a"]), torch.empty_like(given["s_a"])
    lower.launch(MERGE_STATES, {"v": v, "s": s, **given})
    return v, s
