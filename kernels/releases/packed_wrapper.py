"""A stand-in for FlashInfer's wrapper of attention to packed keys, and for its function that merges two states."""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import merge_state_in_place, trtllm_ragged_attention_deepseek
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import MERGE, current
from attnfuzz.kernels.releases.wrappers import PlannedWrapper


def attend_to_packed(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    lse: torch.Tensor | None = None,
    **layer: Any,
) -> None:
    """Attend to packed keys, as FlashInfer's FA2 does: rows without keys are 0, with an LSE of -inf.

    query [tokens, heads, dim], key and value [kv tokens, kv heads, dim], offsets int32 [requests + 1]; lse [tokens,
    heads] in base 2. `layer` are arguments of the native kernel.
    """
    lengths = kv_indptr.diff()
    begin, end = int(qo_indptr[0]), int(qo_indptr[-1])
    out[begin:end] = 0
    if lse is not None:
        lse[begin:end] = -torch.inf
    trtllm_ragged_attention_deepseek(
        query=query,
        key=key,
        value=value,
        workspace_buffer=query,
        seq_lens=lengths,
        max_q_len=0,
        max_kv_len=0,
        bmm2_scale=1.0,
        o_sf_scale=1.0,
        batch_size=len(lengths),
        cum_seq_lens_q=qo_indptr,
        cum_seq_lens_kv=kv_indptr,
        enable_pdl=False,
        return_lse=lse is not None,
        out=out,
        lse=lse,
        **layer,
    )


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
        self._check_rows(query.shape[0])
        made = {"out": torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)}
        if given["return_lse"]:
            made["lse"] = torch.empty(query.shape[:2], dtype=torch.float32)
        name = f"{self.owner}.run"
        current(name).launch(
            Op(name, attend_to_packed, frozenset(made), own=True),
            {
                **made,
                "query": query,
                "key": given["k"],
                "value": value,
                "qo_indptr": self._qo_indptr_buf,
                "kv_indptr": self._kv_indptr_buf,
                "bmm1_scale": self._scale(given),
                "window_left": self._window,
                "is_causal": self._causal,
            },
        )
        return (made["out"], made["lse"]) if given["return_lse"] else made["out"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars."""
        given = self._as_set("forward", args, kwargs)
        return self.run(given["q"], given["k"], given["v"])

    def forward_return_lse(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars. Returns out and LSE [tokens, heads] in base 2."""
        given = self._as_set("forward_return_lse", args, kwargs)
        return self.run(given["q"], given["k"], given["v"], return_lse=True)


def _merge(*, v: torch.Tensor, s: torch.Tensor, v_a: torch.Tensor, s_a: torch.Tensor, **other: torch.Tensor) -> None:
    """Merge two states into (v, s)."""
    v.copy_(v_a)
    s.copy_(s_a)
    merge_state_in_place(v, s, other["v_b"], other["s_b"])


MERGED: Final = Op(MERGE, _merge, frozenset({"v", "s"}), own=True)


def merge_state(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for FlashInfer's function of that name: v [tokens, heads, dim], s [tokens, heads] in base 2."""
    lower = current(MERGE)
    given = lower.bound(MERGE, args, kwargs).arguments
    v, s = torch.empty_like(given["v_a"]), torch.empty_like(given["s_a"])
    lower.launch(MERGED, {"v": v, "s": s, **given})
    return v, s
