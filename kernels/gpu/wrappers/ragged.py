"""FlashInfer's wrapper for keys and values that lie packed, one request after another."""

from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper, WrapperKind
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import KvLayout


def _ragged(backend: str, *, splits: bool) -> WrapperKind:
    names = ("qo_indptr", "kv_indptr")
    return WrapperKind(
        module="flashinfer.prefill",
        name="BatchPrefillWithRaggedKVCacheWrapper",
        backend=backend,
        lists={name: name for name in names},
        buffers={name: f"{name}_buf" for name in names},
        splits=splits,
    )


FA2_RAGGED = _ragged("fa2", splits=True)
FA3_RAGGED = _ragged("fa3", splits=False)


@dataclass(frozen=True, kw_only=True)
class RaggedLayer:
    """What a plan is told of a layer; `sm_scale` multiplies the logits."""

    q_heads: int
    kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    sm_scale: float
    causal: bool = True
    window_left: int = -1
    soft_cap: float = 0.0


class RaggedWrapper:
    """A wrapper in guarded memory. It tells no workspace size, so that its workspaces have the recommended one."""

    def __init__(self, form: WrapperKind, case: Case, bench: Bench, kv_layout: KvLayout = KvLayout.NHD) -> None:
        self._wrapper = Wrapper(form, case, bench, kv_layout.value)

    @property
    def roundings(self) -> int:
        """As in Wrapper."""
        return self._wrapper.roundings

    def plan(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, layer: RaggedLayer) -> None:
        """Plan a batch: request b has the query rows from qo_indptr[b] up to qo_indptr[b + 1], and keys likewise.

        Both are int32 [batch + 1] in guarded memory; the kernel reads them there.
        """
        self._wrapper.plan(
            {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr},
            {
                "num_qo_heads": layer.q_heads,
                "num_kv_heads": layer.kv_heads,
                "head_dim_qk": layer.head_dim_qk,
                "head_dim_vo": layer.head_dim_vo,
                "causal": layer.causal,
                "window_left": layer.window_left,
                "logits_soft_cap": layer.soft_cap,
                "sm_scale": layer.sm_scale,
                "q_data_type": layer.dtype,
                "kv_data_type": layer.kv_dtype,
            },
        )

    def run(
        self,
        *,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        """Launch on what was planned. The scales are those of 8-bit keys and values, None for others."""
        self._wrapper.run(
            {
                "q": q,
                "k": k,
                "v": v,
                "k_scale": k_scale,
                "v_scale": v_scale,
                "out": out,
                "lse": lse,
                "return_lse": True,
            }
        )
