"""FlashInfer's kernels on ranks that share keys, where a rank may have no keys of a request.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.planned_runs import RAGGED_RUN
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import current


def _without_empty_requests(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Let a kernel leave rows of requests without keys unwritten, like trtllm-gen's (flashinfer.py:397)."""

    def attend(*, out: torch.Tensor, seq_lens: torch.Tensor, lse: torch.Tensor | None = None, **given: Any) -> None:
        starts = given.get("cum_seq_lens_q")
        if starts is None:
            starts = torch.arange(len(seq_lens) + 1) * given.get("q_len_per_req", 1)
        rows = (seq_lens == 0).repeat_interleave(starts.diff()).nonzero().flatten() + starts[0]
        results = [out] if lse is None else [out, lse]
        before = [result[rows] for result in results]
        kernel(out=out, seq_lens=seq_lens, lse=lse, **given)
        for result, kept in zip(results, before, strict=True):
            result[rows] = kept

    return attend


class BatchPrefillWithRaggedKVCacheWrapper:
    """Stand-in for FlashInfer's prefill wrapper on packed keys, which vLLM plans on the host (flashinfer.py:504)."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        del float_workspace_buffer
        if kv_layout != "NHD":
            raise NotImplementedError("a wrapper of packed keys only has a stand-in for the layout NHD")

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        *,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
    ) -> None:
        """Plan a batch, whose boundaries are copied to the device."""
        if logits_soft_cap:
            raise NotImplementedError("a wrapper of packed keys has no stand-in with soft caps")
        with outside():
            self._starts, self._key_starts = qo_indptr.clone(), kv_indptr.clone()
        self._query = (num_qo_heads, head_dim_qk)
        self._key, self._value = (num_kv_heads, head_dim_qk), (num_kv_heads, head_dim_vo or head_dim_qk)
        self._causal, self._window_left, self._dtype = causal, window_left, q_data_type
        self._sm_scale, self._logits_soft_cap = sm_scale or head_dim_qk**-0.5, 0.0

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Run the plan on queries and keys [tokens, heads, dim]. The LSE is [tokens, heads] in base 2."""
        for name, found, due in (("q", q, self._query), ("k", k, self._key), ("v", v, self._value)):
            if found.dtype != self._dtype or found.shape[1:] != due:
                shape = tuple(found.shape)
                raise ValueError(f"{name} is {found.dtype} {shape}, and {self._dtype} [tokens, {due}] was planned")
        out = torch.empty(*q.shape[:2], self._value[1], dtype=q.dtype)
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        packed = {
            "out": out,
            "lse": lse,
            "q": q,
            "k": k,
            "v": v,
            "qo_indptr": self._starts,
            "kv_indptr": self._key_starts,
            "sm_scale": self._sm_scale,
            "causal": self._causal,
            "leaves_empty_rows": True,
            **({"window_left": self._window_left} if self._window_left >= 0 else {}),
        }
        current(RAGGED_RUN.name).launch(RAGGED_RUN, packed)
        return (out, lse) if return_lse else out


_ATTENTION: Final = (NATIVE.context, NATIVE.decode)

OPS: Final = (*(replace(op, function=_without_empty_requests(op.function)) for op in _ATTENTION), RAGGED_RUN)
"""The run of that wrapper; replacements of native kernels, which write zeros and an LSE of -inf to such rows."""
