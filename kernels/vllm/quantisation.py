"""A server's FP8 KV cache: its scales, and whether it quantises queries too.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import math
import random
from dataclasses import dataclass
from typing import Any, Final

import torch

from attnfuzz.kernels.vllm.adaptations import UNIT_Q_SCALE
from attnfuzz.kernels.vllm.kinds import BLACKWELL, Kind
from attnfuzz.reference.case import Case
from attnfuzz.reference.dtypes import DType

_Q_SCALES: Final = (0.5, 2.0, *6 * (1.0,))
"""Powers of two, so that a query and its quotient are both exact. Few checkpoints have others than 1."""

_OFTEN: Final = 3

_SEEDS_OF_A_SERVER: Final = 128
"""Cases whose seeds differ by little have one server: a failure is confirmed with the values of other seeds."""

_OF_POWERS: Final = 0.5
"""The mantissa of powers of two."""


@dataclass(frozen=True)
class Quantisation:
    """The formats of a server's KV cache and queries.

    Attributes:
        cache_dtype: The value of --kv-cache-dtype: "auto" or "fp8".
        queries: Whether queries are quantised too, as a server does by default where the cache is FP8
            (--attention-config.disable_flashinfer_q_quantization).
        q_scale: The checkpoint's scale of queries, which a layer has whatever the dtype of its cache
            (layers/quantization/kv_cache.py:176). A quantised query is a number of FP8 times this.

    """

    cache_dtype: str = "auto"
    queries: bool = False
    q_scale: float = 1.0

    @classmethod
    def of(cls, case: Case, loaded: Any) -> "Quantisation":
        """The formats of the server of a case; those that it does not name follow from its seed.

        FlashInfer's backend alone lets a server choose whether queries are quantised.

        A server that keeps its queries dequantises the cache for a prefill, to the queries' dtype
        (v1/attention/backends/flashinfer.py:2507). This is exact where scales are powers of two, and its kernel takes
        head dims that are: no other case is on such a server.
        """
        chance = random.Random(case.seed // _SEEDS_OF_A_SERVER)
        q_scales = (1.0,) if loaded.kind.interpreted and loaded.release.version in UNIT_Q_SCALE else _Q_SCALES
        if case.geometry.kv_dtype is not DType.FLOAT8_E4M3:
            return cls(q_scale=chance.choice(q_scales))
        if loaded.kind.classes != "FlashInfer":
            return cls("fp8", queries=True, q_scale=chance.choice(q_scales))
        numbers = (case.scales.k, case.scales.v, case.geometry.head_dim_qk)
        exact = all(math.frexp(number)[0] == _OF_POWERS for number in numbers)
        return cls("fp8", not exact or chance.randrange(_OFTEN) > 0, chance.choice(q_scales))

    def dequantises(self, kind: Kind) -> bool:
        """Whether prefills dequantise the cache, since only trtllm-gen's kernels run them and don't take queries."""
        return self.quantised and not self.queries and kind.gpu == BLACKWELL

    @property
    def quantised(self) -> bool:
        """Whether the cache is quantised."""
        return self.cache_dtype != "auto"

    def rounded(self, query: torch.Tensor) -> torch.Tensor:
        """The queries of a model that loses nothing by quantising them: the nearest numbers of FP8, scaled."""
        return query if not self.queries else (self._divided(query).to(query.dtype) * self.q_scale)

    def given(self, query: torch.Tensor, impl: Any) -> torch.Tensor:
        """A layer's query as its backend `impl` gets it (layers/attention/attention.py:526)."""
        return self._divided(query) if self.queries and impl.supports_quant_query_input else query

    def new(self, tokens: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
        """The keys or values of a model whose numbers in the cache are `tokens`."""
        return (tokens.float() * scale).to(dtype) if self.quantised else tokens

    def layer(self, case: Case) -> dict[str, Any]:
        """The attributes of a layer with the scales of a checkpoint: those of a cache in 16 bits are 1."""
        scales = {"_q_scale": self.q_scale, "_k_scale": case.scales.k, "_v_scale": case.scales.v}
        tensors = {name: torch.tensor(scale, dtype=torch.float32) for name, scale in scales.items()}
        return {**tensors, **{f"{name}_float": scale for name, scale in scales.items()}}

    def _divided(self, query: torch.Tensor) -> torch.Tensor:
        largest = torch.finfo(torch.float8_e4m3fn).max
        return (query / self.q_scale).clamp(-largest, largest).to(torch.float8_e4m3fn)
