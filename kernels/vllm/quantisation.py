"""A server's FP8 KV cache: its scales, and whether it quantises queries too.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.vllm.kinds import BLACKWELL, BackendKind
from attnfuzz.reference.case import Case
from attnfuzz.reference.dtypes import DType


@dataclass(frozen=True)
class Quantisation:
    """The formats of a server's KV cache and queries.

    Attributes:
        cache_dtype: The value of --kv-cache-dtype: "auto" or "fp8".
        queries: Whether queries are quantised too, the default with an FP8 cache. Only the FlashInfer backend lets a
            server choose (--attention-config.disable_flashinfer_q_quantization); it then dequantises the cache for a
            prefill (v1/attention/backends/flashinfer.py:2507).
        q_scale: The checkpoint's scale of queries, which a layer has for any dtype of its cache
            (layers/quantization/kv_cache.py:176). A quantised query is an FP8 number times this.

    """

    cache_dtype: str = "auto"
    queries: bool = False
    q_scale: float = 1.0

    @classmethod
    def of(cls, case: Case) -> "Quantisation":
        """Return the formats of the server of a case."""
        quantised = case.geometry.kv_dtype is DType.FLOAT8_E4M3
        return cls("fp8" if quantised else "auto", quantised and not case.queries.kept, case.queries.scale)

    def dequantises(self, kind: BackendKind) -> bool:
        """Return whether prefills dequantise the cache: trtllm-gen's kernels run them, and don't take such queries."""
        return self.quantised and not self.queries and kind.gpu == BLACKWELL

    @property
    def quantised(self) -> bool:
        """Whether the cache is quantised."""
        return self.cache_dtype != "auto"

    def rounded(self, query: torch.Tensor) -> torch.Tensor:
        """Return `query` rounded to scaled FP8 numbers, so that quantising it is exact."""
        return query if not self.queries else (self._divided(query).to(query.dtype) * self.q_scale)

    def given(self, query: torch.Tensor, impl: Any) -> torch.Tensor:
        """Return a layer's query as it is passed to its backend `impl` (layers/attention/attention.py:526)."""
        return self._divided(query) if self.queries and impl.supports_quant_query_input else query

    def new(self, tokens: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
        """Return the model's keys or values that are stored as `tokens` in the cache."""
        return (tokens.float() * scale).to(dtype) if self.quantised else tokens

    def layer(self, case: Case, device: torch.device) -> dict[str, Any]:
        """Return the layer attributes for a checkpoint's scales, which are 1 for a 16-bit cache."""
        scales = {"_q_scale": self.q_scale, "_k_scale": case.scales.k, "_v_scale": case.scales.v}
        tensors = {name: torch.tensor(scale, dtype=torch.float32, device=device) for name, scale in scales.items()}
        return {**tensors, **{f"{name}_float": scale for name, scale in scales.items()}}

    def _divided(self, query: torch.Tensor) -> torch.Tensor:
        largest = torch.finfo(torch.float8_e4m3fn).max
        return (query / self.q_scale).clamp(-largest, largest).to(torch.float8_e4m3fn)
